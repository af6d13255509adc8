"""How far gradients reach in several models, in one picture: a curve for each, with a band for its seeds."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.format import number
from headway.draw.chart_page import Chart, ChartPage
from headway.draw.charts import Curve
from headway.draw.picture import PictureTable
from headway.look.followed import FollowedRows
from headway.look.gradient_flow import GradientFlow

TOLD = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""The distances of the table."""


HIGHEST_BOUND = 100.0
"""A bound that grows beyond this says nothing any more, and would leave no room for what was measured."""
LOWEST = 1e-12
"""Of the largest number in a chart: what is smaller no training feels, and would leave no room for what is larger."""


@dataclass(frozen=True)
class FlowOfArm:
    """Runs that differ in their seed alone."""

    name: str
    seeds: Sequence[GradientFlow]

    def curve(self, of: Callable[[GradientFlow], Sequence[float]], name: str = "") -> Curve:
        at = list(zip(*(of(flow) for flow in self.seeds), strict=False))
        middle, low, high = ([f(values) for values in at] for f in (statistics.mean, min, max))
        return Curve(name or self.name, list(range(len(at))), middle, low, high)

    @property
    def recurrences(self) -> list[str]:
        return list(self.seeds[0].hidden)


@dataclass(frozen=True)
class FlowPage:
    """In a notebook it draws itself."""

    arms: Sequence[FlowOfArm]
    split: str

    def draw(self) -> ChartPage:
        read = [f"{rows.ids.shape[1]} {rows.called} of {rows.reach} tokens" for rows in self._rows]
        how = (
            f"From the last token t of {_or(read)} from {self.split} to the token s so many before it: the mean over "
            "them. Norms of matrices are ‖J‖_F/√D, 1 for the identity."
        )
        if any(len(arm.seeds) > 1 for arm in self.arms):
            how += " Lines are the mean of the seeds, and bands lie between the lowest and highest."
        charts = list(map(_down_to_lowest, [self._losses(), self._streams(), self._hidden(), self._singular_values()]))
        how += f" What is below {LOWEST:g} of the largest is not drawn; the table has it."
        drawn = [chart for chart in charts if chart.drawn]
        return ChartPage("How far gradients reach", how, drawn, self.notes, self.table)

    @property
    def notes(self) -> list[str]:
        """What the loss is, and what else should be known where the curves are read; of whom, where not of all."""
        whose: dict[str, list[str]] = {}
        for arm in self.arms:
            first = arm.seeds[0]
            for note in (f"the loss is that of {first.rows.loss}", *first.notes):
                whose.setdefault(note, []).append(arm.name)
        return [note if len(of) == len(self.arms) else f"{', '.join(of)}: {note}" for note, of in whose.items()]

    @property
    def _rows(self) -> list[FollowedRows]:
        return [flow.rows for arm in self.arms for flow in arm.seeds]

    def _losses(self) -> Chart:
        curves = [arm.curve(lambda flow: flow.losses) for arm in self.arms]
        whose = _or([rows.loss for rows in self._rows])
        what = f"The loss: ‖∂loss_t/∂x_s‖, what {whose} says to the embedding of token s"
        return Chart(curves, "distance t − s", "‖∂loss_t/∂x_s‖", what, logarithmic=True)

    def _streams(self) -> Chart:
        curves = [arm.curve(lambda flow: flow.streams["embedded"].typical) for arm in self.arms]
        what = "The whole stack: ‖∂h_t/∂x_s‖, from the embedding of token s to what the last layer gives at t"
        return Chart(curves, "distance t − s", "‖∂h_t/∂x_s‖", what, logarithmic=True)

    def _hidden(self) -> Chart:
        states, bounds = [], []
        for arm, name, called in self._recurrences():
            states.append(arm.curve(lambda flow, name=name: flow.hidden[name].norms.typical, called))
            if all(flow.hidden[name].bound for flow in arm.seeds):
                bound = arm.curve(lambda flow, name=name: flow.hidden[name].bound or [], f"bound, {called}")
                bounds.append(replace(_up_to(bound, HIGHEST_BOUND), beside=called))
        what = "The state of each recurrence alone: ‖∂state_t/∂state_s‖"
        if bounds:
            what += f", and (steepest slope · σ_max(W))^(t − s) as far as {HIGHEST_BOUND:g}"
        return Chart([*states, *bounds], "distance t − s", "‖∂state_t/∂state_s‖", what, logarithmic=True)

    def _singular_values(self) -> Chart:
        curves = []
        for arm, name, called in self._recurrences():
            if all(flow.hidden[name].singular_values for flow in arm.seeds):
                curve = arm.curve(lambda flow, name=name: flow.hidden[name].singular_values, called)
                curves.append(replace(curve, x=[100 * k / max(1, len(curve.x) - 1) for k in curve.x]))
        what = "One step of each recurrence: the singular values of ∂state_t/∂state_{t−1}, the largest first"
        return Chart(curves, "% of the singular values", "singular value", what, logarithmic=True)

    def _recurrences(self) -> Iterator[tuple[FlowOfArm, str, str]]:
        """Each with its arm, its name there, and what its curve is called."""
        for arm in self.arms:
            for name in arm.recurrences:
                alone = len(arm.recurrences) == 1
                yield arm, name, arm.name if alone else f"{arm.name} {name.removeprefix('layers.')}"

    @property
    def table(self) -> PictureTable:
        """At a few distances, and where a hundredth is left of what there is at distance 1."""
        longest = max(len(flow.losses) for arm in self.arms for flow in arm.seeds)
        told = [distance for distance in TOLD if distance < longest]
        rows = []
        for arm in self.arms:
            lines = {"loss": arm.curve(lambda flow: flow.losses)}
            for name in arm.seeds[0].streams:
                lines[name] = arm.curve(lambda flow, name=name: flow.streams[name].typical)
            for name in arm.recurrences:
                lines[name] = arm.curve(lambda flow, name=name: flow.hidden[name].norms.typical)
            for what, curve in lines.items():
                values = [_shown(curve.middle[n]) if n < len(curve.middle) else "" for n in told]
                rows.append([arm.name, what, *values, _one_percent(curve.middle)])
        return PictureTable(["run", "what", *(f"at {n}" for n in told), "1 % is left"], rows)

    def as_json(self) -> dict[str, Any]:
        arms = [{"name": arm.name, "runs": [flow.as_json() for flow in arm.seeds]} for arm in self.arms]
        return {"split": self.split, "arms": arms}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def _or(said: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(said))


def _down_to_lowest(chart: Chart) -> Chart:
    """What is below is left out, and bands stand on it."""
    lowest = LOWEST * max((v for curve in chart.curves for v in curve.high if math.isfinite(v)), default=1.0)
    curves = []
    for curve in chart.curves:
        at = [k for k, value in enumerate(curve.middle) if value >= lowest]
        x, middle, high = ([values[k] for k in at] for values in (curve.x, curve.middle, curve.high))
        low = [max(lowest, curve.low[k]) for k in at]
        curves.append(replace(curve, x=x, middle=middle, low=low, high=high))
    return replace(chart, curves=curves)


def _up_to(curve: Curve, highest: float) -> Curve:
    n = next((k for k, value in enumerate(curve.high) if value > highest), len(curve.x))
    x, middle, low, high = (values[:n] for values in (curve.x, curve.middle, curve.low, curve.high))
    return replace(curve, x=x, middle=middle, low=low, high=high)


def _one_percent(values: Sequence[float]) -> str:
    if len(values) < 2 or values[1] <= 0:
        return "–"
    below = next((n for n in range(1, len(values)) if max(values[n:]) < 0.01 * values[1]), None)
    return f"from {below} on" if below is not None else f"beyond {len(values) - 1}"


def _shown(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return number(value)
    return f"{value:.3g}" if 1e-3 <= value < 1e4 else f"{value:.0e}"
