"""Ensembles of translators: scored, translating, and in a study; runs that cannot be averaged are refused with a
message."""

import json

import pytest

from headway.core.errors import UserError
from headway.experiment.ensemble import score_together
from headway.experiment.evaluate import translate_texts
from headway.experiment.train import train
from headway.recipe.recipe import from_tree
from headway.run.folder import open_run
from headway.scoring.decoding import Beam

WORDS = ["One", "two", "three", "four", "five", "six", "seven"]
ROWS = [f"{a} {b} {c}\t{c} {b} {b} {a}" for a in WORDS for b in WORDS for c in WORDS[:4]]


def recipe(path, *changes: str, seed: int = 0):
    tree = {
        "seed": seed,
        "data": {"kind": "pairs", "source": "files", "path": str(path), "tokenizer": "word"},
        "model": {"kind": "encoder-decoder", "layers": 1, "width": 16, "context": 8, "mixer": {"heads": 2}},
        "training": {"duration": "12 steps", "batch": 16, "optimizer": {"learning_rate": 1e-2}},
    }
    return from_tree(tree, "reversed", overrides=changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("joined")
    path = home / "pairs.tsv"
    path.write_text("\n".join(ROWS) + "\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        from headway.audit.audit import Report

        patch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [Report()] * len(runs))
        train([recipe(path, seed=0), recipe(path, seed=1)], ["a", "b"], home)
        train([recipe(path, "model.kind=decoder-only")], ["alone"], home)
        train([recipe(path, "data.target_tokenizer=word")], ["two"], home)
    return home


def runs(home, *names: str):
    return [open_run(name, home) for name in names]


def test_the_output_of_an_ensemble_is_scored_like_any_other(home):
    found = score_together(runs(home, "a", "alone", "b"))
    scores = {score.name: score for score in found.scores}
    gains = {gain.name: gain for gain in found.gains}
    assert {"valid.loss", "valid.bleu", "valid.bleu_lowercased", "valid.chrf", "valid.exact_match"} < gains.keys()
    assert scores["valid.bleu"].label.startswith(
        "ensemble of 3 runs, mean of their probabilities at every step: corpus"
    )
    assert "tok:13a" in scores["valid.bleu"].label
    stored = [{s.name: s.value for s in run.scores()} for run in runs(home, "a", "alone", "b")]
    for name, gain in gains.items():
        assert gain.members == pytest.approx([one[name] for one in stored], abs=1e-5)
        assert gain.ensemble == pytest.approx(scores[name].value, abs=1e-5)
        assert gain.interval is not None and gain.interval[0] <= gain.value <= gain.interval[1]
    assert gains["valid.loss"].value > 0  # by Jensen's inequality


def test_an_ensemble_translates(home, command_line, monkeypatch, tmp_path):
    import io

    some = runs(home, "a", "b")
    (found,) = translate_texts(some, ["One two three"], Beam(size=3, nbest=2), "auto")
    assert len(found.hypotheses) == 2
    where = ("--runs", str(home))
    told = command_line("translate", "a", "b", "One two three", "--beam", "3", "--nbest", "2", "--json", *where)
    answer = json.loads(told.out)
    assert answer["translations"][0]["text"] == found.text and len(answer["runs"]) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("One two\ntwo three\n"))
    assert command_line("translate", "a", "b", "--file", "-", *where).out.count("\n") == 2
    table = tmp_path / "table.tsv"
    assert command_line("translate", "a", "alone", "--split", "valid", "-o", str(table), *where).code == 0
    assert table.read_text("utf-8").count("\n") > 10
    assert "taken as the text" in command_line("translate", "a", "b", *where).err


def test_what_cannot_be_averaged_is_refused(home, workshop):
    for names, message in (
        (("a", "a"), "given twice"),
        (("a", "two"), "different data or tokens"),
    ):
        with pytest.raises(UserError, match=message):
            translate_texts(runs(home, *names), ["One"], Beam(), "auto")
    with pytest.raises(UserError, match="cannot be averaged"):
        score_together([*runs(home, "a"), workshop.run])
