"""The scaling analysis of a set of points: law, parabolas, prediction of held-out budgets, and what model to train.

Two methods are used side by side, as in Hoffmann et al. (https://arxiv.org/abs/2203.15556): the minima of a parabola
per budget, and the minimum of one law fitted to all points. If they disagree by more than their intervals, the form of
the law is wrong, or the sizes are too far apart.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from headway.scaling.points import PointTable
from headway.stats.isoflop import IsoFlop, isoflop
from headway.stats.scaling import (
    OUTLYING,
    RESAMPLES,
    Fit,
    fit_law,
    flops_for,
    grid_of_starts,
    left_out,
    loss_exponent,
    optimum,
    optimum_exponents,
)

_FLOOR = 0.02  # relative to the lowest loss: if the interval of E goes below this, E is not determined
FARTHEST = 1000.0
"""How many times beyond the largest budget, or below the smallest, the law may be extrapolated for advice."""
_MISSING = {
    "few sizes": "it has fewer than four sizes",
    "smaller": "its losses still decrease towards the smallest size, so smaller ones are missing",
    "larger": "its losses still decrease towards the largest size, so larger ones are missing",
    "no minimum": "its parabola opens downwards",
}


class WithInterval(NamedTuple):
    """A number with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LeftOut:
    """A budget as predicted by the law fitted to all others."""

    flops: float
    points: int
    error: float
    """Root mean square error of log L, which is about the relative error of the loss."""
    bias: float
    """Mean error of log L: above 0 if the measured losses are worse than predicted."""


@dataclass(frozen=True)
class Convention:
    """The exponents with parameters counted in another way."""

    name: str
    alpha: WithInterval
    beta: WithInterval
    parameters_exponent: WithInterval
    tokens_exponent: WithInterval
    curves_exponent: WithInterval | None
    """The exponent of parameters by parabolas."""


@dataclass(frozen=True)
class Advice:
    """How to spend a budget of FLOPs."""

    flops: float
    parameters: WithInterval
    tokens: WithInterval
    loss: WithInterval
    by_curves: tuple[WithInterval, WithInterval] | None
    """Parameters and tokens by the power laws through the minima of parabolas."""
    beyond: float
    """The factor beyond the largest trained budget, or below the smallest; 1 in between."""
    notes: list[str]

    @property
    def is_usable(self) -> bool:
        """Whether the budget is near enough to the fitted ones."""
        return self.beyond <= FARTHEST

    def as_json(self) -> dict[str, Any]:
        if not self.is_usable:
            nothing = dict.fromkeys(("parameters", "tokens", "loss", "by_curves"))
            return {"flops": self.flops, "usable": False, **nothing, "beyond": self.beyond, "notes": self.notes}
        found = {key: getattr(self, key)._asdict() for key in ("parameters", "tokens", "loss")}
        curves = self.by_curves and {"parameters": self.by_curves[0]._asdict(), "tokens": self.by_curves[1]._asdict()}
        told = {"flops": self.flops, "usable": True, **found, "by_curves": curves, "beyond": self.beyond}
        return _finite({**told, "notes": self.notes})


@dataclass(frozen=True, eq=False)
class ScalingAnalysis:
    table: PointTable
    fit: Fit
    curves: IsoFlop
    left_out: list[LeftOut]
    conventions: list[Convention]
    """The first is the one used for everything else, and the only one if the table counts parameters in one way."""

    @property
    def law(self) -> dict[str, WithInterval]:
        """E, A, B, α and β."""
        law, rows = self.fit.law, self.fit.resamples
        drawn = {"E": np.exp(rows[:, 4]), "A": np.exp(rows[:, 0]), "B": np.exp(rows[:, 2])}
        drawn |= {"alpha": rows[:, 1], "beta": rows[:, 3]}
        return {name: self._estimate(getattr(law, name), values) for name, values in drawn.items()}

    @property
    def exponents(self) -> dict[str, WithInterval]:
        """Exponents of C: of parameters and tokens of the best model, and of its loss above E; by the law, and by
        parabolas if there are any."""
        names = ("parameters", "tokens")
        whole, drawn = (optimum_exponents(rows, self.fit.cost) for rows in (self.fit.law.row, self.fit.resamples))
        found = {name: self._estimate(whole[k], drawn[k]) for k, name in enumerate(names)}
        losses = (loss_exponent(rows, self.fit.cost) for rows in (self.fit.law.row, self.fit.resamples))
        found["loss"] = self._estimate(*losses)
        for name, line in zip(names, (self.curves.parameters, self.curves.tokens), strict=True):
            if line is not None:
                found[f"{name}_by_curves"] = WithInterval(line.exponent, *line.exponent_interval)
        return found

    def _estimate(self, value: Any, drawn: np.ndarray) -> WithInterval:
        return WithInterval(float(value), *self.fit.interval(drawn))

    def advise(self, flops: float) -> Advice:
        """The best model for a budget of FLOPs, by the law."""
        whole, drawn = (optimum(rows, self.fit.cost, flops) for rows in (self.fit.law.row, self.fit.resamples))
        n, d, loss = (self._estimate(a, b) for a, b in zip(whole, drawn, strict=True))
        spent, by_curves = self.table.points.flops, None
        beyond = max(flops / spent.max(), spent.min() / flops, 1.0)
        lines = self.curves.parameters, self.curves.tokens
        if lines[0] is not None and lines[1] is not None:
            by_curves = tuple(
                WithInterval(float(line(flops)), *line.interval(flops)) for line in lines if line is not None
            )
        notes = list(self._doubts_of_advice(flops, beyond, n))
        return Advice(flops, n, d, loss, by_curves, beyond, notes)  # pyright: ignore[reportArgumentType]

    def flops_for(self, loss: float) -> WithInterval:
        """The FLOPs of the best model with this loss; infinite if none reaches it."""
        cost = self.fit.cost
        drawn = flops_for(self.fit.resamples, cost, loss)
        return self._estimate(flops_for(self.fit.law.row[None], cost, loss)[0], drawn)

    def _doubts_of_advice(self, flops: float, beyond: float, parameters: WithInterval) -> Iterator[str]:
        spent, sizes = self.table.points.flops, self.table.points.parameters
        if beyond > 1.05:
            side = "beyond the largest" if flops > spent.max() else "below the smallest"
            budget = spent.max() if flops > spent.max() else spent.min()
            if beyond > FARTHEST:
                yield (
                    f"not usable: {flops:.3g} FLOPs are a factor of {beyond:.3g} {side} trained budget, "
                    f"{budget:.3g}; these points cannot support an extrapolation by more than {FARTHEST:g}"
                )
                return
            yield f"extrapolated by a factor of {beyond:.3g} {side} budget, {budget:.3g} FLOPs"
            if flops > spent.max() and len(self.left_out) > 2:
                last = self.left_out[-1]
                step = last.flops / self.left_out[-2].flops
                yield (
                    f"a test of such an extrapolation: from the budgets below it, {last.flops:.3g} FLOPs ({step:.2g} "
                    f"times the next) was predicted with an error of {100 * last.error:.2g} % of the loss"
                )
        if not sizes.min() <= parameters.value <= sizes.max():
            side, end = ("more", sizes.max()) if parameters.value > sizes.max() else ("fewer", sizes.min())
            times = max(parameters.value / end, end / parameters.value)
            yield f"no model of that size was trained: {times:.3g} times {side} parameters than any ({end:.3g})"
        if not (self.fit.law.alpha > 0 and self.fit.law.beta > 0):
            yield "one exponent of the law is not above 0, so by the law there is no best size"

    def notes(self) -> list[str]:
        """Caveats about the results."""
        found, fit, law = self.table.notes(), self.fit, self.law
        if not self.table.groups:
            found.append("the points have no common budgets, so there are no parabolas and no held-out budgets")
        for curve in self.curves.curves:
            if curve.missing:
                found.append(f"{curve.budget:.3g} FLOPs has no minimum among its sizes: {_MISSING[curve.missing]}")
        if self.table.groups and self.curves.parameters is None:
            found.append(
                "fewer than two budgets have a minimum among their sizes, so there is no power law through minima"
            )
        if many := len(fit.below_floor):
            lie = f"{many} points lie" if many > 1 else "1 point lies"
            found.append(f"{lie} below the floor of the law, E = {fit.law.E:.4g}, so E is not the true floor")
        if law["E"].low < _FLOOR * self.table.points.loss.min():
            found.append(
                "the floor E cannot be distinguished from 0 with these points, and the other parameters depend on it"
            )
        if many := len(fit.outliers):
            lie = f"{many} points lie" if many > 1 else "1 point lies"
            limit = OUTLYING * max(fit.spread, 1e-4)
            alone, them = fit.without(fit.outliers).law, "them" if many > 1 else "it"
            count = "count as outliers" if many > 1 else "counts as outlier"
            found.append(
                f"{lie} more than {100 * limit:.2g} % off the law ({OUTLYING:g} robust standard deviations) and "
                f"{count}; the Huber loss limits the influence of {them}: without {them} "
                f"α is {alone.alpha:.4g} and β {alone.beta:.4g}"
            )
        if fit.law.alpha <= 0 or fit.law.beta <= 0:
            found.append("an exponent of the law is not above 0: the loss does not decrease in that direction")
        return found

    def as_json(self) -> dict[str, Any]:
        points = self.table.points
        iso = [
            {
                "flops": curve.budget,
                "points": len(curve.places),
                "missing": curve.missing,
                "parameters": None if curve.missing else WithInterval(curve.parameters, *curve.interval)._asdict(),
                "loss": None if curve.missing else curve.loss,
            }
            for curve in self.curves.curves
        ]
        return _finite(
            {
                "source": self.table.source,
                "columns": self.table.columns,
                "points": len(points),
                "not_finite": self.table.not_finite,
                "repeated": self.table.repeated,
                "law": {name: one._asdict() for name, one in self.law.items()},
                "flops_per_token": asdict(self.fit.cost),
                "objective": self.fit.objective,
                "starts": self.fit.starts,
                "starts_that_reach_it": self.fit.reached,
                "resamples": len(self.fit.resamples),
                "spread": self.fit.spread,
                "exponents": {name: one._asdict() for name, one in self.exponents.items()},
                "budgets": iso,
                "left_out": [asdict(one) for one in self.left_out],
                "outliers": [int(place) for place in self.fit.outliers],
                "below_floor": len(self.fit.below_floor),
                "conventions": [_as_json(one) for one in self.conventions],
                "notes": self.notes(),
            }
        )


def analyse(table: PointTable, resamples: int = RESAMPLES) -> ScalingAnalysis:
    """Analyse these points completely."""
    points, groups = table.points, table.groups
    fit, curves = fit_law(points, resamples), isoflop(points, groups, resamples)
    errors = left_out(fit, groups) if len(groups) > 2 else []
    budgets = [
        LeftOut(curve.budget, len(error), float(np.sqrt((error**2).mean())), float(error.mean()))
        for curve, error in zip(curves.curves, errors, strict=False)
    ]
    found = ScalingAnalysis(table, fit, curves, budgets, [])
    others = [_recounted(table, fit, name, column, resamples) for name, column in table.conventions.items()]
    return replace(found, conventions=[_convention(table.columns["parameters"], found), *others])


def _recounted(table: PointTable, fit: Fit, name: str, parameters: np.ndarray, resamples: int) -> Convention:
    """Repeat the analysis with other parameter counts, starting from the known minima and a ninth of the grid."""
    points = replace(table.points, parameters=parameters)
    starts = np.concatenate([fit.minima, grid_of_starts()[::9]])
    again = fit_law(points, resamples, starts)
    found = ScalingAnalysis(replace(table, points=points), again, isoflop(points, table.groups, resamples), [], [])
    return _convention(name, found)


def _convention(name: str, found: ScalingAnalysis) -> Convention:
    law, exponents = found.law, found.exponents
    of_curves = exponents.get("parameters_by_curves")
    return Convention(name, law["alpha"], law["beta"], exponents["parameters"], exponents["tokens"], of_curves)


def _as_json(convention: Convention) -> dict[str, Any]:
    parts = {key: value for key, value in vars(convention).items() if key != "name"}
    return {"name": convention.name, **{key: value and value._asdict() for key, value in parts.items()}}


def _finite(tree: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by null."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
