"""Listeners that tests pass to trainings: one records events, one presses Ctrl-C."""

import os
import signal
from typing import TypeVar

from headway.core.events import Began, Event, Noted, Scored, Warned

Kind = TypeVar("Kind", bound=Event)


class Told:
    """Records every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.of_kind(Noted)]

    @property
    def warned(self) -> list[str]:
        return [event.text for event in self.of_kind(Warned)]

    @property
    def title(self) -> tuple[str, ...]:
        return self.of_kind(Began)[0].title


class Interrupting:
    """Presses Ctrl-C when a step (by default the first) is scored: one more step is trained."""

    def __init__(self, step: int | None = None):
        self.step, self.pressed = step, False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Scored) and self.step in (None, event.step) and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
