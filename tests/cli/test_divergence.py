"""A run whose loss is no longer finite: one finding, exit code 1, and a clear message from every command that uses
it."""

import json
import math

import pytest

from headway.answers.verbs import without_nan
from headway.audit.audit import Finding, Report
from headway.run.folder import open_run


def no_constants(word: str):
    pytest.fail(f"{word} is not JSON")


@pytest.fixture
def diverged(headway, home):
    return headway("train", "tiny.yaml", "training.optimizer.learning_rate=1e30", "--name", "bad", "--json")


@pytest.mark.audited
def test_it_is_one_finding_and_exit_code_1(diverged):
    assert diverged.code == 1
    told = json.loads(diverged.out, parse_constant=no_constants)
    assert told["status"] == "diverged"
    assert told["scores"]["valid.loss"]["value"] is None
    failed = [one["audit"] for one in told["audits"]["findings"] if one["verdict"] == "fail"]
    assert failed == ["diverged"]
    assert told["audits"]["not_run"]["did-it-train"] == "the training diverged"


@pytest.mark.parametrize(
    "words",
    [("score",), ("score", "--text", "The fox"), ("sample",), ("look", "The fox"), ("look", "The fox", "--json")],
)
def test_commands_refuse_a_diverged_run(diverged, headway, words):
    answer = headway(words[0], "bad", *words[1:])
    assert answer.code == 2
    assert "bad diverged at step" in answer.err
    assert "learning_rate" in answer.err
    assert answer.out == ""


def test_the_best_checkpoint_before_it_can_still_be_used(headway, home):
    # of equal checkpoints, the first is the best
    changes = ("training.keep_best=true", "training.optimizer.learning_rate=0")
    headway("train", "tiny.yaml", *changes, "--name", "half")
    open_run("half").note(status="diverged", step=12, reason="the loss is no longer a finite number")
    assert headway("score", "half", "--checkpoint", "last").code == 2
    assert headway("score", "half").code == 0


def test_a_failed_audit_sets_the_exit_code_with_strict(headway, home, monkeypatch):
    found = Report((Finding("causality", "fail", 1.0, "it sees the future", 0.1),))
    monkeypatch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [found])
    words = ("train", "tiny.yaml", "training.duration=1 step")
    assert headway(*words, "--name", "a").code == 0
    assert headway(*words, "--name", "b", "--strict").code == 1


def test_json_has_null_for_values_that_are_not_finite_and_lists_their_places():
    told, lost = without_nan({"a": [1.0, math.nan, {"b": -math.inf}], "c": "nan", "d": 3})
    assert told == {"a": [1.0, None, {"b": None}], "c": "nan", "d": 3}
    assert lost == ["a.1", "a.2.b"]


def test_every_json_answer_is_made_finite(capsys, monkeypatch):
    from headway.cli.options import print_json

    monkeypatch.setattr("headway.answers.verbs.checked", lambda verb, answer: answer)
    print_json("train", {"scores": {"valid.loss": math.inf}})
    said = capsys.readouterr()
    assert json.loads(said.out) == {"scores": {"valid.loss": None}}
    assert "scores.valid.loss" in said.err
