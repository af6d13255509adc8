"""Find a query: for keys K and wanted weights w, a q with softmax(q Kᵀ) within ε of w, or the reason why none exists.

For every query, the weights p = softmax(q Kᵀ) have log p_j = q·k_j − c: they are log-linear in the keys. So two
distributions w and μ with the same mean key, Σ w_j k_j = Σ μ_j k_j, have Σ w_j log p_j = Σ μ_j log p_j for every q:

    KL(w ‖ p) = Σ μ_j log 1/p_j − H(w) ≥ H(μ) − H(w).

A μ with the same mean key and a larger entropy is therefore a certificate that no query comes near w; and by duality
one exists exactly when w is out of reach: attention gives the most even distributions with their mean key, and limits
of those. The limits are the distributions that leave some keys out: they need a direction that sets the others apart.

`search.py` says how they are found. An answer is judged with exact arithmetic on the keys as they were given, float64
number by float64 number; if it does not stand, it is looked for once more in coordinates made for keys at very
different distances (`frames.py`), and what neither finds is left undecided.
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
"""unrepresentable: a query that does it exists, but float64 has too few digits to write it down."""


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
    method: Method
    margin: float | None
    """How far apart the wanted keys and the others can be held by a direction of length one that is constant on the
    wanted ones (by the method "angle": at least); None if all keys are wanted, 0 if there is no such direction."""
    rounding: float
    """How far a plain float64 evaluation of softmax(scale · q Kᵀ) may be from `weights`, which is of the query as it
    stands, without rounding."""
    certificate: Certificate | None
    """Why it is impossible, or how near one can come at best; None if there is a query."""
    digits: list[str] | None
    """The query that float64 cannot hold, in as many digits as it takes; None if the verdict is another one."""

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
    """A query q with softmax(scale · q Kᵀ) within `within` of `wanted`, in total variation; or why there is none.

    `scale` is what scores are multiplied by: 1 for plain dot products, 1/√d for what `headway.nn` computes.
    """
    K = checked_keys(keys)
    w = checked_distribution(wanted, len(K))
    ε, scale = checked_within(within, w), checked_positive("scale", scale)
    exact = ExactKeys(K, int(w.argmax()), scale)
    with np.errstate(all="ignore"):  # whatever overflows on the way: what is found is judged, and must stand
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
    # What is impossible for keys known to four units in the last place is not made possible by the digits beyond.
    return first if first.certificate or (second.verdict == "undecided" and first.error < second.error) else second


def find_queries(
    keys: ArrayLike, wanted: Sequence[ArrayLike] | None = None, within: float = 1e-6, scale: float = 1.0
) -> list[QueryAnswer]:
    """A query matrix, row by row: one answer per wanted distribution. None = the identity: row i selects key i."""
    K = checked_keys(keys)
    rows = [select(i, len(K)) for i in range(len(K))] if wanted is None else wanted
    return [find_query(K, row, within, scale) for row in rows]


def _of_size_one(K: Keys, origin: int, scale: float) -> tuple[Keys, float]:
    """The keys around one of them, of size one, and what a query of length one for them is to be divided by."""
    X = K - K[origin]
    X[np.abs(X).max(1) <= LAST_DIGITS * np.maximum(np.abs(K).max(1), np.abs(K[origin]).max())] = 0
    size = float(np.abs(X).max()) or 1.0
    if not 0 < size * scale < np.inf:
        raise UserError(_out_of_range(size))
    return X / size, size * scale


def _closest(X: Keys, w: Weights) -> int:
    """The wanted key that is nearest to some other one: around it the finest differences are kept."""
    apart = np.linalg.norm(X[w > 0, None] - X, axis=2)
    apart[apart == 0] = np.inf
    return int(np.flatnonzero(w > 0)[apart.min(1).argmin()])


def _answer(exact: ExactKeys, frames: Frames, w: Weights, ε: float) -> QueryAnswer | None:
    """None if the distances are so different that float64 cannot hold their ratios, or the query."""
    try:
        answer = _judged(exact, w, ε, search(frames, w, ε))
        if answer.verdict != "reached" and answer.error < 2 * ε:  # rounding took it over the line: leave it room
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
    """The first that refutes the question, or else one that proves as much as there is.

    One that is exact only for keys that differ in their last digits may be refuted itself: by the query that was found,
    if that is so long that it makes use of them.
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
    """The query in as few digits as it takes; None if it is not within ε, or takes a hundred."""
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
    """Scores of d products, each wrong by half a unit in the last place of its size. A key's weight is largest if its
    score is too large and all others are too small; a key far below the others may be wrong by a lot and stay there."""
    wrong = (len(q) + 2) * 2.0**-53 * scale * (np.abs(K) @ np.abs(q))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        up, down = weights * np.exp(np.minimum(wrong, 700)), weights * np.exp(-wrong)
        most = up / (up + down.sum() - down)
    return float(min(1.0, np.maximum(most - weights, 0).sum() + len(K) * 2.0**-53))


def _out_of_range(size: float) -> str:
    return f"the keys differ by {size:.3g}: float64 cannot hold the query, or the scores; rescale the keys"


def as_plain(value: Any) -> Any:
    """As JSON has it: lists for arrays, null for what is infinite."""
    if isinstance(value, dict):
        return {name: as_plain(part) for name, part in value.items()}
    if isinstance(value, tuple | np.ndarray):
        return [as_plain(part) for part in np.asarray(value).tolist()]
    return None if isinstance(value, float) and not np.isfinite(value) else value
