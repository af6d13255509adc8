"""Exact resume under fire: whatever kills a run, and whatever befalls its files, it ends as if nothing had been.

Every process here is a real one with a lock of its own, killed by SIGKILL; see crash.py. "The same end" is the whole
run folder, file by file and byte by byte, but for dates, process ids and seconds; that nothing else lies around is part
of it.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash import Ended, Forge
from tiny import snapshot

from headway.errors import UserError
from headway.experiment import train
from headway.files import write_folder_whole, write_whole
from headway.recipe import load
from headway.run import open_run
from headway.training.checkpoint import FACTS, OPTIMIZER, WEIGHTS

RECIPE = """
data: {source: files, path: text.txt, valid_fraction: 0.2}
model: {layers: 1, width: 8, context: 8, dropout: 0.2, mixer: {heads: 2}}
training:
  duration: 12 steps
  batch: 4
  optimizer: {kind: adamw, learning_rate: 0.5}  # so high that the best is not the last
  schedule: {kind: cosine, warmup: 2 steps}
  evaluate_every: 2 steps
  evaluate_tokens: 64
  keep_best: true
  checkpoint_every: 3 steps
  device: cpu
"""
NO_SPACE = "No space left on device"
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


class Bench:
    """A text, a recipe, and how an undisturbed run of it ends, alone and as a population."""

    def __init__(self, home: Path, forge: Forge):
        self.home, self.forge, self.made = home, forge, 0
        (home / "text.txt").write_text("".join(f"line {k} of {k * k % 17} and {k % 5}\n" for k in range(80)))
        (home / "torture.yaml").write_text(RECIPE)
        self.forge.run(*self.words("warm", 1))  # the text is in the cache from now on
        (home / "whole").mkdir()
        self.calls, self.whole = {}, {}
        for replicas in (1, 3):
            done = self.go("whole", replicas)
            assert done.code == 0, done.err
            self.calls[replicas], self.whole[replicas] = done.calls, ending(home / "whole" / str(replicas))

    def words(self, runs: str, replicas: int, *changes: str) -> list[str]:
        many = ["--vary", f"seed=0..{replicas - 1}"] if replicas > 1 else []
        return ["train", "torture.yaml", *changes, "--name", "run", "--runs", f"{runs}/{replicas}", *many]

    def go(self, runs: str, replicas: int, at: int = 0, what: str = "kill") -> Ended:
        """Begin, or go on with what is there."""
        return self.forge.run(*self.next_words(runs, replicas), at=at, what=what)

    def next_words(self, runs: str, replicas: int) -> list[str]:
        folder = self.home / runs / str(replicas)
        there = folder.is_dir() and any(not inner.name.startswith(".") for inner in folder.iterdir())
        return [*self.words(runs, replicas), *(["--resume"] if there else [])]

    def new(self) -> str:
        """A folder for folders of runs."""
        self.made += 1
        (self.home / f"runs-{self.made}").mkdir()
        return f"runs-{self.made}"

    def ends_well(self, runs: str, replicas: int) -> Ended:
        """Go on, undisturbed, and find the same end; then make room."""
        done = self.go(runs, replicas)
        assert done.code == 0, done.err
        same_end(ending(self.home / runs / str(replicas)), self.whole[replicas])
        shutil.rmtree(self.home / runs)
        return done

    def place(self, words: str, replicas: int = 1) -> int:
        """The number of the last call that contains these words."""
        return max(n for n, call in enumerate(self.calls[replicas], 1) if words in call)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    home = tmp_path_factory.mktemp("torture")
    with Forge(home) as forge:
        yield Bench(home, forge)


def ending(runs: Path) -> dict[str, Any]:
    """All that lies in a folder of runs, without what may differ: when, how long, and by whom."""
    found: dict[str, Any] = {name: content for name, content in snapshot(runs).items() if not name.endswith("/lock")}
    for name, content in found.items():
        if name.endswith("/environment.json"):
            found[name] = json.loads(content)["versions"]
        elif name.endswith("/run.json"):
            found[name] = {k: v for k, v in json.loads(content).items() if k not in ("created", "seconds")}
        elif name.endswith(f"/{FACTS}"):
            facts = json.loads(content)
            del facts["standing"]["seconds"], facts["sha256"][FACTS]
            found[name] = facts
    return found


def same_end(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if ours[name] != theirs[name]]
    assert not differing, {name: (ours[name], theirs[name]) for name in differing[:2]}


def test_an_undisturbed_run_is_worth_comparing_with(bench: Bench):
    """Without a gap or a repeat, with a best that is not the last, and different for every seed."""
    for replicas, members in ((1, ["run"]), (3, [f"run-seed-{seed}" for seed in range(3)])):
        found = bench.whole[replicas]
        for member in members:
            lines = [json.loads(line) for line in found[f"{member}/metrics.jsonl"].splitlines()]
            assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
            assert [line["step"] for line in lines if "scores" in line] == list(range(2, 13, 2))
            assert found[f"{member}/run.json"]["status"] == "finished"
        assert len({found[f"{member}/checkpoints/step-00000012/{WEIGHTS}"] for member in members}) == replicas
    best = bench.whole[1][f"run/checkpoints/best-00000008/{FACTS}"]
    assert (best["step"], best["standing"]["best_step"]) == (8, 8)


# --- killed ----------------------------------------------------------------------------------------------------------


def dies_and_ends_well(bench: Bench, replicas: int, at: int) -> None:
    runs = bench.new()
    assert bench.go(runs, replicas, at).code == -signal.SIGKILL, at
    assert "broken" not in bench.ends_well(runs, replicas).err  # nothing half made, or half removed, has a name


@pytest.mark.parametrize(("replicas", "stride"), [(1, 19), (3, 139)])
def test_killed_at_any_change_of_the_disk_it_ends_the_same(bench: Bench, replicas: int, stride: int):
    for at in range(random.Random(replicas).randrange(stride) + 1, len(bench.calls[replicas]) + 1, stride):
        dies_and_ends_well(bench, replicas, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("replicas", "stride"), [(1, 1), (3, 5)])
def test_killed_at_every_change_of_the_disk_it_ends_the_same(bench: Bench, replicas: int, stride: int):
    for at in range(1, len(bench.calls[replicas]) + 1, stride):
        dies_and_ends_well(bench, replicas, at)


BESIDE = """
import headway.experiment
from headway.cli import main
from headway.journal import WriterBeside
headway.experiment.writer_for = lambda setting, processes, replicas: WriterBeside(processes, replicas)
main()
"""


@pytest.mark.parametrize(("replicas", "stride"), [(1, 37), (3, 211)])
@pytest.mark.parametrize("what", ["kill", "full"])
def test_checkpoints_written_beside_the_training_end_the_same(bench: Bench, replicas: int, stride: int, what: str):
    """As on a GPU, where a thread writes while the next steps are taken."""
    for at in range(3, len(bench.calls[replicas]), stride):
        runs = bench.new()
        died = bench.forge.run(*bench.words(runs, replicas), at=at, what=what, code=BESIDE)
        assert died.code == -signal.SIGKILL if what == "kill" else (died.code, NO_SPACE in died.err) == (2, True)
        bench.ends_well(runs, replicas)


@pytest.mark.parametrize("replicas", [1, 3])
def test_killed_again_and_again_at_changes_of_the_disk(bench: Bench, replicas: int):
    """Each process is killed in its turn; some get no further than the one before them."""
    draw, runs, kills = random.Random(replicas), bench.new(), 0
    while (ended := bench.go(runs, replicas, at=draw.randint(1, 110 * replicas))).code:
        assert ended.code == -signal.SIGKILL, ended.err
        kills += 1
    assert kills >= 4
    same_end(ending(bench.home / runs / str(replicas)), bench.whole[replicas])


def test_killed_at_moments_drawn_by_lot(bench: Bench):
    draw, runs = random.Random(0), bench.new()
    for _ in range(5):
        child = bench.forge.start(*bench.next_words(runs, 3))
        time.sleep(draw.uniform(0.1, 0.9))
        assert child.kill().code in (0, -signal.SIGKILL)
    bench.ends_well(runs, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [1, 3])
def test_twenty_times_killed_by_lot(bench: Bench, replicas: int):
    """As people start it: a process of its own, killed anywhere from its first moment on; mostly while it trains."""
    long = ["training.duration=2400 steps", "training.optimizer.learning_rate=0.05"]
    command = [sys.executable, "-m", "headway.cli"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_CACHE": str(bench.home / "cache")}
    draw, runs, kills, steps = random.Random(7 + replicas), bench.new(), 0, set()
    folder = bench.home / runs / str(replicas)
    while kills < 20:
        resume = ["--resume"] if folder.is_dir() and any(not f.name.startswith(".") for f in folder.iterdir()) else []
        words = [*bench.words(runs, replicas, *long), *resume]
        began = last_step(folder)
        with subprocess.Popen([*command, *words], cwd=bench.home, env=env, stderr=subprocess.PIPE) as process:
            if kills % 4:  # every fourth dies before it has saved anything
                while last_step(folder) == began and process.poll() is None:
                    time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.5 if kills % 4 else 4))
            process.kill()
            assert process.stderr is not None
            err = process.stderr.read().decode()
        assert process.returncode == -signal.SIGKILL, f"{kills} kills, then: {err}"
        assert "Traceback" not in err and "broken" not in err, err
        kills += 1
        steps.add(last_step(folder))
    assert len(steps) >= 10
    done = bench.forge.run(*bench.words(runs, replicas, *long), "--resume")
    assert done.code == 0, done.err
    whole = bench.new()
    assert bench.forge.run(*bench.words(whole, replicas, *long)).code == 0
    same_end(ending(folder), ending(bench.home / whole / str(replicas)))


def last_step(runs: Path) -> str:
    return max((f.name for f in runs.glob("*/checkpoints/step-*")), default="")


def test_a_population_killed_while_its_folders_are_made_can_be_resumed_but_not_enlarged(bench: Bench):
    runs = bench.new()
    made = next(n for n, call in enumerate(bench.calls[3], 1) if call.startswith("mkdir") and "run-seed-1" in call)
    assert bench.go(runs, 3, made).code == -signal.SIGKILL
    assert visible(bench.home / runs / "3") == ["run-seed-0"]
    bench.ends_well(runs, 3)

    shutil.copytree(bench.home / "whole" / "3", bench.home / runs / "3")
    shutil.rmtree(bench.home / runs / "3" / "run-seed-1")
    before = snapshot(bench.home / runs)
    refused = bench.go(runs, 3)
    assert refused.code == 2 and "nothing to resume" in refused.err and "run-seed-1 does not exist" in refused.err
    assert snapshot(bench.home / runs) == before


def visible(folder: Path) -> list[str]:
    return sorted(inner.name for inner in folder.iterdir() if not inner.name.startswith("."))


# --- damaged files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halfway(bench: Bench) -> Path:
    """A run that was killed when its last checkpoint was about to be: there are steps 9 and 6, bests of 8 and 6. Beside
    it another, with another seed."""
    at = bench.place("mkdir whole/1/run/checkpoints/.step-00000012")
    for name, changes in (("run", []), ("other", ["seed=5"])):
        words = ["train", "torture.yaml", *changes, "--name", name, "--runs", "halfway"]
        assert bench.forge.run(*words, at=at).code == -signal.SIGKILL
    folder = bench.home / "halfway"
    assert visible(folder / "run" / "checkpoints") == [
        "best-00000006",
        "best-00000008",
        "step-00000006",
        "step-00000009",
    ]
    return folder


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def put(source: str, target: str) -> Callable[[Path], None]:
    """A file or folder in place of another."""

    def damage(halfway: Path) -> None:
        if (halfway / target).is_dir():
            shutil.rmtree(halfway / target)
            shutil.copytree(halfway / source, halfway / target)
        else:
            shutil.copyfile(halfway / source, halfway / target)

    return damage


def swap(halfway: Path) -> None:
    newest = halfway / NEWEST
    (newest / WEIGHTS).rename(newest / "between")
    (newest / OPTIMIZER).rename(newest / WEIGHTS)
    (newest / "between").rename(newest / OPTIMIZER)


def emptied(halfway: Path) -> None:
    shutil.rmtree(halfway / NEWEST)
    (halfway / NEWEST).mkdir()


NEWEST, BEFORE, OTHER = (
    "run/checkpoints/step-00000009",
    "run/checkpoints/step-00000006",
    "other/checkpoints/step-00000009",
)
BEST, BEST_BEFORE = "run/checkpoints/best-00000008", "run/checkpoints/best-00000006"
DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "weights of another step": (put(f"{BEFORE}/{WEIGHTS}", f"{NEWEST}/{WEIGHTS}"), [f"{NEWEST}/{WEIGHTS}"]),
    "weights of another run": (put(f"{OTHER}/{WEIGHTS}", f"{NEWEST}/{WEIGHTS}"), [f"{NEWEST}/{WEIGHTS}"]),
    "optimizer of another step": (put(f"{BEFORE}/{OPTIMIZER}", f"{NEWEST}/{OPTIMIZER}"), [f"{NEWEST}/{OPTIMIZER}"]),
    "optimizer and weights swapped": (swap, [f"{NEWEST}/{WEIGHTS}"]),
    "facts of another step": (put(f"{BEFORE}/{FACTS}", f"{NEWEST}/{FACTS}"), [f"{NEWEST}/"]),
    "facts of another run": (put(f"{OTHER}/{FACTS}", f"{NEWEST}/{FACTS}"), [f"{NEWEST}/"]),
    "all of another step": (put(BEFORE, NEWEST), [f"{NEWEST} is not what was saved: it holds step 6"]),
    "all of another run": (put(OTHER, NEWEST), [f"{NEWEST} is not of this run"]),
    "an empty folder": (emptied, [f"{NEWEST}/{FACTS} is missing"]),
    "a flipped bit of the best": (lambda h: flip(h / BEST / WEIGHTS), ["step 9", f"{BEST}/{WEIGHTS}"]),
    "a best cut short": (lambda h: cut(h / BEST / WEIGHTS), ["step 9", f"{BEST}/{WEIGHTS}"]),
    "no best": (lambda h: shutil.rmtree(h / BEST), ["step 9", f"{BEST}/{FACTS} is missing"]),
    "the best of another step": (put(BEST_BEFORE, BEST), ["step 9", "it holds step 6"]),
    "both steps": (
        lambda h: (flip(h / NEWEST / WEIGHTS), cut(h / BEFORE / OPTIMIZER)),
        [f"{NEWEST}/{WEIGHTS}", f"{BEFORE}/{OPTIMIZER}", "run has no checkpoint that can be resumed from"],
    ),
    "every best": (
        lambda h: (flip(h / BEST / WEIGHTS), flip(h / BEST_BEFORE / WEIGHTS)),
        [f"{BEST}/{WEIGHTS}", f"{BEST_BEFORE}/{WEIGHTS}", "run has no checkpoint that can be resumed from"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_what_was_before_it_used(bench: Bench, halfway: Path, damage: str):
    do, named = DAMAGES[damage]
    runs = bench.new()
    shutil.copytree(halfway, bench.home / runs / "1")
    do(bench.home / runs / "1")
    shutil.rmtree(bench.home / runs / "1" / "other")
    err = bench.ends_well(runs, 1).err
    for words in named:
        assert words in err, err
    if "can be resumed from" not in named[-1]:
        assert "resuming at step 6" in err


@pytest.mark.parametrize(("name", "damage"), [(WEIGHTS, flip), (OPTIMIZER, cut), (FACTS, Path.unlink)])
def test_a_damaged_member_takes_the_population_back_with_it(bench: Bench, name: str, damage: Callable[[Path], Any]):
    """And the file that was damaged is not counted among the checkpoints that are kept."""
    runs = bench.new()
    at = bench.place("mkdir whole/3/run-seed-0/checkpoints/.step-00000012", 3)
    assert bench.go(runs, 3, at).code == -signal.SIGKILL
    file = bench.home / runs / "3" / "run-seed-1" / "checkpoints" / "step-00000009" / name
    damage(file)
    err = bench.ends_well(runs, 3).err
    assert "run-seed-1/checkpoints/step-00000009" in err and "resuming at step 6" in err


def half_a_line_more(metrics: Path) -> None:
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 11, "lo')


def a_line_less(metrics: Path) -> None:
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:13] + lines[14:]))


def no_text(metrics: Path) -> None:
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([*lines[:-2], b"\xff\xfe" + lines[-2], b"5\n", lines[-1]]))


@pytest.mark.parametrize("damage", [cut, half_a_line_more, a_line_less, no_text])
def test_lines_of_metrics_that_were_lost_are_made_again(bench: Bench, damage: Callable[[Path], None]):
    """Also those of a finished run, whose last checkpoint knows how many there were."""
    runs = bench.new()
    shutil.copytree(bench.home / "whole" / "1", bench.home / runs / "1")
    damage(bench.home / runs / "1" / "run" / "metrics.jsonl")
    err = bench.ends_well(runs, 1).err
    assert ("metrics.jsonl has lost lines before step 12" in err) == (damage is not half_a_line_more)


def test_metrics_that_are_gone_are_said_to_be_and_are_no_reason_to_begin_again(bench: Bench, halfway: Path):
    runs = bench.home / bench.new() / "1"
    shutil.copytree(halfway, runs)
    (runs / "run" / "metrics.jsonl").unlink()
    done = bench.forge.run("train", "torture.yaml", "--name", "run", "--runs", str(runs), "--resume")
    assert done.code == 0 and "metrics.jsonl has lost lines before step 9" in done.err
    assert "resuming at step 9" in done.err
    assert [line["step"] for line in open_run("run", runs).metrics() if "loss" in line] == [10, 11, 12]
    name = f"checkpoints/step-00000012/{WEIGHTS}"
    assert (runs / "run" / name).read_bytes() == bench.whole[1][f"run/{name}"]


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        *itertools.product(["run.json", "recipe.yaml"], ["train", "score", "runs"]),
        ("tokenizer.json", "score"),
        ("scores.json", "runs"),
    ],
)
@pytest.mark.parametrize("content", ["", "[]"])
def test_what_only_outside_damage_can_empty_is_one_clear_message(bench: Bench, name: str, verb: str, content: str):
    runs = bench.new()
    shutil.copytree(bench.home / "whole" / "1", bench.home / runs / "1")
    (bench.home / runs / "1" / "run" / name).write_text(content)
    before = snapshot(bench.home / runs)
    words = {
        "train": bench.next_words(runs, 1),
        "score": ["score", f"{runs}/1/run"],
        "runs": ["runs", "--runs", f"{runs}/1"],
    }
    done = bench.forge.run(*words[verb])
    assert done.code == (0 if verb == "runs" else 2)
    assert f"run/{name}" in done.err and "Traceback" not in done.err
    if not content:
        assert "it is empty; Headway writes its files whole, so something else has damaged this one" in done.err
    assert snapshot(bench.home / runs) == before | {"1/run/lock": snapshot(bench.home / runs)["1/run/lock"]}


@pytest.mark.parametrize("name", ["scores.json", "tokenizer.json"])
def test_what_can_be_made_again_is(bench: Bench, name: str):
    runs = bench.new()
    shutil.copytree(bench.home / "whole" / "1", bench.home / runs / "1")
    (bench.home / runs / "1" / "run" / name).write_text("")
    bench.ends_well(runs, 1)


def test_imported_weights_that_are_lost_are_not_replaced_by_random_ones(bench: Bench, halfway: Path):
    runs = bench.new()
    shutil.copytree(halfway / "run", bench.home / runs / "1" / "run")
    run = open_run("run", bench.home / runs / "1")
    run.note(imported_from="gpt2")
    for file in run.home.glob(f"step-*/{WEIGHTS}"):
        flip(file)
    before = snapshot(run.home)
    done = bench.go(runs, 1)
    assert done.code == 2 and "has lost the weights that were imported: remove it, and import them again" in done.err
    assert snapshot(run.home) == before


def test_what_killed_processes_left_is_cleaned_up_and_what_living_ones_make_is_not(bench: Bench, halfway: Path):
    runs = bench.new()
    folder = bench.home / runs / "1"
    shutil.copytree(halfway / "run", folder / "run")
    gone = bench.forge.start(code="pass")
    gone.wait()
    for place, name in (
        (folder, "run"),
        (folder / "run", "run.json"),
        (folder / "run" / "checkpoints", "step-00000012"),
    ):
        left = place / f".{name}.{gone.pid}.partial"
        if name == "run.json":
            left.write_text("{")
        else:
            left.mkdir()
            (left / "run.json").write_text("{}")
    living = folder / "run" / f".scores.json.{os.getpid()}.partial"
    living.write_text("{")
    assert bench.forge.run("runs", "--runs", f"{runs}/1").err == ""  # half a run is not a run
    done = bench.go(runs, 1)
    assert done.code == 0 and living.read_text() == "{"
    living.unlink()
    same_end(ending(folder), bench.whole[1])


# --- a full disk -----------------------------------------------------------------------------------------------------


def fills_up_and_ends_well(bench: Bench, replicas: int, at: int) -> None:
    """From this change on, nothing can be written; later there is space again."""
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


@pytest.mark.parametrize(("replicas", "stride"), [(1, 23), (3, 191)])
def test_whatever_write_finds_the_disk_full_the_run_can_be_resumed(bench: Bench, replicas: int, stride: int):
    for at in places_that_need_space(bench, replicas)[random.Random(replicas).randrange(stride) :: stride]:
        fills_up_and_ends_well(bench, replicas, at)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("replicas", "stride"), [(1, 1), (3, 5)])
def test_every_write_that_finds_the_disk_full(bench: Bench, replicas: int, stride: int):
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
    assert said.startswith(f"headway: {NO_SPACE} (disk/1/run/") and said.endswith("; what was saved before is whole")
    assert "Traceback" not in first.err and first.err.count(NO_SPACE) == 1

    saved = open_run("run", small_disk / "1").checkpoint("last")
    assert saved.step in (3, 6, 9)
    scored = bench.forge.run("score", "disk/1/run", "--checkpoint", "last")
    assert scored.code == 0 and "perplexity per token" in scored.out
    assert bench.go("disk", 1).code == 2  # still full
    assert open_run("run", small_disk / "1").checkpoint("last").step >= saved.step
    ballast.unlink()
    done = bench.go("disk", 1)
    assert done.code == 0 and "resuming at step" in done.err, done.err
    same_end(ending(small_disk / "1"), bench.whole[1])


# --- two processes ---------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_gone(bench: Bench):
    runs = bench.new()
    first = bench.forge.start(*bench.next_words(runs, 1), at=bench.place("step-00000006"), what="stop")
    first.wait_until_stopped()
    before = snapshot(bench.home / runs)
    second = bench.go(runs, 1)
    assert second.code == 2
    assert f"headway: {runs}/1/run is being written by process {first.pid}\n" in second.err
    assert snapshot(bench.home / runs) == before
    assert first.kill().code == -signal.SIGKILL
    bench.ends_well(runs, 1)


def test_one_locked_member_keeps_the_population_out_and_the_others_free(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    runs = bench.new()
    at = bench.place("mkdir whole/3/run-seed-2/checkpoints/.step-00000009", 3)
    assert bench.go(runs, 3, at).code == -signal.SIGKILL
    alone = ["train", "torture.yaml", "seed=1", "--name", "run-seed-1", "--runs", f"{runs}/3", "--resume"]
    holder = bench.forge.start(*alone, at=3, what="stop")  # it has the lock, and has signed it
    holder.wait_until_stopped()
    folder = bench.home / runs / "3"
    before = snapshot(folder)
    refused = bench.go(runs, 3)
    assert refused.code == 2 and f"run-seed-1 is being written by process {holder.pid}" in refused.err

    monkeypatch.chdir(bench.home)
    monkeypatch.setenv("HEADWAY_CACHE", str(bench.home / "cache"))
    base = load("torture.yaml", [])
    names = [f"run-seed-{seed}" for seed in range(3)]
    with pytest.raises(UserError, match=f"run-seed-1 is being written by process {holder.pid}"):
        train([base.with_changes([f"seed={seed}"]) for seed in range(3)], names, folder, resume=True)
    for name in ("run-seed-0", "run-seed-2"):  # this process has let go of them
        with open_run(name, folder).locked():
            pass
    changed = {name for name, content in snapshot(folder).items() if before.get(name) != content}
    assert changed <= {"run-seed-0/lock", "run-seed-2/lock"}
    holder.kill()
    bench.ends_well(runs, 3)


def test_a_name_is_taken_by_one_of_two_that_begin_together(bench: Bench):
    """Neither sees the other when it looks whether the name is free."""
    runs = bench.new()
    first = bench.forge.start(*bench.words(runs, 1), at=bench.place("replace whole/1/.run."), what="stop")
    first.wait_until_stopped()
    assert bench.forge.run(*bench.words(runs, 1)).code == 0
    os.kill(first.pid, signal.SIGCONT)
    loser = first.wait()
    assert loser.code == 2 and f"cannot make the run folder {runs}/1/run: Directory not empty" in loser.err
    same_end(ending(bench.home / runs / "1"), bench.whole[1])


# --- folders and the disk --------------------------------------------------------------------------------------------

REPLACE = """
from pathlib import Path
from headway.files import write_folder_whole, write_whole
def fill(partial):
    for name in "ab":
        write_whole(partial / name, "new")
write_folder_whole(Path("FOLDER"), fill)
"""
CLEAN = "from pathlib import Path; from headway.files import clean_up; clean_up(Path('FOLDER').parent)"


def test_a_folder_that_is_replaced_is_at_every_moment_there(bench: Bench):
    """Under its name, or beside it and put back."""

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


def test_what_takes_a_name_is_on_the_disk_before_and_the_name_after(bench: Bench):
    calls = [call.split(maxsplit=1) for call in bench.calls[1]]
    renamed = [n for n, (call, where) in enumerate(calls) if call == "replace" and where.endswith(".partial")]
    assert len(renamed) > 20
    for n in renamed:
        where = str(bench.home / calls[n][1])
        written = {
            str(bench.home / w) for call, w in calls[:n] if call == "write" and str(bench.home / w).startswith(where)
        }
        settled = {w for call, w in calls[:n] if call == "fsync"}
        assert {where} <= settled, "itself"
        assert {w for w in written if not Path(w).name.startswith(".")} <= settled, "what is in it"
        assert calls[n + 1] == ["fsync", str(Path(where).parent)], "its name"


def test_metrics_are_on_the_disk_before_the_checkpoint_that_stands_on_them(bench: Bench):
    calls = [call.split(maxsplit=1) for call in bench.calls[1]]
    for n, (call, where) in enumerate(calls):
        if call == "replace" and "/.step-" in where and where.endswith(".partial"):
            lines = [c for c, w in calls[:n] if c in ("write", "fsync") and w.endswith("metrics.jsonl")]
            assert lines[-1] == "fsync"
