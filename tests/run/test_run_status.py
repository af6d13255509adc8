"""The status is read from the folder: running, killed, failed, interrupted, ended."""

import shutil

import pytest
from listening import Interrupting, Told
from tiny import tiny_recipe

from headway.core.events import Began, Ended, Saved, Scored, Stepped, append, read_events
from headway.core.status import State
from headway.experiment.train import train
from headway.run.folder import Run
from headway.run.status import state_of


@pytest.fixture
def copy(workshop, tmp_path) -> Run:
    shutil.copytree(workshop.run.folder, tmp_path / "tiny")
    return Run(tmp_path / "tiny", workshop.run.recipe)


def test_a_finished_run(workshop):
    state = state_of(workshop.run.folder)
    assert str(state) == "finished" and not state.is_running and (state.step, state.total) == (12, 12)
    kinds = [type(event) for event in read_events(workshop.run.folder)]
    assert kinds[0] is Began and kinds[-1] is Ended and kinds.count(Scored) == kinds.count(Saved) == 3


def test_during_training_the_status_is_running(workshop, tmp_path):
    seen = []

    def look(event):
        if isinstance(event, Stepped):
            seen.append(state_of(tmp_path / "a"))

    train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[look])
    assert all(state.is_running and state.since and str(state).startswith("running, step") for state in seen)
    assert seen[-1].step == 12 and not state_of(tmp_path / "a").is_running


def test_an_interrupted_run_that_is_resumed_and_killed(workshop, tmp_path):
    (run,) = train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[Interrupting(4)])
    assert state_of(run.folder).status.is_interrupted
    again = Began(of=("a",), folder=str(tmp_path), title=(), step=5, total=12, resumed=True)
    append(run.folder, again)  # and nothing after it, as if killed
    assert str(state_of(run.folder)) == "killed at step 5 of 12"


def test_a_run_ended_by_an_error(workshop, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save_checkpoint", full)
    told = Told()
    with pytest.raises(OSError, match="No space"):
        train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[told])
    state = state_of(tmp_path / "a")
    assert state.status.state is State.FAILED and str(state) == "No space left on device"
    assert told.of_kind(Ended)[-1].status == state.status and not state.is_running


def test_without_events_the_status_follows_from_other_files(copy):
    (copy.folder / "events.jsonl").unlink()
    assert str(state_of(copy.folder)) == "finished"
    copy.note(status="started", step=None)
    with (copy.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')  # half a line
    assert str(state_of(copy.folder)) == "killed at step 12 of 12"
    with copy.locked():
        assert state_of(copy.folder).is_running
