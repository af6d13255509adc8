"""Scaling laws: how the loss falls with the parameters N of a model and the tokens D that it is trained on.

    L(N, D) = E + A/N^α + B/D^β            (https://arxiv.org/abs/2203.15556, approach 3)

E is what no model and no data would take away. The law is fitted to log L with a Huber loss, summed, whose corner lies
at δ = 0.001: what lies farther off than a tenth of a percent pulls with the same force however far it is, so a run that
went wrong does not bend the law. There are several minima; the lowest from a grid of 4,500 starts is taken.

All starts are minimised at once, and so are all resamples, each as a row of one array: Newton's method with a damping
of its own per row, whose steps are five numbers each. (L-BFGS from one start after the other finds the same minimum;
`tests/stats/test_scaling.py` holds the two against each other.)

Intervals are percentiles over resamples in which every point weighs something random, exponential with mean one
(https://doi.org/10.1214/aos/1176345338). Unlike points drawn with replacement, no size and no budget is ever missing
from a resample. `python -m benchmarks.coverage_of_scaling` measures how often they hold a planted law.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headway.core import random
from headway.stats.intervals import LEVEL

CORNER = 1e-3
"""δ of the Huber loss, in nats of log L."""
RESAMPLES = 1000
OUTLYING = 3.5
"""A point is an outlier if it is farther from the law than this many robust standard deviations (1.4826 · MAD)."""
FEWEST = 8
"""Points that five parameters are fitted to."""
_ROUGHLY, _EXACTLY = (100, 1e-6), (400, 1e-10)  # steps at most, and what a step must gain, as a share
_LOWEST = 60  # of all starts, so many are followed to the end
_ROWS = 256  # at once: as many as stay in a cache


@dataclass(frozen=True)
class Law:
    """How loss depends on parameters and tokens."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    @property
    def row(self) -> np.ndarray:
        return np.array([np.log(self.A), self.alpha, np.log(self.B), self.beta, np.log(self.E)])

    @classmethod
    def of(cls, row: np.ndarray) -> "Law":
        """From (log A, α, log B, β, log E)."""
        a, alpha, b, beta, e = (float(v) for v in row)
        return cls(float(np.exp(e)), float(np.exp(a)), float(np.exp(b)), alpha, beta)

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        return self.E + self.A / np.asarray(parameters) ** self.alpha + self.B / np.asarray(tokens) ** self.beta


@dataclass(frozen=True)
class Cost:
    """FLOPs of training per token, of a model of N parameters: factor · N^power. 6N, where nobody has counted."""

    factor: float = 6.0
    power: float = 1.0

    @classmethod
    def fitted(cls, points: "Points") -> "Cost":
        per_token = np.log(points.flops / points.tokens)
        if np.ptp(per_token - np.log(points.parameters)) < 1e-6:  # one number times N
            return cls(float(np.exp(np.mean(per_token - np.log(points.parameters)))))
        power, constant = np.polyfit(np.log(points.parameters), per_token, 1)
        return cls(float(np.exp(constant)), float(power))

    def tokens(self, flops: np.ndarray | float, parameters: np.ndarray | float) -> np.ndarray:
        return flops / (self.factor * np.asarray(parameters) ** self.power)


@dataclass(frozen=True, eq=False)
class Points:
    """Models that were trained to their end: a number of each, in arrays of one length."""

    parameters: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    loss: np.ndarray

    def __len__(self) -> int:
        return len(self.loss)

    def where(self, chosen: np.ndarray) -> "Points":
        return Points(*(values[chosen] for values in (self.parameters, self.tokens, self.flops, self.loss)))

    @cached_property
    def logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.log(self.parameters), np.log(self.tokens), np.log(self.loss)


# --- the best model for so many FLOPs --------------------------------------------------------------------------------


def optimum(rows: np.ndarray, cost: Cost, flops: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N, D and loss `[...]` of the best way to spend these FLOPs, by laws `[..., 5]`."""
    a, alpha, b, beta, e = (rows[..., k] for k in range(5))
    with np.errstate(all="ignore"):  # a resample may have an exponent of zero
        slope = alpha + cost.power * beta
        log_n = (np.log(alpha / (cost.power * beta)) + a - b + beta * np.log(flops / cost.factor)) / slope
        log_d = np.log(flops / cost.factor) - cost.power * log_n
        loss = np.exp(e) + np.exp(a - alpha * log_n) + np.exp(b - beta * log_d)
        return np.exp(log_n), np.exp(log_d), loss


def optimum_exponents(rows: np.ndarray, cost: Cost) -> tuple[np.ndarray, np.ndarray]:
    """How N and D of the best model grow with FLOPs: the powers of C."""
    alpha, beta = rows[..., 1], rows[..., 3]
    with np.errstate(all="ignore"):
        return beta / (alpha + cost.power * beta), alpha / (alpha + cost.power * beta)


def loss_exponent(rows: np.ndarray, cost: Cost) -> np.ndarray:
    """How what can be learnt at all, L − E, falls with FLOPs spent in the best way."""
    with np.errstate(all="ignore"):
        return rows[..., 1] * rows[..., 3] / (rows[..., 1] + cost.power * rows[..., 3])


def flops_for(rows: np.ndarray, cost: Cost, loss: np.ndarray | float) -> np.ndarray:
    """The FLOPs `[...]` at which the best model has this loss; infinite where it is below what can be reached."""
    low, high = np.zeros(rows.shape[:-1]), np.full(rows.shape[:-1], 200.0)  # of log C
    for _ in range(80):
        middle = (low + high) / 2
        above = optimum(rows, cost, np.exp(middle))[2] > loss
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(high > 199.0, np.inf, np.exp((low + high) / 2))


# --- the fit ---------------------------------------------------------------------------------------------------------


def grid_of_starts() -> np.ndarray:
    """`[4500, 5]`: those of Hoffmann et al."""
    exponents, logs, floors = np.arange(0, 2.1, 0.5), np.arange(0, 26, 5.0), np.arange(-1, 1.1, 0.5)
    return np.array(list(itertools.product(logs, exponents, logs, exponents, floors)))


@dataclass(frozen=True, eq=False)
class Fit:
    """A law, and what is known of its uncertainty."""

    points: Points
    law: Law
    objective: float
    """Summed Huber loss."""
    cost: Cost
    resamples: np.ndarray
    """`[resamples, 5]`: the law of each."""
    starts: int
    reached: int
    """How many starts ended in this minimum, or within a thousandth of it."""
    minima: np.ndarray
    """`[k, 5]`: this minimum, and the next ones that starts ended in."""

    @cached_property
    def residuals(self) -> np.ndarray:
        """Of log L: what was measured less what the law says."""
        n, d, loss = self.points.logs
        return -_residuals(self.law.row[None], n, d, loss)[0]

    @property
    def spread(self) -> float:
        """Robust standard deviation of the residuals."""
        return robust_spread(self.residuals)

    @property
    def outliers(self) -> np.ndarray:
        """Places of the points that lie too far off by the stated rule."""
        centred = np.abs(self.residuals - np.median(self.residuals))
        return np.flatnonzero(centred > OUTLYING * max(self.spread, CORNER / 10))

    @property
    def below_floor(self) -> np.ndarray:
        """Places of the points whose loss is below E, which the law says cannot be."""
        return np.flatnonzero(self.points.loss < self.law.E)

    def interval(self, values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
        """Of something that was computed of every resample; those of which it does not exist count to neither side."""
        return percentiles(values, level)

    def without(self, places: np.ndarray) -> "Fit":
        """The same without these points; from the minima that are known, and without resamples."""
        kept = np.ones(len(self.points))
        kept[places] = 0.0
        rows, objectives = minimise(self.minima, *self.points.logs, kept[None])
        best = int(objectives.argmin())
        rest = self.points.where(kept > 0)
        return replace(self, points=rest, law=Law.of(rows[best]), objective=float(objectives[best]))


def fit_law(points: Points, resamples: int = RESAMPLES, starts: np.ndarray | None = None) -> Fit:
    """The law of these points. The same points have the same resamples, always."""
    logs, n = points.logs, len(points)
    starts = grid_of_starts() if starts is None else starts
    rows, roughly = minimise(starts, *logs, np.ones((1, n)), *_ROUGHLY)
    rows, objectives = minimise(rows[np.argsort(roughly)[:_LOWEST]], *logs, np.ones((1, n)))
    order = np.argsort(objectives)
    best = objectives[order[0]]
    reached = int((roughly <= best * 1.001 + 1e-12).sum())
    minima = _distinct(rows[order], objectives[order])
    weights = np.random.default_rng(random.key("scaling", n, resamples)).exponential(1.0, (resamples, n))
    weights /= weights.mean(1, keepdims=True) if resamples else 1.0
    found = np.tile(minima[0], (resamples, 1))
    lowest = np.full(resamples, np.inf)
    for start in minima:
        drawn, of_drawn = minimise(np.tile(start, (resamples, 1)), *logs, weights, 200, 1e-8)
        found, lowest = np.where((of_drawn < lowest)[:, None], drawn, found), np.minimum(lowest, of_drawn)
    law = Law.of(minima[0])
    return Fit(points, law, float(best), Cost.fitted(points), found, len(starts), reached, minima)


def _distinct(rows: np.ndarray, objectives: np.ndarray, most: int = 3) -> np.ndarray:
    """Of minima in order, the first few that differ and are not hopeless."""
    kept: list[int] = [0]
    for k in range(1, len(rows)):
        if len(kept) == most or objectives[k] > 1.5 * objectives[0] + 1e-12:
            break
        if objectives[k] > objectives[kept[-1]] * (1 + 1e-4) + 1e-15:
            kept.append(k)
    return rows[kept]


def minimise(
    starts: np.ndarray,
    n: np.ndarray,
    d: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray,
    steps: int = _EXACTLY[0],
    gain: float = _EXACTLY[1],
) -> tuple[np.ndarray, np.ndarray]:
    """From starts `[S, 5]` and weights `[S or 1, points]`: the minima `[S, 5]`, and the objective there. n, d and loss
    are logarithms. A row has arrived when several steps in turn gained less than this share."""
    centre = np.array([n.mean(), d.mean()])
    n, d = n - centre[0], d - centre[1]  # else log A and α could hardly be told apart
    rows = starts.astype(np.float64)
    rows[:, [0, 2]] -= rows[:, [1, 3]] * centre
    objectives = np.empty(len(rows))
    for first in range(0, len(rows), _ROWS):
        part = slice(first, first + _ROWS)
        own = weights if len(weights) == 1 else weights[part]
        rows[part], objectives[part] = _minimise(rows[part], n, d, loss, own, steps, gain)
    rows[:, [0, 2]] += rows[:, [1, 3]] * centre
    return rows, objectives


def _minimise(
    rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray, weights: np.ndarray, steps: int, gain: float
) -> tuple[np.ndarray, np.ndarray]:
    """Newton's method on the points within the corner, damped by the matrix of reweighted least squares on all. With
    much damping a step is one of the latter, which never fails for long; with little the end is reached at once. A step
    that does not help is not taken, and the damping grows."""
    slopes = _SlopesOfLaw(n, d)
    ends, values = rows.copy(), np.empty(len(rows))
    left = np.arange(len(rows))  # rows that are still on their way
    value, residuals, shares = _objective(rows, n, d, loss, weights)
    damping, calm = np.ones(len(rows)), np.zeros(len(rows), dtype=int)
    for step in range(steps):
        size = np.abs(residuals)
        soft = weights * np.minimum(1.0, CORNER / np.maximum(size, 1e-300))
        gradient = slopes.gradient(soft * residuals, shares)
        least_squares, newton = slopes.products(soft, shares), slopes.products(weights * (size <= CORNER), shares)
        diagonal = np.einsum("sii->si", least_squares)
        ridge = (1e-9 * diagonal.max(1) * (1 + damping) + 1e-300)[:, None, None] * np.eye(5)
        matrix = newton + damping[:, None, None] * least_squares + ridge
        move = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
        move *= np.minimum(1.0, 3.0 / np.maximum(np.abs(move).max(1, keepdims=True), 1e-300))
        new = rows + move
        new_value, new_residuals, new_shares = _objective(new, n, d, loss, weights)
        better = new_value < value
        calm = np.where(better & (value - new_value > gain * value), 0, calm + 1)
        rows = np.where(better[:, None], new, rows)
        residuals = np.where(better[:, None], new_residuals, residuals)
        shares = np.where(better[:, None], new_shares, shares)
        value = np.where(better, new_value, value)
        damping = np.clip(damping * np.where(better, 0.3, 5.0), 1e-4, 1e8)
        on = calm < 8 if step < steps - 1 else np.zeros(len(rows), dtype=bool)
        if not on.all():
            ends[left[~on]], values[left[~on]] = rows[~on], value[~on]
            left, rows, value, damping, calm = left[on], rows[on], value[on], damping[on], calm[on]
            residuals, shares = residuals[on], shares[:, on]
            weights = weights if len(weights) == 1 else weights[on]
            if not len(left):
                break
    return ends, values


def _terms(rows: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """`[3, S, points]`: the logarithms of A/N^α, B/D^β and E."""
    a, alpha, b, beta, e = (rows[:, k, None] for k in range(5))
    return np.stack([a - alpha * n, b - beta * d, np.broadcast_to(e, (len(rows), len(n)))])


def _residuals(rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """`[S, points]`: what laws say of log L, less what was measured."""
    return np.logaddexp.reduce(_terms(rows, n, d)) - loss


def _objective(
    rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The summed Huber loss `[S]`, residuals `[S, points]`, and each term's share of what the law says."""
    terms = _terms(rows, n, d)
    largest = terms.max(0)
    shares = np.exp(terms - largest)
    total = shares.sum(0)
    residuals = largest + np.log(total) - loss
    size = np.abs(residuals)
    huber = np.where(size <= CORNER, 0.5 * residuals**2, CORNER * (size - 0.5 * CORNER))
    return (weights * huber).sum(1), residuals, shares / total


class _SlopesOfLaw:
    """What log L changes by, with each of the five numbers: its term's share times (1, −n, 1, −d, 1). Sums over points
    of products of two of them are matrix products with what does not change."""

    def __init__(self, n: np.ndarray, d: np.ndarray):
        ones = np.ones_like(n)
        self.of = [(0, ones), (0, -n), (1, ones), (1, -d), (2, ones)]

    def gradient(self, pulls: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """`[S, 5]`, of pulls `[S, points]`."""
        return np.stack([(pulls * shares[term]) @ factor for term, factor in self.of], 1)

    def products(self, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """`[S, 5, 5]`."""
        found = np.empty((shares.shape[1], 5, 5))
        for first, second in itertools.combinations_with_replacement(range(3), 2):
            both = weights * shares[first] * shares[second]
            rows = [k for k, (term, _) in enumerate(self.of) if term == first]
            columns = [k for k, (term, _) in enumerate(self.of) if term == second]
            factors = np.stack([self.of[i][1] * self.of[j][1] for i in rows for j in columns], 1)
            block = (both @ factors).reshape(-1, len(rows), len(columns))
            found[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = block
            found[:, columns[0] : columns[-1] + 1, rows[0] : rows[-1] + 1] = block.swapaxes(1, 2)
        return found


# --- small things ----------------------------------------------------------------------------------------------------


def robust_spread(values: np.ndarray) -> float:
    """The standard deviation that the median of absolute deviations stands for."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def percentiles(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [level / 2, 1 - level / 2], method="linear" if np.isfinite(known).all() else "lower")
    return float(low), float(high)


def left_out(fit: Fit, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each group of points: how far they lie, in log L, from the law of all others."""
    n, d, loss = fit.points.logs
    found = []
    for places in groups:
        row = fit.without(places).law.row[None]
        found.append(-_residuals(row, n[places], d[places], loss[places])[0])
    return found
