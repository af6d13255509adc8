"""Plots with points, lines and bands on logarithmic axes, used for scaling laws.

Like the charts of a report (`charts.py`), they are SVG with colours from the page. Ordered series (budgets, sizes)
share one colour of increasing strength; different kinds of series have different colours. Names are written on the
right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from headway.draw.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, apart, round_ticks, svg_open, svg_text

FAINTEST = 0.35


@dataclass(frozen=True)
class Ink:
    """A colour of the page and its opacity."""

    curve: int = 1
    """1 … 8, as defined by the page."""
    strength: float = 1.0

    @property
    def stroke(self) -> str:
        return f"stroke:var(--curve-{self.curve});stroke-opacity:{self.strength:.2f}"

    @property
    def fill(self) -> str:
        return f"fill:var(--curve-{self.curve});fill-opacity:{self.strength:.2f}"


def ramp(many: int, curve: int = 2) -> list[Ink]:
    """Inks for ordered series, the first one the faintest."""
    return [Ink(curve, FAINTEST + (1 - FAINTEST) * (k / max(1, many - 1))) for k in range(many)]


@dataclass(frozen=True)
class Plotted:
    x: Sequence[float]
    y: Sequence[float]
    ink: Ink = field(default_factory=Ink)
    name: str = ""
    """Written at the end of the series; empty = no name."""
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """The band around a line, or the ends of the error bar of each point."""


@dataclass(frozen=True)
class PlottedLine(Plotted):
    dashed: bool = False
    thin: bool = False


@dataclass(frozen=True)
class PlottedPoints(Plotted):
    upright: bool = True
    """Whether error bars are vertical."""
    hollow: bool = False
    size: float = 3.0


@dataclass(frozen=True)
class Plot:
    across: str
    up: str
    label: str
    """The accessible label."""
    lines: Sequence[PlottedLine] = ()
    points: Sequence[PlottedPoints] = ()
    logarithmic: tuple[bool, bool] = (True, True)
    """Whether the horizontal and the vertical axis are logarithmic."""
    within: tuple[float, float] | None = None
    """The range of the vertical axis; None = all that is drawn."""

    def svg(self) -> str:
        x, y = self._axes()
        parts = [svg_open(WIDTH, HEIGHT, self.label), *self._frame(x, y)]
        for line in self.lines:
            parts += _line(x, y, line)
        for some in self.points:
            parts += _points(x, y, some)
        return "\n".join([*parts, *self._names(x, y), "</svg>"])

    def _axes(self) -> tuple[Axis, Axis]:
        across = [v for part in (*self.lines, *self.points) for v in _finite(part.x)]
        across += [
            v for some in self.points if not some.upright for v in _finite((*(some.low or ()), *(some.high or ())))
        ]
        if self.within is not None:
            low, high = self.within
        else:
            ups = [v for part in (*self.lines, *self.points) for v in _finite((*part.y, *_ends(part)))]
            low, high = min(ups), max(ups)
            low, high = _room(low, high, self.logarithmic[1])
        left, right = _room(min(across), max(across), self.logarithmic[0], 0.02)
        x = Axis(left, right, LEFT, WIDTH - RIGHT, self.logarithmic[0])
        return x, Axis(low, high, HEIGHT - BOTTOM, TOP, self.logarithmic[1])

    def _frame(self, x: Axis, y: Axis) -> list[str]:
        edge, floor, parts = WIDTH - RIGHT, HEIGHT - BOTTOM, []
        for tick in _ticks(y):
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{edge}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
            parts.append(svg_text(LEFT - 8, y(tick) + 4, _said(tick), "end"))
        for tick in _ticks(x):
            parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{floor}" y2="{floor + 4}"/>')
            parts.append(svg_text(x(tick), floor + 18, _said(tick), "middle"))
        turned = f'transform="translate(14 {(TOP + floor) / 2}) rotate(-90)"'
        return [
            *parts,
            f'<line class="axis" x1="{LEFT}" x2="{edge}" y1="{floor}" y2="{floor}"/>',
            svg_text((LEFT + edge) / 2, HEIGHT - 6, self.across, "middle"),
            f'<text class="faint" {turned} text-anchor="middle">{escape(self.up)}</text>',
        ]

    def _names(self, x: Axis, y: Axis) -> list[str]:
        """The names on the right, moved apart where they would overlap, with leader lines."""
        named = []
        for part in (*self.lines, *self.points):
            if part.name and (at := _last_inside(x, y, part)) is not None:
                named.append((part, *at))
        heights = apart([height for _, _, height in named], 15)
        below = max((height - (HEIGHT - BOTTOM) for height in heights), default=0.0)
        heights = [height - max(0.0, below) for height in heights]
        edge, parts = WIDTH - RIGHT, []
        for (part, last, height), moved in zip(named, heights, strict=True):
            parts.append(
                f'<line x1="{last + 4:.1f}" y1="{height:.1f}" x2="{edge + 12}" y2="{moved:.1f}" '
                f'stroke-dasharray="1 4" style="{part.ink.stroke}"/>'
            )
            text = part.name if len(part.name) <= 22 else part.name[:21] + "…"
            colour = f"fill:var(--curve-{part.ink.curve})"
            parts.append(f'<text x="{edge + 16}" y="{moved + 4:.1f}" style="{colour}">{escape(text)}</text>')
        return parts


def _line(x: Axis, y: Axis, line: PlottedLine) -> list[str]:
    parts = []
    if line.low is not None and line.high is not None:
        there = [(a, b) for a, b in zip(line.x, line.high, strict=True) if math.isfinite(b)]
        back = [(a, b) for a, b in zip(line.x, line.low, strict=True) if math.isfinite(b)][::-1]
        if there and back:
            fill = f"fill:var(--curve-{line.ink.curve})"
            parts.append(f'<polygon class="band" style="{fill}" points="{_path(x, y, [*there, *back])}"/>')
    inside = [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    dashes = ";stroke-dasharray:6 4" if line.dashed else ""
    width = ";stroke-width:1" if line.thin else ""
    style = f"{line.ink.stroke}{dashes}{width}"
    return [*parts, f'<polyline class="curve" style="{style}" points="{_path(x, y, inside)}"/>']


def _path(x: Axis, y: Axis, places: Sequence[tuple[float, float]]) -> str:
    """The points of a line; values outside the plot are clipped to its edge."""
    floor, top = max(y.start, y.end), min(y.start, y.end)
    return " ".join(f"{x(a):.1f},{min(max(y(b), top - 2), floor + 2):.1f}" for a, b in places)


def _points(x: Axis, y: Axis, some: PlottedPoints) -> list[str]:
    parts = []
    for k, (a, b) in enumerate(zip(some.x, some.y, strict=True)):
        if not (math.isfinite(a) and math.isfinite(b)):
            continue
        if some.low is not None and some.high is not None and math.isfinite(some.low[k] + some.high[k]):
            ends = (some.low[k], some.high[k])
            at = [(x(a), y(end)) for end in ends] if some.upright else [(x(end), y(b)) for end in ends]
            (x1, y1), (x2, y2) = at
            parts.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                f'style="{some.ink.stroke};stroke-width:1.5"/>'
            )
        style = f"fill:var(--paper);{some.ink.stroke};stroke-width:1.6" if some.hollow else some.ink.fill
        parts.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="{some.size:g}" style="{style}"/>')
    return parts


def _ticks(axis: Axis) -> list[float]:
    """The ticks of an axis; round numbers if a logarithmic axis has too few."""
    found = axis.ticks()
    return found if len(found) > 2 else round_ticks(axis.low, axis.high)


def _said(value: float) -> str:
    """Format a tick briefly: 2e4 instead of 20,000, for lack of space."""
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e") if abs(value) < 1e4 else _power(value)


def _power(value: float) -> str:
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value / 10**exponent:.3g}e{exponent}"


def _ends(part: PlottedLine | PlottedPoints) -> Sequence[float]:
    if isinstance(part, PlottedPoints) and not part.upright:
        return ()
    return (*(part.low or ()), *(part.high or ()))


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def _room(low: float, high: float, logarithmic: bool, share: float = 0.05) -> tuple[float, float]:
    if logarithmic:
        span = (math.log(high / low) or 1.0) * share
        return low * math.exp(-span), high * math.exp(span)
    span = ((high - low) or abs(high) or 1.0) * share
    return low - span, high + span


def _last_inside(x: Axis, y: Axis, part: PlottedLine | PlottedPoints) -> tuple[float, float] | None:
    """The last visible point of a series, in pixels."""
    floor, top = max(y.start, y.end), min(y.start, y.end)
    seen = [(x(a), y(b)) for a, b in zip(part.x, part.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    seen = [place for place in seen if top - 1 <= place[1] <= floor + 1]
    return max(seen, key=lambda place: place[0]) if seen else None
