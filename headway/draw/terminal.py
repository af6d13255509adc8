"""Show a picture in a terminal: one character per cell, from · (hardly any weight) to █ (all of it).

Differences below zero have characters of their own, since colours are lost in a pipe.
"""

from itertools import zip_longest

import numpy as np
from rich.console import Console
from rich.text import Text

from headway.draw.layout import shortened
from headway.draw.picture import Grid, Panel, Picture

_SHADES = "·░▒▓█"
_NEGATIVE = "·-=≡#"
_WIDE = 24  # up to this many tokens, cells are two characters wide, so that they are square


def show(picture: Picture) -> None:
    console = Console(highlight=False)
    console.print(picture.title, style="bold", markup=False)
    console.print(picture.subtitle, markup=False)
    for grid in picture.grids:
        console.print()
        if len(picture.grids) > 1:
            console.print(grid.title, style="bold", markup=False)
        for row in grid.panels:
            _show_row(console, grid, row)
    console.print()
    console.print(f"{' '.join(_SHADES)}  from hardly any weight to all of it", style="dim", markup=False)
    if any((panel.matrix < 0).any() for grid in picture.grids for row in grid.panels for panel in row):
        console.print(f"{' '.join(_NEGATIVE)}  the same, below zero", style="dim", markup=False)
    for note in picture.notes:
        console.print(note, style="dim", markup=False)


def _show_row(console: Console, grid: Grid, row: list[Panel]) -> None:
    """Print as many panels per line as fit, with the names of the tokens on the left."""
    labels = [shortened(token) for token in row[0].rows]
    left = max(map(len, labels)) + 1
    blocks = [_block(grid, panel) for panel in row]
    while blocks:
        fits = max(1, (console.width - left) // (max(block[0].cell_len for block in blocks) + 2))
        for k, lines in enumerate(zip_longest(*blocks[:fits])):
            name = labels[k - 1].rjust(left - 1) if 0 < k <= len(labels) else " " * (left - 1)
            line = Text(name + " ")
            for part in lines:
                line.append_text(part).append("  ")
            console.print(line, no_wrap=True, crop=True, overflow="ellipsis")
        blocks = blocks[fits:]


def _block(grid: Grid, panel: Panel) -> list[Text]:
    """A panel as lines of equal width: the title, then the cells."""
    wide = 2 if len(panel.columns) <= _WIDE else 1
    width = max(wide * len(panel.columns), len(panel.title))
    lines = [Text(panel.title.ljust(width), style="bold")]
    strength = np.sqrt(np.abs(panel.matrix))
    colours = grid.scale.colours[np.rint(grid.scale.places(panel.matrix) * 255).astype(int)]
    for i in range(len(panel.rows)):
        line = Text()
        for j in range(len(panel.columns)):
            if panel.matrix[i, j] == 0:
                line.append(" " * wide)
                continue
            shades = _NEGATIVE if panel.matrix[i, j] < 0 else _SHADES
            shade = shades[min(len(shades) - 1, int(strength[i, j] * len(shades)))]
            line.append(shade * wide, style="rgb({},{},{})".format(*_visible(colours[i, j])))
        line.append(" " * (width - wide * len(panel.columns)))
        lines.append(line)
    return lines


def _visible(colour: np.ndarray) -> tuple[int, ...]:
    """A colour neither too light for a light terminal nor too dark for a dark one; the shade shows the weight."""
    return tuple(int(c) for c in np.clip(colour, 70, 200))
