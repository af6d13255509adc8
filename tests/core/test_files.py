import hashlib
import json
import os
import stat
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from headway.core import files
from headway.core.files import (
    AT_ONCE,
    checksum,
    clean_up,
    remove_folder_whole,
    side_by_side,
    write_folder_whole,
    write_json,
    write_whole,
)


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


@pytest.mark.parametrize("content", ["Zoë\n", b"\x00\xff", ""])
def test_what_is_written_can_be_read(tmp_path, content):
    write_whole(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(tmp_path) == ["a"]


def test_a_write_that_fails_leaves_only_the_old_file(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_folder_is_written_completely(tmp_path):
    write_folder_whole(tmp_path / "deep" / "f", lambda partial: write_whole(partial / "x", "1"))
    assert (tmp_path / "deep" / "f" / "x").read_text() == "1"
    assert names(tmp_path / "deep") == ["f"]


def test_a_folder_replaces_another(tmp_path):
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "old", "1"))
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "new", "2"))
    assert names(tmp_path / "f") == ["new"]


def test_a_folder_that_cannot_be_written_leaves_only_the_old_one(tmp_path):
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "old"))

    def fill(partial: Path) -> None:
        (partial / "x").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_folder_whole(tmp_path / "f", fill)
    assert (tmp_path / "f" / "x").read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_files_left_by_a_killed_process_are_not_taken_for_content(tmp_path):
    left = tmp_path / f".f.{os.getpid()}.partial"
    left.mkdir()
    (left / "half").write_text("")
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "1"))
    assert names(tmp_path / "f") == ["x"]


def test_a_folder_that_must_be_new_does_not_replace_another(tmp_path):
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "old"), new=True)
    with pytest.raises(OSError, match="not empty"):
        write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "new"), new=True)
    assert (tmp_path / "f" / "x").read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_a_folder_is_removed_completely(tmp_path, monkeypatch):
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "1"))

    def stuck(path, **settings):
        if path.exists():
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(files.shutil, "rmtree", stuck)
        remove_folder_whole(tmp_path / "f")
    assert not (tmp_path / "f").exists()
    clean_up(tmp_path)
    assert names(tmp_path) == []


def test_a_write_error_names_the_file_and_not_the_temporary_one(tmp_path, monkeypatch):
    for path in (tmp_path / "nowhere" / "a", tmp_path):
        with pytest.raises((FileNotFoundError, IsADirectoryError)) as caught:
            write_whole(path, "1")
        assert caught.value.filename == str(path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "1"))
    assert caught.value.filename == str(tmp_path / "f")
    assert names(tmp_path) == []


def test_a_file_system_without_fsync_of_folders_is_accepted(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", only_files)
    write_folder_whole(tmp_path / "f", lambda partial: write_whole(partial / "x", "1"))
    assert (tmp_path / "f" / "x").read_text() == "1"


def test_cleaning_up_removes_only_what_dead_processes_left(tmp_path):
    nobody, mine = 2**22 + 1, os.getpid()  # larger than any process number of Linux
    theirs = os.getppid()
    kept = [".a.partial", ".a.x.partial", f"a.{nobody}.partial", f".a.{theirs}.partial", f".b.{nobody}.partial"]
    for name in (*kept, f".a.{nobody}.partial", f".a.{mine}.partial"):
        (tmp_path / name).write_text("")
    for name in ("old", "new"):
        (tmp_path / f".{name}.{nobody}.aside").mkdir()
    (tmp_path / "new").mkdir()
    clean_up(tmp_path, "a")
    asides = [f".{name}.{nobody}.aside" for name in ("old", "new")]
    assert sorted(names(tmp_path)) == sorted([*kept, *asides, "new"])
    clean_up(tmp_path)
    assert sorted(names(tmp_path)) == sorted([*kept[:-1], "old", "new"])
    clean_up(tmp_path / "nowhere")


def test_json_is_readable(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Zoë", "n": [1, None]})
    text = (tmp_path / "a.json").read_text("utf-8")
    assert json.loads(text) == {"name": "Zoë", "n": [1, None]}
    assert '  "name": "Zoë"' in text and text.endswith("\n")


def test_files_get_the_default_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_whole(tmp_path / "whole", "")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "whole")}
    assert len(modes) == 1


def test_a_checksum_is_sha256():
    assert checksum(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_disk_operations_run_concurrently():
    everyone = threading.Barrier(AT_ONCE, timeout=60)  # passes only if AT_ONCE threads wait at the same time
    side_by_side([lambda: everyone.wait() and None] * (2 * AT_ONCE))
    side_by_side([])


def test_after_an_error_nothing_is_started_and_what_was_started_ends():
    begun, ended = [], []

    def one(k: int) -> None:
        begun.append(k)
        if k == 0:
            raise OSError(28, "No space left on device")
        time.sleep(0.05)
        ended.append(k)

    with pytest.raises(OSError, match="No space left"):
        side_by_side([partial(one, k) for k in range(100 * AT_ONCE)])
    assert sorted(begun) == sorted([0, *ended]) and len(begun) < 50 * AT_ONCE


def test_after_an_error_nothing_is_started_even_while_others_are_running():
    """The slow call comes first: the error of the next one must not wait for it."""
    begun, failed = [], threading.Event()

    def slow() -> None:
        failed.wait(10)
        time.sleep(0.2)

    def fail() -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        side_by_side([slow, fail, *([partial(_noted, begun)] * 500)])
    assert len(begun) < 400


def _noted(begun: list[float]) -> None:
    begun.append(time.monotonic())
    time.sleep(0.002)
