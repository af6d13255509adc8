"""Dispatch the runs of a study to worker processes: who trains what, what is reported back, what happens on a crash.

If a worker dies, the runs it was training fail, and a new worker takes over its slot. If a GPU runs out of memory
because others use it, the population waits for another worker on the same GPU, or goes to another GPU. A GPU on which
that happens repeatedly gets no more populations.
"""

import selectors
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from headway.core.events import Warned, read_event
from headway.core.reading import opened_to_append
from headway.core.status import Status
from headway.study.design.study import PlannedRun
from headway.study.execution.executor import Log, order_for
from headway.study.execution.workers import Worker, WorkerSlot, dismiss_spares
from headway.study.results.results import ending
from headway.training.interrupts import interruptible

MAX_FAILURES_IN_A_ROW = 2
"""How many populations in a row may fail to fit on a GPU before it gets no more."""


def dispatch(slots: Sequence[WorkerSlot], populations: Sequence[list[PlannedRun]], log: Log) -> bool:
    """Give free workers the next population until none is left or a stop is requested. Returns whether it was."""
    with (
        opened_to_append(log.folder.path / "log.txt") as output,
        selectors.DefaultSelector() as ready,
        interruptible(aloud=False) as stop_asked,
    ):
        measures = [one.model_dump(mode="json") for one in log.folder.study.measures]
        dispatcher = _Dispatcher(deque(populations), log, output, ready, stop_asked, measures)
        return dispatcher.run(slots[: len(populations)])


@dataclass
class _Dispatcher:
    waiting: deque[list[PlannedRun]]
    log: Log
    output: IO[bytes]
    ready: selectors.BaseSelector
    stop_asked: Any
    measures: list[dict[str, Any]]
    """The study's further measures, as sent to worker processes."""
    stopping: bool = False
    too_large: dict[str, str] = field(default_factory=dict)
    """Runs that did not fit, with the GPU they did not fit on; they go to another one."""
    warned: set[str] = field(default_factory=set)

    def run(self, slots: Sequence[WorkerSlot]) -> bool:
        try:
            for slot in slots:
                self.start(slot)
            dismiss_spares()
            while self.ready.get_map():
                for key, _ in self.ready.select(timeout=0.2):
                    self.listen(key.data)
                if self.stop_asked() and not self.stopping:
                    self.stop()
        finally:
            for key in list(self.ready.get_map().values()):
                key.data.close()
        return self.stopping

    @property
    def workers(self) -> list[Worker]:
        return [key.data for key in self.ready.get_map().values()]

    def start(self, slot: WorkerSlot) -> None:
        worker = Worker(self.output, slot)
        self.ready.register(worker.process.stdout, selectors.EVENT_READ, worker)  # pyright: ignore
        self.assign(worker)

    def assign(self, worker: Worker) -> None:
        """Give this worker the next population, or release it if there is none."""
        runs = None if self.stopping else self.next_for(worker)
        if runs is None:
            self.release(worker)
            return
        self.waiting.remove(runs)
        worker.arm = runs[0].arm
        order = {"members": [order_for(run) for run in runs], "measures": self.measures}
        worker.give(runs, {**order, "runs": str(self.log.folder.runs)})

    def next_for(self, worker: Worker) -> list[PlannedRun] | None:
        """The next population for this worker: preferably of the arm it trained last, whose model it has already
        audited in depth; otherwise of an arm that no other worker is training."""
        waiting, others = self.fitting(worker.slot), {one.arm for one in self.workers if one is not worker}
        mine = (runs for runs in waiting if runs[0].arm == worker.arm)
        fresh = (runs for runs in waiting if runs[0].arm not in others)
        return next(mine, None) or next(fresh, None) or next(iter(waiting), None)

    def fitting(self, slot: WorkerSlot) -> list[list[PlannedRun]]:
        """The waiting populations that may go to this slot, as long as other slots can take the rest."""
        if slot.is_given_up:
            return []
        if not any(one.slot.called != slot.called for one in self.workers):
            return list(self.waiting)
        if slot.too_small >= MAX_FAILURES_IN_A_ROW:
            return []
        return [runs for runs in self.waiting if self.too_large.get(runs[0].name) != slot.called]

    def listen(self, worker: Worker) -> None:
        answers = worker.answers()
        if answers is None:
            self.replace(worker)
            return
        for answer in answers:
            if "event" in answer:
                self.relay(answer)
                continue
            if "failed" in answer:
                worker.is_leaving = answer["leaving"]
                self.failed(worker, answer)
            else:
                worker.slot.too_small = 0
                self.ended(worker, {name: Status.read(how) for name, how in answer["ended"].items()})
            worker.runs = []
            if not worker.is_leaving:
                self.assign(worker)

    def relay(self, told: dict[str, Any]) -> None:
        event = read_event(told)
        if not isinstance(event, Warned):
            self.log.relay(event)
        elif event.text not in self.warned:  # only once for all seeds and arms
            self.warned.add(event.text)
            self.log.warn(event.of, event.text)

    def ended(self, worker: Worker, statuses: Mapping[str, Status]) -> None:
        for run in worker.runs:
            status = statuses.get(run.name)
            if status is not None and not status.is_interrupted:
                self.log.ended(run.name, status)
            elif not self.stopping:
                self.log.failed(run.name, f"{status or 'stopped'} from outside the study")

    def failed(self, worker: Worker, why: Mapping[str, Any]) -> None:
        """Handle a failed population. Some of its runs may have ended before. If it only ran out of memory, the memory
        may be taken by workers that share this GPU or by other programs, so its runs are tried again elsewhere."""
        left = self._not_ended(worker.runs)
        if why["memory"] and worker.slot.called is not None and left and not self.stopping:
            where = self._room_for(left, worker)
            if where is not None:
                self.waiting.append(left)
                self.log.warn([run.name for run in left], worker.slot.said(f"its memory is full; {where}"))
                return
        for run in left:
            self.log.failed(run.name, worker.slot.said(why["failed"]), why["details"])

    def _room_for(self, runs: Sequence[PlannedRun], worker: Worker) -> str | None:
        """A sentence on where these runs will be tried again; None = nowhere."""
        slot = worker.slot
        others = [one.slot for one in self.workers if one is not worker]
        if sharing := [other for other in others if other.called == slot.called]:
            slot.is_given_up = not all(other.is_given_up for other in sharing)
            return "from now on fewer processes share it, and these runs wait for one of them"
        slot.too_small += 1
        if not others or runs[0].name in self.too_large:
            return None
        assert slot.called is not None
        self.too_large |= {run.name: slot.called for run in runs}
        return (
            "it gets no more runs, and " if slot.too_small >= MAX_FAILURES_IN_A_ROW else ""
        ) + "these runs go to another GPU"

    def _not_ended(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The runs that have not ended; how the others ended is logged."""
        left: list[PlannedRun] = []
        for run in runs:
            if status := ending(self.log.folder.runs / run.name):
                self.log.ended(run.name, status)
            else:
                left.append(run)
        return left

    def replace(self, worker: Worker) -> None:
        """Start another process in the slot of one that died, unless the study stops."""
        why, slot = worker.slot.said(worker.how_it_died()), worker.slot
        self.release(worker)
        for run in self._not_ended(worker.runs) if not self.stopping else ():
            self.log.failed(run.name, why)
        if self.fitting(slot) and not self.stopping:
            self.start(slot)

    def release(self, worker: Worker) -> None:
        self.ready.unregister(worker.process.stdout)  # pyright: ignore
        worker.close()

    def stop(self) -> None:
        """Ask all workers to stop: runs finish their step and save, unless they have not started training yet."""
        self.stopping = True
        self.log.say("stopping: every run finishes its step and saves; press Ctrl-C again to quit without saving")
        for worker in self.workers:
            worker.ask_to_stop()
