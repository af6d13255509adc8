"""The layout of a picture: lists of maps, texts and colour bars in pixels, for every output format.

Maps of a grid share their axes, so row names are written once, beside the first column, and column names above the
first row. If tokens are closer together than their names need, only every second, third … is named. A single map fills
the page, and if it has few tokens, its cells show the numbers.
"""

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headway.core.errors import UserError
from headway.draw.colours import ColourScale
from headway.draw.picture import Grid, Panel, Picture

INK, FAINT = "#1a1a1a", "#5c5c5c"
PAGE, ALONE = 1180, 820  # the width of all columns together, and of a single map
SMALLEST = 112  # the minimal width of a map in a grid
LARGEST_CELL, LARGEST_CELL_ALONE = 34, 60
CELL_FOR_NUMBERS = 30
MARGIN, GAP, BETWEEN_GRIDS = 16, 14, 40
LONGEST_LABEL = 16  # characters
MAX_CELLS = 10_000_000  # per picture: files of about 30 MB
BAR = (180, 10)


@dataclass(frozen=True)
class Label:
    x: float
    y: float
    """The y coordinate of the baseline."""
    text: str
    size: float = 10
    anchor: Literal["start", "middle", "end"] = "start"
    turned: bool = False
    """Whether it is rotated by 90° to read upwards."""
    bold: bool = False
    colour: str = FAINT


@dataclass(frozen=True, eq=False)
class Map:
    x: float
    y: float
    cell: float
    panel: Panel
    grid: Grid

    @property
    def width(self) -> float:
        return self.cell * len(self.panel.columns)

    @property
    def height(self) -> float:
        return self.cell * len(self.panel.rows)


@dataclass(frozen=True, eq=False)
class ColourBar:
    x: float
    y: float
    scale: ColourScale


@dataclass(frozen=True, eq=False)
class Layout:
    width: float
    height: float
    maps: list[Map]
    texts: list[Label]
    bars: list[ColourBar]


def arrange(picture: Picture) -> Layout:
    several = len(picture.grids) > 1
    placed = [_Grid(grid, cell, several) for grid, cell in zip(picture.grids, _cells(picture), strict=True)]
    for grid in placed:  # align the rows of grids that are side by side
        grid.settle(max(g.captions for g in placed), max(g.above for g in placed))
    beside = sum(g.width for g in placed) + BETWEEN_GRIDS * (len(placed) - 1)
    stacked = beside > 1.7 * PAGE
    inner = max(max(g.width for g in placed) if stacked else beside, 420)
    maps, texts, bars = [], [], []
    y = MARGIN + 14.0
    for line in wrapped(picture.title.split(" "), " ", inner, 14):
        texts.append(Label(MARGIN, y, line, 14, bold=True, colour=INK))
        y += 17
    for said, colour in ((f"“{picture.sentence}”", INK), (picture.subtitle, FAINT)):
        for line in wrapped(said.split(" "), " ", inner, 11):
            texts.append(Label(MARGIN, y, line, 11, colour=colour))
            y += 15
    x = MARGIN
    for grid in placed:
        maps += grid.maps(x, y)
        texts += grid.texts(x, y)
        x, y = (x, y + grid.height + GAP) if stacked else (x + grid.width + BETWEEN_GRIDS, y)
    y += 0 if stacked else max(g.height for g in placed) + GAP
    x = MARGIN
    for scale in dict.fromkeys(g.scale for g in picture.grids):
        if x > MARGIN and x + BAR[0] > inner:
            x, y = MARGIN, y + 42
        bars.append(ColourBar(x, y, scale))
        texts += _ticks(x, y, scale)
        x += BAR[0] + 40
    y += BAR[1] + 46
    step = max(g.row_step for g in placed)
    thinned = [f"For lack of space, only one token in {step} is named."] if step > 1 else []
    for note in [*thinned, *picture.notes]:
        for line in wrapped(note.split(" "), " ", inner, 10):
            texts.append(Label(MARGIN, y, line, 10))
            y += 14
    return Layout(inner + 2 * MARGIN, y + MARGIN - 8, maps, texts, bars)


class _Grid:
    """The dimensions of one grid and the positions of its parts."""

    def __init__(self, grid: Grid, cell: float, named: bool):
        self.grid, self.cell = grid, cell
        panels = [panel for row in grid.panels for panel in row]
        first = panels[0]
        self.font = min(12.0, max(8.0, 0.62 * cell))
        self.row_step = self.column_step = max(1, math.ceil(1.15 * self.font / cell))
        self.row_labels = [shortened(token) for token in first.rows]
        self.column_labels = [shortened(token) for token in first.columns]
        self.left = max(measure(label, self.font) for label in self.row_labels[:: self.row_step]) + 6
        widest = max(measure(label, self.font) for label in self.column_labels)
        letters = all(
            len(label) == 1 for label in self.column_labels
        )  # single letters may nearly touch and are never rotated
        self.turned = widest > cell and not letters
        if not self.turned:
            self.column_step = max(1, math.ceil(0.87 * widest / cell))
        self.top = 20 * named  # the grid's own title
        self.above = (widest if self.turned else self.font) + 6  # column labels
        side = cell * max(len(panel.columns) for panel in panels)
        self.pitch = max(side, 96.0 if any(p.caption for p in panels) else 0.0, *(measure(p.title, 10) for p in panels))
        self.captions = max(len(self._caption(panel)) for panel in panels)
        self.map_height = cell * max(len(panel.rows) for panel in panels)
        columns = max(map(len, grid.panels))
        self.width = max(self.left + columns * self.pitch + (columns - 1) * GAP, named * measure(grid.title, 12))

    def settle(self, captions: int, above: float) -> None:
        rows, self.above = len(self.grid.panels), above
        self.row_height = 16 + self.map_height + 4 + 12 * captions
        self.height = self.top + self.above + rows * self.row_height + (rows - 1) * 8

    def maps(self, x: float, y: float) -> list[Map]:
        return [Map(at_x, at_y, self.cell, panel, self.grid) for panel, at_x, at_y, _ in self._places(x, y)]

    def texts(self, x: float, y: float) -> Iterator[Label]:
        if self.top:
            yield Label(x, y + 12, self.grid.title, 12, bold=True, colour=INK)
        for panel, at_x, at_y, (row, column) in self._places(x, y):
            title_y = at_y - 5 - (self.above if row == 0 else 0)
            yield Label(at_x, title_y, panel.title, 10, bold=True, colour=INK)
            below = at_y + self.cell * len(panel.rows) + 12
            for k, line in enumerate(self._caption(panel)):
                yield Label(at_x, below + 12 * k, line, 9)
            if column == 0:
                for k in range(0, len(panel.rows), self.row_step):
                    middle = at_y + (k + 0.5) * self.cell + 0.35 * self.font
                    yield Label(at_x - 5, middle, self.row_labels[k], self.font, "end", colour=INK)
            if row == 0:
                for k in range(0, len(panel.columns), self.column_step):
                    middle = at_x + (k + 0.5) * self.cell
                    if self.turned:
                        at = middle + 0.35 * self.font
                        yield Label(at, at_y - 5, self.column_labels[k], self.font, turned=True, colour=INK)
                    else:
                        yield Label(middle, at_y - 5, self.column_labels[k], self.font, "middle", colour=INK)

    def _places(self, x: float, y: float) -> Iterator[tuple[Panel, float, float, tuple[int, int]]]:
        for row, panels in enumerate(self.grid.panels):
            for column, panel in enumerate(panels):
                at_y = y + self.top + self.above + row * (self.row_height + 8) + 16
                yield panel, x + self.left + column * (self.pitch + GAP), at_y, (row, column)

    def _caption(self, panel: Panel) -> list[str]:
        return wrapped(list(panel.caption), " · ", self.pitch, 9)


def _cells(picture: Picture) -> list[float]:
    """The cell size of each grid, as large as space allows."""
    grids = picture.grids
    panels = [panel for grid in grids for row in grid.panels for panel in row]
    tokens = [max(len(side) for row in g.panels for p in row for side in (p.rows, p.columns)) for g in grids]
    if max(tokens) ** 2 * len(panels) > MAX_CELLS:
        what = f"{len(panels)} maps of {max(tokens)} tokens"
        raise UserError(f"{what} are too many for one picture: choose a layer or a head")
    if len(panels) == 1:
        return [min(LARGEST_CELL_ALONE, max(9.0, ALONE / tokens[0]))]
    names = sum(max(measure(shortened(token), 10) for token in grid.panels[0][0].rows) for grid in grids)
    columns = sum(max(map(len, grid.panels)) for grid in grids)
    room = (PAGE - names - BETWEEN_GRIDS * (len(grids) - 1)) / columns - GAP
    return [min(LARGEST_CELL, max(SMALLEST, room) / n) for n in tokens]


def _ticks(x: float, y: float, scale: ColourScale) -> Iterator[Label]:
    for tick in scale.ticks:
        at = x + BAR[0] * float(scale.places(np.array(tick)))
        yield Label(at, y + BAR[1] + 11, f"{tick:g}".replace("-", "−"), 8, "middle")
    yield Label(x, y + BAR[1] + 23, f"{scale.name}; {scale.remark}", 9)


def shortened(token: str) -> str:
    return token if len(token) <= LONGEST_LABEL else token[: LONGEST_LABEL - 1] + "…"


def measure(text: str, size: float) -> float:
    """The approximate width of a text; a safe upper estimate, because fonts differ."""
    return size * sum(1.05 if unicodedata.east_asian_width(letter) in "WF" else 0.63 for letter in text)


def wrapped(pieces: list[str], between: str, width: float, size: float) -> list[str]:
    """Wrap pieces into lines without breaking any piece."""
    lines: list[str] = []
    for piece in pieces:
        if lines and measure(lines[-1] + between + piece, size) <= width:
            lines[-1] += between + piece
        else:
            lines.append(piece)
    return lines
