"""What happens to runs and studies, as data: began, stepped, scored, saved, halted, ended.

Whoever wants to know listens: a function that takes an event. Bars, plain lines, trackers, a study's board and its
pruning are such functions. Events are also written to `events.jsonl` in the folder of the run or study, a line each, as
they happen; so whoever opens a folder can tell what stands where without asking the process. Steps are told about once
a second and not written a second time: metrics.jsonl has every one of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from headway.core.errors import UserError
from headway.core.files import naming
from headway.core.reading import opened_to_append
from headway.core.seal import read_sealed_lines
from headway.core.status import Status

FILE = "events.jsonl"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    of: tuple[str, ...]
    """The names of the runs it is of, all those that train as one; or the study's name, alone."""
    time: str = field(default_factory=_now)

    is_written: ClassVar[bool] = True

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        if isinstance(status := getattr(self, "status", None), Status):
            found["status"] = status.as_json()
        return {"event": type(self).__name__.lower(), **found}


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """Training begins, or goes on."""

    folder: str
    """That holds their run folders."""
    title: tuple[str, ...]
    """Lines that say what is trained, on what, and how."""
    step: int
    total: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Stepped(Event):
    """Where training stands; about once a second."""

    step: int
    total: int
    losses: tuple[float, ...]
    """Of each run."""
    tokens_per_second: float

    is_written = False


@dataclass(frozen=True, kw_only=True)
class Logged(Event):
    """Lines of one run's metrics.jsonl, as they were added to it."""

    lines: Sequence[Mapping[str, Any]]

    is_written = False


@dataclass(frozen=True, kw_only=True)
class Scored(Event):
    """One run was evaluated. A listener may answer with a reason why it needs no further step."""

    step: int
    scores: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint of one run."""

    step: int
    kind: str
    """`step`, to be resumed from; `best`, to be scored."""


@dataclass(frozen=True, kw_only=True)
class Halted(Event):
    """One run takes no further step before its time: diverged, stopped, pruned. Its scores follow at the end."""

    status: Status
    best_loss: float | None
    """Of its evaluations, in what the training goes by: the loss, if nothing else."""
    others_go_on: bool


@dataclass(frozen=True, kw_only=True)
class Trained(Event):
    """The last step is taken; scores and audits follow."""


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """One run is scored and audited, or an error has ended it: nothing more comes."""

    status: Status


@dataclass(frozen=True, kw_only=True)
class Noted(Event):
    """What somebody should know, in words."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Warned(Noted):
    pass


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """A study begins, or goes on."""

    arm_of: Mapping[str, str]
    """All of its runs, and their arms."""
    done: Sequence[str]
    """Those that had ended before."""


@dataclass(frozen=True, kw_only=True)
class Closed(Event):
    """A study has no more runs to train, or was asked to stop."""

    interrupted: bool


Listener = Callable[[Event], str | None]
"""Gives nothing; or, for `Scored`, a reason why that run needs no further step."""
Kind = TypeVar("Kind", bound=Event)
_KINDS = {
    kind.__name__.lower(): kind
    for kind in (Began, Stepped, Logged, Scored, Saved, Halted, Trained, Ended, Noted, Warned, Opened, Closed)
}


def tell(listeners: Iterable[Listener], event: Event) -> str | None:
    """Everyone; gives the first answer."""
    return next(filter(None, [listener(event) for listener in listeners]), None)


def read_event(stored: Mapping[str, Any]) -> Event:
    """What `as_json` gave; KeyError or TypeError for anything else."""
    facts = dict(stored)
    kind = _KINDS[facts.pop("event")]
    if isinstance(facts.get("status"), dict):
        facts["status"] = Status.read(facts["status"])
    made = kind(**facts)
    return replace(made, of=tuple(made.of))


def append(folder: Path, event: Event) -> None:
    """Write an event down in a run's or study's folder. After a line that a killed process left half written comes a
    new one."""
    if not event.is_written:
        return
    path = folder / FILE
    with naming(path), opened_to_append(path, "ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read(1))[1] != b"\n"
        file.write(b"\n" * torn + json.dumps(event.as_json(), ensure_ascii=False).encode() + b"\n")
        file.flush()


def read_events(folder: Path) -> list[Event]:
    """Every event that was written down, oldest first; what cannot be read is passed over."""
    lines = read_sealed_lines(folder / FILE, needed=False)
    return [event for event in map(_read_line, lines) if event is not None]


def read_turns(folder: Path) -> list[Event]:
    """Only those that something began or ended with, and what happened last: how a run stands is told by them."""
    lines = read_sealed_lines(folder / FILE, needed=False)
    heads = tuple(f'{{"event": "{kind.__name__.lower()}"'.encode() for kind in (Began, Ended))
    latest = next((event for event in map(_read_line, reversed(lines)) if event is not None), None)
    turns = [event for event in map(_read_line, [line for line in lines if line.startswith(heads)]) if event]
    return turns if latest is None or latest in turns else [*turns, latest]


def _read_line(line: bytes) -> Event | None:
    """None for half a line of a killed process, and for what a newer version wrote."""
    try:
        return read_event(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError):
        return None


def last(events: Iterable[Event], kind: type[Kind]) -> Kind | None:
    return next((event for event in reversed(list(events)) if isinstance(event, kind)), None)
