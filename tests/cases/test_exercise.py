"""Exercises: claims are checked, reports are complete, and commands distinguish exercises from studies."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headway.cases.catalogue import load_case, packaged, takes, title_of
from headway.cases.exercise import (
    Exercise,
    ExerciseClaim,
    ExerciseFinding,
    ExerciseQuestion,
    Reach,
    Ruling,
    WorkedExercise,
    drawn_by,
    share,
    work_out,
)
from headway.cases.exercise_report import read_verdicts, taken, write_report
from headway.cases.table import case_table
from headway.core.errors import UserError
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure

EXERCISES = [name for name in packaged() if isinstance(load_case(name, True), Exercise)]


def toy(status="does not hold") -> Exercise:
    def check(instances: int) -> Ruling:
        rows = [Reach("share <reached>", f"kind {k}", instances, "12 % [8, 17]", "all", "all") for k in (1, 2)]
        derivation = ["one step", "another step"]
        return Ruling(status=status, why="because of <b>3 & 4</b>", reached=rows, derivation=derivation)

    def answer(instances: int) -> ExerciseFinding:
        return ExerciseFinding(why=f"{instances} say so", figures=[Figure('<img alt="x" src="data:,">', "A picture")])

    return Exercise(
        title="Is 2 + 2 = 5?",
        about="Addition.",
        answered="5, by counting.",
        reported=Reported(conclusion="2 + 2 = 5"),
        claims=(ExerciseClaim("2 + 2 is 5", check),),
        questions=(ExerciseQuestion("What is it then?", answer),),
    )


@pytest.fixture
def done() -> WorkedExercise:
    return work_out(toy(), 50)


class Words(HTMLParser):
    """The texts and tags of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.words, self.tags = "", []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.words += data


# --- the library -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_has_its_report_and_its_requirements(name):
    found = load_case(name, True)
    assert isinstance(found, Exercise) and found is load_case(name, False)
    assert title_of(name) == found.title and found.title.endswith("?")
    assert found.about and found.answered and found.reported.conclusion and found.claims
    assert all("CPU core" in takes(name, quick) and "seconds" in takes(name, quick) for quick in (True, False))


def test_random_instances_depend_only_on_their_parameters():
    assert drawn_by("B1", 3).integers(10**6, size=3).tolist() == drawn_by("B1", 3).integers(10**6, size=3).tolist()
    assert drawn_by("B1", 3).integers(10**6) != drawn_by("B1", 4).integers(10**6)


def test_a_share_comes_with_its_interval():
    assert share(0, 300) == "0 % [0, 1]" and share(300, 300) == "100 % [99, 100]"
    assert share(150, 300) == "50 % [44, 56]" and share(0, 0) == "–"
    assert share(3, 3000) == "0.1 % [0.0, 0.3]" and share(3000, 3000) == "100.0 % [99.9, 100.0]"


# --- running it, and the report --------------------------------------------------------------------------------------


def test_an_outcome_is_judged_like_a_study():
    for status in ("holds", "does not hold"):
        found = work_out(toy(status), 7)
        assert found.status == status
        (judgement,) = found.judgements
        assert (judgement.claim.says, judgement.status) == ("2 + 2 is 5", status)
    said: list[str] = []
    work_out(toy(), 7, said.append)
    assert said == ["checking: 2 + 2 is 5", "answering: What is it then?"]


def test_the_report_is_complete_and_self_contained(done, tmp_path):
    (tmp_path / "toy").mkdir()
    page = write_report(done, tmp_path / "toy")
    seen = Words(page)
    for said in (
        "Is 2 + 2 = 5?",
        "does not hold",
        "2 + 2 = 5",
        "because of <b>3 & 4</b>",
        "12 % [8, 17]",
        "another step",
        "share <reached>",
        "50 say so",
        "A picture",
        "Made with headway",
    ):
        assert said.lower() in seen.words.lower()
    assert "b" not in seen.tags and not {"script", "link", "iframe"} & set(seen.tags)
    text = page.read_text("utf-8")
    assert "http://" not in text and "https://" not in text and "@media print" in text
    assert seen.words.index("does not hold") < seen.words.index("Results")
    words = (tmp_path / "toy" / "report.md").read_text("utf-8")
    assert "**Does not hold.**" in words and "1. one step\n2. another step" in words
    assert "| share \\<reached> | kind 1 | 50 |" in words and "|  | kind 2 | 50 |" in words
    assert "12 \\% [8, 17]" in (tmp_path / "toy" / "table.tex").read_text("utf-8")


def test_verdicts_are_read_back(done, tmp_path):
    assert read_verdicts(tmp_path) is None
    write_report(done, tmp_path)
    kept = read_verdicts(tmp_path)
    assert (
        kept is not None and kept["standing"] == "does not hold" and kept["claims"][0]["reached"][1]["of"] == "kind 2"
    )
    assert json.loads((tmp_path / "verdicts.json").read_text())["environment"]["python"]
    assert [row.of for row in kept["rows"]] == ["kind 1", "kind 2"]
    for damaged in (
        '{"standing": "ho',
        "[]",
        json.dumps({**kept, "rows": [], "claims": [{"reached": [{"what": "?"}]}]}),
    ):
        (tmp_path / "verdicts.json").write_text(damaged)
        with pytest.raises(UserError, match=r"verdicts\.json cannot be read: run the exercise again"):
            read_verdicts(tmp_path)


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text("title: mine")
    (tmp_path / "mine" / "verdicts.json").write_text("[]")
    with pytest.raises(UserError, match="mine holds a study"), taken(tmp_path / "mine"):
        pass
    assert read_verdicts(tmp_path / "mine") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create the folder"), taken(tmp_path / "file" / "B1"):
        pass
    with (
        taken(tmp_path / "B1"),
        pytest.raises(UserError, match="is being written by process"),
        taken(tmp_path / "B1"),
    ):
        pass


# --- the verbs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def headway(tmp_path, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("headway.cases.exercise.QUICK", 20)
    return command_line


def test_an_exercise_from_the_command_line(headway):
    code, out, err = headway("case", "D2", "--quick")
    assert code == 0 and "checking: the layer with these weights" in err
    assert "largest error at the ends" in out and "holds         the layer with these weights" in out
    assert "report: studies/D2-quick/report.html" in out and Path("studies/D2-quick/report.html").exists()
    code, out, _ = headway("case", "D2", "--quick", "--json")
    found = json.loads(out)
    assert found["standing"] == "holds" and found["instances"] == 20 and found["claims"][0]["derivation"]
    _, out, _ = headway("cases", "--table")
    assert "(cpu, up to 20 instances of each kind, `headway case D2 --quick`)" in out
    assert "| largest error inside | 1 channel | 20 |" in out
    assert "the convolution wherever both neighbours exist: **holds**." in out
    assert case_table(Path("studies")) == out


@pytest.mark.parametrize("option", [("--on", "ray"), ("--workers", "2")])
def test_an_exercise_does_not_run_elsewhere(headway, option):
    code, _, err = headway("case", "B1", *option)
    assert code == 2 and f"not trained: leave out {option[0]}" in err
    assert not Path("studies").exists()


def test_cases_are_listed_in_order(headway):
    _, out, _ = headway("cases", "--json")
    assert list(json.loads(out)["cases"])[4:8] == ["B1", "B2", "B3", "B4"]
    _, out, _ = headway("cases")
    assert "B2    Which key makes a query average three values, or select one?" in out
