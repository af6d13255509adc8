"""What users see while a study runs: a table on a terminal, plain lines elsewhere. All of it on stderr."""

import sys
import time
from typing import Any

from headway.core.events import Began, Closed, Ended, Event, Noted, Opened, Stepped, Warned
from headway.core.format import clock
from headway.core.status import State

ROWS = 24
"""Rows of the table. With more, it would scroll."""
SECONDS_BETWEEN_LINES = 10
MIN_WORK_FOR_ESTIMATE = 0.5
"""In runs. With less work done, startup dominates the time so far, and no time left is shown."""
LOST = (State.FAILED, State.DIVERGED)


class Counts:
    """How far a study is, counted from its events."""

    def __init__(self) -> None:
        self.arm_of: dict[str, str] = {}
        self.arms: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.running: dict[str, str] = {}
        self.share: dict[str, float] = {}
        """The share of steps done by each unfinished run."""
        self.began, self.worked = time.monotonic(), 0.0
        """The start time, and how many runs' worth of steps have been taken since."""

    def __call__(self, event: Event) -> None:
        match event:
            case Opened():
                self.arm_of, self.began = dict(event.arm_of), time.monotonic()
                for arm in self.arm_of.values():
                    self.arms[arm] = self.arms.get(arm, 0) + 1
                for name in event.done:
                    self._count(self.done, name)
            case Began():
                self.running[event.of[0]] = "starting"
                self.share |= dict.fromkeys(event.of, event.step / max(event.total, 1))
            case Stepped():
                self.running[event.of[0]] = _step(event)
                for name in event.of:
                    self._reached(name, event.step / max(event.total, 1))
            case Ended():
                self.running.pop(event.of[0], None)
                self._count(self.failed if event.status.state in LOST else self.done, event.of[0])
                self._reached(event.of[0], 1.0)
                del self.share[event.of[0]]
            case _:
                pass

    def _count(self, counts: dict[str, int], name: str) -> None:
        counts[self.arm_of[name]] = counts.get(self.arm_of[name], 0) + 1

    def _reached(self, name: str, share: float) -> None:
        self.worked += share - self.share.get(name, 0.0)
        self.share[name] = share

    @property
    def summary(self) -> str:
        done, failed = sum(self.done.values()), sum(self.failed.values())
        text = f"{done} of {len(self.arm_of)} runs" + (f", {failed} failed" if failed else "")
        left = len(self.arm_of) - done - failed - sum(self.share.values())
        if self.worked >= MIN_WORK_FOR_ESTIMATE and left > 0:
            text += f", {clock((time.monotonic() - self.began) / self.worked * left)} left"
        return text


class BoardLines(Counts):
    """Progress for logs: one line for every run that ends, and occasional lines for long ones."""

    last_line = 0.0

    def say(self, text: str) -> None:
        self.last_line = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        match event:
            case Noted():
                self.say(_told(event))
            case Stepped() if time.monotonic() - max(self.last_line, self.began) > SECONDS_BETWEEN_LINES:
                self.say(f"{event.of[0]}: {_step(event)}  ({self.summary})")
            case Ended():
                self.say(f"{event.of[0]}: {event.status}  ({self.summary})")
            case _:
                pass


class Board(Counts):
    """Progress for terminals: one row per arm, with failures printed above the table."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.drawn = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, style="dim")

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        match event:
            case Opened():
                self.live.start()
                self.draw(now=True)
            case Noted():
                self.say(_told(event))
            case Ended():
                if event.status.state is not State.FINISHED:
                    self.console.print(f"{event.of[0]}: {event.status}", markup=False, style="yellow")
                self.draw()
            case Closed():
                self.draw(now=True)
                self.live.stop()
                self.say(self.summary)
            case _:
                self.draw()

    def draw(self, now: bool = False) -> None:
        if not now and time.monotonic() - self.drawn < 0.2:
            return
        self.drawn = time.monotonic()
        self.live.update(self.table(), refresh=True)

    def table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), caption=self.summary)
        for column in ("arm", "done", "", "now"):
            found.add_column(column)
        busy = {self.arm_of[name]: f"{name.rpartition('.')[2]} {text}" for name, text in self.running.items()}
        # With too many arms for the table, those with running trainings come first.
        shown = sorted(self.arms, key=lambda arm: arm not in busy)[:ROWS] if len(self.arms) > ROWS else list(self.arms)
        for arm in shown:
            done, failed, count = self.done.get(arm, 0), self.failed.get(arm, 0), self.arms[arm]
            bar = Text.assemble(("█" * round(12 * done / count), "green"), ("█" * round(12 * failed / count), "red"))
            found.add_row(Text(arm), f"{done}/{count}", bar, Text(busy.get(arm, "")))
        return found


def for_this_terminal() -> BoardLines | Board:
    return Board() if sys.stderr.isatty() else BoardLines()


def _step(event: Stepped) -> str:
    text = f"step {event.step:,}/{event.total:,}  loss {min(event.losses):.4f}"
    if len(event.of) > 1:
        text += f", {len(event.of)} runs as one population, {event.tokens_per_second:,.0f} tokens/s"
    return text


def _told(event: Noted) -> str:
    return f"warning: {event.text}" if isinstance(event, Warned) else event.text
