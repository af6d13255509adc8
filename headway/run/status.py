"""How far each run is, told by its folder alone: whether it is being trained, since when, at which step, how it ended.

run.json says how training last came to rest, events.jsonl what happened since, metrics.jsonl how far it got, and the
lock whether a process is at it. Nobody needs to ask that process.
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
"""Bytes in which the last whole line of metrics surely is."""


@dataclass(frozen=True)
class RunState:
    """How a run stands at this moment."""

    status: Status
    """How it came to rest, if it has: what run.json says, or the error that ended it since."""
    process: int | None
    """That is training it now."""
    since: str | None
    """When that began, or began last; None in folders of versions that did not write it down."""
    step: int
    total: int | None
    last: Event | None
    """What happened last."""

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
    """Of the run in this folder; `facts`: what its run.json holds, if that was read already."""
    facts = read_json(folder / "run.json") if facts is None else facts
    status, events = status_in(folder, facts), read_turns(folder)
    began = last(events, Began)
    # Which of them came last is told by the order of the lines: a short run begins and ends within a tick of the clock.
    turn = next((event for event in reversed(events) if isinstance(event, Began | Ended)), None)
    if isinstance(turn, Began):
        if status.is_end or status.is_interrupted:  # which was before it went on
            status = Status(State.STARTED)
    elif turn is not None and turn.status.state is State.FAILED:
        status = turn.status
    total = began.total if began else facts.get("steps")
    process = holder(folder)
    at_rest = process is None and status.step is not None
    step = status.step if at_rest and status.step is not None else _last_step(folder)
    return RunState(status, process, began and began.time, step, total, events[-1] if events else None)


def _last_step(folder: Path) -> int:
    """From the end of metrics.jsonl: the whole of it may be long."""
    try:
        with opened(folder / "metrics.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read(TAIL).splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # half a line
            continue
    return 0
