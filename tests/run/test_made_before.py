"""Run folders and studies of an earlier version, in which a status was a sentence, can be read, scored, audited, drawn,
resumed and reported like those of this version.

`made_before/` holds a language model that finished, one that was interrupted at step 6 of 8 and one that diverged, a
classifier, and a study of three runs and a failure; with the text and the table that they read.
"""

import shutil
from pathlib import Path

import pytest
import torch

from headway.core.status import State, Status
from headway.experiment.evaluate import classify_text, score_splits_again
from headway.experiment.inspect import look_at
from headway.experiment.train import train
from headway.run.folder import open_run

NAN = "the loss is no longer a finite number"


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(Path(__file__).parent / "made_before", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    # The identity of a text includes the version of the library, although word and character tokens do not depend on
    # it.
    monkeypatch.setattr("tokenizers.__version__", "0.23.3")
    return tmp_path


def opened(name: str):
    return open_run(name, Path("runs"))


def test_their_status_is_read(before):
    assert opened("finished").status == Status(State.FINISHED, 8)
    assert opened("interrupted").status == Status(State.INTERRUPTED, 6)
    assert opened("diverged").status == Status(State.DIVERGED, 2, NAN)


@pytest.mark.parametrize("name", ["finished", "classifier"])
def test_their_scores_are_unchanged(before, name):
    run = opened(name)
    known = {score.name: score.value for score in run.scores()}
    again = {score.name: score.value for score in score_splits_again(run)}
    assert again == pytest.approx(known, rel=1e-6, nan_ok=True) and len(known) >= 3


def test_they_can_be_used_and_their_maps_drawn(before):
    assert set(classify_text(opened("classifier"), "the cold day", "auto").chances) == {"good", "bad"}
    assert look_at(opened("finished"), "The fox").as_json()["tokens"]


def test_they_can_be_audited_again(before, command_line):
    found = command_line("audit", "diverged", "--json").json
    (finding,) = (one for one in found["findings"] if one["audit"] == "diverged")
    assert finding["verdict"] == "fail" and NAN in finding["sentence"]


def test_an_interrupted_run_is_resumed_and_equals_an_uninterrupted_one(before):
    cut, whole = opened("interrupted"), opened("finished")
    (run,) = train([cut.recipe], ["interrupted"], resume=True)
    assert run.status == whole.status
    ours, theirs = run.checkpoint().weights, whole.checkpoint().weights
    for weights in (ours, theirs):  # key biases have no gradient but rounding errors, which Adam scales up
        weights["layers.0.mixer.project.together.bias"].chunk(3, dim=-1)[1].zero_()
    # The processor, and with it the order of sums, may be another.
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6) for name in theirs)
    assert [line["step"] for line in run.metrics()] == [line["step"] for line in whole.metrics()]


def test_a_diverged_run_stays_diverged(before):
    (run,) = train([opened("diverged").recipe], ["diverged"], resume=True)
    assert run.status == Status(State.DIVERGED, 2, NAN)


def test_a_study_is_read_and_reported(before, command_line):
    found = command_line("study", "report", "positions", "--json").json
    assert found["runs"].keys() == {"none.seed-0", "learned.seed-0"}
    assert found["missing"]["wild.seed-0"] == f"diverged at step 2: {NAN}"
    assert (
        found["missing"]["late.seed-0"] == "studies/positions/runs/late.seed-0 is not a run folder: it has no run.json"
    )
    assert Path("studies/positions/report.html").exists()
