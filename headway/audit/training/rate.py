"""Was the learning rate too high? Loss and gradients jump, steps are clipped, the loss falls only at a lower rate."""

import math

import numpy as np

from headway.audit.audit import DoesNotApply, Outcome, audit, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import FEWEST_STEPS, did_it_train, diverged, needs


@audit("training")
def learning_rate_too_high(curve: TrainingCurve) -> Outcome:
    """Loss and gradient do not jump, gradients are not all clipped, and the loss also falls at the highest rate.

    A jump is a step whose loss is 10 % above the median of the 51 steps around it, or whose gradient norm is 3 times
    their median, and that is also, on a logarithmic scale, 8 times as far off as half of them and 2.5 times as far off
    as nine in ten (a translator's batches of short pairs may all have a higher loss than the others). Jumps at one in a
    hundred steps (at least three, after the first tenth of the training, and while the loss is above a tenth of the
    first; below that, every row not yet learnt is a jump) are a warning. So is clipping at 95 % of the steps, with a
    median norm of more than five times the limit: then training.clip, and not the learning rate, decides the step
    length. So is a loss that does not fall (by 0.5 %) while the rate is above 70 % of its highest, and falls by 2 %
    afterwards. (A good run of a small model has no jumps; half of its gradients may be clipped, to two thirds.) Lower
    the learning rate by a factor of 3 to 10, or lengthen the warm-up. This cannot find a rate that is slightly too
    high, so that training is merely slower; only a run at another rate shows that. If the loss is below a twentieth of
    the first, on held-out data as on train, no other rate could gain much, and there is no warning.
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
        if cut >= 0.95 and times > 5 and curve.last < 0.99 * curve.first:  # an untrained model has large gradients
            complaints.append(f"{cut:.0%} of the gradients were clipped, half of them to less than 1/{int(times)}")
    if waited := _waits_for_a_lower_rate(curve):
        complaints.append(waited)
    left = max(curve.reached, curve.last) / curve.first
    if complaints and left < 0.05:
        return passed(share, f"{'; '.join(complaints)}; but only {left:.1%} of the loss is left, at whatever rate")
    if complaints:
        return warned(share, f"the learning rate seems too high: {'; '.join(complaints)}")
    return passed(share, f"loss and gradient jump at {share:.1%} of the steps")


@audit("training")
def clipped(curve: TrainingCurve) -> Outcome:
    """If training failed, it was not because every step was clipped.

    Reports the share of gradients above training.clip, after the first tenth of the training, and how much the median
    one of those was shortened. That alone is no fault: recipes with a low limit clip every step and train well, and the
    steps of AdamW do not depend on the gradient norm. Where they do (SGD), 95 % were clipped, and the training failed
    or diverged, it is a warning: each step then had length rate × clip, in whatever direction and however small the
    gradient, and training never settled. Lower the learning rate by a factor of 10 or more, rather than the clip.
    """
    if curve.clip is None:
        raise DoesNotApply("gradients are not clipped")
    needs(curve, FEWEST_STEPS)
    norms = curve.norms[curve.share_of_steps(0.1)]
    cut = norms > curve.clip
    share = float(cut.mean())
    many = "every step" if share == 1 else "no step" if share == 0 else f"{share:.0%} of the steps"
    said = f"{many} was clipped" if share in (0, 1) else f"{many} were clipped"
    if share:
        left = curve.clip / float(np.median(norms[cut]))
        said += f", half of them to {left:.0%} or less of the gradient norm"
    failed_ = [one.check(curve).verdict == "fail" for one in (diverged, did_it_train)]
    if share >= 0.95 and curve.by_length and any(failed_):
        rate = float(curve.rates.max())
        far = f"so each step had length {rate * curve.clip:.3g} (rate {rate:g} × clip {curve.clip:g})"
        return warned(share, f"{said}, {far}; lower the learning rate")
    return passed(share, said)


def _waits_for_a_lower_rate(curve: TrainingCurve) -> str:
    high = np.flatnonzero(curve.rates >= 0.7 * curve.rates.max())
    if len(high) < FEWEST_STEPS or high[-1] > 0.9 * len(curve.rates):
        return ""
    early, late = (float(np.median(part)) for part in np.array_split(curve.losses[high], 2))
    if late < 0.995 * early or curve.last > 0.98 * late:
        return ""
    return (
        f"at the highest rate the loss went from {early:.3g} to {late:.3g}; it fell to {curve.last:.3g} only afterwards"
    )


def _spikes(values: np.ndarray, factor: float) -> np.ndarray:
    """Where a value is above the median around it by this factor, and far beyond the scatter there. The scatter is
    measured in factors, too: the losses of a classifier that is sure of most rows differ by powers of ten."""
    logarithms = np.log(np.maximum(values, 1e-30))
    above = logarithms - _around(logarithms)
    usual, largest_usual = _around(np.abs(above)), _around(np.abs(above), 0.9)
    return (above > 8 * usual) & (above > 2.5 * largest_usual) & (above > math.log(factor))


def _around(values: np.ndarray, quantile: float = 0.5, width: int = 51) -> np.ndarray:
    """The running median, or another quantile. Beyond the ends, values are mirrored: if the last one were repeated, it
    would be the median."""
    half = min(width, len(values)) // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, half, mode="reflect"), 2 * half + 1)
    some = range(0, len(values), 10_000)  # in pieces: a million steps at once would take 400 MB
    pieces = [around[first : first + 10_000] for first in some]
    rank = quantile * 2 * half
    # Where the quantile is itself a value of the window, selecting it gives the same in a tenth of the time. (Not with
    # infinities, NaN, or numbers whose differences overflow: there, numpy's interpolation may give NaN.)
    if rank.is_integer() and np.abs(values).max() < 1e300:
        return np.concatenate([np.partition(piece, int(rank), axis=1)[:, int(rank)] for piece in pieces])
    return np.concatenate([np.quantile(piece, quantile, axis=1) for piece in pieces])


ABOUT_THE_RATE = (learning_rate_too_high, clipped)
