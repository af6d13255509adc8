"""What a run records about its environment, and that nothing in that environment is executed."""

import os
import subprocess
from pathlib import Path

import pytest

import headway
from headway.core.environment import environment, own_python


def git(*words: str) -> None:
    who = ["-c", "user.name=me", "-c", "user.email=me@here"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    (tmp_path / "a.txt").write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path


def test_the_commit_and_whether_files_were_changed(repository: Path):
    told = environment("cpu")["git"]
    assert told["changed"] is False and len(told["commit"]) == 40
    (repository / "a.txt").write_text("two\n")
    assert environment("cpu")["git"] == {**told, "changed": True}


def test_no_program_configured_by_a_repository_is_run(repository: Path):
    """A file system monitor, a hook, clean and process filters, and one whose name has special characters."""
    evil = repository / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {repository.parent}/ran-$1\ncat\n")
    evil.chmod(0o755)
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {repository.parent}/ran-hook\n")
    hook.chmod(0o755)
    git("config", "core.fsmonitor", f"{evil} monitor")
    (repository / ".gitattributes").write_text("*.txt filter=my.own\n*.md filter=other\n")
    (repository / "b.md").write_text("one\n")
    git("-c", "core.fsmonitor=false", "add", ".")
    git("-c", "core.fsmonitor=false", "commit", "-qm", "second")
    git("config", "filter.my.own.clean", f"{evil} clean")
    git("config", "filter.other.process", f"{evil} process")
    git("config", "filter.other.required", "true")
    for path in repository.parent.glob("ran-*"):
        path.unlink()
    for name in ("a.txt", "b.md"):
        os.utime(repository / name, (1, 1))
    told = environment("cpu")["git"]
    assert told is not None and len(told["commit"]) == 40
    assert [*repository.parent.glob("ran-*")] == []


def test_outside_a_repository_git_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment("cpu")["git"] is None


@pytest.mark.parametrize("path", [None, "", ":/nowhere", "/nowhere::/else"])
def test_a_child_python_does_not_import_from_the_current_folder(tmp_path: Path, monkeypatch, path: str | None):
    (tmp_path / "yaml.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    if path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", path)
    python, variables = own_python()
    subprocess.run([*python, "-c", "import yaml"], env=variables, check=True)
    assert not (tmp_path / "ran").exists()


def test_every_child_python_is_started_that_way():
    home = Path(headway.__file__).parent
    named = {str(path.relative_to(home)) for path in home.rglob("*.py") if "sys.executable" in path.read_text("utf-8")}
    isolated = {"data/embedded/python_docs.py"}  # with -I instead
    assert named - isolated == {"core/environment.py"}
