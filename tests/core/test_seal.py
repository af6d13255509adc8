"""Sealed folders: damage is distinguished from changes, even if processes are killed, or read and write
concurrently."""

import json
import shutil
import signal
import threading
from pathlib import Path

import pytest
from crash import Forge

from headway.core.errors import UserError
from headway.core.files import write_whole
from headway.core.seal import (
    FILE,
    DamagedError,
    damages,
    read_sealed,
    read_sealed_json,
    read_sealed_lines,
    rewriting,
    seal_lines,
    seal_new,
    unseal_lines,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "sealed"
    home.mkdir()
    write_whole(home / "recipe.yaml", "seed: 1\n")
    seal_new(home)
    with rewriting(home) as new:
        new["scores.json"] = '{"a": 1}'
    (home / "metrics.jsonl").write_text("one\ntwo\n")
    seal_lines(home, "metrics.jsonl")
    return home


def test_sealed_files_can_be_read_replaced_and_removed(folder: Path):
    assert read_sealed_json(folder / "scores.json") == {"a": 1} and damages(folder) == []
    with rewriting(folder) as new:
        new["scores.json"] = '{"a": 2}'
        assert read_sealed_json(folder / "scores.json") == {"a": 1}  # the change is only visible at the end
    assert read_sealed_json(folder / "scores.json") == {"a": 2}
    with rewriting(folder) as new:
        new["scores.json"] = None
    with pytest.raises(FileNotFoundError):
        read_sealed(folder / "scores.json")
    assert damages(folder) == []


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: (f / "scores.json").write_text('{"a": 3}'), "scores.json cannot be read: its checksum differs"),
        (lambda f: (f / "scores.json").write_text(""), "scores.json cannot be read: it is empty"),
        (lambda f: (f / "scores.json").unlink(), "scores.json cannot be read: it is missing"),
        (lambda f: shutil.copy(f / "recipe.yaml", f / "scores.json"), "scores.json cannot be read: its checksum"),
        (lambda f: (f / "metrics.jsonl").write_text("one\n"), "metrics.jsonl cannot be read: its checksum differs"),
        (lambda f: (f / "metrics.jsonl").write_text("one\ntow\nthree\n"), "metrics.jsonl cannot be read: its checksum"),
    ],
)
def test_damaged_files_are_named_and_the_others_read(folder: Path, damage, named: str):
    damage(folder)
    (told,) = damages(folder)
    assert named in told and "something else damaged this one" in told
    assert read_sealed(folder / "recipe.yaml") == b"seed: 1\n"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": 5, "lines": {}, "sha256": ""}', '{"files": {'])
def test_a_damaged_seal_is_reported_and_nothing_is_overwritten(folder: Path, content: str):
    (folder / FILE).write_text(content)
    with pytest.raises(
        UserError, match=r"seal\.json cannot be read: .*remove it, and the folder is read without a seal"
    ):
        read_sealed(folder / "recipe.yaml")
    with pytest.raises(UserError, match=r"seal\.json cannot be read"), rewriting(folder) as new:
        new["scores.json"] = "{}"
    assert (folder / "scores.json").read_text() == '{"a": 1}'


def test_a_seal_with_changed_checksums_is_reported(folder: Path):
    told = json.loads((folder / FILE).read_text())
    told["files"]["scores.json"] = told["files"]["recipe.yaml"]
    (folder / FILE).write_text(json.dumps(told))
    with pytest.raises(DamagedError, match=r"seal\.json cannot be read: its checksum differs"):
        damages(folder)


def test_a_log_may_grow_and_be_truncated_once_it_is_unsealed(folder: Path):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("three\nfo")
    assert read_sealed_lines(folder / "metrics.jsonl") == [b"one", b"two", b"three", b"fo"]
    unseal_lines(folder, "metrics.jsonl")
    (folder / "metrics.jsonl").write_text("one\n")
    assert read_sealed_lines(folder / "metrics.jsonl") == [b"one"]


def test_a_rewrite_without_changes_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headway.core.seal.write_whole", lambda *_: pytest.fail("something was written"))
    with rewriting(folder):
        pass
    with rewriting(folder, new=True):
        pass


def test_an_unsealed_folder_is_read_and_written_as_before(tmp_path: Path):
    (tmp_path / "a").write_text("1")
    with rewriting(tmp_path) as new:
        new["a"] = "2"
    assert read_sealed(tmp_path / "a") == b"2" and not (tmp_path / FILE).exists()


def test_a_linked_folder_is_not_written_through(folder: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(folder)
    with (
        pytest.raises(UserError, match="is a link, and Headway does not write through links"),
        rewriting(tmp_path / "link"),
    ):
        pass


REWRITE = """
from pathlib import Path
from headway.core.seal import rewriting, seal_lines
for k in range(2):
    with rewriting(Path("sealed")) as new:
        new["scores.json"] = f'{{"a": {k + 7}}}'
        new["audit.json"] = "{}" if k == 0 else None
seal_lines(Path("sealed"), "metrics.jsonl")
"""


def test_a_process_killed_at_any_change_of_the_disk_leaves_no_damage(forge: Forge, folder: Path):
    there = forge.at(folder.parent)
    whole = there.run(code=REWRITE)
    assert whole.code == 0, whole.err
    for at in range(1, len(whole.calls) + 1, 2):
        assert there.run(code=REWRITE, at=at).code == -signal.SIGKILL
        assert damages(folder) == []
    assert there.run(code=REWRITE).code == 0
    assert read_sealed_json(folder / "scores.json") == {"a": 8}


def test_a_concurrent_reader_sees_no_damage(folder: Path):
    done = threading.Event()

    def write() -> None:
        for k in range(150):
            with rewriting(folder) as new:
                new["scores.json"] = f'{{"a": {k}}}'
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(read_sealed_json(folder / "scores.json")["a"])
    writer.join()
    assert len(seen) > 1
