"""What is to be drawn, whatever the output format: grids of labelled maps, what to say about them, and a table.

Everything that can be looked at gives a `Picture`; `layout.py` says where things stand in it, and `save.py` writes
it as html, svg or png. In a notebook it draws itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.draw.colours import ColourScale


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: who (rows) looks at whom (columns)."""

    title: str
    matrix: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    caption: tuple[str, ...]
    """Short pieces that stand below, as many on a line as there is room for."""
    photograph: np.ndarray | None = None
    """uint8 [height, width, 3]: what is shown in the place of the numbers' colours; the numbers are how light it is."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Panels of equal axes, in rows."""

    title: str
    panels: list[list[Panel]]
    scale: ColourScale


@dataclass(frozen=True)
class PictureTable:
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, eq=False)
class Picture:
    title: str
    sentence: str
    """What was read."""
    subtitle: str
    """How to read the picture."""
    grids: list[Grid]
    """Side by side, where there is room."""
    notes: Sequence[str] = ()
    table: PictureTable | None = None

    def save(self, path: str | Path) -> Path:
        """As .html, .svg or .png, by the ending of the name."""
        from headway.draw.save import save

        return save(self, Path(path))

    def _repr_html_(self) -> str:
        from headway.draw.page import fragment

        return fragment(self)


def percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.0f} %"


def finite(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.2f}"
