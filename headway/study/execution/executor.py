"""Where the runs of a study are trained, and who writes down how they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.errors import UserError
from headway.core.plugins import blamed_on_plugin, concerning
from headway.core.progress import Reporter
from headway.core.status import State, Status
from headway.study.design.study import PlannedRun
from headway.study.execution.board import Watcher, step_text
from headway.study.folder import StudyFolder


class Executor(Protocol):
    """Where runs are trained."""

    def train(self, runs: Sequence[PlannedRun], log: "Log") -> bool:
        """Train them all, telling the log how each ended; gives whether somebody asked to stop before the end."""
        ...


@dataclass(frozen=True)
class Log:
    """How runs end, written down and shown."""

    folder: StudyFolder
    watcher: Watcher

    def say(self, text: str) -> None:
        """What somebody should know later, too."""
        self.folder.write_log(text)
        self.watcher.say(text)

    def progress(self, name: str, text: str) -> None:
        self.watcher.progress(name, text)

    def ended(self, name: str, status: Status) -> None:
        """Diverged is an end too: there is nothing left to do."""
        self.folder.forget_failure(name)
        self.watcher.ended(name, status)

    def failed(self, name: str, reason: str, details: str = "") -> None:
        status = Status(State.FAILED, reason=reason)
        self.folder.note_failure(name, status, details)
        self.watcher.ended(name, status)


class OfPopulation(Reporter):
    """What a population in this process reports, told to those who watch the study."""

    def __init__(self, log: Log, names: Sequence[str]):
        self.log, self.names, self.total = log, names, 0

    def warn(self, text: str) -> None:
        self.log.say(f"warning: {self.names[0]}{' …' if len(self.names) > 1 else ''}: {text}")

    def begin(self, title: Sequence[str], step: int, total: int) -> None:
        self.total = total

    def update(self, step: int, losses: Sequence[float], tokens_per_second: float) -> None:
        many = f", {len(self.names)} runs as one, {tokens_per_second:,.0f} tokens/s" if len(self.names) > 1 else ""
        self.log.progress(self.names[0], step_text(step, self.total, min(losses)) + many)


def order_for(run: PlannedRun) -> dict[str, Any]:
    """All that another process needs to know."""
    files = {plugin.name: plugin.text for plugin in concerning(run.recipe) if plugin.is_file}
    return {"recipe": run.recipe.model_dump(mode="json"), "plugins": files, "name": run.name}


def reason_of(error: BaseException) -> str:
    """In one line."""
    if not isinstance(error, UserError) and (told := blamed_on_plugin(error)):
        return told
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, OSError) and error.strerror:  # a full disk is nobody's mistake, and needs no name of a class
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
