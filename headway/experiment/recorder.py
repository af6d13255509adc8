"""Writes what the training loop reports into each run folder, at once or in a background thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headway.core.events import Event, Halted, Logged, Saved, Scored, Stepped
from headway.run.folder import Run
from headway.training.checkpoint import Checkpoint
from headway.training.population import Population
from headway.training.processes import Processes
from headway.training.setting import Setting


class Writer:
    """Writes at once. Used on a CPU, where a background thread would compete with the training for cores."""

    def __init__(self, processes: Processes):
        self.processes = processes

    def __call__(self, do: Callable[[], None]) -> None:
        self.processes.write(do)

    def finish(self) -> None:
        """Wait until everything is on the disk; raises the error if something could not be written."""

    def close(self) -> None:
        """Release resources, however training ended."""


class WriterBeside(Writer):
    """Writes in a background thread, in order. On a GPU, five hundred steps take seconds, and waiting for checksums and
    disks would take a fifth of that. Errors are raised at one of the next calls, or at the end."""

    def __init__(self, processes: Processes, at_most: int):
        super().__init__(processes)
        self.at_most = at_most  # waiting tasks: each may hold a copy of a replica
        self.thread = ThreadPoolExecutor(1, "headway-writer")
        self.orders: deque[Future[None]] = deque()

    def __call__(self, do: Callable[[], None]) -> None:
        while len(self.orders) >= self.at_most or (self.orders and self.orders[0].done()):
            self.orders.popleft().result()
        self.orders.append(self.thread.submit(do))

    def finish(self) -> None:
        while self.orders:
            self.orders.popleft().result()

    def close(self) -> None:
        self.thread.shutdown()


def writer_for(setting: Setting, processes: Processes, replicas: int) -> Writer:
    beside = setting.device.type == "cuda" and processes.world == 1
    return WriterBeside(processes, at_most=replicas) if beside else Writer(processes)


class RunRecorder:
    """Records and announces what the loop reports."""

    def __init__(
        self, population: Population, members: list[Run], announce: Callable[[Event], str | None], writer: Writer
    ):
        self.population, self.members, self.announce = population, members, announce
        self.names, self.writer = tuple(run.name for run in members), writer
        self.processes = population.parallel.processes

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> str | None:
        of = (self.names[replica],)
        self.processes.write(lambda: self.members[replica].append_metrics(lines))
        self.population.replica_states[replica].lines += len(lines)
        self.announce(Logged(of=of, lines=lines))
        scored = [Scored(of=of, step=line["step"], scores=line["scores"]) for line in lines if "scores" in line]
        answers = [self.announce(event) for event in scored]
        # Only the writer has listeners, but all processes must stop a replica at the same step.
        return next(filter(None, answers), None) if self.processes.world == 1 else None

    def checkpoint(self, replica: int, step: int) -> None:
        self._save(replica, step, "step", self.members[replica].save_checkpoint)

    def best(self, replica: int, step: int) -> None:
        self._save(replica, step, "best", self.members[replica].save_best)

    def _save(self, replica: int, step: int, kind: str, save: Callable[[Checkpoint], None]) -> None:
        if not self.population.parallel.takes_part:
            return
        made = self.population.slice(replica, step)

        def write() -> None:
            save(made)
            self.announce(Saved(of=(self.names[replica],), step=step, kind=kind))

        self.writer(write)

    def progress(self, step: int, total: int, losses: list[float], tokens_per_second: float) -> None:
        rest = {"losses": tuple(losses), "tokens_per_second": tokens_per_second}
        self.announce(Stepped(of=self.names, step=step, total=total, **rest))

    def ended(self, replica: int) -> None:
        states = self.population.replica_states
        status, others = states[replica].ended, any(state.ended is None for state in states)
        assert status is not None
        best = states[replica].best
        self.announce(Halted(of=(self.names[replica],), status=status, best_loss=best, others_go_on=others))
