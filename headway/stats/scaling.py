"""Scaling laws: how the loss decreases with the parameters N of a model and its training tokens D.

    L(N, D) = E + A/N^α + B/D^β            (https://arxiv.org/abs/2203.15556, approach 3)

E is the irreducible loss. The law is fitted to log L with a summed Huber loss with δ = 0.001: a point farther off than
a tenth of a percent has a constant influence, so a run that went wrong does not distort the law. There are several
minima; the lowest one from a grid of 4,500 starts is taken. All starts and resamples are minimised at once
(`law_minima.py`).

Intervals are percentiles over resamples in which every point has a random weight, exponential with mean one
(https://doi.org/10.1214/aos/1176345338). Unlike resampling with replacement, this never loses a size or a budget from a
resample. `python -m benchmarks.coverage_of_scaling` measures how often the intervals cover a planted law.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headway.core import random
from headway.stats.intervals import LEVEL
from headway.stats.law_minima import CORNER, minimise, residuals_of

RESAMPLES = 1000
OUTLYING = 3.5
"""A point is an outlier if it is farther from the law than this many robust standard deviations (1.4826 · MAD)."""
MIN_POINTS = 8
"""The minimal number of points for fitting five parameters."""
_ROUGHLY = (100, 1e-6)  # maximal number of steps, and the relative improvement a step must make
_LOWEST = 60  # how many of the starts are followed to the end


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
        """A law from (log A, α, log B, β, log E)."""
        a, alpha, b, beta, e = (float(v) for v in row)
        return cls(float(np.exp(e)), float(np.exp(a)), float(np.exp(b)), alpha, beta)

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        return self.E + self.A / np.asarray(parameters) ** self.alpha + self.B / np.asarray(tokens) ** self.beta


@dataclass(frozen=True)
class Cost:
    """Training FLOPs per token of a model with N parameters: factor · N^power. 6N if they were not counted."""

    factor: float = 6.0
    power: float = 1.0

    @classmethod
    def fitted(cls, points: "Points") -> "Cost":
        per_token = np.log(points.flops / points.tokens)
        if np.ptp(per_token - np.log(points.parameters)) < 1e-6:  # a constant times N
            return cls(float(np.exp(np.mean(per_token - np.log(points.parameters)))))
        power, constant = np.polyfit(np.log(points.parameters), per_token, 1)
        return cls(float(np.exp(constant)), float(power))

    def tokens(self, flops: np.ndarray | float, parameters: np.ndarray | float) -> np.ndarray:
        return flops / (self.factor * np.asarray(parameters) ** self.power)


@dataclass(frozen=True, eq=False)
class Points:
    """Trained models: parameters, tokens, FLOPs and loss, in arrays of the same length."""

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


# --- the best model for a compute budget -----------------------------------------------------------------------------


def optimum(rows: np.ndarray, cost: Cost, flops: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N, D and loss `[...]` of the compute-optimal model for these FLOPs, by laws `[..., 5]`."""
    a, alpha, b, beta, e = (rows[..., k] for k in range(5))
    with np.errstate(all="ignore"):  # a resample may have an exponent of zero
        slope = alpha + cost.power * beta
        log_n = (np.log(alpha / (cost.power * beta)) + a - b + beta * np.log(flops / cost.factor)) / slope
        log_d = np.log(flops / cost.factor) - cost.power * log_n
        loss = np.exp(e) + np.exp(a - alpha * log_n) + np.exp(b - beta * log_d)
        return np.exp(log_n), np.exp(log_d), loss


def optimum_exponents(rows: np.ndarray, cost: Cost) -> tuple[np.ndarray, np.ndarray]:
    """How N and D of the best model grow with FLOPs: the exponents of C."""
    alpha, beta = rows[..., 1], rows[..., 3]
    with np.errstate(all="ignore"):
        return beta / (alpha + cost.power * beta), alpha / (alpha + cost.power * beta)


def loss_exponent(rows: np.ndarray, cost: Cost) -> np.ndarray:
    """How the reducible loss L − E of the best model decreases with FLOPs: the exponent of C, with a positive sign."""
    with np.errstate(all="ignore"):
        return rows[..., 1] * rows[..., 3] / (rows[..., 1] + cost.power * rows[..., 3])


def flops_for(rows: np.ndarray, cost: Cost, loss: np.ndarray | float) -> np.ndarray:
    """The FLOPs `[...]` at which the best model has this loss; infinite if it cannot be reached."""
    low, high = np.zeros(rows.shape[:-1]), np.full(rows.shape[:-1], 200.0)  # of log C
    for _ in range(80):
        middle = (low + high) / 2
        above = optimum(rows, cost, np.exp(middle))[2] > loss
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(high > 199.0, np.inf, np.exp((low + high) / 2))


# --- the fit ---------------------------------------------------------------------------------------------------------


def grid_of_starts() -> np.ndarray:
    """The starts of Hoffmann et al., `[4500, 5]`."""
    exponents, logs, floors = np.arange(0, 2.1, 0.5), np.arange(0, 26, 5.0), np.arange(-1, 1.1, 0.5)
    return np.array(list(itertools.product(logs, exponents, logs, exponents, floors)))


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted law and its uncertainty."""

    points: Points
    law: Law
    objective: float
    """Summed Huber loss."""
    cost: Cost
    resamples: np.ndarray
    """`[resamples, 5]`: the law of each resample."""
    starts: int
    reached: int
    """How many starts ended in this minimum, or within a thousandth of it."""
    minima: np.ndarray
    """`[k, 5]`: this minimum, and the next best ones."""

    @cached_property
    def residuals(self) -> np.ndarray:
        """Measured minus fitted log L."""
        n, d, loss = self.points.logs
        return -residuals_of(self.law.row[None], n, d, loss)[0]

    @property
    def spread(self) -> float:
        """Robust standard deviation of the residuals."""
        return robust_spread(self.residuals)

    @property
    def outliers(self) -> np.ndarray:
        """The indices of the outliers by the stated rule."""
        centred = np.abs(self.residuals - np.median(self.residuals))
        return np.flatnonzero(centred > OUTLYING * max(self.spread, CORNER / 10))

    @property
    def below_floor(self) -> np.ndarray:
        """The indices of the points whose loss is below E, which contradicts the law."""
        return np.flatnonzero(self.points.loss < self.law.E)

    def interval(self, values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
        """The interval of a quantity computed from every resample; NaN values are ignored."""
        return percentiles(values, level)

    def without(self, places: np.ndarray) -> "Fit":
        """The fit without these points, started from the known minima; its resamples remain those of all points."""
        kept = np.ones(len(self.points))
        kept[places] = 0.0
        rows, objectives = minimise(self.minima, *self.points.logs, kept[None])
        best = int(objectives.argmin())
        rest = self.points.where(kept > 0)
        return replace(self, points=rest, law=Law.of(rows[best]), objective=float(objectives[best]))


def fit_law(points: Points, resamples: int = RESAMPLES, starts: np.ndarray | None = None) -> Fit:
    """Fit the law to these points. The same points always get the same resamples."""
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
    """The first few of the sorted minima that are distinct and close to the lowest one."""
    kept: list[int] = [0]
    for k in range(1, len(rows)):
        if len(kept) == most or objectives[k] > 1.5 * objectives[0] + 1e-12:
            break
        if objectives[k] > objectives[kept[-1]] * (1 + 1e-4) + 1e-15:
            kept.append(k)
    return rows[kept]


# --- helpers ---------------------------------------------------------------------------------------------------------


def robust_spread(values: np.ndarray) -> float:
    """The standard deviation estimated from the median absolute deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def percentiles(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [level / 2, 1 - level / 2], method="linear" if np.isfinite(known).all() else "lower")
    return float(low), float(high)


def left_out(fit: Fit, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each group of points: their residuals in log L from the law fitted to all others."""
    n, d, loss = fit.points.logs
    found = []
    for places in groups:
        row = fit.without(places).law.row[None]
        found.append(-residuals_of(row, n[places], d[places], loss[places])[0])
    return found
