"""Folders from other people, and folders used by many processes: nothing is written outside of them, and no look at
test is lost."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from crash import Forge
from tiny import reseal, snapshot

from headway.audit.audit import Report
from headway.core.errors import UserError
from headway.experiment.audit import audit_by_name
from headway.run.folder import Run, open_run
from headway.study.folder import StudyFolder


@pytest.fixture
def received(workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, and next to it a file that its sender must not reach."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(workshop.run.folder, tmp_path / "runs" / "theirs")
    shutil.copy(workshop.recipe, tmp_path)
    (tmp_path / "precious" / "step-00000004").mkdir(parents=True)
    (tmp_path / "precious" / "step-00000004" / "file").write_text("mine")
    (tmp_path / "precious" / "file").write_text("mine")
    return tmp_path / "runs" / "theirs"


def led_outside(folder: Path, name: str) -> None:
    """Replaces a file or folder of a run by a link to a file outside."""
    inner = folder / name
    if inner.is_dir():
        shutil.copytree(inner, "precious", dirs_exist_ok=True)
        shutil.rmtree(inner)
        inner.symlink_to(Path("precious").absolute())
    else:
        inner.unlink(missing_ok=True)
        inner.symlink_to(Path("precious/file").absolute())


@pytest.mark.parametrize(
    "name",
    ["lock", "run.json", "scores.json", "audit.json", "metrics.jsonl", "events.jsonl", "seal.json", "checkpoints"],
)
@pytest.mark.parametrize("words", [["score", "theirs"], ["train", "tiny.yaml", "--name", "theirs", "--resume"]])
def test_nothing_is_written_through_links(received: Path, command_line, name: str, words: list[str]):
    led_outside(received, name)
    before = snapshot(Path("precious"))
    answer = command_line(*words)
    assert answer.code in (0, 2) and "Traceback" not in answer.err
    assert snapshot(Path("precious")) == before


def test_a_linked_run_is_read_and_not_written(received: Path, command_line):
    Path("runs/link").symlink_to("theirs")
    before = snapshot(received)
    answer = command_line("score", "link")
    assert answer.code == 0 and "runs/link is a link, and Headway does not write through links" in answer.err
    assert snapshot(received) == before


def test_a_study_is_not_written_through_links_and_its_log_has_one_entry_per_note(tmp_path: Path):
    (tmp_path / "precious").write_text("mine")
    home = StudyFolder(tmp_path / "study")
    home.path.mkdir()
    home.write_log("arm\n2026-01-01T00:00:00 all is well\x1b[2J")
    (entry, more) = (home.path / "log.txt").read_text().splitlines()
    assert entry.endswith(" arm") and more == "    2026-01-01T00:00:00 all is well\\x1b[2J"
    (home.path / "log.txt").unlink()
    (home.path / "log.txt").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"log\.txt cannot be written: it is a link"):
        home.write_log("theirs")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_changed_recipe_is_not_used_and_good_scores_are_kept(received: Path, command_line):
    recipe = received / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("heads: 2", "heads: 4"))
    before = snapshot(received)
    answer = command_line("score", "theirs")
    assert answer.code == 2 and "recipe.yaml cannot be read: its checksum differs" in answer.err
    assert snapshot(received) == before
    (received / "seal.json").unlink()  # nor without a seal, because run.json has the recipe's hash
    answer = command_line("score", "theirs")
    assert answer.code == 2 and "recipe.yaml does not match the recipe hash in run.json" in answer.err


def test_a_read_only_run_can_be_audited_and_scored(received: Path, command_line, monkeypatch):
    """As on a read-only disk."""
    before = snapshot(received)

    def refuse(path: Path, *_: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    for module in ("headway.core.seal", "headway.core.files"):
        monkeypatch.setattr(f"{module}.write_whole", refuse)
    monkeypatch.setattr("headway.experiment.audit.audit_run", lambda run: Report())
    audit_by_name("theirs", [], Path("runs"))
    for words in (["audit", "theirs"], ["sample", "theirs"], ["runs"]):
        assert command_line(*words).code == 0
    assert "could not be stored in runs/theirs: Read-only file system" in command_line("score", "theirs").err
    assert snapshot(received) == before


# --- looks at test ---------------------------------------------------------------------------------------------------

LOOK = "from headway.run.folder import open_run\nopen_run('theirs').count_looks_at_test(['test'])"


@pytest.mark.parametrize("many", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_no_look_at_test_is_lost_with_concurrent_processes(forge: Forge, received: Path, many: int):
    there = forge.at(Path.cwd())
    children = [there.start(code=LOOK) for _ in range(many)]
    assert [child.wait().code for child in children] == [0] * many
    assert open_run("theirs").facts["test_scored"] == many


def test_a_look_repeated_after_a_kill_counts_once(forge: Forge, received: Path):
    run = open_run("theirs")
    for _ in range(3):
        run.count_looks_at_test(["test"], ["valid", "test"], ["valid"], once_for="training")
    run.count_looks_at_test(["test"])
    run.count_looks_at_test(["valid"])
    assert run.facts["test_scored"] == 3
    code = LOOK.replace("['test'])", "['test'], once_for='measures')")
    calls = len(forge.at(Path.cwd()).run(code=code).calls)
    for at in range(1, calls + 1, 3):
        assert forge.at(Path.cwd()).run(code=code, at=at).code == -signal.SIGKILL
    assert forge.at(Path.cwd()).run(code=code).code == 0
    assert open_run("theirs").facts["test_scored"] == 4


def test_a_newer_run_is_distinguished_from_a_damaged_one(received: Path):
    facts = json.loads((received / "run.json").read_text())
    (received / "run.json").write_text(json.dumps({**facts, "format": 99}))
    reseal(received)
    with pytest.raises(UserError, match="use a newer Headway"):
        open_run("theirs")
    assert isinstance(Run(received).facts, dict) and os.path.lexists(received / "seal.json")
