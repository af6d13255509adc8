"""The figures of a scaling law: losses by FLOPs, parabolas, the best sizes, the loss surface, and residuals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.draw.chart_page import figures_page, html_table
from headway.draw.picture import PictureTable
from headway.draw.plots import Ink, Plot, PlottedLine, PlottedPoints, ramp
from headway.scaling.analysis import ScalingAnalysis
from headway.stats.scaling import OUTLYING, optimum

_FINE = 60  # points on a line
_LEVELS = 9  # contours
LOSS = "loss, nats per token"


@dataclass(frozen=True)
class Traces:
    """Training curves: for each size, the FLOPs spent and the loss at that point."""

    by_size: Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class ScalingFigure:
    picture: str
    """SVG."""
    caption: str


def figures(found: ScalingAnalysis, traces: Traces | None = None) -> list[ScalingFigure]:
    drawn = [against_flops(found, traces), parabolas(found), best_sizes(found), surface(found), residuals(found)]
    return [figure for figure in drawn if figure is not None]


def against_flops(found: ScalingAnalysis, traces: Traces | None = None) -> ScalingFigure:
    """Losses by FLOPs, with training curves and the predicted loss of the best size."""
    points, lines, marks = found.table.points, [], []
    if traces is not None:
        inks = ramp(len(traces.by_size), 1)
        named = {0, len(inks) - 1}  # the others lie in between in order
        for k, ((name, (x, y)), ink) in enumerate(zip(traces.by_size.items(), inks, strict=True)):
            lines.append(PlottedLine(x, y, ink, name if k in named else "", thin=True))
        spent, lowest = envelope(traces)
        lines.append(PlottedLine(spent, lowest, Ink(4), "envelope", dashed=True))
    marks.append(PlottedPoints(points.flops.tolist(), points.loss.tolist(), Ink(2, 0.7), "", size=2.6))
    flops = np.geomspace(points.flops.min(), points.flops.max(), _FINE)
    if found.fit.law.alpha > 0 and found.fit.law.beta > 0:
        best = optimum(found.fit.law.row, found.fit.cost, flops)[2]
        drawn = [found.fit.interval(optimum(found.fit.resamples, found.fit.cost, c)[2]) for c in flops]
        low, high = (list(ends) for ends in zip(*drawn, strict=True))
        lines.append(PlottedLine(flops.tolist(), best.tolist(), Ink(3), "best by the law", low, high))
    on_the_way = " Thin lines: training curves, one per size, stronger for larger sizes. Dashed: their lower envelope."
    caption = (
        f"Loss against FLOPs: one point for each of {len(points)} models at the end of training, and the loss of "
        f"the best size by the law with its 95 % interval.{on_the_way if traces else ''}"
    )
    top = float(points.loss.max())
    bottom = min([float(points.loss.min()), *(v for line in lines for v in line.y if np.isfinite(v))])
    within = (bottom * 0.985, top * 1.03)
    return ScalingFigure(Plot("FLOPs of training", LOSS, caption, lines, marks, within=within).svg(), caption)


def envelope(traces: Traces) -> tuple[list[float], list[float]]:
    """The lowest loss that any size had with at most this many FLOPs."""
    every = sorted((x, y) for xs, ys in traces.by_size.values() for x, y in zip(xs, ys, strict=True))
    spent, lowest = [], []
    for x, y in every:
        if not lowest or y < lowest[-1]:
            spent.append(x)
            lowest.append(y)
    return spent, lowest


def parabolas(found: ScalingAnalysis) -> ScalingFigure | None:
    """The losses of each budget by size, with the fitted parabola and its minimum."""
    curves = [curve for curve in found.curves.curves if curve.missing != "few sizes"]
    if not curves:
        return None
    points, lines, marks = found.table.points, [], []
    for curve, ink in zip(curves, ramp(len(curves)), strict=True):
        n, loss = points.parameters[curve.places], points.loss[curve.places]
        fine = np.geomspace(*curve.sizes, _FINE)
        lines.append(PlottedLine(fine.tolist(), curve(fine).tolist(), ink, f"{curve.budget:.2g} FLOPs"))
        marks.append(PlottedPoints(n.tolist(), loss.tolist(), ink, size=2.4))
    best = [curve for curve in curves if not curve.missing]
    if best:
        ends = [curve.interval for curve in best]
        at, losses = [curve.parameters for curve in best], [curve.loss for curve in best]
        low, high = ([end[k] for end in ends] for k in (0, 1))
        marks.append(PlottedPoints(at, losses, Ink(3), "", low, high, upright=False, hollow=True, size=4.2))
    without = [f"{curve.budget:.2g}" for curve in curves if curve.missing]
    caption = (
        "Loss by size for each budget, with a fitted parabola in log N. Rings: its minimum with the 95 % interval of "
        f"its position.{f' No minimum among the sizes at {chr(44).join(without)} FLOPs.' if without else ''}"
    )
    top, bottom = float(points.loss.max()), float(points.loss.min())
    within = (bottom * 0.985, top * 1.02)
    plot = Plot("parameters", LOSS, caption, lines, marks, (True, True), within)
    return ScalingFigure(plot.svg(), caption)


def best_sizes(found: ScalingAnalysis) -> ScalingFigure | None:
    """Parameters and tokens of the best model by budget, by parabolas and by the law."""
    iso, spent = found.curves, found.table.points.flops
    if iso.parameters is None or iso.tokens is None:
        return None
    flops = np.geomspace(spent.min(), spent.max(), _FINE)
    of_law = optimum(found.fit.law.row, found.fit.cost, flops)
    lines, marks = [], []
    for line, law, ink, name in (
        (iso.parameters, of_law[0], Ink(2), "parameters"),
        (iso.tokens, of_law[1], Ink(3), "tokens"),
    ):
        ends = [line.interval(float(c)) for c in flops]
        low, high = ([end[k] for end in ends] for k in (0, 1))
        lines.append(PlottedLine(flops.tolist(), line(flops).tolist(), ink, name, low, high))
        lines.append(PlottedLine(flops.tolist(), law.tolist(), ink, "", dashed=True))
    best = iso.found
    low, high = ([curve.interval[k] for curve in best] for k in (0, 1))
    budgets, at = [curve.budget for curve in best], [curve.parameters for curve in best]
    marks.append(PlottedPoints(budgets, at, Ink(2), "", low, high))
    of_n, of_d = found.exponents["parameters_by_curves"], found.exponents["tokens_by_curves"]
    caption = (
        f"The best model by budget: parameters grow as C^{of_n.value:.3f} [{of_n.low:.3f}, {of_n.high:.3f}], tokens "
        f"as C^{of_d.value:.3f} [{of_d.low:.3f}, {of_d.high:.3f}], by the minima of parabolas (points, and lines with "
        "95 % bands). Dashed: by the law."
    )
    return ScalingFigure(Plot("FLOPs of training", "parameters, tokens", caption, lines, marks).svg(), caption)


def surface(found: ScalingAnalysis) -> ScalingFigure:
    """Contours of the fitted loss over parameters and tokens, with the points of the ladder."""
    points, law = found.table.points, found.fit.law
    n = np.geomspace(points.parameters.min() / 1.3, points.parameters.max() * 1.3, 4 * _FINE)
    bottom, top = points.tokens.min() / 1.3, points.tokens.max() * 1.3
    fitted = law.loss(points.parameters, points.tokens)
    levels = np.quantile(fitted, np.linspace(0.02, 0.98, _LEVELS))
    lines = []
    for level, ink in zip(levels, ramp(_LEVELS, 1)[::-1], strict=True):
        left = level - law.E - law.A / n**law.alpha  # the remaining term B/D^β
        with np.errstate(all="ignore"):
            d = np.where(left > 0, (law.B / np.where(left > 0, left, 1.0)) ** (1 / law.beta), np.nan)
        d = np.where((d >= bottom) & (d <= top), d, np.nan)
        if np.isfinite(d).sum() > 1:
            lines.append(PlottedLine(n.tolist(), d.tolist(), ink, f"{level:.3g}", thin=True))
    spent = np.geomspace(points.flops.min(), points.flops.max(), _FINE)
    if law.alpha > 0 and law.beta > 0:
        best_n, best_d, _ = optimum(law.row, found.fit.cost, spent)
        lines.append(PlottedLine(best_n.tolist(), best_d.tolist(), Ink(3), "best", dashed=True))
    marks = [PlottedPoints(points.parameters.tolist(), points.tokens.tolist(), Ink(2, 0.8), size=2.6)]
    caption = (
        "Contours of the fitted loss (nats) over parameters and tokens, stronger for lower losses. Points: the models "
        "of the ladder. Dashed: the best size for each budget."
    )
    plot = Plot("parameters", "tokens", caption, lines, marks, within=(bottom, top))
    return ScalingFigure(plot.svg(), caption)


def residuals(found: ScalingAnalysis) -> ScalingFigure:
    """The residuals of the law, point by point."""
    points, off = found.table.points, 100 * found.fit.residuals
    limit = 100 * OUTLYING * max(found.fit.spread, 1e-4)
    far = set(found.fit.outliers.tolist())
    usual = [k for k in range(len(points)) if k not in far]
    flops = points.flops
    ends = [float(flops.min()), float(flops.max())]
    lines = [PlottedLine(ends, [0.0, 0.0], Ink(1, 0.6), thin=True)]
    lines += [PlottedLine(ends, [side * limit] * 2, Ink(1, 0.6), thin=True, dashed=True) for side in (-1, 1)]
    marks = [PlottedPoints(flops[usual].tolist(), off[usual].tolist(), Ink(2, 0.75), size=2.6)]
    if far:
        marks.append(
            PlottedPoints(flops[sorted(far)].tolist(), off[sorted(far)].tolist(), Ink(3), "outliers", size=3.4)
        )
    caption = (
        f"Residuals: measured minus fitted loss, in percent. Dashed: {OUTLYING:g} robust standard deviations, "
        f"beyond which a point is an outlier ({len(far)} of {len(points)})."
    )
    plot = Plot("FLOPs of training", "percent of the loss", caption, lines, marks, (True, False))
    return ScalingFigure(plot.svg(), caption)


def page(found: ScalingAnalysis, traces: Traces | None = None) -> str:
    """The analysis as one HTML page."""
    points, names = found.table.points, {"E": "E", "A": "A", "B": "B", "alpha": "α", "beta": "β"}
    law = PictureTable(
        ["", "estimate", "95 % interval"],
        [[names[key], f"{one.value:.4g}", f"[{one.low:.4g}, {one.high:.4g}]"] for key, one in found.law.items()],
    )
    told = {"parameters": "parameters of the best model", "tokens": "its training tokens", "loss": "its loss above E"}
    told |= {f"{key}_by_curves": f"{told[key]}, by parabolas" for key in ("parameters", "tokens")}
    powers = PictureTable(
        ["exponent of FLOPs", "estimate", "95 % interval"],
        [[told[key], f"{one.value:.4f}", f"[{one.low:.4f}, {one.high:.4f}]"] for key, one in found.exponents.items()],
    )
    lead = [
        f"{len(points)} models from {points.flops.min():.3g} to {points.flops.max():.3g} FLOPs. L = E + A/N^α + B/D^β.",
        *found.notes(),
    ]
    drawn = [(figure.picture, figure.caption) for figure in figures(found, traces)]
    title = f"Scaling law of {found.table.source}"
    return figures_page(title, lead, drawn, [html_table(law), html_table(powers)])
