"""Runs of another study are reused, if and only if they are the same."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from small import small_study
from tiny import reseal

from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.experiment import population
from headway.experiment.load import load_model
from headway.run.folder import open_run
from headway.study.conclude import conclude
from headway.study.execution import reuse
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.folder import StudyFolder
from headway.study.results.results import read_results

SCORE = "valid.perplexity"


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of runs that are trained, in order."""
    names: list[str] = []
    train = population.train

    def told(recipes, called, *rest):
        names.extend(called)
        return train(recipes, called, *rest)

    monkeypatch.setattr(population, "train", told)
    return names


@pytest.fixture
def first(workshop, tmp_path, monkeypatch, trained) -> Path:
    """A finished study of two arms with two seeds."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text, seeds=2), tmp_path / "first", InProcess())
    trained.clear()
    return tmp_path / "first"


def test_only_additional_seeds_are_trained(workshop, tmp_path, first, trained):
    study, folder = small_study(workshop.text, seeds=3), tmp_path / "second"
    outcome = execute(study, folder, InProcess(), reuse=[first])
    assert (outcome.done, sorted(trained)) == (6, ["learned.seed-2", "none.seed-2"])
    before, after = read_results(first).table(SCORE), read_results(folder).table(SCORE)
    assert all(before[arm][seed] == after[arm][seed] for arm in before for seed in (0, 1))
    taken = open_run("none.seed-1", folder / "runs")
    assert (taken.facts["name"], taken.facts["taken_from"]) == ("none.seed-1", str(first))
    load_model(taken)
    assert "4 of 6 runs reused from" in (folder / "log.txt").read_text("utf-8")
    conclusion = conclude(folder)
    assert conclusion.report is not None
    assert f"4 of these runs were reused from {first}" in conclusion.report.read_text("utf-8")
    trained.clear()
    assert execute(study, folder, InProcess()).done == 6 and not trained


def test_seeds_added_after_a_look_are_remembered_through_any_number_of_studies(workshop, tmp_path, first):
    asks = {"questions": [{"kind": "better", "arm": "learned", "than": "none", "on": SCORE}]}
    one, three, four, fresh = (tmp_path / name for name in ("one", "three", "four", "fresh"))
    for folder, seeds, reused in ((one, 2, first), (three, 3, one), (four, 4, three), (fresh, [4, 5], four)):
        execute(small_study(workshop.text, seeds=seeds, **asks), folder, InProcess(), reuse=[reused])
        conclude(folder)
        conclude(folder)  # reporting again is no new look
        if folder == one:
            (one / "looks.json").unlink()  # as if from before looks were recorded
    seen = [(look.study, len(look.seeds)) for look in StudyFolder(four).looks()]
    assert seen == [("one", 2), ("three", 3), ("four", 4)]
    found = {folder: conclude(folder).verdicts[0] for folder in (one, three, four, fresh)}
    assert [len(verdict.earlier_looks) for verdict in found.values()] == [0, 1, 2, 0]
    assert "one, 2 seeds" in found[three].earlier_looks[0] and "confidence sequence" in found[three].method
    assert "seeds were added" in found[four].sentence


def test_an_arm_may_have_another_name(workshop, tmp_path, first, trained):
    study = small_study(workshop.text, seeds=2)
    renamed = study.model_dump(mode="json", by_alias=True)
    renamed["arms"] = {f"my {name}": changes for name, changes in renamed["arms"].items()}
    execute(type(study).model_validate({**renamed, "questions": []}), tmp_path / "named", InProcess(), reuse=[first])
    assert not trained
    assert {path.name for path in (tmp_path / "named" / "runs").iterdir()} >= {"my none.seed-0", "my learned.seed-1"}


@pytest.mark.parametrize("spoilt", ["headway", "recipe_hash", "corpus", "status"])
def test_runs_that_differ_are_trained(workshop, tmp_path, first, trained, spoilt: str):
    """Of another version, another recipe or another text; or unfinished."""
    path = first / "runs" / "none.seed-0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), spoilt: "started"}))
    execute(small_study(workshop.text, seeds=2), tmp_path / "second", InProcess(), reuse=[first])
    assert trained == ["none.seed-0"]


def test_runs_started_in_this_study_are_continued_here(workshop, tmp_path, first, trained):
    study = small_study(workshop.text, seeds=2)
    execute(study, tmp_path / "second", InProcess(), reuse=[first])
    path = tmp_path / "second" / "runs" / "none.seed-0"
    (path / "scores.json").unlink()
    execute(study, tmp_path / "second", InProcess(), reuse=[first])
    assert trained == ["none.seed-0"] and (path / "scores.json").exists()


def test_only_complete_runs_are_reused(workshop, tmp_path, first, trained):
    """A folder that another process is just copying has a name with a dot, and is listed first."""
    half = first / "runs" / ".none.seed-0.1.partial"
    shutil.copytree(first / "runs" / "none.seed-0", half)
    shutil.rmtree(half / "checkpoints")
    (first / "runs" / "learned.seed-0" / "run.json").write_text("{", "utf-8")
    execute(small_study(workshop.text, seeds=2), tmp_path / "second", InProcess(), reuse=[first])
    assert trained == ["learned.seed-0"]
    load_model(open_run("none.seed-0", tmp_path / "second" / "runs"))
    assert "skipping learned.seed-0: " in (tmp_path / "second" / "log.txt").read_text("utf-8")


def test_after_a_kill_while_copying_runs_are_copied_again(workshop, tmp_path, first, trained):
    """An incomplete copy has a temporary name, and is removed when the study continues."""
    half = tmp_path / "second" / "runs" / f".none.seed-0.{os.getpid()}.partial"
    half.mkdir(parents=True)
    shutil.copy(first / "runs" / "none.seed-0" / "run.json", half)
    outcome = execute(small_study(workshop.text, seeds=2), tmp_path / "second", InProcess(), reuse=[first])
    assert outcome.done == 4 and not trained and not half.exists()


def test_a_read_only_study_can_be_reused(workshop, tmp_path, first, trained):
    """Its permissions are not copied; nor are links, whose targets may disappear."""
    run = first / "runs" / "none.seed-0"
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    for path in [run, *run.rglob("*"), *(tmp_path / "elsewhere").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    execute(small_study(workshop.text, seeds=2), tmp_path / "second", InProcess(), reuse=[first])
    copy = tmp_path / "second" / "runs" / "none.seed-0"
    assert not trained and not (copy / "checkpoints").is_symlink()
    assert all(path.stat().st_mode & stat.S_IWUSR for path in [copy, *copy.rglob("*")])


def test_a_full_disk_is_reported_for_the_new_folder(workshop, tmp_path, first, monkeypatch):
    def full(old, new, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reuse.shutil, "copyfileobj", full)
    with pytest.raises(OSError) as caught:
        execute(small_study(workshop.text, seeds=2), tmp_path / "second", InProcess(), reuse=[first])
    assert caught.value.filename == str(tmp_path / "second" / "runs" / "none.seed-0")
    assert not [*(tmp_path / "second" / "runs").iterdir()]


def test_a_reused_run_removes_its_earlier_failure(workshop, tmp_path, first):
    study, home = small_study(workshop.text, seeds=2), StudyFolder(tmp_path / "second")
    with home.taken(study):
        home.note_failure("none.seed-0", Status(State.FAILED, reason="its process died"))
    assert execute(study, home.path, InProcess(), reuse=[first]).failed == {}


def test_several_studies_are_searched_in_turn_for_missing_runs(workshop, tmp_path, first, trained):
    study, folder = small_study(workshop.text, seeds=2), tmp_path / "second"
    execute(small_study(workshop.text, seeds=3), tmp_path / "three", InProcess(), reuse=[first])
    trained.clear()
    execute(small_study(workshop.text, seeds=3), folder, InProcess(), reuse=[first, tmp_path / "three", first])
    execute(small_study(workshop.text, seeds=3), folder, InProcess(), reuse=[first])
    said = [line.partition(" ")[2] for line in (folder / "log.txt").read_text("utf-8").splitlines()]
    assert not trained
    assert said == [f"4 of 6 runs reused from {first}", f"2 of 2 runs reused from {tmp_path / 'three'}"]
    fourth = tmp_path / "fourth"
    execute(study, fourth, InProcess(), reuse=[folder])
    assert open_run("none.seed-1", fourth / "runs").facts["taken_from"] == str(first), "the study that trained it"


def test_measured_budgets_are_reused_too(workshop, tmp_path, trained, monkeypatch):
    """Measured seconds are never the same twice."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    measured = iter([3, 5, 5])
    monkeypatch.setattr("headway.study.execution.execute.budgets", lambda *_: {"none": 4, "learned": next(measured)})
    execute(small_study(workshop.text, equal="seconds"), tmp_path / "first", InProcess())
    trained.clear()
    more = small_study(workshop.text, equal="seconds", seeds=3)
    execute(more, tmp_path / "second", InProcess(), reuse=[tmp_path / "first"])
    assert sorted(trained) == ["learned.seed-2", "none.seed-2"]
    assert {run.steps for run in read_results(tmp_path / "second").of("learned")} == {3}
    trained.clear()  # in another order, the budget is that of another arm
    arms = {"learned": [], "none": ["model.positions=none"]}
    turned = small_study(workshop.text, equal="seconds", arms=arms)
    execute(turned, tmp_path / "other", InProcess(), reuse=[tmp_path / "first"])
    assert sorted(trained) == ["learned.seed-0", "learned.seed-1"]


def test_additional_measures_of_the_other_study_are_ignored(workshop, tmp_path, first):
    measures = [{"kind": "segments", "lengths": [4]}]
    measuring = tmp_path / "measuring"
    execute(small_study(workshop.text, measures=measures), measuring, InProcess(), reuse=[first])
    conclude(measuring)
    assert "valid-4.loss" in read_results(measuring).score_names
    execute(small_study(workshop.text, seeds=3), tmp_path / "plain", InProcess(), reuse=[measuring])
    assert "valid-4.loss" not in read_results(tmp_path / "plain").score_names


def test_the_report_names_the_command_that_made_this_study(workshop, tmp_path, first):
    """And the devices, if runs of another study were made on a different one."""
    for folder in (first / "runs").iterdir():
        path = folder / "environment.json"
        made = {**json.loads(path.read_text("utf-8")), "command": ["headway", "first"], "device": "cuda:0 (a GPU)"}
        path.write_text(json.dumps(made), "utf-8")
        reseal(folder)
    execute(small_study(workshop.text, seeds=3), tmp_path / "second", InProcess(), reuse=[first])
    page = (conclude(tmp_path / "second").report or Path()).read_text("utf-8")
    assert "headway first" not in page and f"4 of these runs were reused from {first}, on cuda:0 (a GPU)" in page
    execute(small_study(workshop.text, seeds=1), tmp_path / "third", InProcess(), reuse=[first])
    page = (conclude(tmp_path / "third").report or Path()).read_text("utf-8")
    assert f"<pre>headway study run {tmp_path / 'third'}/study.yaml</pre>" in page


def test_a_study_cannot_reuse_itself(workshop, first):
    with pytest.raises(UserError, match="cannot reuse itself"):
        execute(small_study(workshop.text, seeds=2), first, InProcess(), reuse=[first])
