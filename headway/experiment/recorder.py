"""What the loop reports, written into each member's run folder: by and by, or beside the training."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headway.core.progress import Reporter
from headway.experiment.trackers import Observer
from headway.run.folder import Run
from headway.training.population import Population
from headway.training.processes import Processes
from headway.training.setting import Setting


class Writer:
    """Does what it is told at once. On a CPU, a thread beside the training would take the cores that compute."""

    def __init__(self, processes: Processes):
        self.processes = processes

    def __call__(self, do: Callable[[], None]) -> None:
        self.processes.write(do)

    def finish(self) -> None:
        """Everything is on the disk afterwards, or the error that kept it from there is raised."""

    def close(self) -> None:
        """However training ended."""


class WriterBeside(Writer):
    """Does it in a thread, one thing after the other. On a GPU five hundred steps take seconds, and waiting for
    checksums and disks would take a fifth of them. An error is raised at one of the next orders, or at the end."""

    def __init__(self, processes: Processes, at_most: int):
        super().__init__(processes)
        self.at_most = at_most  # orders that wait: each may hold a copy of a replica
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
    def __init__(
        self,
        population: Population,
        members: list[Run],
        reporter: Reporter,
        observers: Sequence[Observer],
        writer: Writer,
    ):
        self.population, self.members, self.reporter, self.observers = population, members, reporter, observers
        self.writer, self.processes = writer, population.parallel.processes

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> str | None:
        self.processes.write(lambda: self.members[replica].append_metrics(lines))
        self.population.replica_states[replica].lines += len(lines)
        answers = [observer.metrics(replica, lines) for observer in self.observers]
        for line in lines:
            if "scores" in line:
                self.reporter.scores(self.members[replica].name, line["step"], line["scores"])
        # Only the writer has observers, and all processes must end a replica at the same step.
        return next(filter(None, answers), None) if self.processes.world == 1 else None

    def checkpoint(self, replica: int, step: int) -> None:
        if self.population.takes_part:
            made = self.population.slice(replica, step)
            self.writer(lambda: self.members[replica].save_checkpoint(made))

    def best(self, replica: int, step: int) -> None:
        if self.population.takes_part:
            made = self.population.slice(replica, step)
            self.writer(lambda: self.members[replica].save_best(made))

    def progress(self, step: int, losses: list[float], tokens_per_second: float) -> None:
        self.reporter.update(step, losses, tokens_per_second)

    def ended(self, replica: int) -> None:
        states = self.population.replica_states
        said = f"{self.members[replica].name} {states[replica].ended}"
        if (best := states[replica].best_loss) is not None:
            said += f" (best {best:.4f})"
        others = "; the others go on" if any(state.ended is None for state in states) else ""
        self.reporter.say(said + others)
