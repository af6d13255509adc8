"""Scaling laws: how the loss falls with the parameters N of a model and the tokens D that it is trained on.

    L(N, D) = E + A/N^α + B/D^β            (https://arxiv.org/abs/2203.15556, approach 3)

E is what no model and no data would take away. The law is fitted to log L with a Huber loss, summed, whose corner lies
at δ = 0.001: what lies farther off than a tenth of a percent pulls with the same force however far it is, so a run that
went wrong does not bend the law. There are several minima; the lowest from a grid of 4,500 starts is taken.

How it is minimised, all starts and all resamples at once, is another file's matter (`law_minima.py`).

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
from headway.stats.law_minima import CORNER, minimise, residuals_of

RESAMPLES = 1000
OUTLYING = 3.5
"""A point is an outlier if it is farther from the law than this many robust standard deviations (1.4826 · MAD)."""
FEWEST = 8
"""Points that five parameters are fitted to."""
_ROUGHLY = (100, 1e-6)  # steps at most, and what a step must gain, as a share
_LOWEST = 60  # of all starts, so many are followed to the end


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
        return -residuals_of(self.law.row[None], n, d, loss)[0]

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
        found.append(-residuals_of(row, n[places], d[places], loss[places])[0])
    return found
