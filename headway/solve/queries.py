"""Find a query: for keys K and wanted weights w, a q with softmax(q Kᵀ) within ε of w, or the reason why none exists.

For every query, the weights p = softmax(q Kᵀ) have log p_j = q·k_j − c: they are log-linear in the keys. So two
distributions w and μ with the same mean key, Σ w_j k_j = Σ μ_j k_j, have Σ w_j log p_j = Σ μ_j log p_j for every q:

    KL(w ‖ p) = Σ μ_j log 1/p_j − H(w) ≥ H(μ) − H(w).

A μ with the same mean key and a larger entropy is therefore a certificate that no query comes near w; and by duality
one exists exactly when w is out of reach: attention gives the most even distributions with their mean key, and limits
of those. The limits are the distributions that leave some keys out: they need a direction that sets the others apart.

    1. proportions   a q₀ with q₀·k_i = log w_i + c on the keys that are wanted: linear equations
    2. margin        a u that is constant on the wanted keys and larger there than on all others; the widest margin
    3. scale         q = q₀ + s·u with the smallest s whose error is at most ε
    4. otherwise     the q of least KL(w ‖ p): within ε after all, or its p is the certificate
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from headway.errors import UserError
from headway.solve.geometry import entropy, length, most_even, softmax, total_variation, widest_margin
from headway.solve.given import (
    Keys,
    Vector,
    Weights,
    checked_distribution,
    checked_keys,
    checked_positive,
    checked_within,
    select,
)

Verdict = Literal["reached", "impossible", "undecided"]


@dataclass(frozen=True)
class Certificate:
    """A distribution over the keys that has the same mean key as the wanted one, but is more even."""

    mixture: Weights
    """μ: Σ μ_j k_j = Σ w_j k_j, and H(μ) > H(w)."""
    gap: float
    """H(μ) − H(w) in nats: KL(w ‖ p) is at least this for every query."""
    floor: float
    """No query comes nearer to w than this, in total variation: with less in the wrong place, Σ (w_j − μ_j) log p_j
    could not be 0. For a single wanted key it is the best there is."""
    distance: float
    """|Σ μ_j k_j − Σ w_j k_j|, zero but for rounding."""
    up_to_norm: float
    """Rounding leaves `distance`, so that the sum above is ‖q‖·distance and not 0: that ε is out of reach (or half the
    floor, if ε is above it) is proved for queries up to this norm. Infinite where the distance is exactly zero."""


@dataclass(frozen=True)
class QueryAnswer:
    keys: Keys
    wanted: Weights
    within: float
    scale: float
    verdict: Verdict
    query: Vector
    """The query, or the best one found."""
    weights: Weights
    """softmax(scale · q Kᵀ)."""
    error: float
    """Total variation between the weights and the wanted ones: the share of attention that is in the wrong place."""
    method: Literal["proportions", "margin", "nearest"]
    margin: float | None
    """How far apart the wanted keys and the others can be held by a direction of length one that is constant on the
    wanted ones; None if all keys are wanted, 0 if there is no such direction."""
    rounding: float
    """How far a plain float64 evaluation of softmax(scale · q Kᵀ) may be from `weights`."""
    certificate: Certificate | None
    """Why it is impossible, or how near one can come at best; None if it was reached."""

    @property
    def norm(self) -> float:
        return length(self.query)

    @cached_property
    def derivation(self) -> list[str]:
        from headway.solve.words import query_derivation

        return query_derivation(self)

    def as_json(self) -> dict[str, Any]:
        found = {name: as_plain(value) for name, value in asdict(self).items()}
        return found | {"norm": self.norm, "derivation": self.derivation}


def find_query(keys: ArrayLike, wanted: ArrayLike, within: float = 1e-6, scale: float = 1.0) -> QueryAnswer:
    """A query q with softmax(scale · q Kᵀ) within `within` of `wanted`, in total variation; or why there is none.

    `scale` is what scores are multiplied by: 1 for plain dot products, 1/√d for what `headway.nn` computes.
    """
    K = checked_keys(keys)
    w = checked_distribution(wanted, len(K))
    ε, scale = checked_within(within), checked_positive("scale", scale)
    # Softmax sees differences of scores only, so keys may be moved: from here on a wanted one is 0, their size is 1.
    with np.errstate(over="ignore", invalid="ignore"):
        X = K - K[w.argmax()]
        size = float(np.abs(X).max()) or 1.0
        X, unit = X / size, size * scale  # a query of length one for X is of length 1/unit for K
    if not 0 < unit < np.inf:
        raise UserError(_out_of_range(size))

    q, method, margin = _by_proportions_and_margin(X, w, ε)
    certificate = None
    if q is None or _error(X, w, q) > ε:
        method = "nearest"
        even = most_even(X, w)
        q = _shortest_as_good(X, w, even.path, ε)
        if _error(X, w, q) > ε:
            certificate = _certificate(X, w, even.mixture, ε, unit, size)
    error = _error(X, w, q)
    with np.errstate(over="ignore"):
        query = q / unit
    if not np.isfinite(query).all():
        raise UserError(_out_of_range(size))
    return QueryAnswer(
        keys=K,
        wanted=w,
        within=ε,
        scale=scale,
        verdict="reached" if error <= ε else "impossible" if certificate and certificate.floor > ε else "undecided",
        query=query,
        weights=softmax(X @ q),
        error=error,
        method=method,
        margin=None if margin is None else margin * size,
        rounding=_rounding(K, query, scale),
        certificate=certificate,
    )


def find_queries(
    keys: ArrayLike, wanted: Sequence[ArrayLike] | None = None, within: float = 1e-6, scale: float = 1.0
) -> list[QueryAnswer]:
    """A query matrix, row by row: one answer per wanted distribution. None = the identity: row i selects key i."""
    K = checked_keys(keys)
    rows = [select(i, len(K)) for i in range(len(K))] if wanted is None else wanted
    return [find_query(K, row, within, scale) for row in rows]


def _by_proportions_and_margin(
    X: Keys, w: Weights, ε: float
) -> tuple[Vector | None, Literal["proportions", "margin"], float | None]:
    """Steps 1 to 3, in keys of size one around a wanted key; no query if one of them has no solution."""
    on = w > 0
    q0, along, misfit = _proportions(X[on], np.log(w[on] / w.max()))
    solved = misfit <= min(1e-9, ε / 4)
    if on.all():
        return (q0 if solved else None), "proportions", None
    free = _complement(along)
    u = widest_margin(-X[~on] @ free)
    if u is None:  # no limit of queries does it, but with luck the others get less than ε of themselves
        return (q0 if solved else None), "proportions", 0.0
    margin = float(1 / np.linalg.norm(u))
    if not solved:
        return None, "margin", margin
    u = free @ u
    return q0 + _smallest_scale(X[~on] @ q0 + np.log(w.max()), X[~on] @ u, ε) * u, "margin", margin


def _proportions(X: Keys, ratios: Weights) -> tuple[Vector, Float64[np.ndarray, "r d"], float]:
    """The shortest q with X q = ratios, the directions the rows of X span, and the largest misfit."""
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    rank = int((s > 1e-11).sum())
    q = Vt[:rank].T @ ((U[:, :rank].T @ ratios) / s[:rank])
    return q, Vt[:rank], float(np.abs(X @ q - ratios).max())


def _complement(along: Float64[np.ndarray, "r d"]) -> Float64[np.ndarray, "d f"]:
    """An orthonormal basis of the directions in which the wanted keys do not differ."""
    r, d = along.shape
    return np.linalg.qr(along.T, mode="complete")[0][:, r:] if r else np.eye(d)


def _smallest_scale(start: Weights, slope: Weights, ε: float) -> float:
    """The least s ≥ 0 for which the others get at most ε of the weight: Σ exp(start + s·slope) ≤ ε/(1 − ε)."""
    allowed = np.log(ε) - np.log1p(-ε) - 1e-9

    def over(s: float) -> bool:
        return float(np.logaddexp.reduce(start + s * slope)) > allowed

    if not over(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while over(high):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    return high


def _shortest_as_good(X: Keys, w: Weights, path: list[Vector], ε: float) -> Vector:
    """The first query on the way to the nearest one that is within ε, or else as good as the last one to within ε."""
    target = max(ε, _error(X, w, path[-1]) + ε / 2)
    return next(q for q in path if _error(X, w, q) <= target)


def _certificate(X: Keys, w: Weights, mixture: Weights, ε: float, unit: float, size: float) -> Certificate | None:
    """What the most even mixture proves; None if it proves nothing."""
    distance = float(np.linalg.norm((mixture - w) @ X))
    if distance > 1e-9 or _slack(w, mixture, 0.0) <= 0:
        return None
    floor, high = 0.0, 1.0
    while high - floor > 1e-12 * high:
        middle = (floor + high) / 2
        floor, high = (middle, high) if _slack(w, mixture, middle) > 0 else (floor, middle)
    spare = _slack(w, mixture, min(ε, floor / 2))
    norm = spare / distance / unit if distance > 0 else np.inf
    return Certificate(mixture, entropy(mixture) - entropy(w), floor, distance * size, float(norm))


def _slack(w: Weights, mixture: Weights, τ: float) -> float:
    """How far Σ (w_j − μ_j) log p_j, which every query makes zero, is from zero at least if p is within τ of w.

    Where w_j > μ_j the sum falls with p_j: at worst τ is taken from the one key where it counts most. Where w_j < μ_j
    it falls as p_j rises: at worst τ is spread so that the raised p_j are in proportion to μ_j − w_j.
    """
    more = w > mixture
    less = mixture - w > 1e-30  # what is smaller would only add to the distance, and its logarithm might overflow
    if τ >= w[more].min(initial=1.0) or not less.any():
        return -np.inf
    ν = np.abs(w - mixture)
    kept = float(ν[more] @ np.log(w[more]) + (ν[more] * np.log1p(-τ / w[more])).min())
    with np.errstate(divide="ignore"):  # nothing poured on nothing: infinitely far
        return kept - float(ν[less] @ np.log(_poured(w[less], ν[less], τ)))


def _poured(levels: Weights, widths: Weights, amount: float) -> Weights:
    """The levels after pouring so much on them: in proportion to the widths, but for those that stood higher before."""
    order = np.argsort(levels / widths)
    heights = (amount + np.cumsum(levels[order])) / np.cumsum(widths[order])
    # The first k fill up to one height; k is right when the next one already stands higher.
    below = np.append((levels / widths)[order][1:], np.inf)
    return np.maximum(levels, heights[np.argmax(heights <= below)] * widths)


def _error(X: Keys, w: Weights, q: Vector) -> float:
    return total_variation(softmax(X @ q), w)


def _rounding(K: Keys, q: Vector, scale: float) -> float:
    """Scores of d products, each wrong by half a unit in the last place of its size: total variation moves as much."""
    largest = scale * float((np.abs(K) @ np.abs(q)).max())
    return float(min(1.0, (len(q) + 2) * 2.0**-53 * largest + len(K) * 2.0**-53))


def _out_of_range(size: float) -> str:
    return f"the keys differ by {size:.3g}: float64 cannot hold the query, or the scores; rescale the keys"


def as_plain(value: Any) -> Any:
    """As JSON has it: lists for arrays, null for what is infinite."""
    if isinstance(value, dict):
        return {name: as_plain(part) for name, part in value.items()}
    if isinstance(value, tuple | np.ndarray):
        return [as_plain(part) for part in np.asarray(value).tolist()]
    return None if isinstance(value, float) and not np.isfinite(value) else value
