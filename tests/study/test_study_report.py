"""Reports: what they must contain, in every format; and that their contents cannot load, run or break anything."""

import csv
import json
import math
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import QUICK, small_study
from tiny import reseal

from headway.audit.audit import Baseline, Finding, Report, write_report
from headway.draw.charts import Curve, apart, interval_mark, line_chart, logarithmic_ticks, round_ticks
from headway.scoring.score import Score
from headway.study.conclude import Conclusion, conclude
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.report.tables import Table, TableRow, literal, markdown

EMPTY = {"meta", "line", "circle", "rect", "polygon", "polyline", "image", "br", "link"}


class Page(HTMLParser):
    """The contents of a page; fails on unclosed tags."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(path.read_text("utf-8"))
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words += data


@pytest.fixture(scope="module")
def done(workshop, tmp_path_factory) -> Conclusion:
    """A small finished case: an arm that sees the future, a missing run, and everything a report can show."""
    study = small_study(
        workshop.text,
        title="Do <b>learned</b> positions & others help?",
        seeds=3,
        arms={"none": ["model.positions=none"], "learned": [], "a_b": ["model.positions=alibi"]},
        measures=[{"kind": "segments", "lengths": [16, 4]}],
        look=[{"text": "The lazy fox.", "arm": "learned"}],
        reported={"conclusion": "a_b is better", "figures": {"a_b": {"valid.perplexity": 2.5e6}}},
        claims=[
            {
                "says": "a_b helps",
                "ask": {"kind": "better", "arm": "a_b", "than": "none", "on": "valid.perplexity"},
                "answer": "better",
            }
        ],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_CACHE", str(workshop.cache))
        patch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [Report()] * len(runs))
        folder = tmp_path_factory.mktemp("studies") / "small"
        execute(study, folder, InProcess())
        for run in (folder / "runs").glob("a_b.*"):
            sees = Finding("causality", "fail", 0.5, "sees the future: a lot of it", short="sees the future")
            cheap = Baseline("unigram", Score("valid.perplexity", 25.0, "as made up"))
            write_report(run, Report((sees,), baselines=(cheap,)))
        facts = folder / "runs" / "none.seed-2" / "run.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "status": "diverged at step 3: NaN"}))
        reseal(facts.parent)
        return conclude(folder)


def test_the_page_is_complete(done):
    assert done.report is not None
    page = Page(done.report)
    assert "Do <b>learned</b> positions & others help?" in page.words  # as text, not as a tag
    assert "b" not in page.tags
    for verdict in done.verdicts:
        assert str(verdict.question) in page.words
    for said in ("does not hold", "sees the future", "none.seed-2", "diverged at step 3: NaN", "2.5e+06", "unigram"):
        assert said in page.words
    assert "The lazy fox." in page.words and page.tags.count("svg") >= 4
    assert "headway" in page.words and "torch" in page.words  # the command, and the versions it was made with


def test_nothing_is_fetched_and_nothing_runs(done):
    page = Page(done.report)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert all(link.startswith("data:") for link in page.links)
    text = done.report.read_text("utf-8")
    assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_tables_in_other_formats(done):
    folder = done.report.parent
    rows = list(csv.DictReader((folder / "scores.csv").read_text().splitlines()))
    one = next(r for r in rows if (r["arm"], r["seed"], r["score"]) == ("learned", "1", "valid.perplexity"))
    assert float(one["value"]) == done.results.table("valid.perplexity")["learned"][1]
    assert {r["failed audits"] for r in rows if r["arm"] == "a_b"} == {"causality"}
    latex = (folder / "table.tex").read_text()
    assert "a\\_b (sees the future)" in latex and "\\toprule" in latex and "_b" not in latex.replace("\\_b", "")
    words = (folder / "report.md").read_text()
    assert words.startswith("# Do \\<b>learned\\</b> positions & others help?\n") and words.endswith("```\n")
    assert "a_b (**sees the future**)" in words and "## Questions and verdicts" in words
    table = [line for line in words.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[:5]}) == 1


def test_the_answer_comes_first(done):
    words = Page(done.report).words
    assert words.index("does not hold") < words.index("Results")
    assert json.loads((done.report.parent / "verdicts.json").read_text())[0]["outcome"] == "not comparable"


def test_two_factors_are_a_heat_map_and_runs_without_questions_are_reported(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    factors = {
        "positions": {"key": "model.positions", "values": ["none", "learned"]},
        "width": {"key": "model.width", "values": [8, 16]},
    }
    study = small_study(workshop.text, arms={}, factors=factors, questions=[], seeds=1, changes=QUICK)
    execute(study, tmp_path / "grid", InProcess())
    page = Page(conclude(tmp_path / "grid").report)
    assert "valid.perplexity by positions and width" in page.words
    assert page.tags.count("rect") == 4
    assert "asks no questions" in page.words


def test_without_results_there_is_no_report(workshop, tmp_path):
    folder = tmp_path / "empty"
    (folder / "runs").mkdir(parents=True)
    from headway.study.folder import written

    (folder / "study.yaml").write_text(written(small_study(workshop.text)))
    assert conclude(folder).report is None


# --- charts ----------------------------------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6)


@given(numbers, st.floats(1e-3, 1e6))
def test_ticks_are_few_and_within(low, span):
    found = round_ticks(low, low + span)
    assert len(found) <= 6
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in found)


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e9))
def test_logarithmic_ticks_are_few_and_within(low, ratio):
    found = logarithmic_ticks(low, low * ratio)
    assert 1 <= len(found) <= 9
    assert all(low <= tick <= low * ratio * (1 + 1e-9) for tick in found)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=8))
def test_labels_do_not_overlap(places):
    found = apart(places, 16)
    order = sorted(found)
    assert all(b - a > 14 for a, b in pairwise(order))
    assert sorted(range(len(places)), key=lambda k: found[k]) == sorted(range(len(places)), key=lambda k: places[k])


def test_names_are_escaped_in_markdown():
    table = Table("x", ["arm", "score"], [TableRow("a|b *c* _d_ e_f [g](h) <i>", ["1.0 [0.9, 1.1]"], remark="$x$")])
    line = markdown(literal(table)).splitlines()[2]
    assert line == r"| a\|b \*c\* \_d\_ e_f [g\](h) \<i> (**\$x\$**) | 1.0 [0.9, 1.1] |"


def test_an_effect_without_bounds_has_no_mark():
    assert interval_mark(1.0, 0.5, 1.5) and not interval_mark(1.0, -math.inf, 1.5)


def test_a_curve_of_one_point_is_visible_and_labelled():
    long, short = Curve("long", [1, 2, 3], *[[3.0, 2.0, 1.0]] * 3), Curve("short", [1], *[[2.5]] * 3)
    drawn = line_chart([long, short], "step", "loss", "x")
    assert drawn.count("<circle") == 1 and drawn.count("stroke-dasharray") == 1
