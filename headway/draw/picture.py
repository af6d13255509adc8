"""What is drawn, independently of the output format: grids of labelled maps, their texts, and a table.

`layout.py` arranges a `Picture`, and `save.py` writes it as html, svg or png. In a notebook it displays itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.draw.colours import ColourScale


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: queries as rows, keys as columns."""

    title: str
    matrix: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    caption: tuple[str, ...]
    """Short texts below the map, as many per line as fit."""
    photograph: np.ndarray | None = None
    """uint8 [height, width, 3]: shown instead of the colours of the numbers; the numbers are its lightness."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Panels with the same axes, in rows."""

    title: str
    panels: list[list[Panel]]
    scale: ColourScale


@dataclass(frozen=True)
class PictureTable:
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    """What the columns mean, shown below the table."""


@dataclass(frozen=True, eq=False)
class Picture:
    title: str
    sentence: str
    """The text that was read."""
    subtitle: str
    """How to read the picture."""
    grids: list[Grid]
    """Grids are placed side by side if there is room."""
    notes: Sequence[str] = ()
    table: PictureTable | None = None

    def save(self, path: str | Path) -> Path:
        """Write as .html, .svg or .png, depending on the file name."""
        from headway.draw.save import save

        return save(self, Path(path))

    def _repr_html_(self) -> str:
        from headway.draw.page import fragment

        return fragment(self)


def percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.0f} %"


def finite(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.2f}"
