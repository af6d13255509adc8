"""Write pictures to files; the format follows from the file name. PNG is drawn by matplotlib."""

import io
import warnings
from pathlib import Path

import numpy as np

from headway.core.errors import UserError, did_you_mean
from headway.core.files import write_whole
from headway.draw.layout import BAR, CELL_FOR_NUMBERS, Layout, arrange
from headway.draw.page import page
from headway.draw.picture import Picture
from headway.draw.svg import in_cell, svg

ENDINGS = (".html", ".svg", ".png")
_PIXELS_PER_INCH, _SHARPNESS = 96, 2
_MAX_PIXELS = 12_000  # per side


def check_place(path: Path) -> None:
    """Check that a picture can be written there, before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        ending = f"unknown picture format '{path.suffix}'" if path.suffix else "the file name has no ending"
        hint = did_you_mean(path.suffix.lower(), ENDINGS) if path.suffix else ""
        raise UserError(f"{path}: {ending}{hint or '; there are: .html, .svg, .png'}")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file in it, such as {path / 'maps.html'}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")


def save(picture: Picture, path: Path) -> Path:
    check_place(path)
    ending = path.suffix.lower()
    if ending == ".html":
        write_whole(path, page(picture))
    elif ending == ".svg":
        write_whole(path, svg(arrange(picture), picture.title, standalone=True))
    else:
        write_whole(path, _png(arrange(picture)))
    return path


def _png(layout: Layout) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sharpness = min(_SHARPNESS, _MAX_PIXELS / max(layout.width, layout.height))
    figure = Figure(figsize=(layout.width / _PIXELS_PER_INCH, layout.height / _PIXELS_PER_INCH), facecolor="white")
    FigureCanvasAgg(figure)
    points = 72 / _PIXELS_PER_INCH

    def image(x: float, y: float, width: float, height: float, painted: np.ndarray) -> None:
        place = (x / layout.width, 1 - (y + height) / layout.height, width / layout.width, height / layout.height)
        axes = figure.add_axes(place)
        axes.imshow(painted, aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(linewidth=0.5, color="#c4c4c4")

    def write(x: float, y: float, text: str, size: float, colour: str, **more) -> None:
        # Not as mathematics: tokens may contain dollar signs.
        at = (x / layout.width, 1 - y / layout.height)
        figure.text(*at, text, size=size * points, color=colour, va="baseline", parse_math=False, **more)

    for m in layout.maps:
        shown = m.panel.photograph
        image(m.x, m.y, m.width, m.height, m.grid.scale.paint(m.panel.matrix) if shown is None else shown)
        if m.cell >= CELL_FOR_NUMBERS and shown is None:
            for (i, j), value in np.ndenumerate(m.panel.matrix):
                if value:
                    x, y = m.x + (j + 0.5) * m.cell, m.y + (i + 0.5) * m.cell + 3.5
                    write(x, y, in_cell(value), 10, m.grid.scale.ink(value), ha="center")
    for bar in layout.bars:
        image(bar.x, bar.y, *BAR, bar.scale.colours[None])
    for text in layout.texts:
        weight = "bold" if text.bold else "normal"
        if text.turned:
            more = {"rotation": 90, "rotation_mode": "anchor", "ha": "left"}
        else:
            more = {"ha": {"start": "left", "middle": "center", "end": "right"}[text.anchor]}
        write(text.x, text.y, text.text, text.size, text.colour, weight=weight, **more)
    written = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks many scripts and draws boxes for them; html and svg use the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(written, format="png", dpi=_PIXELS_PER_INCH * sharpness)
    return written.getvalue()
