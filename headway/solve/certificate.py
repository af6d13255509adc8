"""The proof that no query comes near the wanted weights: other weights with the same mean key and higher entropy."""

import math
from dataclasses import dataclass

import numpy as np

from headway.solve.exact import ExactKeys, as_floats
from headway.solve.geometry import entropy, length
from headway.solve.inputs import Weights

LAST_DIGITS = 4 * 2.0**-52
"""Keys are assumed to be known to four units in the last place, so that 0.1 + 0.2 is 0.3."""


@dataclass(frozen=True)
class Certificate:
    """A distribution over the keys with the same mean key as the wanted one, but higher entropy."""

    mixture: Weights
    """μ: Σ μ_j k_j = Σ w_j k_j, and H(μ) > H(w)."""
    change: Weights
    """μ − w, with more digits than the difference would have: Σ change_j = 0 and Σ change_j k_j = 0."""
    gap: float
    """H(μ) − H(w) in nats: KL(w ‖ p) is at least this for every query."""
    floor: float
    """No query is closer to w than this in total variation: otherwise Σ (w_j − μ_j) log p_j could not be 0. For a
    single wanted key and the μ of highest entropy, the bound is tight."""
    distance: float
    """|Σ change_j k_j|, zero up to rounding."""
    rounding: float
    """The proof is exact for keys that differ from the given ones by at most this fraction of their largest entry; 0 if
    it is exact for the given keys. Never more than four units in the last place."""
    strict: bool
    """Whether four units in the last place of each entry are enough, rather than of a key's largest one."""
    up_to_norm: float
    """Because of rounding, the sum above is bounded by ‖q‖·distance rather than 0, so the proof that ε (or half the
    floor, if ε is larger) is out of reach holds for queries up to this norm. Infinite if the distance is exactly
    zero."""


def certify(exact: ExactKeys, w: Weights, change: Weights, ε: float) -> Certificate | None:
    """The certificate given by this change of the weights; None if it proves nothing."""
    if not change.any():
        return None
    i, change = exact.counterweight(change), change.copy()
    change[i] = 0.0
    change[i] = -math.fsum(change)  # the same as in the computation of the mean
    mixture = w + change
    if mixture.min() < 0 or _slack(w, change, 0.0) <= 0:
        return None
    mean, sizes = as_floats(exact.mean(change)), np.abs(exact.keys)
    rounding = float(np.abs(mean).max() / (np.abs(change) @ sizes.max(1))) if mean.any() else 0.0
    if rounding > LAST_DIGITS:
        return None
    floor, high = 0.0, 1.0
    while high - floor > 1e-12 * high and high > 1e-300:
        middle = (floor + high) / 2
        floor, high = (middle, high) if _slack(w, change, middle) > 0 else (floor, middle)
    distance = length(mean)
    spare = _slack(w, change, min(ε, floor / 2))
    return Certificate(
        mixture=mixture,
        change=change,
        gap=entropy(mixture) - entropy(w),
        floor=floor,
        distance=distance,
        rounding=rounding,
        strict=bool((np.abs(mean) <= LAST_DIGITS * (np.abs(change) @ sizes)).all()),
        up_to_norm=float(spare / distance / exact.scale) if distance else np.inf,
    )


def _slack(w: Weights, change: Weights, τ: float) -> float:
    """A lower bound on Σ (w_j − μ_j) log p_j, which is zero for every query, if p is within τ of w.

    Where w_j > μ_j, the sum decreases if p_j decreases: in the worst case τ is taken from the single key with the
    largest effect. Where w_j < μ_j, it decreases if p_j increases: in the worst case τ is spread so that the increased
    p_j are proportional to μ_j − w_j. (Negligible increases may be left out, since log p_j is never positive.) An
    allowance for rounding is subtracted.
    """
    more, less = change < 0, change > 1e-30
    if τ >= w[more].min(initial=1.0) or not less.any() or not more.any():
        return -np.inf
    ν = np.abs(change)
    kept = ν[more] @ np.log(w[more]) + (ν[more] * np.log1p(-τ / w[more])).min()
    with np.errstate(divide="ignore"):  # log 0 where both τ and the weights are zero
        raised = ν[less] @ np.log(_water_filled(w[less], ν[less], τ))
    return float(kept - raised - 1e-14 * (abs(kept) + abs(raised))) if np.isfinite(raised) else np.inf


def _water_filled(levels: Weights, widths: Weights, amount: float) -> Weights:
    """Water-filling: the levels after adding `amount`, proportional to the widths except where they were higher
    before."""
    order = np.argsort(levels / widths)
    heights = (amount + np.cumsum(levels[order])) / np.cumsum(widths[order])
    # The lowest k levels fill up to one height; k is right when the next level is already higher.
    below = np.append((levels / widths)[order][1:], np.inf)
    return np.maximum(levels, heights[np.argmax(heights <= below)] * widths)
