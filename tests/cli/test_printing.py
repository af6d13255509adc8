import json
import math

import pytest

from headway.answers.run_summaries import run_as_json, runs_as_json
from headway.audit.audit import Baseline, Finding, Report
from headway.cli.printing import (
    number,
    show_labelled,
    show_probabilities,
    show_runs,
    show_scores,
    show_sentence,
    show_table,
    show_warnings_and_failures,
)
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.run.index import listed
from headway.scoring.likelihood import Surprise
from headway.scoring.score import Confusion, Score
from headway.scoring.sentence import ScoredText


@pytest.fixture(params=["60", "200"])
def columns(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", request.param)
    return int(request.param)


@pytest.fixture
def run(tmp_path):
    def make(name: str, value: float = 12.5, status: str = "finished") -> Run:
        made = Run.create(tmp_path / name, Recipe(), "cpu")
        made.save_scores(
            [Score("valid.loss", 2.5, "nats per token"), Score("valid.perplexity", value, "per token · valid")]
        )
        made.note(status=status, step=1234)
        return made

    return make


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1.23456, "1.235"),
        (12.3456, "12.35"),
        (123.456, "123.5"),
        (1234.56, "1,235"),
        (123456.7, "123,457"),
        (0.123456, "0.1235"),
        (0.00123456, "0.0012"),
        (5.2e7, "5.2e+07"),
        (1e-9, "1e-09"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (-2.5, "-2.500"),
    ],
)
def test_numbers_have_four_digits_and_no_needless_exponents(value, shown):
    assert number(value) == shown


def test_brackets_in_a_table_are_not_markup(capsys):
    show_table(["name", "what"], [["[x]", "[red]a[/red]"], ["[/b]", ":smile:"]])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[x]", "[red]a[/red]", "[/b]", ":smile:"))


def test_a_table_in_a_file_has_a_line_for_each_row(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    show_table(["arm", "valid.perplexity"], [["a" * 100, "98.6 [96.7, 100.0]"], ["b", "7"]])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["arm", "valid.perplexity"] and len(lines) == 2 and len(lines[0]) == 100 + 2 + 18


def test_in_a_narrow_terminal_names_stay_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    row = ["dropped.as-reported", *["98.6 [96.7, 100.0]"] * 3]
    show_table(["arm", "valid.bleu", "valid.perplexity", "valid.loss"], [row, row])
    words = capsys.readouterr().out.split()
    assert words.count("dropped.as-reported") == 2 and {"bleu", "perplexity", "loss"} < set(words)


def test_a_table_fits_its_terminal_and_loses_nothing(capsys, columns):
    show_table(["run", "n"], [["a-name-of-some-length-" * 4, "1"], ["b", "20"]])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "".join(line.split(" ")[0] for line in out.splitlines()[1:-1]) == "a-name-of-some-length-" * 4


def test_an_empty_table_has_a_header(capsys):
    show_table(["run", "status"], [])
    assert capsys.readouterr().out.split() == ["run", "status"]


def test_every_score_is_one_line_with_its_whole_label(capsys, columns):
    scores = [
        Score("valid.loss", 1.5, "nats per token · " + "x" * 250),
        Score("valid.perplexity", 4.4817, "perplexity"),
    ]
    show_labelled(scores, Report())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["     1.500  " + scores[0].label, "     4.482  perplexity"]


def test_one_run_shows_its_labelled_scores_and_how_it_ended(run, capsys):
    show_scores([run("one", status="diverged at step 3: the loss")])
    out = capsys.readouterr().out
    assert "12.50  per token · valid" in out and "diverged at step 3" in out
    assert "finished" not in out


def test_many_runs_are_a_table_with_their_labels_below(run, capsys):
    show_scores([run("one"), run("two", 7.0)])
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["one", "finished", "1,234", "valid", "12.50"],
        ["two", "finished", "1,234", "valid", "7.000"],
    ]
    assert "valid.perplexity: per token · valid" in out


def test_after_a_population_the_command_for_its_curves_is_shown(run, capsys):
    show_scores([(first := run("demo-seed-0")), run("demo-seed-1")])
    shown = capsys.readouterr().out.replace("\n", "")
    assert f"headway compare {first.folder.parent}/demo-seed-* -o curves.html" in shown
    show_scores([first])
    assert "headway compare" not in capsys.readouterr().out


def test_a_run_that_has_no_scores_yet_is_listed(tmp_path, capsys):
    show_runs([listed(Run.create(tmp_path / "new", Recipe(), "cpu").folder)])
    assert capsys.readouterr().out.splitlines()[1].split() == ["new", "killed", "at", "step", "0", "0"]


def sentence(pieces: list[str], nats: list[float | None], **facts) -> ScoredText:
    known = [n for n in nats if n is not None]
    summary = Surprise(sum(known), len(known), 3, 9, 8, 8, "word")
    return ScoredText(pieces, nats, facts.get("unknown", 0), facts.get("begins_a_line", True), summary)


def test_a_sentence_shows_the_loss_of_every_token(capsys, columns):
    pieces = [f"token{k}" for k in range(60)]
    scored = sentence(pieces, [k / 10 for k in range(60)])
    show_sentence(scored, scored.surprise.scores("text"), Report())
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert all([piece, f"{k / 10:.2f}"] in rows for k, piece in enumerate(pieces))
    assert "nats per token (word) · text · 60 tokens · segment 8, stride 8" in out


def test_pieces_are_shown_unchanged(capsys):
    pieces = ["[/b]", "\\xe2", "a\\b", "it's", "日本", "[red]"]
    show_sentence(sentence(pieces, [1.0] * 6), [], Report())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all([piece, "1.00"] in rows for piece in pieces)


def test_notes_about_a_sentence_are_shown(capsys):
    show_sentence(sentence(["<unk>", "cat"], [None, 2.0], unknown=1, begins_a_line=False), [], Report())
    out = capsys.readouterr().out
    assert "the first token is not scored" in out
    assert "1 of 2 words are unknown, scored as <unk>" in out


def test_a_run_as_json_holds_its_scores_with_labels(run):
    made = run("one", math.inf)
    found = run_as_json(made, made.scores(), Report())
    assert found == {
        "run": str(made.folder),
        "scores": {
            "valid.loss": {"value": 2.5, "label": "nats per token"},
            "valid.perplexity": {"value": None, "label": "per token · valid"},
        },
        "audits": {"findings": [], "not_run": {}, "baselines": []},
        "weights": None,
    }
    json.dumps(found, allow_nan=False)


def test_several_runs_as_json_hold_each_of_them(run):
    one, two = run("one"), run("two", 7.0)
    assert "runs" not in runs_as_json([one])
    found = runs_as_json([one, two])
    assert found["run"] == str(one.folder)
    assert [r["scores"]["valid.perplexity"]["value"] for r in found["runs"]] == [12.5, 7.0]
    assert {r["status"] for r in found["runs"]} == {"finished"}


# --- classes ---------------------------------------------------------------------------------------------------------


def accuracy(classes: int) -> list[Score]:
    names = tuple(f"class{k}" for k in range(classes))
    counts = tuple(tuple(90 if j == k else j for j in range(classes)) for k in range(classes))
    overall = Score("test.accuracy", 0.9, "accuracy: 9 of 10", (0.5, 0.98), Confusion.of_rows(names, counts))
    return [overall, Score("test.precision.class0", 0.75, "precision"), Score("test.recall.class1", math.nan, "recall")]


def test_scores_of_classes_are_shown_as_a_table(columns, capsys):
    show_labelled(accuracy(3), Report())
    out = capsys.readouterr().out
    assert "0.9000  accuracy: 9 of 10" in out and "  precision\n" not in out
    header, first, *_ = out.split("\n\n")[1].splitlines()
    assert header.split() == ["test", "texts", "precision", "recall", "→1", "→2", "→3"]
    assert first.split() == ["class0", "·", "1", "93", "0.750", "90", "1", "2"]  # what is unknown is not shown


def test_a_score_of_a_file_is_not_shown_as_that_of_a_class(capsys):
    show_labelled([Score("held.txt.perplexity", 12.5, "perplexity per token")], Report())
    assert capsys.readouterr().out.split() == ["12.50", "perplexity", "per", "token"]


def test_many_classes_have_no_confusion_matrix(columns, capsys):
    show_labelled(accuracy(20), Report())
    assert "→" not in capsys.readouterr().out


def test_probabilities_have_bars(capsys):
    show_probabilities({"good": 0.75, "bad": 0.25})
    _, good, bad = capsys.readouterr().out.splitlines()
    assert good.split() == ["good", "0.7500", "█" * 22] and bad.split()[:2] == ["bad", "0.2500"]


# --- doubts about a score --------------------------------------------------------------------------------------------

SCORE = Score("valid.perplexity", 4.2, "perplexity per token")
DOUBTS = Report(
    (
        Finding("causality", "fail", 0.1, "sees the future: by a tenth"),
        Finding("still-improving", "warn", 0.2, "still improving when it stopped"),
        Finding("padding", "pass", 0.0, "padding changes nothing"),
    ),
    baselines=(Baseline("unigram", Score("valid.perplexity", 25.1, "of a unigram model")),),
)


def test_baselines_and_doubts_are_shown_beside_a_score(capsys):
    show_labelled([SCORE], DOUBTS)
    number, cheap, _, warning, failure = capsys.readouterr().out.splitlines()
    assert number.split()[0] == "4.200" and cheap.strip() == "baselines: unigram 25.10"
    assert warning.split()[:2] == ["warn", "still-improving"] and failure.split()[:2] == ["fail", "causality"]


def test_doubts_about_many_runs_are_shown_once(capsys):
    show_warnings_and_failures([DOUBTS, DOUBTS, Report()])
    out = capsys.readouterr().out
    assert out.count("causality") == 1 and "(2 of 3 runs)" in out


def test_audits_that_could_not_be_carried_out_are_shown(capsys):
    show_labelled([SCORE], Report(not_run={"every audit": "the data are gone"}))
    assert "not audited: the data are gone" in capsys.readouterr().out
