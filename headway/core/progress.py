"""What a person sees while training runs: a bar on a terminal, plain lines elsewhere. All of it on stderr."""

import sys
import time
from collections.abc import Sequence
from typing import Any


class Reporter:
    """Says nothing; the base of those who do, and what library callers get."""

    def say(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def begin(self, title: Sequence[str], step: int, total: int) -> None: ...
    def update(self, step: int, losses: Sequence[float], tokens_per_second: float) -> None: ...
    def scores(self, name: str, step: int, scores: dict[str, float]) -> None: ...
    def end(self) -> None: ...


class Lines(Reporter):
    """For logs: a line every few seconds."""

    def __init__(self, every_seconds: float = 5.0):
        self.every_seconds, self.total, self.began, self.first_step, self.last_line = every_seconds, 0, 0.0, 0, 0.0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def begin(self, title: Sequence[str], step: int, total: int) -> None:
        for line in title:
            self.say(line)
        self.total, self.first_step, self.began, self.last_line = total, step, time.monotonic(), time.monotonic()

    def update(self, step: int, losses: Sequence[float], tokens_per_second: float) -> None:
        now = time.monotonic()
        if step < self.total and now - self.last_line < self.every_seconds:
            return
        self.last_line = now
        left = (now - self.began) / max(1, step - self.first_step) * (self.total - step)
        speed = f"{tokens_per_second:,.0f} tokens/s"
        self.say(f"step {step:,}/{self.total:,}  loss {_spread(losses)}  {speed}  {_time(left)} left")

    def scores(self, name: str, step: int, scores: dict[str, float]) -> None:
        self.say(f"step {step:,}  {name}  " + "  ".join(f"{key} {value:.4f}" for key, value in scores.items()))


class Bar(Lines):
    """For people: one bar that moves, and the scores above it."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self.console = Console(stderr=True, highlight=False)
        self.bar: Any = None
        self.task: Any = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, style="dim")

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    def begin(self, title: Sequence[str], step: int, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        for line in title:
            self.say(line)
        self.bar = Progress(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=total, completed=step, loss="–", speed="–")
        self.bar.start()

    def update(self, step: int, losses: Sequence[float], tokens_per_second: float) -> None:
        self.bar.update(self.task, completed=step, loss=_spread(losses), speed=f"{tokens_per_second:,.0f}")

    def end(self) -> None:
        self.bar.stop()


def for_this_terminal() -> Reporter:
    return Bar() if sys.stderr.isatty() else Lines()


def _spread(losses: Sequence[float]) -> str:
    return f"{losses[0]:.4f}" if len(losses) == 1 else f"{min(losses):.4f} … {max(losses):.4f}"


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"
