"""Charts as files: an HTML page, a standalone SVG, or a PNG (drawn by matplotlib); and pages with any figures, which
follow the reader's light or dark mode."""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from headway.core.files import write_whole
from headway.draw.charts import HEIGHT, WIDTH, Curve, colours, line_chart
from headway.draw.colours import CURVES, CURVES_ON_DARK, curve_variables
from headway.draw.page import PAGE_HEAD
from headway.draw.picture import PictureTable
from headway.draw.save import check_place
from headway.draw.svg import FONT

_STYLE = (
    f":root {{ --paper: #ffffff; --ink: #1a1a1a; --faint: #5c5c5c; --rule: #dddddd; {curve_variables(CURVES)} }}\n"
    f".chart {{ font: 12px {FONT}; max-width: 100%; }} .chart text {{ fill: var(--ink); }}\n"
    ".chart .faint { fill: var(--faint); }\n"
    ".chart .grid { stroke: var(--rule); } .chart .axis { stroke: var(--faint); }\n"
    ".chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; } .chart .band { fill-opacity: 0.14; }\n"
    ".chart .each { fill: none; stroke-width: 0.8; stroke-opacity: 0.45; stroke-linejoin: round; }\n"
)
_DARK = (
    ":root { --paper: #17181a; --ink: #e6e5e0; --faint: #a2a4a8; --rule: #3a3c40; "
    f"{curve_variables(CURVES_ON_DARK)} }}"
)
_BODY = (
    f"{_STYLE}@media (prefers-color-scheme: dark) {{ {_DARK} }}\n"
    ":root { color-scheme: light dark; } html { background: var(--paper); }\n"
    f"body {{ margin: 2rem auto; padding: 0 1rem; max-width: 60rem; font-family: {FONT}; color: var(--ink); }}\n"
    "@media screen { .chart { min-width: 36rem; } figure { overflow-x: auto; } }\n"  # keeps text readable
)
_ABOVE, _BETWEEN, _LINE = 34, 46, 16  # pixels: for the title, for the caption of a chart, and for a line of notes
_LETTERS = 120  # characters per line of a note


@dataclass(frozen=True)
class Chart:
    curves: Sequence[Curve]
    across: str
    up: str
    caption: str
    logarithmic: bool = False

    @property
    def drawn(self) -> list[Curve]:
        """The curves to draw; on a logarithmic axis without values that are not above zero."""
        if not self.logarithmic:
            return list(self.curves)
        return [kept for curve in self.curves if (kept := _above_zero(curve)).x]

    def svg(self) -> str:
        return line_chart(self.drawn, self.across, self.up, self.caption, logarithmic=self.logarithmic)


@dataclass(frozen=True)
class ChartPage:
    """A page of charts; in a notebook it displays itself."""

    title: str
    subtitle: str
    charts: Sequence[Chart]
    notes: Sequence[str] = ()
    table: PictureTable | None = None

    def save(self, path: str | Path) -> Path:
        """Write as .html, .svg or .png, depending on the file name."""
        path = Path(path)
        check_place(path)
        made = {".html": self._html, ".svg": self._svg, ".png": self._png}[path.suffix.lower()]()
        write_whole(path, made)
        return path

    def _html(self) -> str:
        return (
            f"{PAGE_HEAD}<title>{escape(self.title)}</title>\n"
            f"<style>\n{_BODY}"
            "figure { margin: 0 0 2rem; } figcaption { margin-bottom: 0.6rem; }\n"
            "td, th { padding: 0.1rem 0.8rem 0.1rem 0; text-align: left; }\n"
            f"</style>\n</head>\n<body>\n{self._inner()}\n</body>\n</html>\n"
        )

    def _repr_html_(self) -> str:
        return f"<style>\n{_STYLE}</style>\n{self._inner()}"

    def _inner(self) -> str:
        figures = [
            f"<figure><figcaption>{escape(chart.caption)}</figcaption>\n{chart.svg()}\n</figure>"
            for chart in self.charts
            if chart.drawn
        ]
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        head = f"<h1>{escape(self.title)}</h1>\n<p>{escape(self.subtitle)}</p>"
        return f"{head}\n{''.join(figures)}\n{notes}\n{_table(self.table)}"

    def _svg(self) -> str:
        charts = [chart for chart in self.charts if chart.drawn]
        below, notes = _ABOVE + len(charts) * (HEIGHT + _BETWEEN), self._note_lines
        height = below + _LINE * len(notes)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(self.title)}">',
            f'<style>\n{_STYLE}</style>\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="8" y="22" font-size="15" font-weight="600">{escape(self.title)}</text>',
        ]
        for k, chart in enumerate(charts):
            top = _ABOVE + k * (HEIGHT + _BETWEEN)
            parts.append(f'<text class="faint" x="8" y="{top + 22}">{escape(chart.caption)}</text>')
            inner = chart.svg().replace("<svg ", f'<svg y="{top + _BETWEEN - 12}" height="{HEIGHT}" ', 1)
            parts.append(inner)
        for k, line in enumerate(notes):
            parts.append(f'<text class="faint" x="8" y="{below + _LINE * k}">{escape(line)}</text>')
        return "\n".join([*parts, "</svg>\n"])

    @property
    def _note_lines(self) -> list[str]:
        """The notes broken into lines, for formats that do not wrap text."""
        return [line for note in self.notes for line in textwrap.wrap(note, _LETTERS)]

    def _png(self) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        charts = [chart for chart in self.charts if chart.drawn]
        figure = Figure(figsize=(9, 0.6 + 4 * len(charts)), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        figure.suptitle(self.title, x=0.01, ha="left", weight="bold", fontsize=12)
        for chart, axes in zip(charts, figure.subplots(len(charts), 1, squeeze=False)[:, 0], strict=True):
            for curve, k in zip(chart.drawn, colours(chart.drawn), strict=True):
                if k >= len(CURVES):
                    continue
                colour, line = CURVES[k], "--" if curve.beside else "-"
                for one in curve.each:
                    axes.plot(curve.x, one, color=colour, lw=0.7, alpha=0.55)
                axes.plot(curve.x, curve.middle, line, color=colour, lw=1.8, label=curve.name)
                axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.14, lw=0)
            axes.set(xlabel=chart.across, ylabel=chart.up, yscale="log" if chart.logarithmic else "linear")
            axes.set_title(chart.caption, loc="left", fontsize=9)
            axes.grid(axis="y", color="#dddddd", lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.supxlabel("\n".join(self._note_lines), x=0.01, ha="left", fontsize=8)
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=120)
        return written.getvalue()


def figures_page(title: str, lead: Sequence[str], figures: Sequence[tuple[str, str]], tables: Sequence[str]) -> str:
    """Figures (SVG, caption) and tables (HTML) as one page for light and dark mode."""
    drawn = "\n".join(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for svg, caption in figures)
    told = "".join(f"<p>{escape(line)}</p>" for line in lead)
    return (
        f"{PAGE_HEAD}<title>{escape(title)}</title>\n"
        f"<style>\n{_BODY}"
        "figure { margin: 0 0 2.4rem; } figcaption { margin-top: 0.4rem; color: var(--faint); max-width: 46rem; }\n"
        "table { border-collapse: collapse; margin: 1rem 0 2rem; font-variant-numeric: tabular-nums; }\n"
        "td, th { padding: 0.15rem 1.2rem 0.15rem 0; text-align: left; border-bottom: 1px solid var(--rule); }\n"
        f"</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{told}\n{''.join(tables)}\n{drawn}\n</body>\n</html>\n"
    )


def html_table(table: PictureTable) -> str:
    return _table(table)


def _above_zero(curve: Curve) -> Curve:
    at = [k for k, v in enumerate(curve.middle) if math.isfinite(v) and v > 0]
    lowest = min((v for v in (*curve.low, *curve.middle) if v > 0), default=1.0)
    low = [max(curve.low[k], lowest) for k in at]
    x, middle, high = ([values[k] for k in at] for values in (curve.x, curve.middle, curve.high))
    each = [[max(one[k], lowest) for k in at] for one in curve.each]
    return replace(curve, x=x, middle=middle, low=low, high=high, each=each)


def _table(table: PictureTable | None) -> str:
    if table is None:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in table.rows)
    note = f"\n<p>{escape(table.note)}</p>" if table.note else ""
    return f"<table><tr>{head}</tr>\n{rows}\n</table>{note}"
