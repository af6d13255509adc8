"""The charts of a report, as SVG with colours from the page: readable in light and dark mode and in print.

Curves are labelled at their ends, so that no legend is needed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from headway.draw.colours import CURVES

COLOURS = len(CURVES)
"""The number of distinguishable curves; the page defines --curve-1 … --curve-8 (`colours.curve_variables`)."""
WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 14, 44


@dataclass(frozen=True)
class Curve:
    """One arm: its central curve and the range of its seeds."""

    name: str
    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    each: Sequence[Sequence[float]] = ()
    """One line per seed."""
    beside: str = ""
    """The name of the curve to compare this one with; this one is dashed and has the same colour."""


@dataclass(frozen=True)
class Axis:
    """A map from numbers to pixel positions."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return logarithmic_ticks(self.low, self.high) if self.logarithmic else round_ticks(self.low, self.high)


def colours(curves: Sequence[Curve]) -> list[int]:
    """The colour index of each curve, from 0."""
    own: dict[str, int] = {}
    for curve in curves:
        own.setdefault(curve.beside or curve.name, len(own))
    return [own[curve.beside or curve.name] for curve in curves]


def line_chart(
    curves: Sequence[Curve], across: str, up: str, label: str, categories: bool = False, logarithmic: bool = False
) -> str:
    """Draw a line chart. `categories`: x values are evenly spaced and all labelled. `logarithmic`: the vertical
    axis."""
    curves = [curve for curve, k in zip(curves, colours(curves), strict=True) if k < COLOURS]
    plane = Plane.around(curves, categories, logarithmic)
    parts = [svg_open(WIDTH, HEIGHT, label), *_frame(plane, across, up)]
    for k, curve in zip(colours(curves), curves, strict=True):
        parts += _curve(plane, curve, f"var(--curve-{k + 1})", dots=categories or len(curve.x) == 1)
    return "\n".join([*parts, *_names(plane, curves), "</svg>"])


@dataclass(frozen=True)
class Plane:
    """The coordinates of a line chart."""

    x: Callable[[float], float]
    y: Axis
    named: Mapping[float, str]
    """The labels of the horizontal axis by value."""

    @classmethod
    def around(cls, curves: Sequence[Curve], categories: bool, logarithmic: bool) -> "Plane":
        """A plane with room for all of these curves."""
        values = [v for curve in curves for v in (*curve.low, *curve.high) if math.isfinite(v)]
        lowest, highest = min(values), max(values)
        room = 0.0 if logarithmic else 0.06 * ((highest - lowest) or abs(highest) or 1.0)
        y = Axis(lowest - room, highest + room, HEIGHT - BOTTOM, TOP, logarithmic)
        places = list(dict.fromkeys(x for curve in curves for x in curve.x))
        if categories:
            along = Axis(0, max(1, len(places) - 1), LEFT, WIDTH - RIGHT)
            at = {place: along(k) for k, place in enumerate(places)}
            return cls(at.__getitem__, y, {place: f"{place:g}" for place in places})
        first, last = min(places), max(places)
        named = {tick: f"{tick:,g}" for tick in round_ticks(first, last)}
        return cls(Axis(first, last, LEFT, WIDTH - RIGHT), y, named)

    def points(self, x: Sequence[float], y: Sequence[float]) -> list[str]:
        return [f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True)]


def _frame(plane: Plane, across: str, up: str) -> list[str]:
    """The grid, ticks, axis line and axis titles."""
    y, edge, floor = plane.y, WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{edge}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(svg_text(LEFT - 8, y(tick) + 4, short(tick), "end"))
    parts += [svg_text(plane.x(place), floor + 18, name, "middle") for place, name in plane.named.items()]
    turned = f'transform="translate(14 {(TOP + floor) / 2}) rotate(-90)"'
    return [
        *parts,
        f'<line class="axis" x1="{LEFT}" x2="{edge}" y1="{floor}" y2="{floor}"/>',
        svg_text((LEFT + edge) / 2, HEIGHT - 6, across, "middle"),
        f'<text class="faint" {turned} text-anchor="middle">{escape(up)}</text>',
    ]


def _curve(plane: Plane, curve: Curve, colour: str, dots: bool) -> list[str]:
    """Thin lines for the seeds, the band between their extremes, the central line, and dots if there are few points."""
    band = plane.points(curve.x, curve.high) + plane.points(curve.x, curve.low)[::-1]
    line, dashes = " ".join(plane.points(curve.x, curve.middle)), ";stroke-dasharray:6 4" if curve.beside else ""
    parts = [
        *(
            f'<polyline class="each" style="stroke:{colour}" points="{" ".join(plane.points(curve.x, one))}"/>'
            for one in curve.each
        ),
        f'<polygon class="band" style="fill:{colour}" points="{" ".join(band)}"/>',
        f'<polyline class="curve" style="stroke:{colour}{dashes}" points="{line}"/>',
    ]
    for a, b in zip(curve.x, curve.middle, strict=True) if dots else ():
        parts.append(f'<circle cx="{plane.x(a):.1f}" cy="{plane.y(b):.1f}" r="2.6" style="fill:{colour}"/>')
    return parts


def _names(plane: Plane, curves: Sequence[Curve]) -> list[str]:
    """The names at the ends of curves, moved apart where they would overlap, with leader lines."""
    parts, edge = [], WIDTH - RIGHT
    ends = [plane.y(curve.middle[-1]) for curve in curves]
    for k, curve, end, height in zip(colours(curves), curves, ends, apart(ends, 16), strict=True):
        last = plane.x(curve.x[-1])  # arms need not end at the same step
        dots = 'stroke-dasharray="1 4" ' if last < edge - 1 else ""
        parts.append(
            f'<line x1="{last + 2:.1f}" y1="{end:.1f}" x2="{edge + 12}" y2="{height:.1f}" {dots}'
            f'style="stroke:var(--curve-{k + 1})"/>'
        )
        parts.append(
            f'<text x="{edge + 16}" y="{height + 4:.1f}" style="fill:var(--curve-{k + 1})">'
            f"{escape(_cut(curve.name, 20))}</text>"
        )
    return parts


def interval_mark(effect: float, low: float, high: float) -> str:
    """One effect with its interval on a line through zero, better to the right. Empty if the interval is unbounded."""
    if not all(map(math.isfinite, (effect, low, high))):
        return ""
    width, height = 190, 22
    most = max(abs(low), abs(high), abs(effect)) * 1.08 or 1.0
    x = Axis(-most, most, 6, width - 6)
    parts = [
        svg_open(width, height, f"effect {effect:.3g}, from {low:.3g} to {high:.3g}"),
        f'<line class="grid" x1="6" x2="{width - 6}" y1="11" y2="11"/>',
        f'<line class="axis" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="2" y2="20"/>',
        f'<line class="reach" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="11" y2="11"/>',
        f'<circle class="effect" cx="{x(effect):.1f}" cy="11" r="4"/>',
        "</svg>",
    ]
    return "".join(parts)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    shown: Callable[[float], str],
    lower_is_better: bool,
    titles: tuple[str, str],
    label: str,
) -> str:
    """A heat map of two factors: better cells are darker, and every cell shows its number."""
    finite = [v for v in values.values() if math.isfinite(v)]
    low, high = min(finite), max(finite)
    left = 16 + 7 * max(map(len, [*rows, titles[0]]))
    wide, tall, top = max(74, min(120, (WIDTH - left) // len(columns))), 36, 46
    parts = [svg_open(left + wide * len(columns) + 2, top + tall * len(rows) + 4, label)]
    parts.append(svg_text(left + wide * len(columns) / 2, 14, titles[1], "middle"))
    parts.append(svg_text(left - 10, top - 8, titles[0], "end"))
    for j, column in enumerate(columns):
        parts.append(svg_text(left + wide * (j + 0.5), top - 8, _cut(column, 14), "middle", "name"))
    for i, row in enumerate(rows):
        parts.append(svg_text(left - 10, top + tall * (i + 0.5) + 4, row, "end", "name"))
        for j, column in enumerate(columns):
            value = values.get((row, column), math.nan)
            place = f'x="{left + wide * j + 1}" y="{top + tall * i + 1}" width="{wide - 2}" height="{tall - 2}" rx="3"'
            share = 0.0 if not math.isfinite(value) or high == low else (value - low) / (high - low)
            strength = 0.10 + 0.75 * ((1 - share) if lower_is_better else share) if math.isfinite(value) else 0
            parts.append(f'<rect {place} style="fill:var(--curve-2);fill-opacity:{strength:.2f}"/>')
            ink = "on-dark" if strength > 0.75 else "name"
            text = shown(value) if math.isfinite(value) else "–"
            parts.append(svg_text(left + wide * (j + 0.5), top + tall * (i + 0.5) + 4, text, "middle", ink))
    return "\n".join([*parts, "</svg>"])


# --- helpers ---------------------------------------------------------------------------------------------------------


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers in a range."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / about))
    step *= next((m for m in (1, 2, 5) if span / (step * m) <= about), 10)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 … if there are few, otherwise powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
        if len(found) <= 7:
            return found or [low, high]
    every = math.ceil(len(powers) / 7)
    return [10.0**p for p in list(powers)[::every] if low <= 10.0**p <= high]


def apart(places: Sequence[float], distance: float) -> list[float]:
    """The positions, moved as little as possible so that neighbours are this far apart."""
    order = sorted(range(len(places)), key=lambda k: places[k])
    moved = [places[k] for k in order]
    for _ in range(200):
        crowded = False
        for a, b in pairwise(range(len(moved))):
            lack = distance - (moved[b] - moved[a])
            if lack > 0.01:
                moved[a], moved[b], crowded = moved[a] - lack / 2, moved[b] + lack / 2, True
        if not crowded:
            break
    found = [0.0] * len(places)
    for k, place in zip(order, moved, strict=True):
        found[k] = place
    return found


def short(value: float) -> str:
    """Format a tick: 1,500 · 0.25 · 1e7."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.4g}"


def svg_open(width: float, height: float, label: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">'


def svg_text(x: float, y: float, text: str, anchor: str, kind: str = "faint") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
