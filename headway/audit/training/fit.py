"""Audits of fit: is the loss stuck, training unfinished, the model underfitted or overfitted?"""

import math

import numpy as np

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import FEWEST_STEPS, LITTLE, TRAINED, needs


@audit("training", rests_on=TRAINED)
def plateaued(curve: TrainingCurve) -> Outcome:
    """The loss still fell in the last third of the training, or the learning rate had become low.

    Warns if in the last third the train loss fell by less than 1 % of its total fall, although the learning rate was on
    average still above 30 % of its highest, and the loss is above that of a 5-gram model (where there is one). Then it
    is stuck above what is possible, or bounces around it, and more steps at this rate will not help. Lower the rate
    towards the end (schedule: cosine), try another rate, or use a larger model.
    """
    needs(curve, FEWEST_STEPS)
    fell, rate = curve.late_fall, curve.late_rate
    share = fell / max(curve.first - curve.last, 1e-9)
    sentence = (
        f"in the last third the train loss fell by {fell:.3g} of the {curve.first - curve.last:.3g} it fell in total"
    )
    if rate < 0.3:
        return passed(share, f"{sentence}, with the learning rate at {rate:.0%} of its highest")
    stuck = curve.is_stuck and (curve.counting is None or curve.last > curve.counting)
    return (warned if stuck else passed)(share, f"{sentence}, with the learning rate at {rate:.0%} of its highest")


@audit("training", rests_on=TRAINED)
def still_improving(curve: TrainingCurve) -> Outcome:
    """The loss had stopped falling when the training ended.

    A line in the logarithm of the step, which describes losses over any stretch that is not too long, is fitted to the
    end of the curve (held-out loss if it was scored four times or more, else train): once over the last half, once over
    the last quarter, and the flatter one counts. The number is how much the line predicts the loss to fall in half as
    many steps again, as a share of the loss (of a tenth of the first loss at least, and never more than the loss
    itself). From 5 % on, more than most changes of an architecture bring, it is a warning: training was unfinished, and
    two models stopped like this are compared by how fast they start, not by where they end. (For a run of 300 steps the
    line predicted 0.5 nats less at 1200, and the loss fell by 0.54.) There is no warning if 2 % of the first loss are
    left, or if the train loss falls and the held-out loss no longer does. With a schedule that decays to zero, any
    curve ends flat: training is finished with this schedule, and a longer one may still do better.
    """
    needs(curve, FEWEST_STEPS)
    steps, losses, which = _curve(curve)
    slopes = []
    for share in (0.5, 0.25):
        late = steps >= steps[-1] * (1 - share)
        if late.sum() >= 3:
            slopes.append(np.polyfit(np.log(steps[late]), losses[late], 1)[0])
    if not slopes:
        raise DoesNotApply("the loss was recorded too seldom to tell how it falls")
    slope = max(slopes)
    gain = min(max(0.0, -float(slope) * math.log(1.5)), abs(float(losses[-1])))
    share = gain / max(abs(float(losses[-1])), 0.1 * curve.first, 1e-9)
    sentence = f"50 % more steps should lower the {which} loss of {losses[-1]:.3g} by {gain:.2g}"
    if curve.held_out is not None and which == "train":
        seen = curve.evaluations[curve.held_out][1]
        if len(seen) > 1 and seen[-1] >= seen[-2]:
            return passed(share, f"{sentence}; the {curve.held_out} loss no longer falls")
    if share >= 0.05 and losses[-1] >= LITTLE * curve.first:
        return warned(share, f"still improving when training ended: {sentence}")
    return passed(share, sentence)


@audit("training", rests_on=TRAINED)
def underfitted(curve: TrainingCurve) -> Outcome:
    """The model has gained more than half of what a 5-gram model gains over token frequencies.

    Counting alone gets from the loss of token frequencies to that of a 5-gram model. Warns if the loss, on train as on
    held-out text (within 5 % of each other), has covered less than half of this distance: the model is too small, the
    training too short, or the learning rate wrong; dropout and weight decay only make it worse.
    """
    if curve.chance is None or curve.counting is None or curve.chance <= curve.counting:
        raise DoesNotApply("there is no 5-gram baseline to compare with")
    way = (curve.chance - curve.reached) / (curve.chance - curve.counting)
    sentence = (
        f"{way:.0%} of the way from {curve.chance_is} ({curve.chance:.3g}) to 5-grams ({curve.counting:.3g}): "
        f"train loss {curve.last:.3g}, held-out loss {curve.reached:.3g}"
    )
    close = curve.reached < 1.05 * curve.last
    return (warned if way < 0.5 and close else passed)(way, sentence)


@audit("training", rests_on=TRAINED)
def overfitted(curve: TrainingCurve) -> Outcome:
    """The held-out loss does not rise while the train loss falls.

    The held-out loss at the end is compared with its lowest value, and the train loss at that step with the one at the
    end. A rise of the held-out loss of 2 % is a warning and one of 10 % a failure, if the train loss kept falling (if
    it did not, the training diverged, or it is noise). Where the lowest loss is below 2 % of the first, the rise is
    taken relative to 2 % of the first, and a rise by less than 1 % of the first is at most a warning: a tiny loss may
    double without harm. If the best checkpoint is kept, that one is scored, and the audit passes. Stop earlier
    (training.patience, training.keep_best), use more data, dropout, or a smaller model.
    """
    if curve.held_out is None or len(curve.evaluations[curve.held_out][0]) < 3:
        raise DoesNotApply("the held-out split was scored fewer than three times")
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
        return passed(rise, f"{sentence}; the best checkpoint was kept, and is the one scored")
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
