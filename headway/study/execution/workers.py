"""The processes that train for a study, as the study sees them. What they do is in `worker.py`.

Workers are fresh interpreters that live as long as the study, since importing torch takes longer than a small run. On a
machine with a GPU a few are started before the study itself imports torch (`spare_workers`), so that importing takes
its time once, not twice.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from headway.core.environment import own_python
from headway.core.gpu_start import DRIVER
from headway.core.processors import cores
from headway.study.execution.sharing import most_processes

if TYPE_CHECKING:
    from headway.study.design.study import PlannedRun


def threads(number: int) -> dict[str, str]:
    """The environment of a process that computes with this many threads, at least one."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(max(1, number)))


@dataclass
class WorkerSlot:
    """What a worker runs on: a core, or a share of a GPU. A worker that dies is replaced by another in the same
    slot."""

    called: str | None
    """Its name in messages; None = not named, because all are alike."""
    environment: Mapping[str, str]
    too_small: int = 0
    """How many populations in a row did not fit."""
    is_given_up: bool = False
    """Whether it was given up because its GPU has no room for it next to the workers that share it."""

    def said(self, why: str) -> str:
        return f"{self.called}: {why}" if self.called else why


class Worker:
    """One process, and the runs it is training."""

    def __init__(self, log: IO[bytes], slot: WorkerSlot):
        self.process = _spare(slot) or _started(slot.environment, log)
        self.slot = slot
        self.runs: list[PlannedRun] = []
        self.arm: str | None = None  # the arm of the last runs it was given
        self.is_leaving = False
        self.unread = b""
        self._send({"environment": dict(slot.environment), "log": log.name})

    def give(self, runs: "list[PlannedRun]", order: dict[str, Any]) -> None:
        self.runs = runs
        self._send(order)

    def _send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died while idle; that is noticed when its output ends

    def answers(self) -> list[dict[str, Any]] | None:
        """Its answers since the last call; None = it is gone."""
        assert self.process.stdout is not None
        read = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.unread = (self.unread + read).split(b"\n")
        return [json.loads(line) for line in lines] if read else None

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def how_it_died(self) -> str:
        code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            memory = " (possibly because the system is out of memory)" if -code == signal.SIGKILL else ""
            return f"its process was killed by {name}{memory}"
        return f"its process exited with code {code}"

    def close(self) -> None:
        _close(self.process)


def _started(environment: Mapping[str, str], log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    command, (python, variables) = json.dumps(["headway", *sys.argv[1:]]), own_python()
    return subprocess.Popen(
        [*python, "-m", "headway.study.execution.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**variables, **environment, "HEADWAY_STUDY_COMMAND": command},
        start_new_session=True,  # Ctrl-C in the terminal reaches only the study, which asks workers to stop
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close its input, at which it exits."""
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):  # it is gone, and did not read everything
            stream.close()
    process.wait()


# --- spare workers ---------------------------------------------------------------------------------------------------


@contextmanager
def spare_workers(on: str | None, workers: int | None) -> Iterator[None]:
    """Inside this block, workers for a study on a GPU are being started, as far as can be told before it is read: `on`
    and `workers` are the options of `headway study run`. Those that are left at the end are dismissed."""
    number = min(workers or most_processes(), most_processes())
    if on not in (None, "gpus") or number < 2 or not DRIVER.exists():
        yield
        return
    waiting: list[subprocess.Popen[bytes]] = []
    before = _spares.set(waiting)
    try:
        with suppress(OSError):  # the machine may have no room for more processes
            for _ in range(number):
                waiting.append(_started(threads(cores() // number), subprocess.DEVNULL))
        yield
    finally:
        dismiss_spares()
        _spares.reset(before)


def dismiss_spares() -> None:
    """End the spare workers that are left. They are killed, because closing their input would only be noticed when they
    have imported torch; they have done nothing yet."""
    waiting = _spares.get() or []
    for process in waiting:
        process.kill()
    while waiting:
        _close(waiting.pop())


def _spare(slot: WorkerSlot) -> subprocess.Popen[bytes] | None:
    """A spare worker, if this slot is a share of a GPU and one is left."""
    waiting = _spares.get()
    while waiting and "CUDA_VISIBLE_DEVICES" in slot.environment:
        if (process := waiting.pop(0)).poll() is None:
            return process
        _close(process)
    return None


_spares: ContextVar[list[subprocess.Popen[bytes]] | None] = ContextVar("spares", default=None)
