"""What users see while training runs: a progress bar on a terminal, plain lines elsewhere. All of it on stderr."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from headway.core.events import Began, Ended, Event, Halted, Noted, Scored, Stepped, Trained, Warned
from headway.core.format import clock


class Lines:
    """Progress for logs: one line every few seconds."""

    def __init__(self, every_seconds: float = 5.0):
        self.every_seconds, self.began, self.first_step, self.last_line = every_seconds, 0.0, 0, 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Warned():
                self.warn(event.text)
            case Noted():
                self.say(event.text)
            case Began():
                for line in event.title:
                    self.say(line)
                self.begin(event)
            case Stepped():
                self.step(event)
            case Scored():
                told = "  ".join(f"{name} {value:.4f}" for name, value in event.scores.items())
                self.say(f"step {event.step:,}  {event.of[0]}  {told}")
            case Halted():
                best = "" if event.best_loss is None else f" (best {event.best_loss:.4f})"
                self.say(f"{event.of[0]} {event.status}{best}{'; the other runs continue' * event.others_go_on}")
            case Trained() | Ended():
                self.end()
            case _:
                pass

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def begin(self, event: Began) -> None:
        self.first_step, self.began, self.last_line = event.step, time.monotonic(), time.monotonic()

    def step(self, event: Stepped) -> None:
        now = time.monotonic()
        if event.step < event.total and now - self.last_line < self.every_seconds:
            return
        self.last_line = now
        left = (now - self.began) / max(1, event.step - self.first_step) * (event.total - event.step)
        speed = f"{event.tokens_per_second:,.0f} tokens/s"
        self.say(f"step {event.step:,}/{event.total:,}  loss {_spread(event.losses)}  {speed}  {clock(left)} left")

    def end(self) -> None: ...


class Bar(Lines):
    """Progress for terminals: one progress bar, with the scores above it."""

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

    def begin(self, event: Began) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=event.total, completed=event.step, loss="–", speed="–")
        self.bar.start()

    def step(self, event: Stepped) -> None:
        speed = f"{event.tokens_per_second:,.0f}"
        self.bar.update(self.task, completed=event.step, loss=_spread(event.losses), speed=speed)

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def for_this_terminal() -> Lines:
    return Bar() if sys.stderr.isatty() else Lines()


def _spread(losses: Sequence[float]) -> str:
    return f"{losses[0]:.4f}" if len(losses) == 1 else f"{min(losses):.4f} … {max(losses):.4f}"


class Counting:
    """Progress through a known number of items: a bar on a terminal, elsewhere a line every few seconds."""

    def __init__(self, every_seconds: float = 5.0):
        self.every_seconds, self.done, self.began, self.last_line = every_seconds, 0, time.monotonic(), time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> "Counting":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self.began = time.monotonic()

    def step(self, what: str, of: int) -> None:
        """Count one more item as done."""
        self.done += 1
        if sys.stderr.isatty():
            self._move(what, of)
            return
        now = time.monotonic()
        if self.done == of or now - self.last_line >= self.every_seconds:
            self.last_line = now
            left = (now - self.began) / self.done * (of - self.done)
            print(f"{self.done:,}/{of:,}  {what}  {clock(left)} left", file=sys.stderr, flush=True)

    def _move(self, what: str, of: int) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(what, total=of)
            self.bar.start()
        self.bar.update(self.task, completed=self.done, description=what)


class Waiting:
    """Progress of one long task, shown after its first second: a bar on a terminal, elsewhere occasional lines."""

    def __init__(self, patience: float = 1.0, every_seconds: float = 10.0):
        self.patience, self.every_seconds = patience, every_seconds
        self.what, self.began, self.last_line = "", 0.0, 0.0
        self.bar: Any = None

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if what != self.what:
            self._end()
            self.what, self.began, self.last_line = what, now, now
        if now - self.began < self.patience:
            return
        if sys.stderr.isatty():
            self._move(what, done, of)
        elif now - self.last_line >= self.every_seconds:
            self.last_line = now
            left = (now - self.began) / max(1, done) * (of - done)
            print(f"{what}: {done / max(1, of):.0%}, {clock(left)} left", file=sys.stderr, flush=True)
        if done >= of:
            self._end()

    def _move(self, what: str, done: int, of: int) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(what, total=of)
            self.bar.start()
        self.bar.update(self.task, completed=done, total=of)

    def _end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.what = None, ""
