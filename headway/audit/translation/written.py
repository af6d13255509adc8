"""Audits of what a translator writes: is it a translation, and does it depend on nothing but its source?

Some sources of the split that the score is judged by are decoded as for the score. The audits look for the typical
faults of bad translators: copying, stopping too early or never, and repetition.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.translation import searching
from headway.data.pairs.dataset import ids_of
from headway.scoring.translation import Translated, decoded, translated

ROWS = 64
SOURCES_ALONE = 6
LOGIT_FACTORS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.05)
"""Factors on the logits; the first that makes the model uncertain enough is used."""
FAVOURS_LONG = 16.0
"""A length penalty with which longer hypotheses always win, however unlikely."""
LOOP_REPEATS = 4
"""Minimum number of consecutive repetitions of a loop."""


@dataclass(frozen=True)
class Written:
    """Some translations, with the model and settings that made them."""

    model: Any
    pairs: Any
    """As the scorer has them."""
    tokenizer: Any
    """The tokenizer of targets."""
    decoding: Any
    """The recipe's decoding."""

    @classmethod
    def of(cls, scored: Any, split: str) -> "Written":
        task = scored.task
        pairs = task.data.split(split)
        rows = np.unique(np.linspace(0, len(pairs) - 1, ROWS).astype(int))
        return cls(scored.model, pairs.only(rows), task.data.target_tokenizer, task.recipe.scoring.decoding)

    @cached_property
    def found(self) -> Translated:
        return translated(self.model, self.pairs, self.tokenizer, self.decoding)[0]


@audit("scores")
def copied_sources(written: Written) -> Outcome:
    """Translations are not copies of their sources.

    The share of translations that equal their source, ignoring white space, is compared with the same share of
    references. 10 points more is a warning, 50 points more a failure: the translator has learnt that copying costs
    little, as it does if train has many untranslated rows (data.filters.untranslated).
    """
    shares = [_share_equal(written.found.sources, texts) for texts in (written.found.texts, written.found.references)]
    excess = shares[0] - shares[1]
    says = (
        f"{shares[0]:.0%} of {len(written.found.texts)} translations equal their source, {shares[1]:.0%} of references"
    )
    return (failed if excess > 0.5 else warned if excess > 0.1 else passed)(excess, says)


@audit("scores")
def length_ratio(written: Written) -> Outcome:
    """Translations are about as long as references.

    The number of tokens of all translations is divided by that of all references. BLEU penalises short output and
    rewards nothing for length: outside of 0.8 to 1.25 is a warning, outside of 0.5 to 2 a failure. Short output comes
    from a beam without a length penalty, long output from translations that do not end.
    """
    ours = sum(len(one.tokens) for one in written.found.best)
    theirs = int((written.pairs.target.lengths - 1).sum())
    if not theirs:
        raise DoesNotApply("all references are empty")
    ratio = ours / theirs
    says = f"translations have {ratio:.2f} times the tokens of references"
    off = abs(math.log(ratio)) if ratio else math.inf
    return (failed if off > math.log(2) else warned if off > math.log(1.25) else passed)(ratio, says)


@audit("scores")
def repetition_loops(written: Written) -> Outcome:
    """Translations do not repeat themselves, and end with END.

    An n-gram of one to four tokens that is repeated four times in a row is a loop, unless the reference has one, too;
    so is a translation that reached the length limit. Above 2 % of the translations it is a warning, above 20 % a
    failure. A translator that loops has lost the source: train it longer, or decode with a beam and no_repeat.
    """
    found = written.found
    references = ids_of(written.pairs.target)
    loops = [
        one.cut or (_has_loop(one.tokens) and not _has_loop(right.tolist()))
        for one, right in zip(found.best, references, strict=True)
    ]
    share = sum(loops) / len(loops)
    says = f"{sum(loops)} of {len(loops)} translations repeat themselves or do not end"
    if share:
        text = found.texts[loops.index(True)]
        says += f", such as “{text[:60]}{'…' if len(text) > 60 else ''}”"
    return (failed if share > 0.2 else warned if share > 0.02 else passed)(share, says)


@audit("scores")
def decoded_alone(written: Written) -> Outcome:
    """A source gets the same translation alone as in a batch, with or without a KV cache.

    Six sources are decoded once more, one at a time and with everything recomputed for every token, and each
    translation must be as likely as before, within a thousandth. (Sums of another shape round differently, so ties may
    be broken differently, and the words may differ then.) If it fails, scores depend on the batch size: look for
    padding that is read, and for a cache that is mixed up when rows leave the batch or hypotheses are reordered.
    """
    rows = np.arange(min(SOURCES_ALONE, len(written.pairs)))
    some = written.pairs.only(rows)
    if written.decoding.kind == "sampled":
        raise DoesNotApply("translations are sampled, and depend on their rows' indices")
    alone = decoded(written.model, ids_of(some.source), some.target.end, written.decoding, cached=False, at_once=1)[0]
    worst = 0.0
    for k, (mine,) in enumerate([best[:1] for best in alone]):
        ours = written.found.best[k]
        off = abs(mine.nats - ours.nats) / max(mine.nats, 0.1)
        if not off <= 1e-3:
            one, other = (f"“{written.tokenizer.decode(h.tokens)[:50]}” ({h.nats:.4g} nats)" for h in (mine, ours))
            return failed(off, f"for the same source, decoding alone gives {one}, decoding in a batch {other}")
        worst = max(worst, off)
    return passed(
        worst, f"{len(rows)} sources get the same translations alone, without a cache, as in a batch with one"
    )


@audit("scores")
def searched(written: Written) -> Outcome:
    """Decoding finds what its search should find, also when the model is uncertain.

    A confident model hides errors of a search: whichever hypotheses are kept, the output is the same. So all logits are
    scaled down until the likeliest token has a probability of at most one half, and six sources are decoded as the
    recipe says, in a batch with a KV cache, but with at most a quarter of the source's length plus eight tokens; with
    no_repeat, once more with a higher limit and a length penalty that favours long output. A plain search, one source
    at a time with everything recomputed for every token, must give the three best hypotheses the same scores, within a
    thousandth (or the best one, if no more are kept). If tokens are sampled, those for 64 sources must be among the
    ones that top-k and top-p keep, and as surprising on average as the temperature makes them, within five standard
    errors. If it fails, look for a length penalty that is not used, or uses another length, for an END that is counted
    twice or not at all, for repeated n-grams, for hypotheses that are reordered in one part of the cache and not in
    another, and for an inverted temperature.
    """
    how, most = written.decoding, None if written.model.spec.limit is None else written.model.spec.context - 1
    if how.kind not in ("greedy", "beam", "sampled"):
        raise DoesNotApply("this way of decoding has no second implementation")
    asked = _LessConfident(written.model, written.pairs.target.end, how, most)
    sources = [ids for ids in ids_of(written.pairs.source) if len(ids)]
    if not sources:
        raise DoesNotApply("all sources are empty")
    with searching.scaled_logits(written.model, asked.logit_factor(sources)):
        return (
            asked.drawn(sources) if how.kind == "sampled" and how.temperature else asked.found(sources[:SOURCES_ALONE])
        )


@dataclass(frozen=True)
class _LessConfident:
    """A translator whose logits are scaled down so that it is uncertain."""

    model: Any
    end: int
    """END of targets."""
    how: Any
    """The recipe's decoding."""
    most: int | None
    """Maximum number of tokens of a target; None = any number."""

    def found(self, sources: Sequence[np.ndarray]) -> Outcome:
        worst, compared = 0.0, 0
        for how in self._ways:
            ours = decoded(self.model, sources, self.end, how)[0]
            for source, found in zip(map(self._whole, sources), ours, strict=True):
                right = self._plainly(source, how)
                if right is None:  # too close to call
                    continue
                compared += 1
                if len(found) != len(right):
                    return failed(
                        None, f"decoding should give {len(right)} translations of a source, and gives {len(found)}"
                    )
                for rank, (one, other) in enumerate(zip(found, right, strict=True), 1):
                    off = other.off(one.nats, one.score)
                    if not off <= 1e-3:
                        both = f"{one.nats:.5g} nats and the score {one.score:.5g}; a plain search finds"
                        return failed(
                            off,
                            f"with smaller logits, hypothesis {rank} has {both} {other.nats:.5g} and {other.score:.5g}",
                        )
                    worst = max(worst, off)
        if not compared:
            raise DoesNotApply("which hypotheses are kept is too close to call for every source")
        return passed(worst, f"with smaller logits, decoding finds what a plain search finds ({compared} searches)")

    @property
    def _ways(self) -> Iterator[Any]:
        """As the recipe decodes, but shorter; and with no_repeat, once more with long output favoured, in which
        repetitions are likelier."""
        how = self.how.model_copy(update={"per_source": 0.25, "extra": 8})
        if how.kind == "beam":
            size = min(how.size, 8)
            how = how.model_copy(update={"size": size, "nbest": min(size, 3)})
        yield how
        if how.kind == "beam" and how.no_repeat is not None:
            yield how.model_copy(update={"length_penalty": FAVOURS_LONG, "extra": 8 + 4 * how.no_repeat})

    def drawn(self, sources: Sequence[np.ndarray]) -> Outcome:
        how, excess, variance, outside, tokens = self.how, 0.0, 0.0, 0, 0
        for source, (best, *_) in zip(sources, decoded(self.model, sources, self.end, how)[0], strict=True):
            ids = [*best.tokens, *([] if best.cut else [self.end])]
            begun = torch.tensor([[self.end, *best.tokens]])
            said = searching.log_probabilities(self._answer, [self._whole(source)], begun)[0, : len(ids)]
            by = searching.sampling_log_probabilities(said, how, self.model.never_written)
            surprise, weights = -by, by.exp()
            of_each = surprise.gather(1, torch.tensor(ids)[:, None])[:, 0]
            there, surprise = of_each.isfinite(), surprise.masked_fill(weights == 0, 0)
            mean = (weights * surprise).sum(1)
            excess += float((of_each - mean)[there].sum())
            variance += float((weights * (surprise - mean[:, None]).square()).sum(1)[there].sum())
            outside, tokens = outside + int((~there).sum()), tokens + len(ids)
        if outside > tokens / 100:  # at the borders of top-k and top-p rounding may decide
            return failed(
                outside / tokens, f"{outside} of {tokens} tokens are sampled although {how.label} excludes them"
            )
        off = excess / math.sqrt(variance) if variance else 0.0
        more = f"{excess / max(tokens, 1):+.2g} nats more surprising than they should be"
        says = f"{tokens} sampled tokens are {more}"
        return (passed if abs(off) <= 5 else failed)(off, f"{says}: {off:+.1f} standard errors ({how.label})")

    def logit_factor(self, sources: Sequence[np.ndarray]) -> float:
        """The factor on the logits that gives the likeliest first token a probability of one half on average."""
        said = torch.cat(
            [
                searching.log_probabilities(self._answer, [self._whole(ids)], self._begun)
                for ids in sources[:SOURCES_ALONE]
            ]
        )
        return next((by for by in LOGIT_FACTORS if (by * said).softmax(-1).amax(-1).mean() <= 0.5), LOGIT_FACTORS[-1])

    @property
    def _begun(self) -> torch.Tensor:
        return torch.tensor([[self.end]])

    def _plainly(self, source: list[int], how: Any) -> list[searching.PlainHypothesis] | None:
        following = searching.after(self._answer, source, self.end)
        most, never = searching.limit(how, source, self.most), self.model.never_written
        if how.kind == "beam" and not searching.is_greedy(how):
            return searching.beam_search(following, how, self.end, most, never)
        return searching.greedy(following, self.end, most, never)

    def _whole(self, ids: np.ndarray) -> list[int]:
        """A source as the model reads it: cut, and with END."""
        return [*ids[: self.model.spec.context - 1].tolist(), self.model.source_vocabulary - 1]

    def _answer(self, ids: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        device = next(self.model.parameters()).device
        return self.model(sources.to(device), ids.to(device))


def _share_equal(ones: Sequence[str], others: Sequence[str]) -> float:
    return sum(a.split() == b.split() and bool(a.split()) for a, b in zip(ones, others, strict=True)) / max(
        1, len(ones)
    )


def _has_loop(tokens: Sequence[int]) -> bool:
    """Whether an n-gram of one to four tokens is repeated four times in a row."""
    tokens = list(tokens)
    for n in range(1, 5):
        for first in range(len(tokens) - LOOP_REPEATS * n + 1):
            run = tokens[first : first + n]
            if tokens[first : first + LOOP_REPEATS * n] == run * LOOP_REPEATS:
                return True
    return False


WRITTEN_AUDITS: tuple[Audit, ...] = (copied_sources, length_ratio, repetition_loops, decoded_alone, searched)
