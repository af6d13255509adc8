"""Processes that share a GPU: NVIDIA's MPS service is started for them and always stopped again, and spare workers are
started in advance. A script replaces the program of the service and logs its calls."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from listening import Told
from small import small_study

from headway.core.events import Noted
from headway.core.processors import SHARE
from headway.study.execution import pool, sharing, workers
from headway.study.execution.execute import execute
from headway.study.execution.executor import Log
from headway.study.execution.in_process import InProcess
from headway.study.execution.pool import Gpus
from headway.study.execution.sharing import PROGRAM, SOCKETS, run_side_by_side, shared_gpus
from headway.study.execution.workers import WorkerSlot, spare_workers
from headway.study.folder import StudyFolder

UUIDS = {"0": "GPU-a0", "1": "GPU-a1", "3": "GPU-a3", "GPU-5a": "GPU-5a"}
ALONE = {"CUDA_VISIBLE_DEVICES": "0", SHARE: "1.0"}
WITHOUT_SERVICE = {"CUDA_VISIBLE_DEVICES": "0", SHARE: "0.5"}


class Service:
    """A program in the place of the service's, which logs its calls."""

    def __init__(self, folder: Path):
        self.program, self.calls = folder / PROGRAM, folder / "calls.txt"
        self.calls.touch()
        self.behave()

    def behave(self, start: str = "", server: str = "echo 4711", stop: str = "") -> None:
        """What it runs when it is started, when it is asked for its servers, and when it is stopped."""
        note = f'echo "$CUDA_VISIBLE_DEVICES ${SOCKETS} $word" >> {self.calls}'
        self.program.write_text(
            f"""#!/bin/sh
if [ "$1" = -d ]; then word=on; {start or ":"}; {note}; exit; fi
read word
if [ "$word" = quit ]; then {stop or ":"}; {note}; else {server}; fi
"""
        )
        self.program.chmod(0o755)

    @property
    def called(self) -> list[list[str]]:
        return [line.split() for line in self.calls.read_text().splitlines()]

    @property
    def words(self) -> list[str]:
        return [words[-1] for words in self.called]

    def wait_for(self, calls: int) -> None:
        until = time.monotonic() + 20
        while len(self.called) < calls and time.monotonic() < until:
            time.sleep(0.02)


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The folder for temporary files; its path is short, since sockets go there. (pytest's own folder is made first, so
    that it is not in this one.)"""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)


@pytest.fixture
def service(temporary, tmp_path, monkeypatch):
    monkeypatch.delenv(SOCKETS, raising=False)
    monkeypatch.setattr(sharing, "EVERYBODYS", tmp_path / "nothing")
    monkeypatch.setattr(sharing, "_PROBE", "pass")  # as on a machine where CUDA works, with the service or without it
    monkeypatch.setattr(pool, "uuids_here", lambda: UUIDS)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return Service(folder)


def test_only_a_gpu_shared_by_several_processes_has_a_service(service):
    with shared_gpus(("0", "1", "0"), UUIDS) as environments:
        assert environments["1"] == {"CUDA_VISIBLE_DEVICES": "1", SHARE: "1.0"}
        folder = Path(environments["0"][SOCKETS])
        assert folder.is_dir() and environments["0"][SHARE] == "0.5"
        assert service.called == [["GPU-a0", str(folder), "on"]] and run_side_by_side(environments)
    assert service.called[1:] == [["GPU-a0", str(folder), "quit"]] and not folder.exists()
    with shared_gpus(("0",), UUIDS) as environments:
        assert environments == {"0": ALONE} and not run_side_by_side(environments)
    assert len(service.called) == 2


def test_processes_and_services_know_a_gpu_by_its_uuid(service):
    """A process that does not reach its service goes on without it, and must not land on another GPU."""
    with shared_gpus(("3", "GPU-5a", "3", "GPU-5a"), UUIDS) as environments:
        assert [one["CUDA_VISIBLE_DEVICES"] for one in environments.values()] == ["GPU-a3", "GPU-5a"]
        assert len({one[SOCKETS] for one in environments.values()}) == 2
        assert [words[0] for words in service.called] == ["GPU-a3", "GPU-5a"]
    assert sorted(service.words) == ["on", "on", "quit", "quit"]
    with shared_gpus(("0", "0"), {}) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    assert len(service.called) == 4


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"server": "echo"}, ["on", "quit"]),  # processes do not reach it
        ({"start": "exit 1"}, ["quit"]),
        ({"start": "echo hello"}, ["on", "quit"]),
    ],
)
def test_a_service_that_does_not_work_is_stopped_and_not_used(service, temporary, behaviour, words):
    service.behave(**behaviour)
    with shared_gpus(("0", "0"), UUIDS) as environments:
        works = "hello" in behaviour.get("start", "")  # whatever else it prints
        assert run_side_by_side(environments) == works and (works or environments == {"0": WITHOUT_SERVICE})
    assert service.words == words and [*temporary.iterdir()] == []


@pytest.mark.parametrize("behaviour", [{"start": "sleep 60"}, {"server": "sleep 60"}, {"stop": "sleep 60"}])
def test_a_service_that_hangs_holds_up_nothing(service, temporary, monkeypatch, behaviour):
    monkeypatch.setattr(sharing, "SECONDS", 1)
    service.behave(**behaviour)
    began = time.monotonic()
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert run_side_by_side(environments) == ("stop" in behaviour)
    assert time.monotonic() - began < 10 and [*temporary.iterdir()] == []


def test_without_its_program_or_a_folder_there_is_no_service(service, temporary, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    long = tmp_path / ("x" * sharing.LONGEST_FOLDER)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert environments == {"0": WITHOUT_SERVICE} and [*long.iterdir()] == []
    monkeypatch.setattr("tempfile.tempdir", None)
    service.program.unlink()
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    assert service.called == [] and [*temporary.iterdir()] == []


def test_a_service_of_another_program_is_left_alone(service, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "EVERYBODYS", tmp_path)
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    monkeypatch.setattr(sharing, "EVERYBODYS", tmp_path / "nothing")
    monkeypatch.setenv(SOCKETS, "/run/mps")
    with shared_gpus(("0", "0"), UUIDS) as environments:
        assert environments == {"0": WITHOUT_SERVICE}  # processes inherit the variable
    assert service.called == []


@pytest.mark.parametrize("stage", ["starting", "working"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_the_service_stops_when_the_study_is_killed(service, temporary, stage, by):
    program = """
        import time
        from pathlib import Path
        from headway.study.execution import sharing
        sharing._PROBE, sharing.EVERYBODYS = "pass", Path("/nowhere")
        print("starting", flush=True)
        with sharing.shared_gpus(("0", "0"), {"0": "GPU-a0"}):
            print("working", flush=True)
            time.sleep(60)
    """
    if stage == "starting":
        service.behave(start="sleep 1")
    study = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert study.stdout is not None
    while study.stdout.readline().strip().decode() != stage:
        pass
    if stage == "starting":
        time.sleep(0.3)  # its program runs now
    study.send_signal(by)
    study.wait()
    study.stdout.close()
    service.wait_for(calls=2)
    assert service.words == ["on", "quit"]
    until = time.monotonic() + 20
    while [*temporary.iterdir()] and time.monotonic() < until:
        time.sleep(0.02)
    assert [*temporary.iterdir()] == []


def test_a_process_without_cuda_has_no_service(service, monkeypatch):
    monkeypatch.undo()
    assert not sharing._serves({"CUDA_VISIBLE_DEVICES": "none", SOCKETS: "/nowhere"})


# --- spare workers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def spares(tmp_path, monkeypatch):
    """As on a machine with a GPU and cores for two processes."""
    monkeypatch.setattr(workers, "DRIVER", tmp_path)
    monkeypatch.setattr(workers, "most_processes", lambda: 2)


@pytest.fixture
def cats(spares, monkeypatch):
    """The same, with processes in the place of workers that start at once."""
    monkeypatch.setattr(
        workers,
        "_started",
        lambda environment, log: subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE),
    )


def test_a_study_trains_with_the_service_and_with_spare_workers(service, workshop, spares, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setattr(workers, "most_processes", lambda: 3)
    arms = {"fast": [], "wide": ["model.width=32"]}
    study, told = small_study(workshop.text, arms=arms, questions=[], seeds=2), Told()
    with spare_workers(None, None):
        ahead = list(workers._spares.get() or [])
        outcome = execute(study, tmp_path / "shared", Gpus(("0", "0")), [told])
        assert workers._spares.get() == []
    assert (outcome.done, outcome.failed, outcome.interrupted) == (4, {}, False)
    assert [process.returncode for process in ahead] == [0, 0, -signal.SIGKILL]  # two trained, one was not needed
    assert any("side by side (MPS)" in event.text for event in told.of_kind(Noted))
    assert service.words == ["on", "quit"]


def test_a_worker_takes_over_environment_log_and_threads(tmp_path):
    program = f"""
        import os, sys, torch
        from headway.study.execution.worker import set_up
        log = {str(tmp_path / "log.txt")!r}
        set_up({{"environment": {{"CUDA_VISIBLE_DEVICES": "GPU-5a", "OMP_NUM_THREADS": "1"}}, "log": log}})
        print("out", os.environ["CUDA_VISIBLE_DEVICES"], torch.get_num_threads(), flush=True)
        print("err", file=sys.stderr)
    """
    (tmp_path / "log.txt").write_text("before\n")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert (tmp_path / "log.txt").read_text() == "before\nout GPU-5a 1\nerr\n"


def test_a_worker_that_died_before_its_first_order_fails_its_runs_alone(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    started, dead = workers._started, []

    def once_dead(environment, log):
        if dead:
            return started(environment, log)
        dead.append(subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        dead[0].wait()
        return dead[0]

    monkeypatch.setattr(workers, "_started", once_dead)
    outcome = execute(small_study(workshop.text, questions=[], seeds=2), tmp_path / "x", pool.Pool(1))
    assert len(outcome.failed) == 1 and outcome.done == len(list((tmp_path / "x" / "runs").iterdir())) > 0


def test_training_in_this_process_dismisses_spare_workers(cats, workshop, tmp_path):
    with spare_workers(None, None):
        home = StudyFolder(tmp_path / "x")
        waiting = list(workers._spares.get() or [])
        InProcess().train([], Log(home, []))
        assert [process.poll() is None for process in waiting] == [False, False]


def test_spare_workers_that_cannot_be_started_are_done_without(spares, monkeypatch):
    monkeypatch.setattr(workers, "_started", lambda environment, log: (_ for _ in ()).throw(BlockingIOError))
    with spare_workers(None, None):
        assert workers._spares.get() == []


def test_spare_workers_are_started_only_where_they_may_be_useful(cats, tmp_path, monkeypatch):
    options = ((None, None, 2), ("gpus", 8, 2), (None, 1, None), ("here", None, None), ("ray", 4, None))
    for on, number, expected in options:
        with spare_workers(on, number):
            waiting = workers._spares.get()
            assert (waiting if waiting is None else len(waiting)) == expected
            assert workers._spare(WorkerSlot(None, workers.threads(1))) is None  # a slot without a GPU
    monkeypatch.setattr(workers, "DRIVER", tmp_path / "nothing")
    with spare_workers(None, None):
        assert workers._spares.get() is None


def test_a_spare_worker_that_died_is_not_used(cats):
    with spare_workers(None, None):
        first, second = workers._spares.get() or []
        first.kill()
        first.wait()
        taken = workers._spare(WorkerSlot("GPU 0", ALONE))
        assert taken is second
        workers._close(second)


def test_importing_what_a_worker_imports_does_not_touch_cuda():
    """A spare worker learns only afterwards which GPU to use."""
    program = """
        import torch
        def touched(*given, **named): raise AssertionError("CUDA was touched")
        for name in ("is_available", "device_count", "init", "current_device", "get_device_name"):
            setattr(torch.cuda, name, touched)
        import headway.experiment.audit, headway.experiment.population, headway.study.results.measuring
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
