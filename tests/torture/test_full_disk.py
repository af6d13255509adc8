"""A full disk at any write, and what is on the disk at which moment."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import snapshot
from torture.workbench import NO_SPACE, Bench, ending, same_end

from headway.core.files import write_folder_whole, write_whole
from headway.run.folder import open_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


def fills_up_and_ends_well(bench: Bench, replicas: int, at: int) -> None:
    """From this change on nothing can be written; later there is space again."""
    runs = bench.new()
    ended = bench.go(runs, replicas, at, "full")
    assert ended.code == 2, (at, ended.err)
    said = ended.err.splitlines()[-1]
    assert said.startswith("headway: ") and NO_SPACE in said and f"{runs}/" in said, ended.err
    assert ended.err.count(NO_SPACE) == 1 and "Traceback" not in ended.err
    bench.ends_well(runs, replicas)


def places_that_need_space(bench: Bench, replicas: int) -> list[int]:
    calls = [call.split()[0] for call in bench.calls[replicas]]
    return [n for n, call in enumerate(calls, 1) if call in ("open", "write", "fsync", "replace", "mkdir")]


@pytest.mark.parametrize(("replicas", "stride"), [(1, 47), (3, 311)])
def test_after_a_full_disk_at_any_write_the_run_can_be_resumed(bench: Bench, replicas: int, stride: int):
    for at in places_that_need_space(bench, replicas)[random.Random(replicas).randrange(stride) :: stride]:
        fills_up_and_ends_well(bench, replicas, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("replicas", "stride"), [(1, 1), (3, 5)])
def test_a_full_disk_at_every_write(bench: Bench, replicas: int, stride: int):
    for at in places_that_need_space(bench, replicas)[::stride]:
        fills_up_and_ends_well(bench, replicas, at)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 pages."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={40 * os.sysconf('SC_PAGE_SIZE')}"
    try:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True, text=True)
        problem = made.stderr.strip() if made.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"a small file system cannot be mounted here: {problem}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_really_is_full(bench: Bench, small_disk: Path):
    (bench.home / "disk").symlink_to(small_disk)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(20 * os.sysconf("SC_PAGE_SIZE")))
    first = bench.go("disk", 1)
    assert first.code == 2
    said = first.err.splitlines()[-1]
    assert said.startswith(f"headway: {NO_SPACE} (disk/1/run/") and said.endswith("; everything saved before is intact")
    assert "Traceback" not in first.err and first.err.count(NO_SPACE) == 1

    saved = open_run("run", small_disk / "1").checkpoint("last")
    assert saved.step in (3, 6, 9)
    scored = bench.forge.run("score", "disk/1/run", "--checkpoint", "last")
    assert scored.code == 0 and "perplexity per token" in scored.out
    assert bench.go("disk", 1).code == 2  # the disk is still full
    assert open_run("run", small_disk / "1").checkpoint("last").step >= saved.step
    ballast.unlink()
    done = bench.go("disk", 1)
    assert done.code == 0 and "resuming at step" in done.err, done.err
    same_end(ending(small_disk / "1"), bench.whole[1])


REPLACE = """
from pathlib import Path
from headway.core.files import write_folder_whole, write_whole
def fill(partial):
    for name in "ab":
        write_whole(partial / name, "new")
write_folder_whole(Path("FOLDER"), fill)
"""
CLEAN = "from pathlib import Path; from headway.core.files import clean_up; clean_up(Path('FOLDER').parent)"


def test_a_folder_that_is_replaced_exists_at_every_moment(bench: Bench):
    """Under its name, or under a temporary name and then restored."""

    def fill(partial: Path) -> None:
        for name in "ab":
            write_whole(partial / name, "old")

    old, new = (dict.fromkeys("ab", content) for content in (b"old", b"new"))
    outcomes = []
    for at in range(1, 100):
        home = bench.home / bench.new()
        write_folder_whole(home / "f", fill)
        ended = bench.forge.run(code=REPLACE.replace("FOLDER", str(home / "f")), at=at)
        there = [snapshot(inner) for inner in home.iterdir()]
        assert old in there or new in there
        assert bench.forge.run(code=CLEAN.replace("FOLDER", str(home / "f"))).code == 0
        assert [inner.name for inner in home.iterdir()] == ["f"]
        outcomes.append(snapshot(home / "f") == new)
        assert outcomes[-1] or snapshot(home / "f") == old
        if ended.code == 0:
            break
    assert outcomes == sorted(outcomes) and set(outcomes) == {False, True}


def test_contents_are_on_the_disk_before_they_get_their_name(bench: Bench):
    calls = [call.split(maxsplit=1) for call in bench.calls[1]]
    renamed = [n for n, (call, where) in enumerate(calls) if call == "replace" and where.endswith(".partial")]
    assert len(renamed) > 20
    for n in renamed:
        where = str(bench.home / calls[n][1])
        written = {
            str(bench.home / w) for call, w in calls[:n] if call == "write" and str(bench.home / w).startswith(where)
        }
        settled = {w for call, w in calls[:n] if call == "fsync"}
        assert {where} <= settled, "the file or folder itself"
        assert {w for w in written if not Path(w).name.startswith(".")} <= settled, "its contents"
        assert calls[n + 1] == ["fsync", str(Path(where).parent)], "its name"


def test_metrics_are_on_the_disk_before_the_checkpoint_that_refers_to_them(bench: Bench):
    calls = [call.split(maxsplit=1) for call in bench.calls[1]]
    for n, (call, where) in enumerate(calls):
        if call == "replace" and "/.step-" in where and where.endswith(".partial"):
            lines = [c for c, w in calls[:n] if c in ("write", "fsync") and w.endswith("metrics.jsonl")]
            assert lines[-1] == "fsync"
