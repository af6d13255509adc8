"""The interface of executors, which train the runs of a study, and the log that records how runs end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core import events
from headway.core.events import Began, Ended, Event, Listener, Noted, Stepped, Warned
from headway.core.status import State, Status
from headway.recipe.plugins import texts_for
from headway.study.design.study import PlannedRun
from headway.study.folder import StudyFolder


@dataclass(frozen=True)
class Workforce:
    """How many processes and GPUs train the runs."""

    processes: int
    gpus: int = 0
    """The number of GPUs that populations are distributed over; 0 = none: each process trains one run at a time on one
    thread."""

    def share_one(self, populations: int) -> int:
        """How many of these populations run on one GPU at the same time."""
        return -(-min(self.processes, populations) // self.gpus)


class Executor(Protocol):
    """Trains the runs of a study."""

    def train(self, runs: Sequence[PlannedRun], log: "Log") -> bool:
        """Train all runs and report to the log how each ended; returns whether it was interrupted."""
        ...


@dataclass(frozen=True)
class Log:
    """Records the events of a study in its folder and passes them to listeners."""

    folder: StudyFolder
    listeners: Sequence[Listener]

    def tell(self, event: Event) -> None:
        events.append(self.folder.path, event)
        self.relay(event)

    def relay(self, event: Event) -> None:
        """Pass on an event that the folder of a run has already recorded."""
        events.tell(self.listeners, event)

    def say(self, text: str) -> None:
        self.tell(Noted(of=(self.folder.path.name,), text=text))

    def note(self, text: str) -> None:
        """Say something and also write it to log.txt."""
        self.folder.write_log(text)
        self.say(text)

    def warn(self, names: Sequence[str], text: str) -> None:
        about = f"{names[0]}{' …' if len(names) > 1 else ''}: {text}"
        self.folder.write_log(f"warning: {about}")
        self.tell(Warned(of=tuple(names), text=about))

    def ended(self, name: str, status: Status) -> None:
        """Record that a run ended. Diverged runs have ended too: there is nothing left to do."""
        self.folder.forget_failure(name)
        self.tell(Ended(of=(name,), status=status))

    def failed(self, name: str, reason: str, details: str = "") -> None:
        status = Status(State.FAILED, reason=reason)
        self.folder.note_failure(name, status, details)
        self.tell(Ended(of=(name,), status=status))

    def of_population(self, event: Event) -> None:
        """Listen to a population trained in this process. How its runs ended is reported later, for all together."""
        match event:
            case Warned():
                self.warn(event.of, event.text)
            case Began() | Stepped():
                self.relay(event)
            case _:
                pass


def order_for(run: PlannedRun) -> dict[str, Any]:
    """Everything another process needs to train this run."""
    return {"recipe": run.recipe.model_dump(mode="json"), "plugins": texts_for(run.recipe), "name": run.name}
