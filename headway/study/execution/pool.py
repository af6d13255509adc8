"""A pool of processes, one run and one thread each.

The processes are fresh interpreters that live as long as the study: importing torch takes longer than a small run. One
that dies takes its run with it, and another takes its place.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from headway.core.environment import own_python
from headway.core.events import read_event
from headway.core.reading import opened_to_append
from headway.core.status import Status
from headway.study.design.study import PlannedRun
from headway.study.execution.executor import Log, order_for
from headway.training.interrupts import interruptible

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process, and the run it is at."""

    def __init__(self, log: IO[bytes]):
        command, (python, variables) = json.dumps(["headway", *sys.argv[1:]]), own_python()
        self.process = subprocess.Popen(
            [*python, "-m", "headway.study.execution.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**variables, **ONE_THREAD, "HEADWAY_STUDY_COMMAND": command},
            start_new_session=True,  # Ctrl-C on the terminal reaches the study alone, which asks politely
        )
        self.run: PlannedRun | None = None
        self.arm: str | None = None  # of the last run it was given
        self.unread = b""

    def give(self, run: PlannedRun, order: dict[str, Any]) -> None:
        self.run = run
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died while it was idle: its answers end, which is noticed

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said since; None = it is gone."""
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
            memory = ", as a system short of memory does" if -code == signal.SIGKILL else ""
            return f"its process was killed by {name}{memory}"
        return f"its process ended with code {code}"

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


@dataclass(frozen=True)
class Pool:
    """So many processes, each of which trains one run at a time on one thread."""

    workers: int | None = None
    """None = as many as there are cores."""

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        with (
            opened_to_append(log.folder.path / "log.txt") as output,
            selectors.DefaultSelector() as ready,
            interruptible(aloud=False) as stop_asked,
        ):
            measures = [one.model_dump(mode="json") for one in log.folder.study.measures]
            shift = _Shift(deque(runs), log, output, ready, stop_asked, measures)
            return shift.work(min(self.workers or cores(), len(runs)))


@dataclass
class _Shift:
    waiting: deque[PlannedRun]
    log: Log
    output: IO[bytes]
    ready: selectors.BaseSelector
    stop_asked: Any
    measures: list[dict[str, Any]]
    """What is measured of each run beside its scores, as it is told to other processes."""
    stopping: bool = False

    def work(self, workers: int) -> bool:
        try:
            for _ in range(workers):
                self.hire()
            while self.ready.get_map():
                for key, _ in self.ready.select(timeout=0.2):
                    self.listen(key.data)
                if self.stop_asked() and not self.stopping:
                    self.stop()
        finally:
            for key in list(self.ready.get_map().values()):
                key.data.close()
        return self.stopping

    def hire(self) -> None:
        worker = Worker(self.output)
        self.ready.register(worker.process.stdout, selectors.EVENT_READ, worker)  # pyright: ignore
        self.employ(worker)

    def employ(self, worker: Worker) -> None:
        """The next run, or home."""
        if not self.waiting or self.stopping:
            self.dismiss(worker)
            return
        run = self.next_for(worker)
        worker.give(run, {**order_for(run), "runs": str(self.log.folder.runs), "measures": self.measures})

    def next_for(self, worker: Worker) -> PlannedRun:
        """The first that waits of the arm that this process is at, whose model it has looked at closely; else of one
        that no other process is at."""
        others = {one.data.arm for one in self.ready.get_map().values() if one.data is not worker}
        mine = (run for run in self.waiting if run.arm == worker.arm)
        fresh = (run for run in self.waiting if run.arm not in others)
        run = next(mine, None) or next(fresh, None) or self.waiting[0]
        self.waiting.remove(run)
        worker.arm = run.arm
        return run

    def listen(self, worker: Worker) -> None:
        answers = worker.answers()
        if answers is None:
            self.bury(worker)
            return
        for answer in answers:
            assert worker.run is not None
            if "event" in answer:
                self.log.relay(read_event(answer))
                continue
            if "failed" in answer:
                self.log.failed(worker.run.name, answer["failed"], answer["details"])
            elif not (status := Status.read(answer["ended"])).is_interrupted:
                self.log.ended(worker.run.name, status)
            elif not self.stopping:
                self.log.failed(worker.run.name, f"{status} by somebody else")
            worker.run = None
            self.employ(worker)

    def bury(self, worker: Worker) -> None:
        """A process that died; another one goes on, unless the study stops."""
        run, why = worker.run, worker.how_it_died()
        self.dismiss(worker)
        if run is not None and not self.stopping:
            self.log.failed(run.name, why)
        if self.waiting and not self.stopping:
            self.hire()

    def dismiss(self, worker: Worker) -> None:
        self.ready.unregister(worker.process.stdout)  # pyright: ignore
        worker.close()

    def stop(self) -> None:
        """Politely: runs finish their step and save. Those that have not come so far have nothing to save."""
        self.stopping = True
        self.log.say("stopping: every run finishes its step and saves; press Ctrl-C again to drop everything")
        for key in list(self.ready.get_map().values()):
            key.data.ask_to_stop()
