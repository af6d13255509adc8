"""Find a query: for keys K and wanted weights w, a q with softmax(q Kᵀ) within ε of w, or a proof that none exists.

For every query, the weights p = softmax(q Kᵀ) have log p_j = q·k_j − c: they are log-linear in the keys. So for two
distributions w and μ with the same mean key, Σ w_j k_j = Σ μ_j k_j, we have Σ w_j log p_j = Σ μ_j log p_j for every q:

    KL(w ‖ p) = Σ μ_j log 1/p_j − H(w) ≥ H(μ) − H(w).

A μ with the same mean key and a larger entropy is therefore a certificate that no query comes near w. By duality such a
μ exists exactly if w is out of reach: attention gives the distributions of maximal entropy for their mean key, and
limits of those. The limits are the distributions that exclude some keys; they need a direction that separates these
keys.

`search.py` finds the answers. Each is verified in exact arithmetic on the given float64 keys. If it fails, the search
is repeated in coordinates suited to keys at very different distances (`frames.py`); if that fails too, the answer is
"undecided".
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from headway.core.errors import UserError
from headway.solve.certificate import LAST_DIGITS, Certificate, certify
from headway.solve.exact import BeyondFloat64Error, ExactKeys, Rationals, as_floats, finite
from headway.solve.frames import Frames, key_frames, orthogonal_frames
from headway.solve.geometry import length, total_variation, total_variation_at_most
from headway.solve.inputs import (
    Keys,
    Vector,
    Weights,
    checked_distribution,
    checked_keys,
    checked_positive,
    checked_within,
    select,
)
from headway.solve.search import Found, Method, search

Verdict = Literal["reached", "impossible", "undecided", "unrepresentable"]
"""unrepresentable: such a query exists, but float64 has too few digits to represent it."""


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
    """Total variation between the weights and the wanted ones: the share of attention in the wrong place."""
    method: Method
    margin: float | None
    """The largest lead in score of the wanted keys over the others for a unit vector that gives the wanted keys equal
    scores (a lower bound if the method is "angle"). None if all keys are wanted, 0 if there is no such direction."""
    rounding: float
    """How far a plain float64 evaluation of softmax(scale · q Kᵀ) may be from `weights`, which is computed exactly."""
    certificate: Certificate | None
    """The proof that it is impossible, or a lower bound on the error; None if there is a query."""
    digits: list[str] | None
    """The query that float64 cannot represent, with as many digits as needed; None for other verdicts."""

    @property
    def norm(self) -> float:
        return length(self.query)

    @cached_property
    def derivation(self) -> list[str]:
        from headway.solve.derivation import query_derivation

        return query_derivation(self)

    def as_json(self) -> dict[str, Any]:
        found = {name: as_plain(value) for name, value in asdict(self).items()}
        return found | {"norm": self.norm, "derivation": self.derivation}


def find_query(keys: ArrayLike, wanted: ArrayLike, within: float = 1e-6, scale: float = 1.0) -> QueryAnswer:
    """Find a query q with softmax(scale · q Kᵀ) within `within` of `wanted` in total variation, or a proof that none
    exists.

    `scale` is the factor on scores: 1 for plain dot products, 1/√d for `headway.nn`.
    """
    K = checked_keys(keys)
    w = checked_distribution(wanted, len(K))
    ε, scale = checked_within(within, w), checked_positive("scale", scale)
    exact = ExactKeys(K, int(w.argmax()), scale)
    with np.errstate(all="ignore"):  # overflows do not matter, because every result is verified
        X, unit = _of_size_one(K, exact.origin, scale)
        first = _answer(exact, orthogonal_frames(exact, X, unit), w, ε)
        if first and (first.verdict == "reached" or (first.certificate and first.certificate.strict)):
            return first
        exact = ExactKeys(K, _closest(X, w), scale)
        second = _answer(exact, key_frames(exact), w, ε)
    if first is None or second is None:
        if answer := first or second:
            return answer
        raise UserError(_out_of_range(unit / scale))
    if second.certificate or (second.verdict == "reached" and second.error + second.rounding <= ε):
        return second
    # A proof for keys known to four units in the last place is not overruled by digits beyond these.
    return first if first.certificate or (second.verdict == "undecided" and first.error < second.error) else second


def find_queries(
    keys: ArrayLike, wanted: Sequence[ArrayLike] | None = None, within: float = 1e-6, scale: float = 1.0
) -> list[QueryAnswer]:
    """Find a query matrix: one answer per wanted distribution. None = the identity: row i selects key i."""
    K = checked_keys(keys)
    rows = [select(i, len(K)) for i in range(len(K))] if wanted is None else wanted
    return [find_query(K, row, within, scale) for row in rows]


def _of_size_one(K: Keys, origin: int, scale: float) -> tuple[Keys, float]:
    """The keys relative to one of them, scaled to size one, and the divisor that converts a query for them back."""
    X = K - K[origin]
    X[np.abs(X).max(1) <= LAST_DIGITS * np.maximum(np.abs(K).max(1), np.abs(K[origin]).max())] = 0
    size = float(np.abs(X).max()) or 1.0
    if not 0 < size * scale < np.inf:
        raise UserError(_out_of_range(size))
    return X / size, size * scale


def _closest(X: Keys, w: Weights) -> int:
    """The wanted key closest to some other key: relative to it the finest differences are kept."""
    apart = np.linalg.norm(X[w > 0, None] - X, axis=2)
    apart[apart == 0] = np.inf
    return int(np.flatnonzero(w > 0)[apart.min(1).argmin()])


def _answer(exact: ExactKeys, frames: Frames, w: Weights, ε: float) -> QueryAnswer | None:
    """The verified answer; None if float64 cannot represent the ratios of distances, or the query."""
    try:
        answer = _judged(exact, w, ε, search(frames, w, ε))
        if answer.verdict != "reached" and answer.error < 2 * ε:  # missed by rounding: try with half the tolerance
            half = _judged(exact, w, ε, search(frames, w, ε / 2))
            return half if half.verdict == "reached" else answer
        return answer
    except BeyondFloat64Error:
        return None


def _judged(exact: ExactKeys, w: Weights, ε: float, found: Found) -> QueryAnswer:
    query = as_floats(found.query) if isinstance(found.query, list) else finite(found.query)
    weights = exact.weights(query)
    error, reached = total_variation(weights, w), total_variation_at_most(weights, w) <= ε
    certificate = digits = None
    if not reached:
        certificate = _certificate(exact, w, ε, found, error)
        digits = _digits(exact, w, ε, found.query) if isinstance(found.query, list) else None
    verdict: Verdict = "undecided"
    if reached:
        verdict = "reached"
    elif digits is not None:
        verdict, certificate = "unrepresentable", None
    elif certificate is not None and certificate.floor > ε:
        verdict = "impossible"
    return QueryAnswer(
        keys=exact.keys,
        wanted=w,
        within=ε,
        scale=exact.scale,
        verdict=verdict,
        query=query,
        weights=weights,
        error=error,
        method=found.method,
        margin=_margin(exact, w, found),
        rounding=_rounding(exact.keys, query, exact.scale, weights),
        certificate=certificate,
        digits=digits,
    )


def _certificate(exact: ExactKeys, w: Weights, ε: float, found: Found, error: float) -> Certificate | None:
    """The first certificate that proves impossibility, or otherwise the one with the largest lower bound.

    A certificate that is exact only for keys with different last digits can be refuted by the query found, if that
    query is so long that it makes use of these digits.
    """
    best = None
    for change in found.changes:
        certificate = certify(exact, w, change, ε)
        if certificate is None or certificate.floor > error * (1 + 1e-9):
            continue
        if best is None or certificate.floor > best.floor:
            best = certificate
        if best is not None and best.floor > ε:
            break
    return best


def _margin(exact: ExactKeys, w: Weights, found: Found) -> float | None:
    if w.all():
        return None
    return 0.0 if found.direction is None else 1 / (exact.scale * length(np.array(found.direction, dtype=np.float64)))


def _digits(exact: ExactKeys, w: Weights, ε: float, query: Rationals) -> list[str] | None:
    """The query with as few digits as needed; None if it is not within ε, or needs more than a hundred."""
    if total_variation_at_most(exact.weights(query), w) > ε:
        return None
    for count in range(20, 101, 10):
        written = [f"{_decimal(part, count)}" for part in query]
        if total_variation_at_most(exact.weights([Fraction(word) for word in written]), w) <= ε:
            return written
    return None


def _decimal(value: Fraction, digits: int) -> Decimal:
    return Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))


def _rounding(K: Keys, q: Vector, scale: float, weights: Weights) -> float:
    """A bound on the rounding of the weights. A score is a sum of d products, each wrong by up to half a unit in the
    last place. A key's weight is largest if its score is too large and all others are too small. A key far below the
    others may have a large error without any effect."""
    wrong = (len(q) + 2) * 2.0**-53 * scale * (np.abs(K) @ np.abs(q))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        up, down = weights * np.exp(np.minimum(wrong, 700)), weights * np.exp(-wrong)
        most = up / (up + down.sum() - down)
    return float(min(1.0, np.maximum(most - weights, 0).sum() + len(K) * 2.0**-53))


def _out_of_range(size: float) -> str:
    return f"the keys differ by {size:.3g}: float64 cannot represent the query or the scores; rescale the keys"


def as_plain(value: Any) -> Any:
    """Convert for JSON: lists for arrays, null for infinity."""
    if isinstance(value, dict):
        return {name: as_plain(part) for name, part in value.items()}
    if isinstance(value, tuple | np.ndarray):
        return [as_plain(part) for part in np.asarray(value).tolist()]
    return None if isinstance(value, float) and not np.isfinite(value) else value
