"""Was the learning rate too high? Loss and gradients jump, steps are cut, the loss waits for a lower rate."""

import math

import numpy as np

from headway.audit.audit import DoesNotApply, Outcome, audit, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import FEWEST_STEPS, did_it_train, diverged, needs


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
    needs(curve, FEWEST_STEPS)
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
    needs(curve, FEWEST_STEPS)
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


ABOUT_THE_RATE = (learning_rate_too_high, clipped)
