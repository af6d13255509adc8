"""`headway study …` on the command line."""

import json
from pathlib import Path

import pytest
from small import QUICK
from tiny import RECIPE

from headway.study.execution import plan as planning

HERE = ("--on", "here")  # without starting processes, which takes seconds each
STUDY = f"""title: Do positions help?
base: tiny.yaml
changes: {json.dumps(QUICK)}
arms:
  none: [model.positions=none]
  learned: []
seeds: 2
questions:
  - {{kind: better, arm: learned, than: none}}
"""


@pytest.fixture
def headway(workshop, tmp_path: Path, command_line, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(planning, "MEASURED_SECONDS", 0.01)
    Path("tiny.yaml").write_text(RECIPE.format(path=workshop.text), "utf-8")
    Path("positions.yaml").write_text(STUDY, "utf-8")
    return command_line


def test_a_plan_shows_the_cost_of_a_study_and_trains_nothing(headway):
    code, out, _ = headway("study", "plan", "positions.yaml", "--workers", "3")
    assert code == 0
    assert "Do positions help?" in out and "4 runs: 2 model shapes; 3 processes with one thread each" in out
    assert "learned" in out and "parameters" in out
    assert not Path("studies").exists()
    _, out, _ = headway("study", "plan", "positions.yaml", "--json")
    found = json.loads(out)
    assert found["runs"] == ["none.seed-0", "none.seed-1", "learned.seed-0", "learned.seed-1"]
    assert found["arms"]["none"]["steps"] == 4 and found["seconds"] > 0
    assert found["power"][0]["effect"] is None and "is not known yet" in found["power"][0]["sentence"]
    assert "there is no study 'pilot'" in headway("study", "plan", "positions.yaml", "--from", "pilot").err


def test_a_study_is_run_and_its_results_shown_again(headway):
    code, out, err = headway("study", "run", "positions.yaml", "--on", "here", "--name", "first")
    assert code == 0
    assert "none.seed-0: finished  (1 of 4 runs" in err
    assert "Is learned better than none on valid.perplexity?" in out and "2 of 2" in out
    assert json.loads(Path("studies/first/verdicts.json").read_text())[0]["seeds"] == 2
    code, again, _ = headway("study", "results", "first")
    assert code == 0 and again == out
    _, out, _ = headway("study", "results", "studies/first", "--json")
    found = json.loads(out)
    assert len(found["runs"]) == 4 and found["missing"] == {} and found["verdicts"][0]["seeds"] == 2
    assert headway("runs", "--runs", "studies/first/runs")[1].count("finished") == 4
    code, _, err = headway("study", "run", "first", "--on", "here", "--json")  # by its name, from its own copy
    assert code == 0 and "finished" not in err


def test_failures_are_named_and_the_command_that_tries_again(headway):
    Path("studies/positions/runs/none.seed-0").mkdir(parents=True)
    Path("studies/positions/study.yaml").write_text(STUDY.replace("tiny.yaml", "../../tiny.yaml"))
    code, out, err = headway("study", "run", "positions.yaml", "--on", "here")
    assert code == 1
    assert "none.seed-0: studies/positions/runs/none.seed-0 is not a run folder" in out
    assert "failed, see studies/positions/failures/; to try again: headway study run positions.yaml --on here" in err


WRONG = {
    ("study", "plan", "postions.yaml"): "there is no study file postions.yaml; did you mean 'positions.yaml'?",
    ("study", "run", "positions.yaml", "--on", "mars"): "there is no executor 'mars'",
    ("study", "run", "positions.yaml", "--on", "ray://127.0.0.1:1"): "there is no cluster at ray://127.0.0.1:1",
    ("study", "results", "positions"): "there is no study 'positions'; there are no studies in studies yet",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items())
def test_a_mistake_is_one_message(headway, words, message):
    if "ray" in words[-1]:
        pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
    code, _, err = headway(*words)
    assert code == 2 and message in err and "Traceback" not in err


@pytest.mark.parametrize("verb", ["plan", "run", "results"])
def test_the_help_of_every_verb_shows_an_example_and_the_json_option(headway, verb):
    code, out, _ = headway("study", verb, "--help")
    assert code == 0 and f"Example: headway study {verb}" in out and "--json" in out


def test_a_plan_of_a_changed_study_reports_the_change(headway):
    assert headway("study", "run", "positions.yaml", *HERE).code == 0
    assert "another study" not in headway("study", "plan", "positions.yaml").out
    Path("positions.yaml").write_text(STUDY.replace("seeds: 2", "seeds: 3"), "utf-8")
    answer = headway("study", "plan", "positions.yaml")
    assert answer.code == 0 and "seeds was [0, 1] and is [0, 1, 2]; give the new study another name" in answer.words


def test_more_seeds_under_another_name(headway):
    assert headway("study", "run", "positions.yaml", *HERE).code == 0
    Path("positions.yaml").write_text(STUDY.replace("seeds: 2", "seeds: 3"), "utf-8")
    refused = headway("study", "run", "positions.yaml", *HERE)
    assert refused.code == 2 and "takes over the runs that are the same" in refused.words and "--reuse" in refused.words
    misspelt = headway("study", "run", "positions.yaml", "--name", "more", "--reuse", "position")
    assert misspelt.code == 2 and "did you mean 'positions'?" in misspelt.words
    answer = headway("study", "run", "positions.yaml", "--name", "more", "--reuse", "positions", *HERE)
    assert answer.code == 0 and "4 of 6 runs reused from studies/positions" in answer.words


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a\tb"])
def test_the_name_of_a_study_is_a_single_folder(headway, name):
    answer = headway("study", "run", "positions.yaml", "--name", name)
    assert answer.code == 2 and "cannot be the name of a study" in answer.err
    assert not Path("studies").exists()


def test_missing_measures_do_not_hide_the_rest(headway):
    """Killed between the last run and the measures."""
    more = "  - {kind: best, on: valid-8.perplexity}\nmeasures: [{kind: segments, lengths: [8]}]\n"
    Path("positions.yaml").write_text(STUDY + more, "utf-8")
    assert headway("study", "run", "positions.yaml", *HERE).code == 0
    for file in Path("studies/positions/runs").glob("*/measures.json"):
        file.unlink()
    answer = headway("study", "results", "positions")
    assert answer.code == 0 and "valid-8.perplexity has not been measured yet" in answer.words
    assert "Is learned better than none on valid.perplexity?" in answer.words and ", 2 seeds" in answer.words
    assert headway("study", "report", "positions").code == 0
    assert "not measured yet" not in headway("study", "results", "positions").words


def test_a_missing_baseline_does_not_hide_the_rest(headway):
    """Killed between the scores of the first runs and their audits, which compute the baselines."""
    more = "  - {kind: better, arm: learned, than: unigram, on: valid.perplexity}\n"
    Path("positions.yaml").write_text(STUDY + more, "utf-8")
    assert headway("study", "run", "positions.yaml", *HERE).code == 0
    assert "Is learned better than unigram on valid.perplexity?" in headway("study", "results", "positions").words
    for run in Path("studies/positions/runs").iterdir():
        (run / "audit.json").unlink()
    answer = headway("study", "results", "positions")
    assert answer.code == 0 and "valid.perplexity of unigram has not been measured yet" in answer.words
    assert "Is learned better than none on valid.perplexity?" in answer.words and ", 2 seeds" in answer.words


def test_a_damaged_study_is_named(headway):
    assert headway("study", "run", "positions.yaml", *HERE).code == 0
    Path("studies/positions/study.yaml").write_text("nothing: left")
    said = headway("study", "results", "positions").err
    assert "studies/positions/study.yaml cannot be read: its checksum differs" in said
