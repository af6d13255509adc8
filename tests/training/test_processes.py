"""Training in two processes gives the same losses, run folders and errors as in one, and no process waits forever.

Because starting processes is expensive, one pair of them does a list of jobs, and the tests check the results. This
file is also the program that the pair runs.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from crash import CLI, Child, Ended, Forge
from tiny import TEXT, cache_in, tiny_recipe

from headway.core.errors import UserError
from headway.experiment.train import train
from headway.run.folder import Run, open_run
from headway.training.loop import Loop
from headway.training.parallel import check_rows
from headway.training.processes import ALONE, Processes, started

LONGER = ("training.duration=16 steps", "training.optimizer.learning_rate=1e-2")


@dataclass(frozen=True)
class Job:
    changes: tuple[str, ...] = ()
    replicas: int = 1
    resume: bool = False
    signal_at: tuple[int, int] | None = None
    """(rank, step): only this process is asked to stop, at this step."""
    full_disk_at: int | None = None
    """The disk of the writing process is full from this step on."""
    name: str | None = None
    """The name of the run, if it is that of another job."""
    rates: tuple[float, ...] = field(default=())


NOISY = ("model.dropout=0.3",)
PLAIN = {  # compared with the same in one process
    "one": Job(NOISY),
    "parts": Job((*NOISY, "training.accumulate=2")),
    "three": Job((*NOISY, "training.clip=0.5", "training.keep_best=true"), replicas=3),
    "fsdp": Job((*NOISY, "training.parallel=fsdp", "training.accumulate=2", "model.layers=2")),
    # Width 6 has axes that two processes cannot share, and position biases without weight decay.
    "fsdp-odd": Job(
        (
            "training.parallel=fsdp",
            "model.positions=t5",
            "model.tied=false",
            "model.width=6",
            "model.feedforward.hidden=9",
        )
    ),
    "fsdp-sgd": Job(("training.parallel=fsdp", "training.optimizer.kind=sgd", "training.keep_best=true")),
    "best": Job(("training.keep_best=true", "training.patience=1", "training.optimizer.learning_rate=0.0")),
    "diverging": Job(replicas=3, rates=(1e-3, 1e38, 1e-2)),
}
JOBS = PLAIN | {
    "stopped": Job((*NOISY, *LONGER), signal_at=(1, 6)),
    "stopped-fsdp": Job((*LONGER, "training.parallel=fsdp"), signal_at=(0, 6)),
    "begun-alone": Job((*NOISY, *LONGER), resume=True),
    "begun-alone-fsdp": Job((*LONGER, "training.parallel=fsdp"), resume=True),
    "exists": Job(name="one"),
    "uneven": Job(("training.batch=3",)),
    "fsdp-many": Job(("training.parallel=fsdp",), replicas=2),
    "full-disk": Job(full_disk_at=8),
    "after-all-that": Job(),
}


def do(name: str, job: Job, text: Path, runs: Path) -> list[Run]:
    recipes = [tiny_recipe(text, *job.changes, f"seed={seed}") for seed in range(job.replicas)]
    for r, rate in enumerate(job.rates):
        recipes[r] = recipes[r].with_changes([f"training.optimizer.learning_rate={rate}"])
    names = [job.name or name] if job.replicas == 1 else [f"{name}-{seed}" for seed in range(job.replicas)]
    return train(recipes, names, runs, job.resume)


# --- the program of the pair ------------------------------------------------------------------------------------------


def work(text: Path, runs: Path, notes: Path) -> None:
    take_step, append = Loop.take_step, Run.append_metrics
    for name in ("first", "second"):  # in each of two calls the processes find each other again
        do(name, Job(("training.duration=1 step",)), text, runs)
    with started() as processes:
        for name, job in JOBS.items():
            seen: dict[str, Any] = {"step": 0}

            def step(loop: Loop, job: Job = job, seen: dict[str, Any] = seen) -> None:
                take_step(loop)
                seen["step"] = loop.step
                if job.signal_at == (processes.rank, loop.step):
                    os.kill(os.getpid(), signal.SIGTERM)

            def append_metrics(run: Run, lines: list[dict[str, Any]], job: Job = job) -> None:
                if job.full_disk_at and any(line["step"] >= job.full_disk_at for line in lines):
                    raise OSError(28, "No space left on device")
                append(run, lines)

            Loop.take_step, Run.append_metrics = step, append_metrics
            try:
                do(name, job, text, runs)
            except Exception as error:
                seen["error"] = [type(error).__name__, str(error)]
            with (notes / f"{processes.rank}.jsonl").open("a") as file:
                file.write(json.dumps({"job": name, **seen}) + "\n")


THIS = f"""
import runpy, sys, warnings
warnings.simplefilter("error")
sys.path.append({str(Path(__file__).parent.parent)!r})
runpy.run_path({__file__!r}, run_name="__main__")
"""


def launch(forge: Forge, *words: str, code: str = CLI, world: int = 2, **variables: str) -> list[Child]:
    """Starts processes as torchrun does, without its overhead and traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    base = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), **variables}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return [forge.at(Path(), **base, **rank).start(*words, code=code) for rank in ranks]


def ends(pair: list[Child], seconds: float = 120) -> list[Ended]:
    """The results of both processes; it is an error if they wait for each other."""
    until = time.monotonic() + seconds
    while not all(process.has_ended for process in pair) and time.monotonic() < until:
        time.sleep(0.01)
    waiting = [process for process in pair if not process.has_ended]
    ended = [process.kill() if process in waiting else process.wait() for process in pair]
    assert not waiting, "they wait for each other: " + "; ".join(one.err for one in ended)
    return ended


@dataclass
class Pair:
    home: Path
    notes: list[dict[str, dict[str, Any]]]
    """What each process recorded of each job."""

    @property
    def text(self) -> Path:
        return self.home / "tiny.txt"

    def together(self, name: str) -> Run:
        return open_run(name, self.home / "two")

    def alone(self, name: str) -> Run:
        return open_run(name, self.home / "one")


@pytest.fixture(scope="module")
def pair(forge, tmp_path_factory) -> Pair:
    home = tmp_path_factory.mktemp("pair")
    (home / "tiny.txt").write_text(TEXT, "utf-8")
    with cache_in(home / "cache"):
        for name in ("begun-alone", "begun-alone-fsdp"):
            changes = [change for change in JOBS[name].changes if "parallel" not in change]
            stop_alone(Job(tuple(changes)), name, home / "tiny.txt", home / "two")
        processes = launch(forge, str(home), code=THIS, HEADWAY_CACHE=str(home / "cache"))
        for name, job in PLAIN.items():
            do(name, job, home / "tiny.txt", home / "one")
        do("whole", Job((*NOISY, *LONGER)), home / "tiny.txt", home / "one")
        do("whole-fsdp", Job((*LONGER, "training.parallel=fsdp")), home / "tiny.txt", home / "one")
        for ended in ends(processes):
            assert ended.code == 0, ended.err
    notes = [[json.loads(line) for line in (home / f"{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)]
    return Pair(home, [{note["job"]: note for note in mine} for mine in notes])


def stop_alone(job: Job, name: str, text: Path, runs: Path) -> None:
    take_step = Loop.take_step

    def step(loop: Loop) -> None:
        take_step(loop)
        if loop.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "take_step", step)
        (run,) = do(name, job, text, runs)
    assert str(run.status) == "interrupted at step 6"


def same_numbers(a: Run, b: Run) -> None:
    ours, theirs = a.metrics(), b.metrics()
    assert [set(line) for line in ours] == [set(line) for line in theirs]
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for our, their in zip(ours, theirs, strict=True):
        if "loss" in our:
            assert our["loss"] == pytest.approx(their["loss"], abs=1e-5)
            assert our["norm"] == pytest.approx(their["norm"], rel=1e-4)
            assert our["rate"] == their["rate"]
        if "scores" in our:
            assert our["scores"] == pytest.approx(their["scores"], abs=1e-5)
    for our, their in zip(a.scores(), b.scores(), strict=True):
        assert (our.name, our.label) == (their.name, their.label) and our.value == pytest.approx(
            their.value, rel=1e-4, nan_ok=True
        )
    assert str(a.status) == str(b.status) and a.facts["step"] == b.facts["step"]


# --- results of the jobs
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", PLAIN)
def test_two_processes_have_the_same_losses_as_one(pair: Pair, job: str):
    members = [job] if PLAIN[job].replicas == 1 else [f"{job}-{seed}" for seed in range(PLAIN[job].replicas)]
    for name in members:
        together, alone = pair.together(name), pair.alone(name)
        same_numbers(together, alone)
        ours, theirs = together.checkpoint("last"), alone.checkpoint("last")
        assert ours.step == theirs.step
        for kind in ("weights", "optimizer"):
            our, their = getattr(ours, kind), getattr(theirs, kind)
            assert {k: (t.shape, t.dtype) for k, t in our.items()} == {k: (t.shape, t.dtype) for k, t in their.items()}
    assert pair.notes[0][job]["step"] == pair.notes[1][job]["step"]


@pytest.mark.parametrize("job", ["one", "three-1", "fsdp-odd", "fsdp-sgd"])
def test_two_processes_end_with_the_same_weights_as_one(pair: Pair, job: str):
    ours, theirs = (run.checkpoint("last").weights for run in (pair.together(job), pair.alone(job)))
    for name in ours:
        if (
            "project" not in name or "bias" not in name
        ):  # key biases have no gradient but rounding errors, which Adam scales up
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-4)


def test_all_processes_notice_a_divergence(pair: Pair):
    assert [str(pair.together(f"diverging-{r}").status)[:8] for r in range(3)] == [
        "finished",
        "diverged",
        "finished",
    ]


def test_patience_ends_all_processes_at_the_same_step(pair: Pair):
    assert str(pair.together("best").status).startswith("stopped at step")
    assert pair.notes[0]["best"]["step"] == pair.notes[1]["best"]["step"] < 12


@pytest.mark.parametrize(("job", "whole"), [("stopped", "whole"), ("stopped-fsdp", "whole-fsdp")])
def test_a_signal_to_one_process_stops_all_and_one_process_can_resume(pair: Pair, job: str, whole: str):
    assert [notes[job]["step"] for notes in pair.notes] == [6, 6]
    assert str(pair.together(job).status) == "interrupted at step 6"
    with cache_in(pair.home / "cache"):
        (resumed,) = do(job, Job(JOBS[job].changes, resume=True), pair.text, pair.home / "two")
    same_numbers(resumed, pair.alone(whole))


@pytest.mark.parametrize(("job", "whole"), [("begun-alone", "whole"), ("begun-alone-fsdp", "whole-fsdp")])
def test_a_run_started_by_one_process_is_finished_by_two(pair: Pair, job: str, whole: str):
    same_numbers(pair.together(job), pair.alone(whole))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("exists", "one exists: continue it with --resume"),
        ("uneven", "3 rows cannot be divided evenly among 2 processes; the nearest batch size that can is 4"),
        ("fsdp-many", "fsdp trains a single large model, not 2 replicas"),
    ],
)
def test_a_mistake_is_reported_once_and_ends_all_processes(pair: Pair, job: str, words: str):
    (kind, said), (other, _) = (notes[job]["error"] for notes in pair.notes)
    assert kind == "UserError" and words in said and other == "EndedElsewhereError"


def test_a_full_disk_ends_all_processes_at_the_next_step(pair: Pair):
    assert [notes["full-disk"]["error"][0] for notes in pair.notes] == ["OSError", "EndedElsewhereError"]
    assert pair.notes[0]["full-disk"]["step"] == pair.notes[1]["full-disk"]["step"]
    assert pair.together("full-disk").checkpoint("last").step == 4
    assert str(pair.together("after-all-that").status) == "finished"


# --- the command line -------------------------------------------------------------------------------------------------


def test_two_processes_train_and_only_one_prints(forge, workshop, tmp_path):
    words = ["train", str(workshop.recipe), "--runs", str(tmp_path), "--json"]
    one, other = ends(launch(forge, *words, HEADWAY_CACHE=str(workshop.cache)))
    assert (one.code, other.code, other.out, other.err) == (0, 0, "", ""), one.err + other.err
    assert json.loads(one.out)["run"] == str(tmp_path / "tiny")
    assert one.err.count("2 processes (ddp): each computes its rows of every batch") == 1
    same_numbers(open_run("tiny", tmp_path), workshop.run)


@pytest.mark.slow
def test_torchrun_trains_and_only_one_process_prints(workshop, tmp_path):
    command = ["-m", "headway.cli", "train", str(workshop.recipe), "--runs", str(tmp_path), "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HEADWAY_CACHE": str(workshop.cache)}
    answer = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["run"] == str(tmp_path / "tiny")
    assert answer.stderr.count("2 processes (ddp): each computes its rows of every batch") == 1
    same_numbers(open_run("tiny", tmp_path), workshop.run)


def test_a_bad_recipe_is_one_message_and_two_exit_codes(forge, workshop, tmp_path):
    words = ["train", str(workshop.recipe), "--runs", str(tmp_path), "model.widht=3"]
    one, other = ends(launch(forge, *words))
    assert (one.code, other.code, other.err) == (2, 2, "") and "did you mean 'width'?" in one.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_if_one_process_is_killed_the_other_does_not_wait(forge, workshop, tmp_path):
    words = ["train", str(workshop.recipe), "--runs", str(tmp_path), "--name", "tiny", "training.duration=1M steps"]
    one, other = launch(forge, *words, HEADWAY_CACHE=str(workshop.cache))
    one.wait_until((tmp_path / "tiny" / "metrics.jsonl").exists)
    other.kill()
    (ended,) = ends([one])
    assert ended.code == 2 and "process 0 lost the others" in ended.err and "--resume" in ended.err


def test_processes_that_were_not_started_are_reported_as_missing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"WORLD_SIZE asks for 2 processes, which did not .*torchrun"), started():
        pass


# --- one process
# --------------------------------------------------------------------------------------------------------


def test_one_process_does_not_communicate():
    with started() as processes:
        assert processes is ALONE and processes.is_writer and processes.command == ["headway"]
        assert processes.agree(True, False) == (True, False)
        assert processes.from_writer(lambda: b"x") == b"x"
        with pytest.raises(ValueError, match="at once"), processes.together():
            raise ValueError("at once")
        with pytest.raises(OSError, match="full"):
            processes.write(lambda: (_ for _ in ()).throw(OSError("full")))


@pytest.mark.parametrize(("batch", "accumulate", "world", "nearest"), [(6, 1, 4, 8), (16, 3, 2, 18), (1, 1, 2, 2)])
def test_rows_that_cannot_be_shared_are_refused_with_the_nearest_possible_number(batch, accumulate, world, nearest):
    with pytest.raises(UserError, match=f"{batch} rows cannot be divided evenly among {world} .* is {nearest}$"):
        check_rows(batch, accumulate, Processes(0, world))
    check_rows(nearest, accumulate, Processes(0, world))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    work(place / "tiny.txt", place / "two", place)
    # All results are written; errors of torch's threads at interpreter shutdown are not tested here.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
