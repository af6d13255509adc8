"""A picture as self-contained SVG: texts stay texts, maps are images with one colour per cell."""

import base64
import struct
import zlib
from html import escape

import numpy as np

from headway.draw.layout import BAR, CELL_FOR_NUMBERS, Layout, Map

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_SHARP = 240  # pixels: large enough that viewers which smooth images only blur the edges of cells


def svg(layout: Layout, label: str, standalone: bool = False) -> str:
    """`standalone`: as a separate file instead of a part of a page."""
    namespace = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
    width, height = round(layout.width), round(layout.height)
    parts = [
        f'<svg{namespace} width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(label)}" font-family="{FONT}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for k, drawn in enumerate(layout.maps):
        parts += _map(drawn, k)
    for bar in layout.bars:
        painted = bar.scale.colours[None]
        parts.append(_image(bar.x, bar.y, *BAR, painted, ""))
    for text in layout.texts:
        place = f'x="{text.x:.1f}" y="{text.y:.1f}"'
        if text.turned:
            place += f' transform="rotate(-90 {text.x:.1f} {text.y:.1f})"'
        weight = ' font-weight="600"' if text.bold else ""
        anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
        parts.append(
            f'<text {place} font-size="{text.size:g}"{anchor}{weight} fill="{text.colour}">{escape(text.text)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _map(drawn: Map, number: int) -> list[str]:
    matrix, scale, cell, shown = drawn.panel.matrix, drawn.grid.scale, drawn.cell, drawn.panel.photograph
    painted = scale.paint(matrix) if shown is None else shown
    parts = [
        _image(drawn.x, drawn.y, drawn.width, drawn.height, painted, f' data-map="{number}"'),
        f'<rect x="{drawn.x:.1f}" y="{drawn.y:.1f}" width="{drawn.width:.1f}" height="{drawn.height:.1f}"'
        ' fill="none" stroke="#c4c4c4" stroke-width="0.6" pointer-events="none"/>',
    ]
    if cell >= CELL_FOR_NUMBERS and shown is None:
        for (i, j), value in np.ndenumerate(matrix):
            if value:
                x, y = drawn.x + (j + 0.5) * cell, drawn.y + (i + 0.5) * cell + 3.5
                parts.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="middle" pointer-events="none"'
                    f' fill="{scale.ink(value)}">{in_cell(value)}</text>'
                )
    return parts


def in_cell(value: float) -> str:
    """Two decimals without the leading zero."""
    return f"{value:.2f}".replace("0.", ".", 1)


def _image(x: float, y: float, width: float, height: float, painted: np.ndarray, more: str) -> str:
    times = max(1, _SHARP // max(painted.shape[:2]))
    data = base64.b64encode(png(painted.repeat(times, 0).repeat(times, 1))).decode()
    return (
        f'<image{more} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none"'
        f' style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 [height, width, 3] as PNG: a header, the rows each with a filter byte (0: none), an end."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
