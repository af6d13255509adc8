"""Processes killed at every change of the disk, at random moments, and repeatedly."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import snapshot
from torture.workbench import NO_SPACE, Bench, ending, same_end, visible

from headway.training.checkpoint import FACTS, STATE, WEIGHTS

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


def test_an_undisturbed_run_is_worth_comparing_with(bench: Bench):
    """Its metrics have no gap and no repetition, its best step is not its last, and the seeds differ."""
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


def dies_and_ends_well(bench: Bench, replicas: int, at: int) -> None:
    runs = bench.new()
    assert bench.go(runs, replicas, at).code == -signal.SIGKILL, at
    assert "broken" not in bench.ends_well(runs, replicas).err  # no incomplete folder has a final name


@pytest.mark.parametrize(("replicas", "stride"), [(1, 61), (3, 307)])
def test_a_run_killed_at_any_change_of_the_disk_ends_the_same(bench: Bench, replicas: int, stride: int):
    for at in range(random.Random(replicas).randrange(stride) + 1, len(bench.calls[replicas]) + 1, stride):
        dies_and_ends_well(bench, replicas, at)


def test_a_killed_run_with_a_carried_state_ends_the_same(bench: Bench):
    """For a population that accumulates parts of a batch, in the second pass over the text."""
    changes = ["data.batches=contiguous", "data.segment=64", "model.context=64", "training.accumulate=2"]
    words = bench.words("carried", 2, *changes, "model.positions=rotary", "model.mixer.memory=24")
    whole = bench.forge.run(*words)
    assert whole.code == 0, whole.err
    expected = ending(bench.home / "carried" / "2")
    assert any(name.endswith(STATE) for name in expected)
    shutil.rmtree(bench.home / "carried")
    assert bench.forge.run(*words, at=int(0.7 * len(whole.calls))).code == -signal.SIGKILL
    assert bench.forge.run(*words, "--resume").code == 0
    same_end(ending(bench.home / "carried" / "2"), expected)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("replicas", "stride"), [(1, 1), (3, 5)])
def test_a_run_killed_at_every_change_of_the_disk_ends_the_same(bench: Bench, replicas: int, stride: int):
    for at in range(1, len(bench.calls[replicas]) + 1, stride):
        dies_and_ends_well(bench, replicas, at)


BESIDE = """
import headway.experiment.train
from headway.cli import main
from headway.experiment.recorder import WriterBeside
headway.experiment.train.writer_for = lambda setting, processes, replicas: WriterBeside(processes, replicas)
main()
"""


SLOWLY = (pytest.mark.slow, pytest.mark.timeout(3600))


@pytest.mark.parametrize(
    ("replicas", "stride"),
    [(1, 61), (3, 307), pytest.param(1, 7, marks=SLOWLY), pytest.param(3, 41, marks=SLOWLY)],
)
@pytest.mark.parametrize("what", ["kill", "full"])
def test_a_killed_run_that_writes_checkpoints_in_the_background_ends_the_same(
    bench: Bench, replicas: int, stride: int, what: str
):
    """As on a GPU, where a thread writes checkpoints during the next steps."""
    for at in range(3, len(bench.calls[replicas]), stride):
        runs = bench.new()
        died = bench.forge.run(*bench.words(runs, replicas), at=at, what=what, code=BESIDE)
        assert died.code == -signal.SIGKILL if what == "kill" else (died.code, NO_SPACE in died.err) == (2, True)
        bench.ends_well(runs, replicas)


@pytest.mark.parametrize("replicas", [1, 3])
def test_killed_repeatedly_at_changes_of_the_disk(bench: Bench, replicas: int):
    """Every process is killed; some get no further than the previous one."""
    draw, runs, kills = random.Random(replicas), bench.new(), 0
    after_the_last = len(bench.calls[replicas]) - bench.place("step-00000012", replicas)
    most = 14 * after_the_last // 10  # so that it reaches its end, but not at once
    while (ended := bench.go(runs, replicas, at=draw.randint(1, most))).code:
        assert ended.code == -signal.SIGKILL, ended.err
        kills += 1
        assert kills < 40, "it makes no progress"
    assert kills >= 4
    same_end(ending(bench.home / runs / str(replicas)), bench.whole[replicas])


def test_killed_at_random_moments(bench: Bench):
    draw, runs = random.Random(0), bench.new()
    for _ in range(5):
        child = bench.forge.start(*bench.next_words(runs, 3))
        time.sleep(draw.uniform(0.1, 0.9))
        assert child.kill().code in (0, -signal.SIGKILL)
    bench.ends_well(runs, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [1, 3])
def test_killed_twenty_times_at_random_moments(bench: Bench, replicas: int):
    """A process as started by a user, killed at any time from its start on; mostly during training."""
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
