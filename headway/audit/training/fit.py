"""Too short a training, or too long; too small a model, or too large: stuck, not done, underfitted, overfitted."""

import math

import numpy as np

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import FEWEST_STEPS, LITTLE, TRAINED, needs


@audit("training", rests_on=TRAINED)
def plateaued(curve: TrainingCurve) -> Outcome:
    """The loss still fell in the last third of the training, or the rate had become low.

    Warns if in the last third the train loss fell by less than 1 % of all it fell, although the rate was, on average,
    still above 30 % of its highest and the loss is above that of a 5-gram model (where there is one): it is stuck above
    what is possible, or bounces around it. More steps at this rate will not help. Lower the rate towards the end
    (schedule: cosine), try another rate, or a larger model.
    """
    needs(curve, FEWEST_STEPS)
    fell, rate = curve.late_fall, curve.late_rate
    share = fell / max(curve.first - curve.last, 1e-9)
    sentence = (
        f"in the last third the train loss fell by {fell:.3g} of the {curve.first - curve.last:.3g} it fell in all"
    )
    if rate < 0.3:
        return passed(share, f"{sentence}, at {rate:.0%} of the rate")
    stuck = curve.is_stuck and (curve.counting is None or curve.last > curve.counting)
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
    needs(curve, FEWEST_STEPS)
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

    Compared are the held-out loss at the end with the lowest it had, and the train loss then and at the end. A rise
    of 2 % is a warning and one of 10 % a failure, if the train loss kept falling (if it did not, the training has
    diverged, or is noise). Of a loss below a fiftieth of the first, that fiftieth counts, and a rise by less than a
    hundredth of the first is a warning at most: next to nothing may double. Where the best checkpoint is kept, that is
    the one that is scored, and it passes. Stop earlier (training.patience, training.keep_best), use more data, dropout,
    or a smaller model.
    """
    if curve.held_out is None or len(curve.evaluations[curve.held_out][0]) < 3:
        raise DoesNotApply("held-out text was scored fewer than three times")
    steps, losses = curve.evaluations[curve.held_out]
    best = int(losses.argmin())
    lost = float(losses[-1] - losses[best])
    rise = lost / max(float(losses[best]), LITTLE * curve.first)
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
    much = rise >= 0.1 and lost >= 0.01 * curve.first
    return (failed if much else warned)(rise, f"overfitted: {sentence}")


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


ABOUT_FIT = (plateaued, still_improving, underfitted, overfitted)
