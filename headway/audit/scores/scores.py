"""Audits of the scores themselves: was the right split scored, and is the number right?

Nothing here trusts the scorer. Splits are read again from their source; scores are computed again by their plain
definitions (headway/audit/scores/recount.py); the checkpoint is checked against the evaluations in metrics.jsonl.
"""

import math

from headway.audit.audit import Audit, DoesNotApply, Outcome, Report, audit, failed, passed, run_audits
from headway.audit.probe import TINY
from headway.audit.scores.recount import Counted
from headway.audit.scores.scored import ScoredRun
from headway.core.status import State
from headway.run.folder import Run
from headway.run.record import read_json
from headway.scoring.metrics import LOSS, METRICS

NEAR = 2e-5
"""Relative tolerance of a loss, for float32 sums in another order."""
AGAIN = 1e-3
"""Relative tolerance of a loss that may have been computed on another machine."""
ROUNDED = 2e-2
"""Relative tolerance of a loss that was computed partly in bf16."""
DEVIATIONS = 6
"""Standard errors by which the loss of a part may differ from that of the whole."""


@audit("scores")
def scored_split(scored: ScoredRun) -> Outcome:
    """Each scored split is what the source has under its name.

    Every split that was scored is read from its file again, tokenized again with the run's own tokenizer, and compared
    with what the scorer reads, token by token (for classifiers: row by row, with the classes). A split that was cut off
    train must be disjoint from train, and train must be what its file has. There is no threshold. If it fails, the
    score is of something else: look for the wrong file, for splits that overlap, and for missing rows or tokens.
    """
    for split, recount in scored.recounts.items():
        if (difference := recount.difference) is not None:
            return failed(None, f"the scored split {split} differs from its source: {difference}")
    if (difference := scored.task.evidence.train_again) is not None:
        return failed(None, f"the train split that was used differs from its source: {difference}")
    names = " and ".join(scored.recounts)
    return passed(0, f"the scored data of {names} are those of the source, read again")


@audit("scores")
def scores_again(scored: ScoredRun) -> Outcome:
    """Every score equals its plain definition.

    Scores are computed a second time by a few lines that share no code with the scorer. Of a language model: windows by
    a plain loop, log-softmax in float64, the nats of every scored token, and from them loss, perplexity per token and
    per word, and bits per byte. Of a classifier: rows one length at a time, without padding, softmax, the likeliest
    class, and counts. Of a translator: loss and counts likewise, and from the stored translations with their n-grams
    BLEU and chrF; some translations, unless they were sampled, are decoded again without a KV cache. Whole splits are
    compared with the stored scores if that takes about a second. Of large splits, parts at the beginning, in the middle
    and at the end are compared with the scorer's result for them, and the stored score must be within six standard
    errors of the parts (if it is not, thousands of rows are computed, since the loss may be concentrated in few of
    them). Scores of one split must also cover all of it: the nats per token and per word show how many there were, and
    an interval shows how many rows. The replicas of a population are computed in one pass, and each must give the same
    outputs as alone. Two sums of the same numbers differ by less than a millionth; the threshold is a fifty-thousandth
    of the loss, and for counts the rows that are too close to call. If it fails, the reported number is not what its
    name says: look for label smoothing or a temperature in the loss, tokens or sentences left out or counted twice,
    active dropout, the wrong base of a logarithm, a mean of the wrong thing, and weights of another checkpoint.
    """
    if not scored.apart <= TINY:
        return failed(
            scored.apart, f"in the population its outputs differ from those it has alone, by {scored.apart:.2g}"
        )
    worst, compared, parts = 0.0, 0, []
    for split, found in scored.recomputed.items():
        for what, _, said, counted, at_odds in found:
            for name in [name for name in counted.values if name in said]:  # the loss first
                value, right = said[name].value, counted.values[name]
                off = _off(name, value, counted)
                if not off <= 1:
                    sentence = f"{split}.{name} is stored as {value:.6g}; computed again ({what}) it is {right:.6g}"
                    return failed(off * NEAR, sentence)
                worst, compared = max(worst, off), compared + 1
            if at_odds is not None:
                return failed(None, f"{what}: {at_odds}")
        parts += [found[0].what]
        if not found[0].is_whole and (off := _off_parts(scored, split)) is not None:
            return failed(None, off)
        recount, stored = scored.recounts[split], scored.scores[split]
        off = recount.not_of_the_whole(stored)
        if off is None and not found[0].is_whole:
            off = recount.at_odds(recount.whole, stored)
        if off is not None:
            return failed(None, f"{split}: {off}")
    if not compared:
        raise DoesNotApply("no score could be computed again")
    return passed(worst * NEAR, f"scores computed again by their definitions are the same ({', '.join(parts)})")


@audit("scores")
def kept_checkpoint(scored: ScoredRun) -> Outcome:
    """The scored checkpoint is the right one: the best if training.keep_best is set, else the last.

    With training.keep_best the evaluation at the checkpoint's step must be the best of all in metrics.jsonl, by
    training.best_by, on the first split of training.evaluate_on; without it, no step may come after it. And its
    weights, evaluated again, must give the loss that was recorded at that step, within a thousandth (2 % if training
    computed in bf16). If it fails, the scores are of other weights than they should be: look at what is compared when a
    new best is stored, and at when it is saved.
    """
    recipe, losses = scored.run.recipe, scored.evaluations
    if scored.run.status.state not in (State.FINISHED, State.STOPPED):
        raise DoesNotApply(f"training did not finish: {scored.run.status}")
    if not losses:
        raise DoesNotApply("nothing was evaluated during training")
    if recipe.training.keep_best:
        on = recipe.training.evaluate_on[0]
        by = recipe.training.best_by
        sign, by_step = METRICS[by].sign, scored.evaluated(f"{on}.{by}")
        best = max(by_step, key=lambda step: sign * by_step[step])
        here = by_step.get(scored.step, math.nan)
        if not sign * here >= sign * by_step[best]:
            with_a = f"with {'an' if by[0] in 'aeiou' else 'a'} {by} of {here:.4g} on {on}"
            sentence = f"the checkpoint stored as the best is of step {scored.step:,}, {with_a}"
            return failed(here - by_step[best], f"{sentence}; at step {best:,} it was {by_step[best]:.4g}")
    last = max(line["step"] for line in scored.run.metrics())
    if not recipe.training.keep_best and scored.step < last:
        return failed(last - scored.step, f"step {scored.step:,} is scored, but training went on to step {last:,}")
    if scored.step not in losses:
        raise DoesNotApply(f"nothing was evaluated at step {scored.step:,}")
    again, worst = scored.evaluated_again, 0.0
    for split, then in losses[scored.step].items():
        now = again.get(f"{split}.{LOSS.name}", math.nan)
        off = abs(now - then) / max(then, 0.1)
        if not off <= (AGAIN if in_float32(scored.run) else ROUNDED):
            sentence = f"the scored weights give {now:.5g} on the part of {split} that was evaluated"
            return failed(off, f"{sentence}; at step {scored.step:,}, when they were stored, it was {then:.5g}")
        worst = max(worst, off)
    which = f"is the best by {recipe.training.best_by}" if recipe.training.keep_best else "is the last"
    return passed(worst, f"the scored checkpoint, of step {scored.step:,}, {which}, and gives its recorded loss again")


@audit("scores")
def score_and_curve(scored: ScoredRun) -> Outcome:
    """The score of a split agrees with its evaluations during training.

    The loss on the whole split, after training, is compared with the evaluation of a part of it at the step of the
    checkpoint. They may differ by six standard errors of such a part (from the spread of the split's windows or rows),
    plus 5 % of the loss, plus another 20 % if the split is scored in other windows than it is evaluated in. If it
    fails, one of the two is wrong, or the evaluated part is not typical of the rest: set training.evaluate_tokens to
    null.
    """
    recipe, compared = scored.run.recipe, []
    for split, then in scored.evaluations.get(scored.step, {}).items():
        now = scored.stored.get(split, {}).get(LOSS.name)
        if now is None:
            continue
        same = recipe.reading == (recipe.segment, recipe.segment, recipe.carries)
        tolerated = (0.05 if same else 0.25) * max(then, 0.1)
        whole = scored.recounts[split].size(scored.recounts[split].whole) / recipe.segment
        there = min(whole, (recipe.training.evaluate_tokens or math.inf) / recipe.segment)
        allowed = 0.0
        for pieces in scored.pieces(split):
            allowed = DEVIATIONS * float(pieces.std()) / math.sqrt(max(1.0, there)) + tolerated
            if abs(now - then) <= allowed:
                break
        if not abs(now - then) <= allowed:
            sentence = f"the loss on {split} is scored as {now:.4g}, and was {then:.4g} when it was evaluated"
            return failed(now - then, f"{sentence} at step {scored.step:,}: only {allowed:.2g} could be chance")
        compared.append(f"{now:.4g} on {split}, evaluated as {then:.4g}")
    if not compared:
        raise DoesNotApply("no scored split was evaluated with these weights during training")
    return passed(None, f"the scored loss agrees with the evaluations: {'; '.join(compared)}")


SCORE_AUDITS: tuple[Audit, ...] = (scored_split, scores_again, kept_checkpoint, score_and_curve)


def audit_scores(scored: ScoredRun) -> Report:
    """Run the audits of the scores of one run."""
    reason = None
    if not scored.stored:
        reason = "nothing was scored"
    elif not scored.is_finite:
        reason = "the weights are not finite numbers"
    if reason is None:
        return run_audits(SCORE_AUDITS, scored) + scored.task.evidence.audit_answers(scored)
    return Report(not_run={one.name: reason for one in SCORE_AUDITS})


def in_float32(run: Run) -> bool:
    """Whether training computed in float32."""
    precision = run.recipe.training.precision
    if precision == "auto" and (run.folder / "environment.json").exists():
        return not str(read_json(run.folder / "environment.json").get("device", "")).startswith("cuda")
    return precision == "float32"


def _off(name: str, said: float, counted: Counted) -> float:
    """The difference in units of the tolerance."""
    right = counted.values[name]
    if not math.isfinite(said) and not math.isfinite(right):
        return 0.0
    is_ratio = name in METRICS and METRICS[name].is_ratio
    if is_ratio:
        said, right = (math.log(said) if said > 0 else math.nan), math.log(right)
    if name in ("loss", "bits_per_byte") or is_ratio:
        return abs(said - right) / (NEAR * max(abs(right), 0.1))
    return abs(said - right) / (NEAR + counted.loose.get(name, 0.0))


def _off_parts(scored: ScoredRun, split: str) -> str | None:
    """A sentence if the stored loss disagrees with that of the recomputed parts."""
    stored, off = scored.stored[split].get(LOSS.name), None
    for pieces in scored.pieces(split):
        if stored is None or len(pieces) < 3:
            return None
        mean = float(pieces.mean())
        allowed = DEVIATIONS * float(pieces.std(ddof=1)) / math.sqrt(len(pieces)) + 0.05 * max(mean, 0.1)
        if abs(stored - mean) <= allowed:
            return None
        off = f"the loss on {split} is stored as {stored:.4g}; parts of it, computed again, have {mean:.4g}"
        off = f"{off} ± {allowed:.2g}"
    return off
