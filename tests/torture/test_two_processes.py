"""Two processes that use the same run."""

import os
import signal
from pathlib import Path

import pytest
from tiny import snapshot
from torture.workbench import Bench, ending, same_end

from headway.core.errors import UserError
from headway.experiment.train import train
from headway.recipe.recipe import load
from headway.run.folder import open_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


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


def test_one_locked_member_locks_the_population_out_and_leaves_the_others_unlocked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    runs = bench.new()
    at = bench.place("mkdir whole/3/run-seed-2/checkpoints/.step-00000009", 3)
    assert bench.go(runs, 3, at).code == -signal.SIGKILL
    alone = ["train", "torture.yaml", "seed=1", "--name", "run-seed-1", "--runs", f"{runs}/3", "--resume"]
    holder = bench.forge.start(*alone, at=3, what="stop")  # it holds the lock, and has written its process number
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
    for name in ("run-seed-0", "run-seed-2"):  # this process has released them
        with open_run(name, folder).locked():
            pass
    changed = {name for name, content in snapshot(folder).items() if before.get(name) != content}
    assert changed <= {"run-seed-0/lock", "run-seed-2/lock"}
    holder.kill()
    bench.ends_well(runs, 3)


def test_of_two_processes_started_together_one_gets_the_name(bench: Bench):
    """Both find the name free when they check."""
    runs = bench.new()
    first = bench.forge.start(*bench.words(runs, 1), at=bench.place("replace whole/1/.run."), what="stop")
    first.wait_until_stopped()
    assert bench.forge.run(*bench.words(runs, 1)).code == 0
    os.kill(first.pid, signal.SIGCONT)
    loser = first.wait()
    assert loser.code == 2 and f"cannot make the run folder {runs}/1/run: Directory not empty" in loser.err
    same_end(ending(bench.home / runs / "1"), bench.whole[1])
