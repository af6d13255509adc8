"""The reason why no query comes near the wanted weights: others with the same mean key that are more even."""

import math
from dataclasses import dataclass

import numpy as np

from headway.solve.exact import ExactKeys, as_floats
from headway.solve.geometry import entropy, length
from headway.solve.inputs import Weights

LAST_DIGITS = 4 * 2.0**-52
"""Keys are taken to be known to four units in the last place: 0.1 + 0.2 is 0.3."""


@dataclass(frozen=True)
class Certificate:
    """A distribution over the keys that has the same mean key as the wanted one, but is more even."""

    mixture: Weights
    """μ: Σ μ_j k_j = Σ w_j k_j, and H(μ) > H(w)."""
    change: Weights
    """μ − w, to more digits than the difference would have: Σ change_j = 0 and Σ change_j k_j = 0."""
    gap: float
    """H(μ) − H(w) in nats: KL(w ‖ p) is at least this for every query."""
    floor: float
    """No query comes nearer to w than this, in total variation: with less in the wrong place, Σ (w_j − μ_j) log p_j
    could not be 0. For a single wanted key, and the most even μ, it is the best there is."""
    distance: float
    """|Σ change_j k_j|, zero but for rounding."""
    rounding: float
    """The proof is exact for keys that differ from the given ones by this share of their largest number at most; 0 if
    it is exact as it stands. Never more than four units in the last place."""
    strict: bool
    """Whether four units in the last place of each number are enough, and not only of a key's largest one."""
    up_to_norm: float
    """Rounding leaves `distance`, so that the sum above is ‖q‖·distance and not 0: that ε is out of reach (or half the
    floor, if ε is above it) is proved for queries up to this norm. Infinite where the distance is exactly zero."""


def certify(exact: ExactKeys, w: Weights, change: Weights, ε: float) -> Certificate | None:
    """What this change of the weights proves; None if nothing."""
    if not change.any():
        return None
    i, change = exact.counterweight(change), change.copy()
    change[i] = 0.0
    change[i] = -math.fsum(change)  # as it is taken to be where the mean is worked out
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
    """How far Σ (w_j − μ_j) log p_j, which every query makes zero, is from zero at least if p is within τ of w.

    Where w_j > μ_j the sum falls with p_j: at worst τ is taken from the one key where it counts most. Where w_j < μ_j
    it falls as p_j rises: at worst τ is spread so that the raised p_j are in proportion to μ_j − w_j. (What is raised
    by next to nothing may be left out: log p_j is never positive.) What rounding may have added is taken off.
    """
    more, less = change < 0, change > 1e-30
    if τ >= w[more].min(initial=1.0) or not less.any() or not more.any():
        return -np.inf
    ν = np.abs(change)
    kept = ν[more] @ np.log(w[more]) + (ν[more] * np.log1p(-τ / w[more])).min()
    with np.errstate(divide="ignore"):  # nothing poured on nothing: infinitely far
        raised = ν[less] @ np.log(_poured(w[less], ν[less], τ))
    return float(kept - raised - 1e-14 * (abs(kept) + abs(raised))) if np.isfinite(raised) else np.inf


def _poured(levels: Weights, widths: Weights, amount: float) -> Weights:
    """The levels after pouring so much on them: in proportion to the widths, but for those that stood higher before."""
    order = np.argsort(levels / widths)
    heights = (amount + np.cumsum(levels[order])) / np.cumsum(widths[order])
    # The first k fill up to one height; k is right when the next one already stands higher.
    below = np.append((levels / widths)[order][1:], np.inf)
    return np.maximum(levels, heights[np.argmax(heights <= below)] * widths)
