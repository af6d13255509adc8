"""Find a key: given a query, keys and an index, the key to put there so that attention has the wanted weights.

Only the new key's score t = q·k matters. The other keys' scores do not change, so they share the remaining weight in
fixed proportions π, and the possible weights form a line from π (t → −∞) to the new key alone (t → ∞):

    p_j = σ(t − log Z),    p_i = (1 − p_j) π_i,    Z = Σ_{i≠j} exp(q·k_i).

The distance of this line from the wanted weights is a piecewise linear, convex function of p_j. Its minimum is at a
corner and is found exactly, so "impossible" needs no certificate other than the corners themselves. A key of norm r has
a score between −r‖q‖ and r‖q‖; in two or more dimensions every score in between is possible.
"""

from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headway.core.errors import UserError
from headway.solve.exact import ExactKeys, product
from headway.solve.geometry import length, total_variation, total_variation_at_most
from headway.solve.inputs import (
    Keys,
    Vector,
    Weights,
    checked_distribution,
    checked_index,
    checked_keys,
    checked_positive,
    checked_query,
    checked_within,
)
from headway.solve.queries import Verdict, as_plain

FAR = 700.0  # a score this far from the others' is practically infinite: exp(-745) is zero in float64


@dataclass(frozen=True)
class KeyAnswer:
    query: Vector
    keys: Keys
    """The keys with the new one in its place."""
    replaced: int
    wanted: Weights
    within: float
    scale: float
    norm: float | None
    """The required norm."""
    verdict: Verdict
    key: Vector
    """The new key, or the best one there is."""
    score: float
    """scale · q·k of the new key."""
    weights: Weights
    error: float
    """Total variation between the weights and the wanted ones."""
    least_error: float
    """The exact lower bound on the error for any key at this index (with the required norm, if any)."""
    proportions: Weights
    """The fixed proportions in which the other keys share the remaining weight."""
    log_rest: float
    """log Z: the score at which the new key would get half of the weight."""
    weight_range: tuple[float, float]
    """The range of weights the new key can get with the required norm."""
    norms: tuple[float, float] | None
    """The range of norms with which it is possible (unbounded except in one dimension); None if there are none."""

    @cached_property
    def derivation(self) -> list[str]:
        from headway.solve.derivation import key_derivation

        return key_derivation(self)

    def as_json(self) -> dict[str, Any]:
        return {name: as_plain(value) for name, value in asdict(self).items()} | {"derivation": self.derivation}


def find_key(
    query: ArrayLike,
    keys: ArrayLike,
    replace: int,
    wanted: ArrayLike,
    norm: float | None = None,
    within: float = 1e-6,
    scale: float = 1.0,
) -> KeyAnswer:
    """Find a key for index `replace` such that softmax(scale · q Kᵀ) is within `within` of `wanted`, or the best one.

    Orthogonally to the query the new key equals the old one. `norm`: only keys with this Euclidean norm.
    """
    K = checked_keys(keys)
    q = checked_query(query, K.shape[1])
    j, w = checked_index(replace, len(K)), checked_distribution(wanted, len(K))
    ε, scale = checked_within(within, w), checked_positive("scale", scale)
    r = None if norm is None else checked_positive("norm", norm)
    asked = _Asked(q, K, j, w, r, ε, scale)

    score = asked.best_score()
    own = asked.own_score(score)
    K = K.copy()
    K[j] = asked.key_with(score, own)
    weights = ExactKeys(K, j, scale).weights(q)
    least, bounds = asked.least_errors(score)
    line, top, furthest = asked.line, asked.top, asked.furthest
    return KeyAnswer(
        query=q,
        keys=K,
        replaced=j,
        wanted=w,
        within=ε,
        scale=scale,
        norm=r,
        verdict=_verdict(total_variation_at_most(weights, w), *bounds, ε),
        key=K[j],
        score=own,
        weights=weights,
        error=total_variation(weights, w),
        least_error=least,
        proportions=line.proportions,
        log_rest=line.log_rest + top,
        weight_range=(line.weight(-furthest - top), line.weight(furthest - top)),
        norms=_norms(line, top, asked.pull, ε, len(q)),
    )


class _Asked:
    """The problem reduced to one number: the new key's score. It is measured relative to `top`, the best score of the
    other keys, and may range from `-furthest` to `furthest`."""

    def __init__(self, q: Vector, K: Keys, j: int, w: Weights, norm: float | None, ε: float, scale: float):
        self.q, self.old, self.norm, self.ε, self.scale = q, K[j], norm, ε, scale
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = scale * np.abs(K) @ np.abs(q)
            self.pull = scale * length(q)  # the score of a unit key in the direction of q
            self.furthest = 0.0 if not self.pull else np.inf if norm is None else norm * self.pull
        if not np.isfinite([*sizes, self.pull, 0.0 if norm is None else self.furthest]).all():
            raise UserError("the scores q·k are too large for float64; use a shorter query or shorter keys")
        others = np.delete(K, j, 0)
        below = ExactKeys(others, 0, scale).below(q) if len(others) else np.zeros(0)
        self.best = others[below.argmax()] if len(others) else np.zeros_like(q)
        self.top = float((scale * self.best) @ q)
        self.line = _Line(below, np.delete(w, j), float(w[j]))
        self.last_place = (len(q) + 4) * 2.0**-53
        self.doubt = self.last_place * float((scale * np.abs(self.best)) @ np.abs(q))  # the rounding error of scores

    def best_score(self) -> float:
        """The possible score with the smallest error."""
        ends = -self.furthest - self.top, self.furthest - self.top
        if len(self.q) == 1 and self.norm is not None:  # in one dimension there are only two keys of each norm
            return min(ends, key=self.line.error)
        return self.line.score(*ends, -self.top, self.ε, self.doubt)

    def own_score(self, score: float) -> float:
        """The absolute score; exact at the ends, where `+ top` would round."""
        ends = {-self.furthest - self.top: -self.furthest, self.furthest - self.top: self.furthest}
        return ends.get(score, score + self.top)

    def key_with(self, score: float, own: float) -> Vector:
        """The key with this score that is closest to the old one."""
        try:
            with np.errstate(all="ignore"):
                key = _nearest_with_score(self.old, self.q, own / self.scale, self.norm)
                if self.pull and self.norm is None:
                    key = _corrected(key, self.q, product(self.best, self.q) + Fraction(score / self.scale))
            return checked_keys(key[None])[0]
        except (OverflowError, UserError):
            raise UserError("float64 cannot represent the key, because the query or the scale is too small") from None

    def least_errors(self, score: float) -> tuple[float, tuple[float, float]]:
        """The smallest possible error, and the range it may be in because scores are rounded."""
        if not np.isfinite(self.furthest):
            return self.line.least_error, (self.line.least_error, self.line.least_error)
        return self.line.error(score), self.line.errors_near(score, self.doubt + self.last_place * self.furthest)


def _verdict(error: float, at_least: float, at_most: float, ε: float) -> Verdict:
    """The verdict from the error of the key found, and the bounds on the smallest error without rounding."""
    if error <= ε:
        return "reached"
    return "impossible" if at_least > ε else "unrepresentable" if at_most <= ε else "undecided"


class _Line:
    """The weights as a function of one key's score, and their distance from the wanted ones. Scores are measured
    relative to the best of the others."""

    def __init__(self, others: Weights, wanted_of_others: Weights, wanted: float):
        self.wanted, self.wanted_of_others = wanted, wanted_of_others
        self.log_rest = float(np.logaddexp.reduce(others)) if len(others) else -np.inf
        self.proportions = np.exp(others - self.log_rest)
        seen = self.proportions > 0
        with np.errstate(over="ignore"):  # −∞ is clipped to 0
            corners = np.append(1 - wanted_of_others[seen] / self.proportions[seen], [wanted, 0.0, 1.0]).clip(0, 1)
        errors = np.array([self.error_at(p, 1 - p) for p in corners])
        self.least_error = float(errors.min())
        best = corners[errors <= self.least_error + 1e-15]
        self.best_weight = float(best[np.abs(best - wanted).argmin()])

    def weight(self, score: float) -> float:
        return 1 - self.left(score) if score < self.log_rest else 1 / (1 + _exp(self.log_rest - score))

    def left(self, score: float) -> float:
        """The weight that the new key leaves to the others."""
        return 1 / (1 + _exp(score - self.log_rest))

    def error(self, score: float) -> float:
        return self.error_at(self.weight(score), self.left(score))

    def error_at(self, weight: float, left: float) -> float:
        """The error; takes both the weight and the remainder, because near 1 the difference would lose precision."""
        own = abs(weight - self.wanted) if self.wanted < 0.5 else abs(left - (1 - self.wanted))
        return float(own + np.abs(left * self.proportions - self.wanted_of_others).sum()) / 2

    def score(self, lowest: float, highest: float, zero: float, ε: float, doubt: float) -> float:
        """The score with the smallest error; if that is at infinity, the one closest to zero that ε and rounding
        allow."""
        best = min(max(self.best_score, lowest), highest)
        if np.isfinite(best):
            return best
        low, high = self.scores_within(max(ε, self.least_error + ε / 2) * (1 - 1e-9))  # leaves room for rounding
        return min(max(zero, low + doubt), high - doubt)

    def errors_near(self, score: float, doubt: float) -> tuple[float, float]:
        """The smallest and the largest error of scores that equal this one up to rounding."""
        ends = self.error(score - doubt), self.error(score + doubt)
        return self.least_error if abs(self.best_score - score) <= doubt else min(ends), max(ends)

    @property
    def best_score(self) -> float:
        p = self.best_weight
        return self.log_rest + float(np.log(p) - np.log1p(-p)) if 0 < p < 1 else np.inf if p else -np.inf

    def scores_within(self, allowed: float) -> tuple[float, float]:
        """The range of scores with an allowed error, which decreases towards the best score and increases after it."""
        if np.isinf(self.log_rest):
            return -np.inf, np.inf  # no other key
        low, high = self.log_rest - FAR, self.log_rest + FAR
        best = min(max(self.best_score, low), high)
        low_end, high_end = self._edge(low, best, allowed), self._edge(high, best, allowed)
        return -np.inf if low_end == low else low_end, np.inf if high_end == high else high_end

    def _edge(self, outside: float, inside: float, allowed: float) -> float:
        if self.error(outside) <= allowed:
            return outside
        while abs(inside - outside) > 1e-13 * max(1.0, abs(inside)):
            middle = (inside + outside) / 2
            outside, inside = (outside, middle) if self.error(middle) <= allowed else (middle, inside)
        return inside


def _norms(line: _Line, top: float, pull: float, ε: float, d: int) -> tuple[float, float] | None:
    """The range of norms for which some key is within ε."""
    if not pull:
        return (0.0, np.inf) if line.error(-top) <= ε else None
    if line.least_error > ε:
        return None
    low, high = (end + top for end in line.scores_within(ε))
    return max(0.0, low, -high) / pull, max(abs(low), abs(high)) / pull if d == 1 else np.inf


def _exp(x: float) -> float:
    return float(np.exp(min(max(x, -FAR), FAR)))


def _nearest_with_score(old: Vector, q: Vector, score: float, norm: float | None) -> Vector:
    """The vector closest to the old one whose product with q is the score, with this norm if one is given."""
    pull = length(q)
    along = q / pull if pull else np.zeros_like(q)
    across = old - (old @ along) * along
    if norm is None:
        return across + (score / pull * along if pull else 0)
    share = min(max(score / pull / norm, -1.0), 1.0) if pull else 0.0
    part, rest = norm * share, norm * np.sqrt((1 - share) * (1 + share))
    if rest > 0 and length(across) <= 1e-12 * length(old):  # no preferred direction: any orthogonal to q
        across = np.eye(len(q))[np.abs(along).argmin()]
        across = across - (across @ along) * along
    size = length(across)
    key = part * along + (rest * (across / size) if rest > 0 and size > 0 else 0)
    return np.where(np.abs(key) > 2.0**-51 * norm, key, 0.0)  # anything smaller is rounding


def _corrected(key: Vector, q: Vector, score: Fraction) -> Vector:
    """Correct the rounding error of the key's score: first along q, then in the entry whose last digit has the smallest
    effect on the score."""
    key = key + float(score - product(key, q)) / length(q) * (q / length(q))
    for _ in range(3):
        left = float(score - product(key, q))
        with np.errstate(all="ignore"):
            small = np.abs(left / q) <= 1e-9 * length(key)
        if left == 0 or not small.any():
            break
        key = key.copy()
        finest = int(np.where(small, np.spacing(np.abs(key)) * np.abs(q), np.inf).argmin())
        key[finest] += left / q[finest]
    return key
