"""Audits of a training: did it train at all, and what kept it from doing better?

They are asked in order, and a later one is silent where an earlier one is the reason: a model that has not trained is
neither over- nor underfitted. Thresholds were set on real runs, good and spoilt ones; the docstrings give them.
"""

import math

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.curve import TrainingCurve
from headway.scoring.metrics import is_test

LITTLE = 0.02
FEWEST_STEPS = 30
TRAINED = ("learning-rate-zero", "did-it-train")
"""Without whose pass finer questions have no meaning."""


# --- did it train ------------------------------------------------------------------------------------------------


@audit("training")
def learning_rate_zero(curve: TrainingCurve) -> Outcome:
    """The learning rate is not zero, nor as good as zero.

    Fails if the rate was zero at every step; or if it was below 1e-6 throughout and the train loss fell by less than 2
    %. (A rate of 1e-5 still takes a small model a quarter of the way down.) Look at training.optimizer.learning_rate,
    and for a warm-up that is longer than the training.
    """
    _needs(curve, 1)
    highest = float(curve.rates.max())
    if highest == 0:
        return failed(0.0, "the learning rate was zero at every step: nothing was trained", "learning rate zero")
    if highest < 1e-6 and curve.first - curve.last < LITTLE * curve.first:
        return failed(highest, f"the learning rate was {highest:.1g} at most, and the loss has not moved")
    return passed(highest, f"the learning rate was {highest:.3g} at most")


@audit("training")
def schedule(curve: TrainingCurve) -> Outcome:
    """The learning rate of every step is the one that the schedule has there.

    The rates in metrics.jsonl are compared with the schedule's plain definition (a line up, then constant, a line or
    half a cosine down to `final` at the last step), and may differ by a thousandth of the highest. A schedule that ends
    early trains at a rate of nothing, and one that is too long never comes to rest; both look like a worse model. When
    it fails, look at what counts as a step (an epoch, a part of a batch, a step since the run was resumed), and at what
    the warm-up is counted from.
    """
    _needs(curve, 1)
    planned = [curve.planned(int(step)) for step in curve.steps]
    known = [(step, rate, plan) for step, rate, plan in zip(curve.steps, curve.rates, planned, strict=True) if plan]
    if not known:
        raise DoesNotApply("no definition is known of this schedule")
    highest = max(plan for _, _, plan in known)
    step, rate, plan = max(known, key=lambda one: abs(one[1] - one[2]))
    off = float(abs(rate - plan) / highest)
    if not off <= 1e-3:
        return failed(off, f"the learning rate of step {step:,} was {rate:.3g}, and its schedule has {plan:.3g} there")
    return passed(off, f"the learning rates of {len(known):,} steps are those of the schedule")


@audit("training")
def diverged(curve: TrainingCurve) -> Outcome:
    """The loss stayed a finite number, and did not climb back to where it came from.

    Fails if the training ended because a loss or a gradient was no longer finite; or if at the end the train loss had
    given back more than half of what it had gained (medians over a tenth of the training, so a spike does not count;
    and by more than three times the scatter of a thirtieth: few rows, few steps are noise), or lies above where it
    began by more than 5 %. Lower the learning rate, or lengthen the warm-up.
    """
    if curve.ended and curve.ended.is_diverged:
        return failed(None, str(curve.ended), "diverged")
    _needs(curve, FEWEST_STEPS)
    lowest = float(np.median(np.lib.stride_tricks.sliding_window_view(curve.parts, 3), axis=1).min())
    gained, given_back = curve.first - lowest, curve.last - lowest
    scatter = 1.05 * float(np.median(np.abs(np.diff(curve.parts))))  # the standard deviation of a part, were it noise
    sentence = (
        f"the train loss began at {curve.first:.3g}, was {lowest:.3g} at its lowest, and ended at {curve.last:.3g}"
    )
    if curve.last > 1.05 * curve.first:
        return failed(curve.last - curve.first, f"{sentence}: it ended above where it began")
    if given_back > gained / 2 and given_back > max(LITTLE * lowest, 3 * scatter):
        return failed(given_back, f"{sentence}: more than half of the gain was lost again")
    return passed(given_back, sentence)


@audit("training")
def did_it_train(curve: TrainingCurve) -> Outcome:
    """The loss fell well below what looks at nothing: token frequencies, or the frequency of the classes.

    A model reaches the unigram loss (for a classifier, the entropy of the classes) by its output bias alone. Fails if
    the loss at the end (held-out if it was scored, else train) is not below it by more than 2 %, or, where it is not
    known, if the train loss fell by less than 10 % of where it began. Such a model has failed to train, whatever else
    its curves look like: it did not overfit, and it needs no regularisation. Usual causes: a learning rate that is too
    high or too low by factors, post-norm without a warm-up, labels that do not belong to the inputs.
    """
    _needs(curve, 1)
    reached, fell = curve.reached, curve.first - curve.last
    if curve.chance is None:
        share = fell / curve.first
        sentence = f"the train loss went from {curve.first:.3g} to {curve.last:.3g}"
        return (
            passed(share, sentence)
            if share >= 0.1
            else failed(share, f"it failed to train: {sentence}", "failed to train")
        )
    below = 1 - reached / curve.chance
    sentence = f"the loss ended at {reached:.3g}; {curve.chance_is} alone give {curve.chance:.3g}"
    if below > LITTLE:
        return passed(below, sentence)
    where = f"less than {LITTLE:.0%} below" if below > 0 else "no lower than"
    short, more = "failed to train", ""
    if curve.post_norm and not curve.warms_up:
        more = "; post-norm without a warm-up is the likely cause: set training.schedule.warmup, or use pre-norm"
    elif curve.parts[-1] < 0.8 * curve.chance:
        short = "learnt train by heart and nothing else"
    elif len(curve.parts) >= 3 and curve.parts[-1] < 0.99 * curve.parts[-len(curve.parts) // 3]:
        more = "; the train loss was still falling: too few steps, or too low a rate"
    loss = f"the loss ended at {reached:.3g}, {where} the {curve.chance:.3g} of {curve.chance_is}"
    return failed(below, f"it {short}: {loss}{more}", short)


# --- what kept it from doing better ------------------------------------------------------------------------------


@audit("training")
def learning_rate_too_high(curve: TrainingCurve) -> Outcome:
    """Loss and gradient do not jump, gradients are not all cut, and the loss does not wait for a lower rate.

    A jump is a step whose loss lies 10 % above the median of the 51 steps around it, or whose gradient is 3 times as
    long as their median; and, on a scale of factors, 8 times as far off as is usual. Jumps at one in a hundred steps
    (three at least, after the first tenth of the training, and while the loss is above a tenth of the first: below it,
    every row that is not yet learnt is a jump) are a warning. So is a gradient that is cut at 95 % of the steps, to
    less than a fifth in the middle: then training.clip, and not the rate, decides how far a step goes. So is a loss
    that does not fall (by 0.5 %) while the rate is above 70 % of its highest, and falls by 2 % afterwards. (A good run
    of a small model has no jumps; half of its gradients may be cut, to two thirds.) Lower the learning rate by a factor
    of 3 to 10, or lengthen the warm-up. What this cannot find: a rate that is too high by so little that training is
    merely slower. Only a second rate tells. Where the loss is below a twentieth of the first, held out as on train,
    there is nothing left to gain by another rate, and no warning.
    """
    _needs(curve, FEWEST_STEPS)
    settled = curve.share_of_steps(0.1)
    counted = settled & (_around(curve.losses) > 0.1 * curve.first)
    spikes = {"loss": _spikes(curve.losses, 1.1), "gradient": _spikes(curve.norms, 3.0)}
    jumps = {kind: at & counted for kind, at in spikes.items()}
    most = max(jumps, key=lambda kind: jumps[kind].sum())
    share = float(jumps[most].sum() / max(1, counted.sum()))
    complaints = []
    if share >= 0.01 and jumps[most].sum() >= 3:
        complaints.append(
            f"the {most} jumps at {share:.1%} of the steps, first at step {curve.steps[jumps[most]][0]:,}"
        )
    if curve.clip is not None:
        cut = float((curve.norms[settled] > curve.clip).mean())
        times = float(np.median(curve.norms[settled])) / curve.clip
        if cut >= 0.95 and times > 5 and curve.last < 0.99 * curve.first:  # an untrained model has steep slopes
            complaints.append(f"{cut:.0%} of the gradients were cut, half of them to less than 1/{int(times)}")
    if waited := _waits_for_a_lower_rate(curve):
        complaints.append(waited)
    left = max(curve.reached, curve.last) / curve.first
    if complaints and left < 0.05:
        return passed(share, f"{'; '.join(complaints)}; but only {left:.1%} of the loss is left, whatever the rate")
    if complaints:
        return warned(share, f"the learning rate seems too high: {'; '.join(complaints)}")
    return passed(share, f"loss and gradient jump at {share:.1%} of the steps")


@audit("training")
def clipped(curve: TrainingCurve) -> Outcome:
    """Where training failed, it was not because every step was cut.

    Says which share of the gradients was longer than training.clip, after the first tenth of the training, and to what
    part the middle one of those was cut. That alone is no fault: recipes with a low clip cut every step and train well,
    and the steps of AdamW do not depend on the length. Where the length counts (SGD), 95 % were cut, and the training
    failed or diverged, it is a warning: each step then went as far as rate × clip, in whatever direction and
    however flat the place, and never settled. Lower the learning rate by a factor of 10 or more, rather than the clip.
    """
    if curve.clip is None:
        raise DoesNotApply("gradients are not clipped")
    _needs(curve, FEWEST_STEPS)
    norms = curve.norms[curve.share_of_steps(0.1)]
    cut = norms > curve.clip
    share = float(cut.mean())
    many = "every step" if share == 1 else "no step" if share == 0 else f"{share:.0%} of the steps"
    said = f"{many} was cut" if share in (0, 1) else f"{many} were cut"
    if share:
        left = curve.clip / float(np.median(norms[cut]))
        said += f", half of them to {left:.0%} or less of the gradient's length"
    failed_ = [one.check(curve).verdict == "fail" for one in (diverged, did_it_train)]
    if share >= 0.95 and curve.by_length and any(failed_):
        rate = float(curve.rates.max())
        far = f"so each went {rate * curve.clip:.3g} far (rate {rate:g} × clip {curve.clip:g}), whatever the slope"
        return warned(share, f"{said}, {far}; lower the learning rate")
    return passed(share, said)


def _waits_for_a_lower_rate(curve: TrainingCurve) -> str:
    high = np.flatnonzero(curve.rates >= 0.7 * curve.rates.max())
    if len(high) < FEWEST_STEPS or high[-1] > 0.9 * len(curve.rates):
        return ""
    early, late = (float(np.median(part)) for part in np.array_split(curve.losses[high], 2))
    if late < 0.995 * early or curve.last > 0.98 * late:
        return ""
    return f"at its highest the loss went from {early:.3g} to {late:.3g}, and fell to {curve.last:.3g} only afterwards"


def _spikes(values: np.ndarray, factor: float) -> np.ndarray:
    """Where a value is above the median around it by this factor, and far beyond the scatter there. That is one of
    factors, too: the losses of a classifier which is sure of most rows differ by powers of ten."""
    logarithms = np.log(np.maximum(values, 1e-30))
    above = logarithms - _around(logarithms)
    return (above > 8 * _around(np.abs(above))) & (above > math.log(factor))


def _around(values: np.ndarray, width: int = 51) -> np.ndarray:
    """The median of the values around each."""
    half = min(width, len(values)) // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, half, mode="edge"), 2 * half + 1)
    some = range(0, len(values), 10_000)  # not all at once: a million steps would take 400 MB
    return np.concatenate([np.median(around[first : first + 10_000], axis=1) for first in some])


@audit("training", rests_on=TRAINED)
def plateaued(curve: TrainingCurve) -> Outcome:
    """The loss still fell in the last third of the training, or the rate had become low.

    Warns if in the last third the train loss fell by less than 1 % of all it fell, although the rate was, on average,
    still above 30 % of its highest and the loss is above that of a 5-gram model (where there is one): it is stuck above
    what is possible, or bounces around it. More steps at this rate will not help. Lower the rate towards the end
    (schedule: cosine), try another rate, or a larger model.
    """
    _needs(curve, FEWEST_STEPS)
    third = max(2, len(curve.parts) // 3)
    before, after = curve.parts[-third - third // 2 : -third + third // 2], curve.parts[-max(2, third // 2) :]
    fell = float(np.median(before) - np.median(after))
    share = fell / max(curve.first - curve.last, 1e-9)
    late = curve.share_of_steps(2 / 3)
    rate = float(curve.rates[late].mean() / curve.rates.max())
    sentence = (
        f"in the last third the train loss fell by {fell:.3g} of the {curve.first - curve.last:.3g} it fell in all"
    )
    if rate < 0.3:
        return passed(share, f"{sentence}, at {rate:.0%} of the rate")
    stuck = share < 0.01 and (curve.counting is None or curve.last > curve.counting)
    return (warned if stuck else passed)(share, f"{sentence}, with the rate at {rate:.0%} of its highest")


@audit("training", rests_on=TRAINED)
def still_improving(curve: TrainingCurve) -> Outcome:
    """The loss had stopped falling when the training stopped.

    The end of the curve (held-out where it was scored four times or more, else train) is fitted by a line in the
    logarithm of the step, which is how losses fall over any stretch that is not too long: once over the last half, once
    over the last quarter, and the flatter counts. The number is what the line promises for half as many steps again, as
    a share of the loss (of a tenth of the first loss at least, and never more than there is left to fall). From 5 % on,
    more than most changes of an architecture bring, it is a warning: the model was not done, and two models stopped
    like this are compared by how fast they begin, not by how far they come. (A run of 300 steps promised 0.5 nats less
    for 1200, and got 0.54.) Not so where 2 % of the first loss are left, nor where the train loss falls and the held-
    out loss no longer does. Where the schedule takes the rate down to nothing, any curve ends flat: it is done with
    this schedule, and a longer one may still do better.
    """
    _needs(curve, FEWEST_STEPS)
    steps, losses, which = _curve(curve)
    slopes = []
    for share in (0.5, 0.25):
        late = steps >= steps[-1] * (1 - share)
        if late.sum() >= 3:
            slopes.append(np.polyfit(np.log(steps[late]), losses[late], 1)[0])
    if not slopes:
        raise DoesNotApply("the loss was noted too seldom to tell how it falls")
    slope = max(slopes)
    gain = min(max(0.0, -float(slope) * math.log(1.5)), abs(float(losses[-1])))
    share = gain / max(abs(float(losses[-1])), 0.1 * curve.first, 1e-9)
    sentence = f"half as many steps again promise {gain:.2g} less than the {which} loss of {losses[-1]:.3g}"
    if curve.held_out is not None and which == "train":
        seen = curve.evaluations[curve.held_out][1]
        if len(seen) > 1 and seen[-1] >= seen[-2]:
            return passed(share, f"{sentence}; the {curve.held_out} loss no longer falls")
    if share >= 0.05 and losses[-1] >= LITTLE * curve.first:
        return warned(share, f"still improving when it stopped: {sentence}")
    return passed(share, sentence)


@audit("training", rests_on=TRAINED)
def underfitted(curve: TrainingCurve) -> Outcome:
    """The model has taken more than half of what contexts offer.

    From token frequencies to a 5-gram model is a distance anyone can go by counting. Warns if the loss, on train as on
    held-out text (within 5 % of each other), is not even half-way there: the model is too small, the training too
    short, or the rate wrong; dropout and weight decay only make it worse.
    """
    if curve.chance is None or curve.counting is None or curve.chance <= curve.counting:
        raise DoesNotApply("there is no 5-gram baseline to measure it by")
    way = (curve.chance - curve.reached) / (curve.chance - curve.counting)
    sentence = (
        f"{way:.0%} of the way from {curve.chance_is} ({curve.chance:.3g}) to 5-grams ({curve.counting:.3g}): "
        f"train {curve.last:.3g}, held out {curve.reached:.3g}"
    )
    close = curve.reached < 1.05 * curve.last
    return (warned if way < 0.5 and close else passed)(way, sentence)


@audit("training", rests_on=TRAINED)
def overfitted(curve: TrainingCurve) -> Outcome:
    """The held-out loss does not rise while the train loss falls.

    Compared are the held-out loss at the end with the lowest it had, and the train loss then and at the end. A rise of
    2 % is a warning and one of 10 % a failure, if the train loss kept falling (if it did not, the training has
    diverged, or is noise). Where the best checkpoint is kept, that is the one that is scored, and it passes. Stop
    earlier (training.patience, training.keep_best), use more data, dropout, or a smaller model.
    """
    if curve.held_out is None or len(curve.evaluations[curve.held_out][0]) < 3:
        raise DoesNotApply("held-out text was scored fewer than three times")
    steps, losses = curve.evaluations[curve.held_out]
    best = int(losses.argmin())
    rise = float(losses[-1] / losses[best] - 1)
    train_then = _train_loss_at(curve, int(steps[best]))
    gap = float(losses[-1]) - curve.last
    sentence = (
        f"{curve.held_out} loss {losses[best]:.3g} at step {steps[best]:,}, {losses[-1]:.3g} at the end; "
        f"train loss {train_then:.3g} then, {curve.last:.3g} at the end (gap {gap:.2g})"
    )
    if rise < LITTLE or curve.last >= train_then:
        return passed(rise, sentence)
    if "keep_best" in curve.selects:
        return passed(rise, f"{sentence}; the best checkpoint is kept, and scored")
    return (failed if rise >= 0.1 else warned)(rise, f"overfitted: {sentence}")


def _train_loss_at(curve: TrainingCurve, step: int) -> float:
    size = max(5, len(curve.losses) // 30)
    at = int(np.searchsorted(curve.steps, step))
    return float(np.median(curve.losses[max(0, at - size) : at + size // 2 + 1]))


def _curve(curve: TrainingCurve) -> tuple[np.ndarray, np.ndarray, str]:
    if curve.held_out and len(curve.evaluations[curve.held_out][0]) >= 4:
        steps, losses = curve.evaluations[curve.held_out]
        return steps.astype(float), losses, curve.held_out
    ends = np.array([part[-1] for part in np.array_split(curve.steps, len(curve.parts))], float)
    return ends, curve.parts, "train"


# --- how it was judged -------------------------------------------------------------------------------------------


@audit("training")
def too_good_to_be_true(curve: TrainingCurve) -> Outcome:
    """The held-out loss is not far below what counting and the curve of training allow.

    Whatever other audits say: two things are compared. The 5-gram model, on the same tokens: the best models of text
    take away half of its nats. Of one that takes away two thirds, some tokens are asked for again, with text that ends
    before them. Where that costs far more (more than half-way up to the 5-gram), the answer has reached the input: a
    failure. Else the text is in train, or its context determines it (copies, sums, rules), and the score is right; it
    is a warning where the model cannot be asked. And the train loss: a held-out loss that is half or less of that of
    every single batch in the last tenth of the training, and also a quarter below the 5-gram's and 0.2 nats below
    either, is a failure, for no model does better on new text than on what it learns from; a warning where training
    drops something out, which raises its loss. Look for a mask that is missing at some lengths, targets among the
    inputs, train text in the held-out split; and for a score that is not the loss that was trained.
    """
    if curve.counting is None or (curve.scored is None and curve.held_out is None):
        raise DoesNotApply("there is no held-out loss with that of a 5-gram model beside it")
    _needs(curve, 1)
    reached, counted = curve.reached, curve.counting
    lowest = float(curve.losses[-max(1, len(curve.losses) // 10) :].min())
    share = reached / max(counted, 1e-9)
    sentence = (
        f"held-out loss {reached:.3g} (perplexity {math.exp(min(reached, 700)):.4g}), of a 5-gram model {counted:.3g} "
        f"({math.exp(min(counted, 700)):.4g}); the lowest of the last training batches {lowest:.3g}"
    )
    if reached <= min(lowest / 2, 0.75 * counted, lowest - 0.2, counted - 0.2):
        found = warned if curve.drops else failed
        return found(share, f"too good to be true: {sentence}; nothing does better on new text than in training")
    if reached > counted / 3 or reached > counted - 0.2:
        return passed(share, sentence)
    unaided = curve.unaided()
    if unaided is None:
        what = "either the text is in train or determined by its context, or the answer has reached the input"
        return warned(share, f"too good to be true? {sentence}: {what}")
    sentence += f"; {unaided:.3g} where the text ends before the token that is asked for"
    if not unaided <= (reached + counted) / 2:
        return failed(share, f"too good to be true: {sentence}, so the answer has reached the input", "saw the answer")
    return passed(share, f"{sentence}, so that what comes before determines it")


@audit("training")
def selection_on_test(curve: TrainingCurve) -> Outcome:
    """No choice was made by looking at the test split.

    Fails if the best checkpoint or the end of the training was chosen by the loss on a split whose name begins with
    "test": its score is then the best of many, and too good. Warns if such a split is scored during training, for who
    sees the curve will choose by it. Let training.evaluate_on name valid; hold some of train out where there is none.
    """
    tests = [split for split in curve.evaluate_on if is_test(split)]
    if curve.selects and curve.evaluate_on and curve.evaluate_on[0] in tests:
        return failed(None, f"{' and '.join(curve.selects)} went by {curve.evaluate_on[0]}, the split that is scored")
    if tests:
        return warned(None, f"{', '.join(tests)} was scored during training; nothing was chosen by it automatically")
    return passed(None, f"scored during training: {', '.join(curve.evaluate_on) or 'nothing'}")


TRAINING_AUDITS: list[Audit] = [
    learning_rate_zero,
    schedule,
    diverged,
    did_it_train,
    learning_rate_too_high,
    clipped,
    plateaued,
    still_improving,
    underfitted,
    overfitted,
    too_good_to_be_true,
    selection_on_test,
]


def _needs(curve: TrainingCurve, steps: int) -> None:
    if len(curve.steps) < steps:
        raise DoesNotApply(f"{len(curve.steps)} steps are too few to tell; {steps} are needed")
