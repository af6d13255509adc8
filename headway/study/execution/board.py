"""What a person sees while a study runs: a table on a terminal, plain lines elsewhere. All of it on stderr."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.status import State, Status

ROWS = 24
"""Of the table: more would scroll."""


SECONDS_BETWEEN_LINES = 10
LOST = (State.FAILED, State.DIVERGED)


class Watcher:
    """Says nothing, and counts; the base of those who do."""

    def __init__(self) -> None:
        self.arms: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.running: dict[str, str] = {}
        self.began, self.total, self.ended_now = time.monotonic(), 0, 0

    def say(self, text: str) -> None: ...

    def begin(self, runs: Mapping[str, str], done: Sequence[str]) -> None:
        """`runs`: run → arm, all of the study; those of `done` were there before."""
        self.arm_of = dict(runs)
        for arm in runs.values():
            self.arms[arm] = self.arms.get(arm, 0) + 1
        for name in done:
            self.done[runs[name]] = self.done.get(runs[name], 0) + 1
        self.began, self.total = time.monotonic(), len(runs)

    def progress(self, name: str, text: str) -> None:
        self.running[name] = text

    def ended(self, name: str, status: Status) -> None:
        self.running.pop(name, None)
        counts = self.failed if status.state in LOST else self.done
        counts[self.arm_of[name]] = counts.get(self.arm_of[name], 0) + 1
        self.ended_now += 1

    def end(self) -> None: ...

    @property
    def summary(self) -> str:
        done, failed = sum(self.done.values()), sum(self.failed.values())
        text = f"{done} of {self.total} runs" + (f", {failed} failed" if failed else "")
        left = self.total - done - failed
        if self.ended_now and left:
            seconds = round((time.monotonic() - self.began) / self.ended_now * left)
            text += f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"
        return text


class BoardLines(Watcher):
    """For logs: a line for every run that ends, and now and then one for those that take long."""

    last_line = 0.0

    def say(self, text: str) -> None:
        self.last_line = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def progress(self, name: str, text: str) -> None:
        super().progress(name, text)
        if time.monotonic() - max(self.last_line, self.began) > SECONDS_BETWEEN_LINES:
            self.say(f"{name}: {text}  ({self.summary})")

    def ended(self, name: str, status: Status) -> None:
        super().ended(name, status)
        self.say(f"{name}: {status}  ({self.summary})")


class Board(Watcher):
    """For people: a row for every arm, and failures above the table as they come."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.drawn = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, style="dim")

    def begin(self, runs: Mapping[str, str], done: Sequence[str]) -> None:
        super().begin(runs, done)
        self.live.start()
        self.draw(now=True)

    def progress(self, name: str, text: str) -> None:
        super().progress(name, text)
        self.draw()

    def ended(self, name: str, status: Status) -> None:
        super().ended(name, status)
        if status.state is not State.FINISHED:
            self.console.print(f"{name}: {status}", markup=False, style="yellow")
        self.draw()

    def end(self) -> None:
        self.draw(now=True)
        self.live.stop()
        self.say(self.summary)

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
        # Where there are too many arms, those where something happens.
        shown = sorted(self.arms, key=lambda arm: arm not in busy)[:ROWS] if len(self.arms) > ROWS else list(self.arms)
        for arm in shown:
            done, failed, count = self.done.get(arm, 0), self.failed.get(arm, 0), self.arms[arm]
            bar = Text.assemble(("█" * round(12 * done / count), "green"), ("█" * round(12 * failed / count), "red"))
            found.add_row(Text(arm), f"{done}/{count}", bar, Text(busy.get(arm, "")))
        return found


def step_text(step: int, total: int, loss: float) -> str:
    return f"step {step:,}/{total:,}  loss {loss:.4f}"


def for_this_terminal() -> Watcher:
    return Board() if sys.stderr.isatty() else BoardLines()
