"""Processes that share a GPU: NVIDIA's MPS service is started for them and always stopped again, and spare workers are
started in advance. A script replaces the program of the service and logs its calls."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from listening import Told
from small import small_study

from headway.core.events import Noted
from headway.core.processors import SHARE
from headway.study.execution import sharing, workers
from headway.study.execution.execute import execute
from headway.study.execution.pool import Gpus
from headway.study.execution.sharing import SERVICE, SOCKETS, shared_gpus
from headway.study.execution.workers import spare_workers

ALONE = {"CUDA_VISIBLE_DEVICES": "0", SHARE: "1.0"}
WITHOUT_SERVICE = {"CUDA_VISIBLE_DEVICES": "0", SHARE: "0.5"}


@pytest.fixture
def service(tmp_path, monkeypatch):
    """Replaces the service's program, and returns the file in which the calls are logged."""
    monkeypatch.delenv(SOCKETS, raising=False)
    monkeypatch.setattr(sharing, "_answers", lambda environment: SOCKETS in environment)
    notes, folder = tmp_path / "asked.txt", tmp_path / "bin"
    folder.mkdir()
    told = f'echo "$CUDA_VISIBLE_DEVICES ${SOCKETS}'
    (folder / SERVICE).write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then {told} on" >> {notes}; else read word; {told} $word" >> {notes}; fi\n'
    )
    (folder / SERVICE).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    notes.touch()
    return notes


def asked(notes: Path) -> list[list[str]]:
    return [line.split() for line in notes.read_text().splitlines()]


def test_only_a_gpu_shared_by_several_processes_has_a_service(service):
    with shared_gpus(("0", "1", "0")) as environments:
        assert environments["1"] == {"CUDA_VISIBLE_DEVICES": "1", SHARE: "1.0"}
        folder = Path(environments["0"][SOCKETS])
        assert folder.is_dir() and environments["0"][SHARE] == "0.5"
        assert asked(service) == [["0", str(folder), "on"]]
    assert asked(service)[1:] == [["0", str(folder), "quit"]] and not folder.exists()
    with shared_gpus(("0",)) as environments:
        assert environments == {"0": ALONE}
    assert len(asked(service)) == 2


def test_the_service_serves_one_gpu_which_is_then_device_0(service):
    with shared_gpus(("3", "GPU-5a", "3", "GPU-5a")) as environments:
        assert [one["CUDA_VISIBLE_DEVICES"] for one in environments.values()] == ["0", "0"]
        assert len({one[SOCKETS] for one in environments.values()}) == 2
        assert [words[0] for words in asked(service)] == ["3", "GPU-5a"]
    assert sorted(words[2] for words in asked(service)) == ["on", "on", "quit", "quit"]


def test_a_service_that_does_not_answer_is_stopped_and_not_used(service, monkeypatch):
    monkeypatch.setattr(sharing, "_answers", lambda environment: False)
    with shared_gpus(("0", "0")) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    assert [words[2] for words in asked(service)] == ["on", "quit"]


def test_a_service_that_cannot_start_is_not_used(service, tmp_path):
    (tmp_path / "bin" / SERVICE).write_text("#!/bin/sh\nexit 1\n")
    with shared_gpus(("0", "0")) as environments:
        assert environments == {"0": WITHOUT_SERVICE}
    (tmp_path / "bin" / SERVICE).unlink()
    with shared_gpus(("0", "0")) as environments:
        assert environments == {"0": WITHOUT_SERVICE}


def test_a_service_of_another_program_is_left_alone(service, monkeypatch):
    monkeypatch.setenv(SOCKETS, "/run/mps")
    with shared_gpus(("0", "0")) as environments:
        assert environments == {"0": WITHOUT_SERVICE}  # processes inherit the variable
    assert asked(service) == []


def test_the_service_stops_when_the_study_is_killed(service):
    program = """
        import time
        from headway.study.execution import sharing
        sharing._answers = lambda environment: True
        with sharing.shared_gpus(("0", "0")):
            print("working", flush=True)
            time.sleep(60)
    """
    study = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert study.stdout is not None and study.stdout.readline() == b"working\n"
    study.send_signal(signal.SIGKILL)
    study.wait()
    study.stdout.close()
    until = time.monotonic() + 20
    while len(asked(service)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert [words[2] for words in asked(service)] == ["on", "quit"]


def test_the_probe_is_whether_a_process_gets_a_context(monkeypatch):
    assert not sharing._answers({"LD_LIBRARY_PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": "none"})
    monkeypatch.setattr(sharing, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(sharing, "SECONDS", 0.2)
    assert not sharing._answers({})
    monkeypatch.setattr(sharing, "_PROBE", "pass")
    monkeypatch.setattr(sharing, "SECONDS", 20)
    assert sharing._answers({})


def test_a_study_trains_with_the_service_and_with_spare_workers(service, workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setattr(workers, "DRIVER", tmp_path)
    monkeypatch.setattr(workers, "most_processes", lambda: 3)
    arms = {"fast": [], "wide": ["model.width=32"]}
    study, told = small_study(workshop.text, arms=arms, questions=[], seeds=2), Told()
    with spare_workers(None, None):
        ahead = list(workers._spares.get() or [])
        outcome = execute(study, tmp_path / "shared", Gpus(("0", "0")), [told])
        assert workers._spares.get() == []
    assert (outcome.done, outcome.failed, outcome.interrupted) == (4, {}, False)
    assert len(ahead) == 3 and [process.returncode for process in ahead] == [0, 0, 0]
    assert any("side by side (MPS)" in event.text for event in told.of_kind(Noted))
    assert [words[2] for words in asked(service)] == ["on", "quit"]


def test_spare_workers_are_started_only_where_they_may_be_useful(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "DRIVER", tmp_path)
    monkeypatch.setattr(workers, "most_processes", lambda: 2)
    monkeypatch.setattr(workers, "_started", lambda environment, log: subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ))  # fmt: skip
    for on, number, expected in (
        (None, None, 2),
        ("gpus", 8, 2),
        (None, 1, None),
        ("here", None, None),
        ("ray", 4, None),
    ):
        with spare_workers(on, number):
            waiting = workers._spares.get()
            assert (waiting if waiting is None else len(waiting)) == expected
            slot = workers.WorkerSlot(None, workers.threads(1))
            assert workers._spare(slot) is None  # a slot without a GPU
    monkeypatch.setattr(workers, "DRIVER", tmp_path / "nothing")
    with spare_workers(None, None):
        assert workers._spares.get() is None


def test_a_spare_worker_that_died_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "DRIVER", tmp_path)
    monkeypatch.setattr(workers, "most_processes", lambda: 2)
    monkeypatch.setattr(workers, "_started", lambda environment, log: subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ))  # fmt: skip
    with spare_workers(None, None):
        first, second = workers._spares.get() or []
        first.kill()
        first.wait()
        taken = workers._spare(workers.WorkerSlot("GPU 0", ALONE))
        assert taken is second
        workers._close(second)


def test_importing_what_a_worker_imports_does_not_touch_cuda():
    """A spare worker only learns afterwards which GPU it gets."""
    program = """
        import torch
        def touched(*given, **named): raise AssertionError("CUDA was touched")
        for name in ("is_available", "device_count", "init", "current_device", "get_device_name"):
            setattr(torch.cuda, name, touched)
        import headway.experiment.audit, headway.experiment.population, headway.study.results.measuring
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
