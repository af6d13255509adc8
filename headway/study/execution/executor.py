"""Where the runs of a study are trained, and who writes down how they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core import events
from headway.core.events import Began, Ended, Event, Listener, Noted, Stepped, Warned
from headway.core.plugins import texts_for
from headway.core.status import State, Status
from headway.study.design.study import PlannedRun
from headway.study.folder import StudyFolder


@dataclass(frozen=True)
class Workforce:
    """By how many runs are trained at the same time."""

    processes: int
    gpus: int = 0
    """That populations are dealt out over; 0 = there is none, and a process trains one run at a time, on one thread."""

    def share_one(self, populations: int) -> int:
        """How many of so many populations are on a GPU at the same time."""
        return -(-min(self.processes, populations) // self.gpus)


class Executor(Protocol):
    """Where runs are trained."""

    def train(self, runs: Sequence[PlannedRun], log: "Log") -> bool:
        """Train them all, telling the log how each ended; gives whether somebody asked to stop before the end."""
        ...


@dataclass(frozen=True)
class Log:
    """What happens to a study: written down in its folder, and told to those who listen."""

    folder: StudyFolder
    listeners: Sequence[Listener]

    def tell(self, event: Event) -> None:
        events.append(self.folder.path, event)
        self.relay(event)

    def relay(self, event: Event) -> None:
        """What the folder of a run has already."""
        events.tell(self.listeners, event)

    def say(self, text: str) -> None:
        self.tell(Noted(of=(self.folder.path.name,), text=text))

    def note(self, text: str) -> None:
        """What belongs beside the output of those who trained, too."""
        self.folder.write_log(text)
        self.say(text)

    def warn(self, names: Sequence[str], text: str) -> None:
        about = f"{names[0]}{' …' if len(names) > 1 else ''}: {text}"
        self.folder.write_log(f"warning: {about}")
        self.tell(Warned(of=tuple(names), text=about))

    def ended(self, name: str, status: Status) -> None:
        """Diverged is an end too: there is nothing left to do."""
        self.folder.forget_failure(name)
        self.tell(Ended(of=(name,), status=status))

    def failed(self, name: str, reason: str, details: str = "") -> None:
        status = Status(State.FAILED, reason=reason)
        self.folder.note_failure(name, status, details)
        self.tell(Ended(of=(name,), status=status))

    def of_population(self, event: Event) -> None:
        """Listens to a training in this process. How each run ended is said when that is known of all."""
        match event:
            case Warned():
                self.warn(event.of, event.text)
            case Began() | Stepped():
                self.relay(event)
            case _:
                pass


def order_for(run: PlannedRun) -> dict[str, Any]:
    """All that another process needs to know."""
    return {"recipe": run.recipe.model_dump(mode="json"), "plugins": texts_for(run.recipe), "name": run.name}
