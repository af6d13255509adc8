"""Curves of runs, read incrementally from metrics.jsonl; each file is read once for all pages."""

import json
import math
import os
import threading
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any

KEPT = 256
"""Curves kept in memory; the least recently used is dropped."""
NOT_CURVES = {"step", "time"}


class GrowingCurve:
    """Every number in one run's metrics, by name, with steps and values."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()  # several pages may ask at once, but a line must be added only once
        self._forget()

    def _forget(self) -> None:
        self.at, self._file = 0, 0
        self.columns: dict[str, tuple[array, array]] = {}

    def refresh(self) -> None:
        """Read what was appended. A file that was rewritten, because its run was resumed, is read again."""
        with self._lock:
            self._read_on()

    def _read_on(self) -> None:
        try:
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._file or facts.st_size < self.at:
                    self._forget()
                    self._file = facts.st_ino
                file.seek(self.at)
                new = file.read()
        except OSError:
            self._forget()
            return
        whole, _, _ = new.rpartition(b"\n")
        for line in whole.splitlines():
            self._add(line)
        self.at += len(whole) + 1 if whole else 0

    def _add(self, line: bytes) -> None:
        if (found := read_line(line)) is None:
            return
        for name, value in found.items():
            if name in NOT_CURVES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            steps, values = self.columns.setdefault(name, (array("d"), array("d")))
            steps.append(found["step"])
            values.append(value)

    def as_json(self, points: int) -> dict[str, Any]:
        """Every column with at most this many points; `at` is the position in the file read up to."""
        with self._lock:
            return {"at": self.at, "columns": {name: thinned(*column, points) for name, column in self.columns.items()}}


class Curves:
    """The curves of many runs."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, GrowingCurve] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: Path) -> GrowingCurve:
        with self._lock:
            curve = self._known.setdefault(run, GrowingCurve(run / "metrics.jsonl"))
            self._known.move_to_end(run)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        curve.refresh()
        return curve


def read_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line of metrics; None for half a line from a killed process."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    scores = found.pop("scores", None)  # evaluation scores become columns too
    return {**found, **scores} if isinstance(scores, dict) else found


def thinned(steps: "array[float]", values: "array[float]", points: int) -> dict[str, list[float | None]]:
    """Reduce a curve to at most `points`: means of neighbours, and the last point unchanged."""
    count = len(steps)
    if count <= points:
        return {"steps": [int(step) for step in steps], "values": [_finite(value) for value in values]}
    size = math.ceil(count / max(1, points - 1))
    starts = range(0, count, size)
    found_steps: list[float | None] = [int(steps[min(start + size, count) - 1]) for start in starts]
    found_values = [_finite(math.fsum(part) / len(part)) for start in starts if (part := values[start : start + size])]
    if len(starts) < points and size > 1:
        found_steps.append(int(steps[-1]))
        found_values.append(_finite(values[-1]))
    return {"steps": found_steps, "values": found_values}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
