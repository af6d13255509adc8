"""Announces events of a training to listeners and to the run folders."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headway.core import events
from headway.core.events import Ended, Event, Listener, Warned
from headway.core.plugins import reason_of
from headway.core.status import State, Status
from headway.training.processes import Processes


class Announcer:
    """Passes events to listeners and writes them into the run folders. Events from before the folders exist are written
    as soon as they do."""

    def __init__(self, runs: Path, names: Sequence[str], listeners: Sequence[Listener], processes: Processes):
        self.runs, self.names, self.processes = runs, tuple(names), processes
        self.listeners = listeners if processes.is_writer else ()
        self.waiting: list[Event] | None = []

    def __call__(self, event: Event) -> str | None:
        if self.waiting is None:
            self._write(event)
        else:
            self.waiting.append(event)
        return events.tell(self.listeners, event)

    def open(self) -> None:
        """Write the waiting events: the folders now exist and are locked."""
        waiting, self.waiting = self.waiting or [], None
        for event in waiting:
            self._write(event)

    def warn(self, text: str) -> None:
        self(Warned(of=self.names, text=text))

    def abandon(self, error: BaseException) -> None:
        """Report an error that ended all runs. Write failures are ignored, since the error may be a full disk."""
        if self.waiting is not None or not self.processes.is_writer:
            return
        state = State.INTERRUPTED if isinstance(error, KeyboardInterrupt) else State.FAILED
        for name in self.names:
            event = Ended(of=(name,), status=Status(state, reason=reason_of(error)))
            with suppress(OSError):
                events.append(self.runs / name, event)
            events.tell(self.listeners, event)

    def _write(self, event: Event) -> None:
        if event.is_written:
            self.processes.write(lambda: self._append(event))

    def _append(self, event: Event) -> None:
        for name in event.of:
            events.append(self.runs / name, replace(event, of=(name,)))
