"""Events of runs and studies, as data: began, stepped, scored, saved, halted, ended.

A listener is a function that takes an event. Progress bars, plain lines, trackers, a study's board and pruning are
listeners. Events are also appended to `events.jsonl` in the folder of the run or study, one line each, so its state can
be read from the folder without asking the process. Steps are reported about once a second and not stored here, since
metrics.jsonl contains all of them.
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
    """The names of its runs, which train as one population, or the name of the study."""
    time: str = field(default_factory=_now)

    is_written: ClassVar[bool] = True

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        if isinstance(status := getattr(self, "status", None), Status):
            found["status"] = status.as_json()
        return {"event": type(self).__name__.lower(), **found}


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """Training starts or resumes."""

    folder: str
    """The folder of their run folders."""
    title: tuple[str, ...]
    """Lines that say what is trained, on which data, and how."""
    step: int
    total: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Stepped(Event):
    """Progress of the training, about once a second."""

    step: int
    total: int
    losses: tuple[float, ...]
    """One for each run."""
    tokens_per_second: float

    is_written = False


@dataclass(frozen=True, kw_only=True)
class Logged(Event):
    """Lines that were added to one run's metrics.jsonl."""

    lines: Sequence[Mapping[str, Any]]

    is_written = False


@dataclass(frozen=True, kw_only=True)
class Scored(Event):
    """One run was evaluated. A listener may return a reason to stop it."""

    step: int
    scores: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint of one run was written."""

    step: int
    kind: str
    """`step`, for resuming, or `best`, for scoring."""


@dataclass(frozen=True, kw_only=True)
class Halted(Event):
    """One run ends early: diverged, stopped or pruned. Its scores follow at the end."""

    status: Status
    best_loss: float | None
    """The best of its evaluations, by the training's criterion (the loss by default)."""
    others_go_on: bool


@dataclass(frozen=True, kw_only=True)
class Trained(Event):
    """The last step was taken; scores and audits follow."""


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """One run was scored and audited, or ended by an error. This is its last event."""

    status: Status


@dataclass(frozen=True, kw_only=True)
class Noted(Event):
    """A note for the user."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Warned(Noted):
    pass


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """A study starts or resumes."""

    arm_of: Mapping[str, str]
    """The arm of each of its runs."""
    done: Sequence[str]
    """Runs that had ended before."""


@dataclass(frozen=True, kw_only=True)
class Closed(Event):
    """A study has no more runs to train, or was asked to stop."""

    interrupted: bool


Listener = Callable[[Event], str | None]
"""Returns nothing, or for `Scored` a reason to stop that run."""
Kind = TypeVar("Kind", bound=Event)
_KINDS = {
    kind.__name__.lower(): kind
    for kind in (Began, Stepped, Logged, Scored, Saved, Halted, Trained, Ended, Noted, Warned, Opened, Closed)
}


def tell(listeners: Iterable[Listener], event: Event) -> str | None:
    """Send an event to all listeners, and return the first answer."""
    return next(filter(None, [listener(event) for listener in listeners]), None)


def read_event(stored: Mapping[str, Any]) -> Event:
    """Read what `as_json` wrote; raises KeyError or TypeError for anything else."""
    facts = dict(stored)
    kind = _KINDS[facts.pop("event")]
    if isinstance(facts.get("status"), dict):
        facts["status"] = Status.read(facts["status"])
    made = kind(**facts)
    return replace(made, of=tuple(made.of))


def append(folder: Path, event: Event) -> None:
    """Append an event to the file in a run's or study's folder. If a killed process left half a line, start a new
    one."""
    if not event.is_written:
        return
    path = folder / FILE
    with naming(path), opened_to_append(path, "ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read(1))[1] != b"\n"
        file.write(b"\n" * torn + json.dumps(event.as_json(), ensure_ascii=False).encode() + b"\n")
        file.flush()


def read_events(folder: Path) -> list[Event]:
    """Read all stored events, oldest first, and skip those that cannot be read."""
    lines = read_sealed_lines(folder / FILE, needed=False)
    return [event for event in map(_read_line, lines) if event is not None]


def read_turns(folder: Path) -> list[Event]:
    """Read only the events that start or end something, and the latest: they determine a run's state."""
    lines = read_sealed_lines(folder / FILE, needed=False)
    heads = tuple(f'{{"event": "{kind.__name__.lower()}"'.encode() for kind in (Began, Ended))
    latest = next((event for event in map(_read_line, reversed(lines)) if event is not None), None)
    turns = [event for event in map(_read_line, [line for line in lines if line.startswith(heads)]) if event]
    return turns if latest is None or latest in turns else [*turns, latest]


def _read_line(line: bytes) -> Event | None:
    """Parse a line; None for half a line from a killed process, and for kinds of a newer version."""
    try:
        return read_event(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError):
        return None


def last(events: Iterable[Event], kind: type[Kind]) -> Kind | None:
    return next((event for event in reversed(list(events)) if isinstance(event, kind)), None)
