"""Damaged files: each is named, and the last good version is used."""

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import cut, flip, snapshot
from torture.workbench import Bench, ending, same_end, visible

from headway.run.folder import open_run
from headway.training.checkpoint import FACTS, OPTIMIZER, WEIGHTS

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


@pytest.fixture(scope="module")
def halfway(bench: Bench) -> Path:
    """A run killed while writing its last checkpoint: it has steps 9 and 6, and best checkpoints of 8 and 6. Next to it
    another run, with another seed."""
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


def put(source: str, target: str) -> Callable[[Path], None]:
    """Replaces a file or folder by another."""

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
    "all of another step": (put(BEFORE, NEWEST), [f"{NEWEST} does not match its name: it holds step 6"]),
    "all of another run": (put(OTHER, NEWEST), [f"{NEWEST} belongs to another recipe"]),
    "an empty folder": (emptied, [f"{NEWEST}/{FACTS} is missing"]),
    "a flipped bit of the best": (lambda h: flip(h / BEST / WEIGHTS), ["step 9", f"{BEST}/{WEIGHTS}"]),
    "a best cut short": (lambda h: cut(h / BEST / WEIGHTS), ["step 9", f"{BEST}/{WEIGHTS}"]),
    "no best": (lambda h: shutil.rmtree(h / BEST), ["step 9", f"{BEST}/{FACTS} is missing"]),
    "the best of another step": (put(BEST_BEFORE, BEST), ["step 9", "it holds step 6"]),
    "both steps": (
        lambda h: (flip(h / NEWEST / WEIGHTS), cut(h / BEFORE / OPTIMIZER)),
        [f"{NEWEST}/{WEIGHTS}", f"{BEFORE}/{OPTIMIZER}", "run has no usable checkpoint"],
    ),
    "every best": (
        lambda h: (flip(h / BEST / WEIGHTS), flip(h / BEST_BEFORE / WEIGHTS)),
        [f"{BEST}/{WEIGHTS}", f"{BEST_BEFORE}/{WEIGHTS}", "run has no usable checkpoint"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_the_last_good_checkpoint_used(bench: Bench, halfway: Path, damage: str):
    do, named = DAMAGES[damage]
    runs = bench.new()
    shutil.copytree(halfway, bench.home / runs / "1")
    do(bench.home / runs / "1")
    shutil.rmtree(bench.home / runs / "1" / "other")
    err = bench.ends_well(runs, 1).err
    for words in named:
        assert words in err, err
    if "no usable checkpoint" not in named[-1]:
        assert "resuming at step 6" in err


@pytest.mark.parametrize(("name", "damage"), [(WEIGHTS, flip), (OPTIMIZER, cut), (FACTS, Path.unlink)])
def test_a_population_is_resumed_from_before_the_damage_of_one_member(
    bench: Bench, name: str, damage: Callable[[Path], Any]
):
    """And the damaged checkpoint does not count among those that are kept."""
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


def another_loss(metrics: Path) -> None:
    """A change that is not visible in the file's structure."""
    lines = metrics.read_bytes().splitlines(keepends=True)
    lines[13] = re.sub(rb'"loss": [0-9.]+', b'"loss": 0.5', lines[13])
    metrics.write_bytes(b"".join(lines))


@pytest.mark.parametrize("damage", [cut, half_a_line_more, a_line_less, no_text, another_loss])
def test_lost_lines_of_metrics_are_computed_again(bench: Bench, damage: Callable[[Path], None]):
    """Also those of a finished run, whose last checkpoint knows their number."""
    runs = bench.new()
    shutil.copytree(bench.home / "whole" / "1", bench.home / runs / "1")
    damage(bench.home / runs / "1" / "run" / "metrics.jsonl")
    err = bench.ends_well(runs, 1).err
    assert ("metrics.jsonl has lost or changed lines before step 12" in err) == (damage is not half_a_line_more)


def test_missing_metrics_are_reported_and_training_does_not_start_again(bench: Bench, halfway: Path):
    runs = bench.home / bench.new() / "1"
    shutil.copytree(halfway, runs)
    (runs / "run" / "metrics.jsonl").unlink()
    done = bench.forge.run("train", "torture.yaml", "--name", "run", "--runs", str(runs), "--resume")
    assert done.code == 0 and "metrics.jsonl has lost or changed lines before step 9" in done.err
    assert "resuming at step 9" in done.err
    assert [line["step"] for line in open_run("run", runs).metrics() if "loss" in line] == [10, 11, 12]
    name = f"checkpoints/step-00000012/{WEIGHTS}"
    assert (runs / "run" / name).read_bytes() == bench.whole[1][f"run/{name}"]


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        *itertools.product(["run.json", "recipe.yaml"], ["score", "runs"]),
        ("run.json", "train"),
        ("tokenizer.json", "score"),
        ("scores.json", "runs"),
    ],
)
@pytest.mark.parametrize("content", ["", "[]"])
def test_files_emptied_by_outside_damage_are_one_clear_message(bench: Bench, name: str, verb: str, content: str):
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
        assert "it is empty; Headway never leaves half-written files" in done.err
    assert snapshot(bench.home / runs) == before | {"1/run/lock": snapshot(bench.home / runs)["1/run/lock"]}


@pytest.mark.parametrize("name", ["scores.json", "tokenizer.json", "recipe.yaml"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_files_that_can_be_recreated_are(bench: Bench, name: str, damage: Callable[[Path], None]):
    runs = bench.new()
    shutil.copytree(bench.home / "whole" / "1", bench.home / runs / "1")
    damage(bench.home / runs / "1" / "run" / name)
    bench.ends_well(runs, 1)


def test_lost_imported_weights_are_not_replaced_by_random_ones(bench: Bench, halfway: Path):
    runs = bench.new()
    shutil.copytree(halfway / "run", bench.home / runs / "1" / "run")
    run = open_run("run", bench.home / runs / "1")
    run.note(imported_from="gpt2")
    for file in run.home.glob(f"step-*/{WEIGHTS}"):
        flip(file)
    before = snapshot(run.home)
    done = bench.go(runs, 1)
    assert done.code == 2 and "has lost its imported weights: remove it, and import them again" in done.err
    assert snapshot(run.home) == before


def test_files_of_killed_processes_are_removed_and_those_of_living_ones_are_not(bench: Bench, halfway: Path):
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
    assert bench.forge.run("runs", "--runs", f"{runs}/1").err == ""  # an incomplete run is not listed
    done = bench.go(runs, 1)
    assert done.code == 0 and living.read_text() == "{"
    living.unlink()
    same_end(ending(folder), bench.whole[1])
