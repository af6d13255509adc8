"""Running studies: completely, after every kind of crash, and without repeating work."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from listening import Told
from small import QUICK, small_study
from tiny import flip, reseal

from headway.cli.board import BoardLines
from headway.core.errors import UserError
from headway.core.events import Closed, Ended, Event, Opened, Stepped, read_events
from headway.core.status import State, Status
from headway.experiment import population
from headway.run.folder import open_run
from headway.study.design.study import PlannedRun, Study
from headway.study.execution.execute import execute, executor_named
from headway.study.execution.executor import Log
from headway.study.execution.in_process import InProcess
from headway.study.execution.pool import Pool
from headway.study.folder import StudyFolder, written
from headway.study.results.results import ending, read_results
from headway.training.capacity import Capacity

SCORE = "valid.perplexity"


@pytest.fixture(autouse=True)
def cache(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """The inode and modification time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def values(folder: Path) -> dict[str, dict[int, float]]:
    return read_results(folder).table(SCORE)


# --- in this process -------------------------------------------------------------------------------------------------


def test_every_run_is_trained_once(workshop, tmp_path):
    study, folder = small_study(workshop.text), tmp_path / "one"
    outcome = execute(study, folder, InProcess())
    assert (outcome.done, outcome.failed, outcome.interrupted) == (4, {}, False)
    assert {path.name for path in (folder / "runs").iterdir()} == {run.name for run in study.runs()}
    for run in study.runs():
        made = open_run(run.name, folder / "runs")
        assert made.recipe == run.recipe and str(made.status) == "finished"
        assert made.facts["parameters"] > 0 and made.facts["flops_per_step"] > 0
    assert all(len(row) == 2 for row in values(folder).values())
    before = stamps(folder / "runs")
    assert execute(study, folder, InProcess()).done == 4
    assert stamps(folder / "runs") == before
    assert StudyFolder(folder).study == study


def test_a_population_that_runs_out_of_memory_is_split_which_is_logged(workshop, tmp_path, monkeypatch):
    train = population.train

    def filled(recipes, *rest):
        if len(recipes) > 2:
            raise MemoryError
        return train(recipes, *rest)

    monkeypatch.setattr(population, "train", filled)
    outcome = execute(small_study(workshop.text, seeds=3), tmp_path / "split", InProcess())
    assert (outcome.done, outcome.failed) == (6, {})
    log = (tmp_path / "split" / "log.txt").read_text("utf-8")
    assert log.count("none.seed-0 …: out of memory: continuing with 2 replicas at a time") == 1


def test_a_full_disk_is_a_plain_message(workshop, tmp_path, monkeypatch):
    error = OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
    monkeypatch.setattr(population, "train", lambda *given: (_ for _ in ()).throw(error))
    outcome = execute(small_study(workshop.text), tmp_path / "full", InProcess())
    assert {how.reason for how in outcome.failed.values()} == {"No space left on device (metrics.jsonl)"}


def test_only_unfinished_runs_are_trained(workshop, tmp_path):
    study = small_study(workshop.text, seeds=3)
    execute(study, tmp_path / "whole", InProcess())
    shutil.copytree(tmp_path / "whole", tmp_path / "torn")
    runs = tmp_path / "torn" / "runs"
    shutil.rmtree(runs / "none.seed-1")  # never started
    (runs / "learned.seed-0" / "scores.json").unlink()  # killed before it was scored
    for name in ("none.seed-2", "learned.seed-1"):  # killed at step 2
        for path in (runs / name / "checkpoints").glob("step-00000004"):
            shutil.rmtree(path)
        facts = json.loads((runs / name / "run.json").read_text())
        (runs / name / "run.json").write_text(json.dumps({**facts, "status": "started"}))
        (runs / name / "scores.json").unlink()
    for name in ("learned.seed-0", "none.seed-2", "learned.seed-1"):
        reseal(runs / name)
    before = stamps(runs / "none.seed-0")
    assert execute(study, tmp_path / "torn", InProcess()).done == 6
    assert stamps(runs / "none.seed-0") == before
    whole = values(tmp_path / "whole")
    for arm, row in values(tmp_path / "torn").items():
        assert row == pytest.approx(whole[arm], rel=1e-5)


def test_a_run_that_diverges_or_fails_does_not_stop_the_others(workshop, tmp_path):
    arms = {"wild": ["training.optimizer.learning_rate=1e30", "training.clip=null"], "tame": []}
    study = small_study(workshop.text, arms=arms, questions=[])
    (tmp_path / "runs" / "tame.seed-1").mkdir(parents=True)  # a folder that blocks the run's
    (tmp_path / "study.yaml").write_text(written(study), "utf-8")
    outcome = execute(study, tmp_path, Pool(1))
    assert list(outcome.failed) == ["tame.seed-1"] and "is not a run folder" in str(outcome.failed["tame.seed-1"])
    assert outcome.done == 3
    missing = read_results(tmp_path).missing
    assert missing.keys() == {"wild.seed-0", "wild.seed-1", "tame.seed-1"}
    assert missing["wild.seed-0"].is_diverged
    assert missing["tame.seed-1"] == outcome.failed["tame.seed-1"]
    assert values(tmp_path)["tame"].keys() == {0}
    # With the cause removed, the same study continues, and the failure is deleted.
    (tmp_path / "runs" / "tame.seed-1").rmdir()
    outcome = execute(study, tmp_path, InProcess())
    assert (outcome.done, outcome.failed) == (4, {})


def test_populations_are_packed_to_fit_the_device(workshop, tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(population, "capacity", lambda recipes, wanted: Capacity(min(2, wanted), "two fit"))
    plain = population.train
    monkeypatch.setattr(population, "train", lambda recipes, *rest: sizes.append(len(recipes)) or plain(recipes, *rest))
    arms = {"slow": ["training.optimizer.learning_rate=1e-4"], "fast": [], "wide": ["model.width=32"]}
    execute(small_study(workshop.text, arms=arms, questions=[], seeds=2), tmp_path / "x", InProcess())
    assert sizes == [2, 2, 2]


def test_a_population_that_fails_is_reported_and_the_next_one_is_trained(workshop, tmp_path, monkeypatch):
    plain = population.train

    def sometimes(recipes, *rest):
        if recipes[0].model.positions.kind == "none":
            raise RuntimeError("out of something\nand more")
        return plain(recipes, *rest)

    monkeypatch.setattr(population, "train", sometimes)
    outcome = execute(small_study(workshop.text), tmp_path / "x", InProcess())
    assert {name: how.reason for name, how in outcome.failed.items()} == {
        f"none.seed-{s}": "RuntimeError: out of something" for s in (0, 1)
    }
    assert outcome.done == 2
    assert "Traceback" in (tmp_path / "x" / "failures" / "none.seed-0.json").read_text()


# --- the folder ------------------------------------------------------------------------------------------------------


def test_a_changed_study_is_refused_with_the_change_and_a_new_name(workshop, tmp_path):
    folder = tmp_path / "fusion"
    execute(small_study(workshop.text), folder, InProcess())
    before = stamps(folder)
    for changed, what in (
        ({"seeds": 3}, r"seeds was \[0, 1\] and is \[0, 1, 2\]"),
        ({"changes": [*QUICK, "training.batch=2"]}, "changes was"),
        ({"arms": {"none": ["model.positions=none"], "learned": [], "t5": ["model.positions=t5"]}}, "arms.t5 was None"),
        ({"arms": {"none": ["model.positions=none"], "learned": []}, "equal": "steps"}, "equal was None and is steps"),
    ):
        with pytest.raises(UserError, match=f"{what}.*--name fusion-2"):
            execute(small_study(workshop.text, **changed), folder, InProcess())
    assert {k: v for k, v in stamps(folder).items() if "lock" not in k} == {
        k: v for k, v in before.items() if "lock" not in k
    }
    base = small_study(workshop.text).base.with_changes(["training.batch=2"]).model_dump(mode="json")
    with pytest.raises(UserError, match=r"base\.training\.batch was 4 and is 2"):
        execute(small_study(workshop.text, base=base), folder, InProcess())
    assert execute(small_study(workshop.text, title="In other words"), folder, InProcess()).done == 4


def test_a_second_process_on_one_study_is_refused(workshop, tmp_path):
    study, home = small_study(workshop.text), StudyFolder(tmp_path / "one")
    with home.taken(study), pytest.raises(UserError, match=f"one is being written by process {os.getpid()}"):
        execute(study, tmp_path / "one", InProcess())
    assert execute(study, tmp_path / "one", InProcess()).done == 4


def test_budgets_are_fixed_when_the_study_starts(workshop, tmp_path, monkeypatch):
    from headway.study.execution import execute as executing

    monkeypatch.setattr(executing, "budgets", lambda study, sizes: {"none": 4, "learned": 3})
    study = small_study(workshop.text, equal="seconds")
    execute(study, tmp_path / "x", InProcess())
    monkeypatch.setattr(executing, "budgets", lambda study, sizes: pytest.fail("measured again"))
    shutil.rmtree(tmp_path / "x" / "runs" / "learned.seed-1")
    assert execute(study, tmp_path / "x", InProcess()).done == 4
    steps = {run.folder.name: run.steps for run in read_results(tmp_path / "x").runs}
    assert steps == {"none.seed-0": 4, "none.seed-1": 4, "learned.seed-0": 3, "learned.seed-1": 3}


def test_places_to_run_are_parsed(workshop):
    study = small_study(workshop.text)
    assert executor_named("here", None, study) == InProcess() and executor_named("pool", 3, study) == Pool(3)
    assert executor_named(None, 3, study) == Pool(3)
    for alone in ("here", "ray://head:10001"):  # the number would be ignored there
        with pytest.raises(UserError, match=r"--on here uses one process, not 3|leave --workers out"):
            executor_named(alone, 3, study)
    with pytest.raises(UserError, match="there is no executor 'hre'; did you mean 'here'"):
        executor_named("hre", None, study)


# --- a pool ----------------------------------------------------------------------------------------------------------


def slow_study(text: Path) -> Study:
    """The first arm would take an hour."""
    arms = {"endless": ["training.duration=9M steps"], "short": []}
    return small_study(text, arms=arms, questions=[], seeds=1)


def test_a_killed_worker_loses_only_its_run(workshop, tmp_path):
    def kill(event: Event) -> None:
        if isinstance(event, Stepped) and (name := event.of[0]).startswith("endless"):
            os.kill(int((tmp_path / "x" / "runs" / name / "lock").read_text()), signal.SIGKILL)

    study, told = slow_study(workshop.text), Told()
    outcome = execute(study, tmp_path / "x", Pool(1), [told, kill])
    assert outcome.failed.keys() == {"endless.seed-0"}
    assert str(outcome.failed["endless.seed-0"]).startswith("its process was killed by SIGKILL")
    assert outcome.done == 1 and not outcome.interrupted  # on another worker, which replaced it
    assert [event.status.state for event in told.of_kind(Ended) if event.of == ("short.seed-0",)] == [State.FINISHED]
    written_down = [event for event in read_events(tmp_path / "x") if isinstance(event, Opened | Ended | Closed)]
    assert written_down == [event for event in told.events if isinstance(event, Opened | Ended | Closed)]
    environment = json.loads((tmp_path / "x" / "runs" / "short.seed-0" / "environment.json").read_text())
    assert environment["command"][0] == "headway"


class OneByOne:
    """Trains each run alone, as a worker does, but in this process."""

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        return any(InProcess().train([run], log) for run in runs)


LONGER = ["training.duration=150 steps", "training.checkpoint_every=10 steps", "training.evaluate_every=75 steps"]


def test_a_study_killed_in_the_middle_is_resumed_and_gives_the_same_results(forge, workshop, tmp_path):
    study = small_study(workshop.text, changes=LONGER)
    (tmp_path / "study.yaml").write_text(written(study), "utf-8")
    runs = tmp_path / "studies" / "study" / "runs"
    words = ["study", "run", "study.yaml", "--workers", "1"]
    first = forge.at(tmp_path).start(*words)
    second = runs / "none.seed-1" / "checkpoints"
    first.wait_until(lambda: second.is_dir() and any(second.glob("step-*")))
    worker = int((runs / "none.seed-1" / "lock").read_text())
    first.kill()
    wait_for_death(worker)
    assert str(ending(runs / "none.seed-0")) == "finished" and not ending(runs / "none.seed-1")
    before = stamps(runs / "none.seed-0")
    again = forge.at(tmp_path).run(*words, "--json")
    assert again.code == 0, again.err
    assert stamps(runs / "none.seed-0") == before
    found = json.loads(again.out)
    assert len(found["runs"]) == 4 and found["missing"] == {} and len(found["verdicts"]) == 1
    assert "none.seed-0" not in again.err and "(4 of 4 runs)" in again.err
    execute(study, tmp_path / "undisturbed", OneByOne())
    assert values(tmp_path / "undisturbed") == values(runs.parent)


def wait_for_death(pid: int) -> None:
    """A worker whose study is gone exits too."""
    for _ in range(400):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("the worker lives on")


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(forge, workshop, tmp_path):
    (tmp_path / "study.yaml").write_text(written(slow_study(workshop.text)), "utf-8")
    run = tmp_path / "studies" / "study" / "runs" / "endless.seed-0"
    child = forge.at(tmp_path).start("study", "run", "study.yaml", "--workers", "1")
    child.wait_until(lambda: (run / "checkpoints").is_dir() and any((run / "checkpoints").glob("step-*")))
    code, out, err, _ = child.interrupt()
    assert code == 130, err
    assert "to resume: headway study run study.yaml --workers 1" in err
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert "endless.seed-0: interrupted at step" in out
    assert not (tmp_path / "studies" / "study" / "failures").exists()


def test_progress_is_printed_in_lines(capsys):
    lines = BoardLines()
    lines(Opened(of=("x",), arm_of={"a.seed-0": "a", "a.seed-1": "a", "b.seed-0": "b"}, done=["a.seed-0"]))
    lines(Ended(of=("a.seed-1",), status=Status(State.FINISHED)))
    lines(Ended(of=("b.seed-0",), status=Status(State.FAILED, reason="its process was killed")))
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("a.seed-1: finished  (2 of 3 runs, 0:0")
    assert said[1] == "b.seed-0: its process was killed  (2 of 3 runs, 1 failed)"


@pytest.mark.slow  # tests/core/test_environment.py checks the same for every process that Headway starts
def test_workers_import_nothing_from_the_current_folder(workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    for module in ("yaml", "torch", "safetensors"):
        Path(f"{module}.py").write_text("open('ran', 'w')")
    outcome = execute(small_study(workshop.text, seeds=1, arms={"a": []}, questions=[]), Path("study"), Pool(1))
    assert outcome.done == 1 and not Path("ran").exists()


def test_a_damaged_run_is_named_and_the_others_are_trained(workshop, tmp_path):
    study = small_study(workshop.text, seeds=2)
    execute(study, tmp_path / "study", InProcess())
    runs = tmp_path / "study" / "runs"
    flip(runs / "none.seed-0" / "run.json")
    flip(runs / "learned.seed-1" / "scores.json")
    shutil.rmtree(runs / "none.seed-1")
    before = stamps(runs / "none.seed-0")
    outcome = execute(study, tmp_path / "study", InProcess())
    assert outcome.done == 3 and list(outcome.failed) == ["none.seed-0"]
    assert "run.json cannot be read: its checksum differs" in str(outcome.failed["none.seed-0"])
    assert stamps(runs / "none.seed-0") == before
    found = read_results(tmp_path / "study")
    assert sorted(found.missing) == ["learned.seed-1", "none.seed-0"] and len(found.runs) == 2
    assert "scores.json cannot be read" in str(found.missing["learned.seed-1"])
    again = execute(small_study(workshop.text, seeds=3), tmp_path / "more", InProcess(), reuse=[tmp_path / "study"])
    assert again.done == 6 and not again.failed
