"""The table of runs: a row for each run below the folder, kept in memory and updated only where files have changed.

A finished run is unchanged while the modification times of its folder and of run.json are the same (Headway renames
whole files into place, which changes the first). For one that may be training, the sizes of growing files and the
holder of its lock are checked too. Rows of finished runs are also cached on disk for the next server; that file may be
deleted at any time. Requests do not wait for thousands of new runs: these first have rows with only a name and a time,
and are read in the background, newest first, which is the order on the page.
"""

import contextlib
import json
import math
import re
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway import __version__
from headway.answers.run_summaries import kept
from headway.core.errors import UserError
from headway.core.files import cache_folder, checksum, holder, write_whole
from headway.core.status import State
from headway.run.record import RunRecord, read_json
from headway.run.status import RunState, state_of
from headway.scoring.metrics import METRICS, parsed
from headway.workbench.paths import below, check_links

PATIENCE = 0.1
"""Seconds of CPU time for reading new runs before a request is answered."""
WORTH_KEEPING = 50
"""How many runs must have been read before the cached rows are written again."""
SEED = re.compile(r"(?P<arm>.+)\.seed-\d+")


@dataclass(frozen=True)
class RunRow:
    facts: dict[str, Any]
    text: str
    """The facts as JSON, serialized once."""
    mark: tuple[Any, ...]
    """Changes whenever the run's files do."""
    is_settled: bool
    """The run has ended, and no process is working on it."""


class RunTable:
    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[Path, RunRow] = {}
        self.studies: list[Path] = []
        self.unread = 0
        """The number of rows that only have a name and a time, because their runs have not been read yet."""
        self.version = 0
        """The number of updates that found changes; `since` gives what changed after one of them."""
        self._changed: dict[Path, int] = {}
        self._gone: dict[str, int] = {}
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._reader: threading.Thread | None = None
        self._not_kept = 0
        self._kept = self._restored()

    def refresh(self, seconds: float = PATIENCE) -> tuple[list[RunRow], list[str]]:
        """Update the table. Returns new or changed rows, and the names of removed ones. Reading takes about `seconds`
        of CPU time; if another thread is updating just now, nothing is read."""
        if not self._lock.acquire(timeout=seconds if self.version else 30.0):  # before the first update, wait for it
            return [], []
        try:
            return self._looked(seconds)
        finally:
            self._lock.release()

    def read_on(self) -> None:
        """Read the remaining runs in a background thread; requests meanwhile get what is known."""
        with self._starting:
            if self.unread and not (self._reader and self._reader.is_alive()):
                self._reader = threading.Thread(target=self._read_all, daemon=True)
                self._reader.start()

    def _read_all(self) -> None:
        while self.unread:
            self.refresh(1.0)

    def _looked(self, seconds: float) -> tuple[list[RunRow], list[str]]:
        found, self.studies = below(self.folder, self.rows)
        gone = [self.name_of(path) for path in self.rows.keys() - set(found)]
        changed, rows, stale, until = [], {}, {}, time.thread_time() + seconds
        for path in found:
            row = self.rows.get(path)
            mark = _mark(path, row is None or not row.mark or row.is_settled)
            if row is None or mark != row.mark:
                if (kept := self._kept.pop(path, None)) is not None and kept.mark == mark:
                    row = kept
                    changed.append(row)
                else:
                    stale[path] = mark
                    row = row or self._unread(path, mark)
            rows[path] = row
        unread = len(stale)
        for path in sorted(stale, key=lambda path: _written(stale[path]), reverse=True):
            if time.thread_time() < until:
                rows[path] = self._read(path)
                self._not_kept += 1
                unread -= 1
            if rows[path] is not self.rows.get(path):
                changed.append(rows[path])
        version = self.version + bool(changed or gone)
        same = {path: self._changed[path] for path, row in rows.items() if row is self.rows.get(path)}
        self._changed = dict.fromkeys(rows, version) | same
        still_gone = {name: at for name, at in self._gone.items() if self.folder / name not in rows}
        self._gone = still_gone | dict.fromkeys(gone, version)
        self.rows, self.unread, self.version = rows, unread, version
        if self._not_kept >= WORTH_KEEPING and not self.unread:
            self._keep()
        return changed, gone

    def since(self, version: int) -> tuple[list[RunRow], list[str]]:
        """What has changed and what was removed after that update, whoever made it."""
        rows, changed, gone = self.rows, self._changed, self._gone
        new = [row for path, row in rows.items() if changed.get(path, 0) > version]
        return new, [name for name, at in gone.items() if at > version]

    def as_json(self) -> str:
        """`{"folder": …, "runs": [row, …]}`; `there` is false if the folder no longer exists."""
        there = self.folder.is_dir()
        facts = {"folder": str(self.folder), "there": there, "unread": self.unread, "at": self.version}
        head = json.dumps(facts)[:-1]
        return head + ', "runs": [' + ",".join(row.text for row in list(self.rows.values())) + "]}"

    def _unread(self, path: Path, mark: tuple[Any, ...]) -> RunRow:
        """A row for a run that has not been read, with the time of its run.json, so that it is sorted about right."""
        made = datetime.fromtimestamp(_written(mark) / 1e9, UTC).isoformat(timespec="seconds")
        return _row({"name": self.name_of(path), "state": "not read yet", "step": 0, "created": made}, (), False)

    @property
    def _file(self) -> Path:
        return cache_folder() / "workbench" / f"{checksum(str(self.folder).encode())[:16]}.json"

    def _keep(self) -> None:
        settled = {str(path): [row.mark, row.facts] for path, row in self.rows.items() if row.is_settled}
        with contextlib.suppress(OSError, RuntimeError):  # without the cache, everything is read again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps({"headway": __version__, "rows": settled}))
            self._not_kept = 0

    def _restored(self) -> dict[Path, RunRow]:
        try:
            found = json.loads(self._file.read_text("utf-8"))
            if found["headway"] != __version__:
                return {}
            rows = found["rows"].items()
            return {Path(path): _row(facts, tuple(mark), True) for path, (mark, facts) in rows}
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.name

    def _read(self, path: Path) -> RunRow:
        name = self.name_of(path)
        study = next((p for p in path.parents if p in self.studies), None)
        facts: dict[str, Any] = {"name": name, "study": study and self.name_of(study)}
        is_settled = False
        try:
            check_links(self.folder, path)
            state = state_of(path)
            is_settled = state.status.is_end and not state.is_running
            facts |= _told(RunRecord(path), state)
        except (UserError, OSError) as error:
            facts |= {"state": "cannot be read", "reason": str(error), "step": 0}
        return _row(facts, _mark(path, is_settled), is_settled)


def _row(facts: dict[str, Any], mark: tuple[Any, ...], is_settled: bool) -> RunRow:
    said = {key: value for key, value in facts.items() if value not in (None, [], "")}
    return RunRow(said, json.dumps(said), mark, is_settled)  # ASCII: a lone surrogate in a file must not break it


def _told(run: RunRecord, state: RunState) -> dict[str, Any]:
    facts, report = run.facts, kept(run)
    headline = str(facts.get("headline") or "")
    metric = METRICS.get(headline)
    scores = [
        {"split": split.split, "value": score.value if math.isfinite(score.value) else None}
        for score in run.scores()
        if (split := parsed(score.name)).metric == headline and not split.part
    ]
    arm = SEED.fullmatch(run.name)
    return {
        "state": word_of(state),
        "reason": state.status.reason,
        "step": state.step,
        "total": state.total,
        "since": state.since,
        "created": facts.get("created"),
        "seconds": facts.get("seconds"),
        "parameters": facts.get("parameters"),
        "recipe": recipe_of(run.folder),
        "hash": facts.get("recipe_hash"),
        "arm": arm["arm"] if arm else None,
        "metric": metric.heading if metric else headline,
        "lower": metric.lower_is_better if metric else True,
        "scores": scores,
        "failed": [finding.remark for finding in report.failures],
        "warned": [finding.audit for finding in report.warnings],
        "passed": sum(finding.verdict == "pass" for finding in report.findings),
    }


def word_of(state: RunState) -> str:
    """A run's state in one word: `running`, `killed`, or one of `State`."""
    if state.is_running:
        return "running"
    return "killed" if state.status.state is State.STARTED else str(state.status.state)


def recipe_of(folder: Path) -> str | None:
    """The packaged recipe or file that its command named; None if no training command made it."""
    try:
        words = read_json(folder / "environment.json").get("command") or []
    except UserError:
        return None
    if not isinstance(words, list) or "train" not in words:
        return None
    after = [str(word) for word in words[words.index("train") + 1 :]]
    return next((word for word in after if not word.startswith("-") and "=" not in word), None)


def _mark(path: Path, is_settled: bool) -> tuple[Any, ...]:
    try:
        facts = (path / "run.json").stat()
        own = (path.stat().st_mtime_ns, facts.st_mtime_ns, facts.st_size)
    except OSError:
        return ()
    if is_settled:
        return own
    return (*own, *(_size(path / file) for file in ("events.jsonl", "metrics.jsonl")), holder(path))


def _written(mark: tuple[Any, ...]) -> int:
    """The modification time of its run.json, in nanoseconds."""
    return mark[1] if mark else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
