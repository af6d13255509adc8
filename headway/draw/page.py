"""A picture as an HTML page: one self-contained file, with values shown under the pointer and a table below."""

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

import numpy as np

from headway.draw.layout import Layout, arrange
from headway.draw.picture import Picture, PictureTable
from headway.draw.svg import svg

PAGE_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)
"""The head of every page: encoding and viewport."""


def page(picture: Picture) -> str:
    return (
        f"{PAGE_HEAD}"
        f"<title>{escape(picture.title)}</title>\n"
        "<style>html { background: #ffffff; } body { margin: 0; }</style>\n</head>\n"
        f"<body>\n{fragment(picture)}\n</body>\n</html>\n"
    )


def fragment(picture: Picture) -> str:
    """A fragment of a page, as shown in a notebook. Its styles and script are scoped to it."""
    layout = arrange(picture)
    drawn, values = svg(layout, picture.title), _values(layout)
    name = "look-" + hashlib.sha256((drawn + values).encode()).hexdigest()[:12]
    home = files("headway.draw")
    style, script = ((home / file).read_text("utf-8").replace("PAGE", name) for file in ("page.css", "page.js"))
    return (
        f'<div id="{name}">\n<style>\n{style}</style>\n<div class="picture">\n{drawn}\n</div>\n{_table(picture.table)}'
        f'<div class="under-pointer" hidden></div>\n<script type="application/json">{values}</script>\n'
        f"<script>\n{script}</script>\n</div>"
    )


def _values(layout: Layout) -> str:
    """All weights as JSON with a resolution of 1/32767, two bytes each; lists of tokens shared by maps occur once."""
    labels = list(dict.fromkeys(side for m in layout.maps for side in (m.panel.rows, m.panel.columns)))
    maps = [
        {
            "title": f"{m.grid.title} · {m.panel.title}",
            "say": m.grid.scale.name,
            "rows": labels.index(m.panel.rows),
            "columns": labels.index(m.panel.columns),
            "data": base64.b64encode(np.rint(m.panel.matrix * 32767).astype("<i2").tobytes()).decode(),
        }
        for m in layout.maps
    ]
    # Nothing is escaped inside a script element, and only "<" could end it.
    return json.dumps({"tokens": labels, "maps": maps}, ensure_ascii=False).replace("<", "\\u003c")


def _table(table: PictureTable | None) -> str:
    if table is None:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<details><summary>All numbers</summary>\n<table><tr>{head}</tr>\n{rows}\n</table>{note}</details>\n"
