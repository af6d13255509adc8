"""The state of a run, from its folder alone: whether it is training, since when, at which step, how it ended.

run.json says how training last ended, events.jsonl what happened since, metrics.jsonl the last step, and the lock
whether a process is training it. The process itself is not asked.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.events import Began, Ended, Event, last, read_turns
from headway.core.files import holder
from headway.core.reading import opened
from headway.core.status import State, Status
from headway.run.record import read_json, status_in

TAIL = 1 << 13
"""The last complete line of metrics lies within so many bytes of the end."""


@dataclass(frozen=True)
class RunState:
    """The present state of a run."""

    status: Status
    """How training last ended: what run.json says, or an error since then."""
    process: int | None
    """The id of the process that is training it now, if any."""
    since: str | None
    """When training last began; None in folders of older versions, which did not record it."""
    step: int
    total: int | None
    last: Event | None
    """The last event."""

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def __str__(self) -> str:
        far = f"step {self.step:,}" + (f" of {self.total:,}" if self.total else "")
        if self.is_running:
            return f"running, {far}"
        return f"killed at {far}" if self.status.state is State.STARTED else str(self.status)

    def as_json(self) -> dict[str, Any]:
        facts = {"running": self.is_running, "process": self.process, "since": self.since}
        return {**facts, "step": self.step, "total": self.total, "last": self.last and self.last.as_json()}


def state_of(folder: Path, facts: Mapping[str, Any] | None = None) -> RunState:
    """The state of the run in this folder; `facts` is the content of run.json, if already read."""
    facts = read_json(folder / "run.json") if facts is None else facts
    status, events = status_in(folder, facts), read_turns(folder)
    began = last(events, Began)
    # Ordered by line, not by time: a short run begins and ends within one tick of the clock.
    turn = next((event for event in reversed(events) if isinstance(event, Began | Ended)), None)
    if isinstance(turn, Began):
        if status.is_end or status.is_interrupted:  # that end came before training continued
            status = Status(State.STARTED)
    elif turn is not None and turn.status.state is State.FAILED:
        status = turn.status
    total = began.total if began else facts.get("steps")
    process = holder(folder)
    at_rest = process is None and status.step is not None
    step = status.step if at_rest and status.step is not None else _last_step(folder)
    return RunState(status, process, began and began.time, step, total, events[-1] if events else None)


def _last_step(folder: Path) -> int:
    """The last step in metrics.jsonl. Only the end is read, since the file may be long."""
    try:
        with opened(folder / "metrics.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read(TAIL).splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # an incomplete line
            continue
    return 0
