"""A page of charts on how far gradients reach in several models: a curve for each, with a band over its seeds."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.format import number
from headway.draw.chart_page import Chart, ChartPage
from headway.draw.charts import Curve
from headway.draw.picture import PictureTable
from headway.look.gradient_flow import GradientFlow, SideFlow
from headway.look.gradient_rows import GradientRows

TABLE_DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""The distances in the table."""
NOTE = (
    "Norms by distance in tokens. loss: the gradient of the loss at the embedding so far back; embedded, "
    "layers.k.stream: of the last layer's output, at the input of a layer; a recurrence: of its state, at its earlier "
    "state; below 1 %: the distance from which on less than 1 % of the norm at distance 1 is left."
)
"""What the columns of the table mean."""
FROM_T, FROM_END = "distance t − s", "distance from the end of the source"
"""Labels of the x axis."""

HIGHEST_BOUND = 100.0
"""Bounds beyond this are not drawn: they say nothing, and would compress the measured curves."""
LOWEST = 1e-12
"""Values below this fraction of a chart's largest are not drawn: they are too small to affect training, and would
compress the rest."""


@dataclass(frozen=True)
class FlowAlong:
    """How far gradients reach along one side of the input, for runs that differ only in the seed."""

    name: str
    """The name of the arm."""
    side: str
    """A prefix for labels, such as "source: "; empty for the side that ends with t."""
    seeds: Sequence[SideFlow]

    def curve(self, of: Callable[[SideFlow], Sequence[float]], name: str = "") -> Curve:
        at = list(zip(*(of(flow) for flow in self.seeds), strict=False))
        middle, low, high = ([f(values) for values in at] for f in (statistics.mean, min, max))
        return Curve(name or self.name, list(range(len(at))), middle, low, high)

    @property
    def recurrences(self) -> list[str]:
        return list(self.seeds[0].hidden)

    @property
    def lines(self) -> dict[str, Curve]:
        """All curves by distance, by name."""
        found = {"loss": self.curve(lambda flow: flow.losses)}
        for name in self.seeds[0].streams:
            found[name] = self.curve(lambda flow, name=name: flow.streams[name].typical)
        for name in self.recurrences:
            found[name] = self.curve(lambda flow, name=name: flow.hidden[name].norms.typical)
        return {f"{self.side}{name}": curve for name, curve in found.items()}


@dataclass(frozen=True)
class FlowOfArm:
    """The gradient flow of runs that differ only in the seed."""

    name: str
    seeds: Sequence[GradientFlow]

    @property
    def own(self) -> FlowAlong:
        return FlowAlong(self.name, "", [flow.own for flow in self.seeds])

    @property
    def source(self) -> FlowAlong | None:
        """The source side, for translators."""
        along = [flow.source for flow in self.seeds if flow.source is not None]
        return FlowAlong(self.name, "source: ", along) if along else None

    @property
    def sides(self) -> list[FlowAlong]:
        return [self.own, *([] if self.source is None else [self.source])]


@dataclass(frozen=True)
class FlowPage:
    """Charts and table of several arms. In a notebook it draws itself."""

    arms: Sequence[FlowOfArm]
    split: str

    def draw(self) -> ChartPage:
        read = [f"{len(rows.rows)} {rows.called}" for rows in self._rows]
        own, source = [arm.own for arm in self.arms], [along for arm in self.arms if (along := arm.source)]
        or_end = ", or that distance before the end of the source" if source else ""
        how = (
            f"From the last token t of {_or(read)} from {self.split} to the token s at a distance before it{or_end}, "
            "averaged over the rows. Norms of matrices are ‖J‖_F/√D, 1 for the identity."
        )
        if any(len(arm.seeds) > 1 for arm in self.arms):
            how += " Lines are the mean over seeds, and bands go from the lowest to the highest."
        charts = [
            self._losses(own, "token s", FROM_T),
            self._losses(source, "token s of the source", FROM_END),
            self._streams(own, "token s", FROM_T),
            self._streams(source, "token s of the source", FROM_END),
            self._hidden(),
            self._singular_values(),
        ]
        how += f" Values below {LOWEST:g} of the largest are not drawn; the table has them."
        drawn = [chart for chart in map(_down_to_lowest, charts) if chart.drawn]
        return ChartPage("How far gradients reach", how, drawn, self.notes, self.table)

    @property
    def notes(self) -> list[str]:
        """What the loss is, and caveats for reading the curves; with the arms' names where they do not concern all."""
        whose: dict[str, list[str]] = {}
        for arm in self.arms:
            first = arm.seeds[0]
            for note in (f"the loss is that of {first.rows.loss}", *first.notes):
                whose.setdefault(note, []).append(arm.name)
        return [note if len(of) == len(self.arms) else f"{', '.join(of)}: {note}" for note, of in whose.items()]

    @property
    def _rows(self) -> list[GradientRows]:
        return [flow.rows for arm in self.arms for flow in arm.seeds]

    def _losses(self, flows: Sequence[FlowAlong], where: str, across: str) -> Chart:
        curves = [along.curve(lambda flow: flow.losses) for along in flows]
        whose = _or([rows.loss for rows in self._rows])
        what = f"The loss: ‖∂loss_t/∂x_s‖, the gradient of the loss of {whose} at the embedding of {where}"
        return Chart(curves, across, "‖∂loss_t/∂x_s‖", what, logarithmic=True)

    def _streams(self, flows: Sequence[FlowAlong], where: str, across: str) -> Chart:
        curves = [along.curve(lambda flow: flow.streams["embedded"].typical) for along in flows]
        what = f"The whole stack: ‖∂h_t/∂x_s‖, from the embedding of {where} to the last layer's output at t"
        return Chart(curves, across, "‖∂h_t/∂x_s‖", what, logarithmic=True)

    def _hidden(self) -> Chart:
        states, bounds = [], []
        for along, name, called in self._recurrences():
            states.append(along.curve(lambda flow, name=name: flow.hidden[name].norms.typical, called))
            if all(flow.hidden[name].bound for flow in along.seeds):
                bound = along.curve(lambda flow, name=name: flow.hidden[name].bound or [], f"bound, {called}")
                bounds.append(replace(_up_to(bound, HIGHEST_BOUND), beside=called))
        what = "The state of each recurrence alone: ‖∂state_t/∂state_s‖"
        if any(along.side for along, _, _ in self._recurrences()):
            what += ", for a source by distance from its end"
        if bounds:
            what += f", with the bound (steepest slope · σ_max(W))^(t − s) up to {HIGHEST_BOUND:g}"
        return Chart([*states, *bounds], FROM_T, "‖∂state_t/∂state_s‖", what, logarithmic=True)

    def _singular_values(self) -> Chart:
        curves = []
        for along, name, called in self._recurrences():
            if all(flow.hidden[name].singular_values for flow in along.seeds):
                curve = along.curve(lambda flow, name=name: flow.hidden[name].singular_values, called)
                curves.append(replace(curve, x=[100 * k / max(1, len(curve.x) - 1) for k in curve.x]))
        what = "One step of each recurrence: the singular values of ∂state_t/∂state_{t−1}, the largest first"
        return Chart(curves, "% of the singular values", "singular value", what, logarithmic=True)

    def _recurrences(self) -> Iterator[tuple[FlowAlong, str, str]]:
        """Each recurrence as (the side that it reads, its name, the label of its curve)."""
        for arm in self.arms:
            found = [(along, name) for along in arm.sides for name in along.recurrences]
            for along, name in found:
                # The layer comes first, because long labels are truncated at the end.
                called = f"{arm.name} {name.removeprefix('layers.')}{' source' if along.side else ''}"
                yield along, name, arm.name if len(found) == 1 else called

    @property
    def table(self) -> PictureTable:
        """Values at a few distances, and the distance beyond which less than 1 % of the value at distance 1 is left."""
        lines = [
            (arm.name, what, curve) for arm in self.arms for side in arm.sides for what, curve in side.lines.items()
        ]
        longest = max(len(curve.middle) for _, _, curve in lines)
        told = [distance for distance in TABLE_DISTANCES if distance < longest]
        rows = []
        for name, what, curve in lines:
            values = [_shown(curve.middle[n]) if n < len(curve.middle) else "" for n in told]
            rows.append([name, what, *values, _one_percent(curve.middle)])
        return PictureTable(["run", "what", *(f"at {n}" for n in told), "below 1 %"], rows, NOTE)

    def as_json(self) -> dict[str, Any]:
        arms = [{"name": arm.name, "runs": [flow.as_json() for flow in arm.seeds]} for arm in self.arms]
        return {"split": self.split, "arms": arms}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def _or(said: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(said))


def _down_to_lowest(chart: Chart) -> Chart:
    """Leave out points that are infinite or below the lowest drawn value, and clip bands to it."""
    lowest = LOWEST * max((v for curve in chart.curves for v in curve.high if math.isfinite(v)), default=1.0)
    curves = []
    for curve in chart.curves:
        at = [k for k, value in enumerate(curve.middle) if lowest <= value < math.inf]
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
