"""IsoFLOP curves: the best model size for each budget, and how that size grows with the budget.

Among models of equal cost, small ones have seen more tokens and large ones fewer, and the loss has a minimum in
between. A parabola in log N fitted to the losses of one budget locates it (https://arxiv.org/abs/2203.15556, approach
2). If its vertex lies outside the sizes that were trained, or the parabola opens downwards, the budget has no minimum:
it is reported with the side on which sizes are missing, and not used.

Two power laws are fitted through the minima of all budgets, N = k·C^a and D = k'·C^b. Resamples weight the points at
random as in `scaling.py`; every curve is fitted again, and so is the line through the minima.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headway.core import random
from headway.stats.scaling import RESAMPLES, Points, percentiles

SAME_BUDGET = 1.12
"""Costs closer than this factor to the next count as one budget; they differ slightly because steps are whole
numbers."""
WIDEST_BUDGET = 1.35
"""The widest range of costs in one budget; if it is wider, costs were not held fixed."""
MIN_SIZES = 4
"""The minimum for a parabola, since one goes through any three points."""
Missing = Literal["", "few sizes", "smaller", "larger", "no minimum"]


@dataclass(frozen=True, eq=False)
class IsoFlopCurve:
    """The points of one budget, and the parabola fitted to them."""

    budget: float
    """FLOPs: the geometric mean of its points."""
    places: np.ndarray
    """The indices of the points of this budget."""
    coefficients: np.ndarray
    """Coefficients of the loss (constant, linear, quadratic) in log N − `centre`."""
    centre: float
    sizes: tuple[float, float]
    """The smallest and the largest size."""
    missing: Missing
    """Why there is no minimum; empty if there is one."""
    resampled: np.ndarray
    """`[resamples]`: log N of the vertex in each resample; NaN if the parabola opens downwards."""

    @property
    def parameters(self) -> float:
        """The size at the minimum of the parabola."""
        return float(np.exp(_vertex(self.coefficients) + self.centre))

    @property
    def loss(self) -> float:
        """The loss at the minimum."""
        return float(self(np.array(self.parameters)))

    def __call__(self, parameters: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyval(np.log(parameters) - self.centre, self.coefficients)

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the best size."""
        low, high = percentiles(self.resampled)
        return float(np.exp(low)), float(np.exp(high))


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """y = factor · C^exponent."""

    factor: float
    exponent: float
    resampled: np.ndarray
    """`[resamples, 2]`: log factor and exponent of each resample."""

    def __call__(self, flops: np.ndarray | float) -> np.ndarray:
        return self.factor * np.asarray(flops) ** self.exponent

    def interval(self, flops: float) -> tuple[float, float]:
        low, high = percentiles(self.resampled @ np.array([1.0, np.log(flops)]))
        return float(np.exp(low)), float(np.exp(high))

    @property
    def exponent_interval(self) -> tuple[float, float]:
        return percentiles(self.resampled[:, 1])


@dataclass(frozen=True, eq=False)
class IsoFlop:
    curves: list[IsoFlopCurve]
    """The curves of all budgets, with or without a minimum."""
    parameters: PowerLaw | None
    """N of the best model by budget; None if fewer than two budgets have a minimum."""
    tokens: PowerLaw | None

    @property
    def found(self) -> list[IsoFlopCurve]:
        return [curve for curve in self.curves if not curve.missing]


def budgets_of(points: Points) -> list[np.ndarray]:
    """The indices of points of equal cost, cheapest first. Empty if costs are spread over a range."""
    order = np.argsort(points.flops, kind="stable")
    logs = np.log(points.flops[order])
    groups = np.split(order, np.flatnonzero(np.diff(logs) > np.log(SAME_BUDGET)) + 1)
    if any(np.ptp(np.log(points.flops[group])) > np.log(WIDEST_BUDGET) for group in groups):
        return []
    return groups


def isoflop(points: Points, groups: Sequence[np.ndarray], resamples: int = RESAMPLES) -> IsoFlop:
    n = len(points)
    weights = np.random.default_rng(random.key("isoflop", n, resamples)).exponential(1.0, (resamples, n))
    curves = [_curve(points, group, weights[:, group]) for group in groups]
    found = [curve for curve in curves if not curve.missing]
    if len(found) < 2:
        return IsoFlop(curves, None, None)
    sizes = np.array([np.log(curve.parameters) for curve in found])
    of_resamples = np.stack([curve.resampled for curve in found], 1)
    # The cost per token depends on the size: estimated within each budget from the points themselves.
    lines = [_tokens_by_size(points.where(curve.places)) for curve in found]
    tokens = np.array([line[0] + line[1] * size for line, size in zip(lines, sizes, strict=True)])
    tokens_of_resamples = np.stack([line[0] + line[1] * of_resamples[:, k] for k, line in enumerate(lines)], 1)
    flops = np.log([curve.budget for curve in found])
    return IsoFlop(curves, _power_law(flops, sizes, of_resamples), _power_law(flops, tokens, tokens_of_resamples))


def _curve(points: Points, places: np.ndarray, weights: np.ndarray) -> IsoFlopCurve:
    logs, loss = np.log(points.parameters[places]), points.loss[places]
    centre, budget = float(logs.mean()), float(np.exp(np.log(points.flops[places]).mean()))
    sizes = float(np.exp(logs.min())), float(np.exp(logs.max()))
    many = len(np.unique(np.round(logs, 6)))
    if many < MIN_SIZES:
        nothing = np.full(len(weights), np.nan)
        return IsoFlopCurve(budget, places, np.array([loss.mean(), 0.0, 0.0]), centre, sizes, "few sizes", nothing)
    every = np.concatenate([np.ones((1, len(loss))), weights])
    coefficients = _parabolas(logs - centre, loss, every)
    vertices = _vertex(coefficients) + centre
    missing: Missing = ""
    if not coefficients[0, 2] > 0:
        missing = "no minimum"
    elif not logs.min() < vertices[0] < logs.max():
        missing = "smaller" if vertices[0] <= logs.min() else "larger"
    return IsoFlopCurve(budget, places, coefficients[0], centre, sizes, missing, vertices[1:])


def _parabolas(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted least squares: coefficients `[S, 3]` for weights `[S, points]`."""
    powers = np.stack([np.ones_like(x), x, x * x], 1)
    left = np.einsum("sp,pi,pj->sij", weights, powers, powers, optimize=True)
    right = (weights * y) @ powers
    return np.linalg.solve(left + 1e-12 * np.eye(3), right[..., None])[..., 0]


def _vertex(coefficients: np.ndarray) -> np.ndarray:
    """The vertex of parabolas `[..., 3]` that open upwards; NaN for others."""
    bend = coefficients[..., 2]
    return np.where(bend > 0, -coefficients[..., 1] / (2 * np.where(bend > 0, bend, 1.0)), np.nan)


def _tokens_by_size(points: Points) -> tuple[float, float]:
    """log D = c + s · log N, among points of one budget."""
    slope, constant = np.polyfit(np.log(points.parameters), np.log(points.tokens), 1)
    return float(constant), float(slope)


def _power_law(flops: np.ndarray, y: np.ndarray, resampled: np.ndarray) -> PowerLaw:
    """Fit a line through logarithms `[k]`, and through those of resamples `[resamples, k]`, some of which may be
    NaN."""
    x = np.stack([np.ones_like(flops), flops], 1)
    solved = np.linalg.pinv(x)
    constant, exponent = solved @ y
    return PowerLaw(float(np.exp(constant)), float(exponent), resampled @ solved.T)
