"""Reports and maps in a browser: on a phone, a tablet and a desktop, in dark mode and on paper."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headway.draw.chart_page import Chart, ChartPage
from headway.draw.charts import Curve, line_chart
from headway.draw.colours import WEIGHTS
from headway.draw.page import page
from headway.draw.picture import Grid, Panel, Picture, PictureTable
from headway.study.report.figures import Figure
from headway.study.report.report import rendered
from headway.study.report.tables import Table, TableRow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
LONG = "made-of-all-that-was-changed.learning_rate-0.0001.width-1024.positions-rotary-base-500000"
MEASURE = """() => {
  const scrolls = e => { for (let p = e; p && p !== document.body; p = p.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return true; return false; };
  const seen = [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && !e.closest('svg'));
  const box = e => e.getBoundingClientRect(), what = e => e.tagName + '.' + e.className + e.textContent.slice(0, 20);
  const cells = seen.filter(e => ['TD', 'TH'].includes(e.tagName) && e.textContent.trim().length > 3);
  return {
    wide: seen.filter(e => box(e).right > innerWidth + 1 && !scrolls(e)).map(what),
    thin: cells.filter(e => box(e).width < 30).map(what),
    tallest: Math.max(0, ...[...document.querySelectorAll('tr')].map(e => box(e).height)),
    marks: [...document.querySelectorAll('.mark span')].map(e => box(e).height),
  };
}"""
"""Elements wider than the screen without scrolling, cells too narrow to read, and very tall rows."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("pages")
    for name, text in {"report": crowded_report(), "maps": maps(), "curves": curves(home)}.items():
        (home / f"{name}.html").write_text(text, "utf-8")
    return {name: home / f"{name}.html" for name in ("report", "maps", "curves")}


def crowded_report() -> str:
    """Sixty arms with long names, eight seeds, two thousand classes, and everything a report can show."""
    arms = [f"arm-{k:02d}.{LONG if k % 5 == 0 else 'short'}" for k in range(60)]
    columns = ["arm", "valid.perplexity_per_word", "test.perplexity_per_word", "parameters", "seeds"]
    row = ["1,234.5 [1,200.1, 1,270.9]", "1,250.5 [1,210.1, 1,290.9]", "12,345,678", "8"]
    scores = Table(
        "All arms", columns, [TableRow(arm, row, "failed causality" * (k == 3)) for k, arm in enumerate(arms)]
    )
    classes = Table(
        "By class", ["class", "F1", "texts"], [TableRow(f"class {k}", ["0.912", "20"]) for k in range(2000)]
    )
    verdict = SimpleNamespace(
        question=f"Is {LONG} better than short?", effect=0.4, interval=(-0.2, 1.0), sentence=f"{LONG} is it."
    )
    finding = SimpleNamespace(
        verdict="fail", audit="too-good-to-be-true", sentence="the answer has reached the input " * 9
    )
    steps = list(range(0, 1000, 50))
    each = [[5 / (1 + 0.01 * s) + 0.05 * seed for s in steps] for seed in range(8)]
    low, high = each[0], each[-1]
    chart = line_chart([Curve("learned", steps, each[4], low, high, each)], "step", "nats", "How it learnt")
    paper = SimpleNamespace(
        name=LONG, results=SimpleNamespace(runs=range(480), missing=dict.fromkeys(arms, "diverged")),
        status="does not hold", short=f"{LONG} is not better.", scores=scores, judgements=[], reported=None,
        asked=[SimpleNamespace(verdict=verdict, effect="+0.4 [−0.2, 1.0]", notes=["one", "two"])],
        audits=[SimpleNamespace(finding=finding, arms=", ".join(arms[:4]))] * 4, passed=20, not_audited=[],
        figures=[Figure(chart, "How the arms learnt.")], more_scores=classes, early_tokens=None, laws=[],
        ensembles=None, maps=[], costs=["480 runs"], command=f"headway study run {LONG}.yaml", environment={}, say=str,
    )  # fmt: skip
    reported = SimpleNamespace(conclusion="positions do not matter")
    study = SimpleNamespace(title=f"Does {LONG} help?", about="", arms=arms, seeds=list(range(8)), reported=reported)
    return rendered("report.html", paper=paper, study=study)


def maps() -> str:
    tokens = tuple(f"token{k}" for k in range(24))
    seen = np.tri(24) / np.arange(1, 25)[:, None]
    panels = [[Panel(f"{row}·{k}", seen, tokens, tokens, ("entropy 2.1",)) for k in range(4)] for row in range(2)]
    table = PictureTable(["layer", *(f"statistic {k}" for k in range(9))], [["0", *["0.123"] * 9]] * 8)
    return page(Picture("Maps", "a sentence", "how to read it", [Grid("layer 0", panels, WEIGHTS)], ["a note"], table))


def curves(home: Path) -> str:
    """What `headway compare … -o` draws."""
    steps = list(range(0, 1000, 50))
    each = [[5 / (1 + 0.01 * s) + 0.05 * seed for s in steps] for seed in range(8)]
    chart = Chart([Curve(LONG, steps, each[4], each[0], each[-1], each)], "step", "valid.loss (nats)", "How it learnt")
    return (
        ChartPage("Learning curves", f"{LONG}: 8 seeds", [chart], [f"{LONG} failed causality"])
        .save(home / "page.html")
        .read_text("utf-8")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 500, 768, 1280])
@pytest.mark.parametrize("name", ["report", "maps", "curves"])
def test_nothing_is_cut_off_and_every_table_is_readable(browser, pages, name, width, scheme):
    if scheme == "dark" and (name == "maps" or width == 500):
        pytest.skip("white in every theme, or measured at other widths")
    with browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme) as tab:
        tab.goto(pages[name].as_uri())
        found = tab.evaluate(MEASURE)
        assert found["wide"] == []
        assert found["thin"] == []
        assert found["tallest"] < 700  # with one letter per line it was 4,391 pixels
        assert all(height < 24 for height in found["marks"])  # “better” is on one line
        ink, paper = (
            tab.evaluate(f"getComputedStyle(document.{e}).{p}")
            for e, p in (("body", "color"), ("documentElement", "backgroundColor"))
        )
        assert (brightness(paper) > brightness(ink)) == (scheme == "light" or name == "maps")


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def test_on_paper_no_page_is_half_empty(browser, pages):
    """The number of pages must be little more than the height of the contents requires."""
    with browser.new_page(viewport={"width": 665, "height": 985}) as tab:  # A4 without its margins
        tab.goto(pages["report"].as_uri())
        tab.emulate_media(media="print")
        height = tab.evaluate("document.documentElement.scrollHeight")
        printed = tab.pdf(format="A4", prefer_css_page_size=True)
        count = printed.count(b"/Type /Page\n") or printed.count(b"/Type /Page ") or printed.count(b"/Type/Page")
        assert height / 985 * 0.6 < count < height / 985 * 1.25 + 2
        assert tab.evaluate(MEASURE)["wide"] == []


def test_every_seed_has_a_thin_line(pages):
    text = pages["report"].read_text("utf-8")
    assert text.count('class="each"') == 8
    assert text.count('class="curve"') == 1
