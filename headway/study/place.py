"""Where the runs of a study are trained, and who writes down how they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.errors import UserError
from headway.study.design import PlannedRun
from headway.study.folder import StudyFolder
from headway.study.watching import Watcher


class Place(Protocol):
    """Where runs are trained."""

    def train(self, runs: Sequence[PlannedRun], log: "Log") -> bool:
        """Train them all, telling the log how each ended; gives whether somebody asked to stop before the end."""
        ...


@dataclass(frozen=True)
class Log:
    """How runs end, written down and shown."""

    folder: StudyFolder
    watcher: Watcher

    def progress(self, name: str, text: str) -> None:
        self.watcher.progress(name, text)

    def ended(self, name: str, status: str) -> None:
        """Diverged is an end too: there is nothing left to do."""
        self.folder.forget_failure(name)
        self.watcher.ended(name, status, failed=status.startswith("diverged"))

    def failed(self, name: str, reason: str, details: str = "") -> None:
        self.folder.note_failure(name, reason, details)
        self.watcher.ended(name, reason, failed=True)


def reason_of(error: BaseException) -> str:
    """In one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
