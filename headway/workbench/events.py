"""Changes below the folder, sent to all watching pages as server-sent events.

One task looks at the files, however many pages watch: each line of a metrics.jsonl is read and serialized once, and the
same bytes are sent to everybody. Trainings are not involved and do not notice.

Topics: `runs@LOOK` (changed rows and removed names after that update of the table), `run:NAME@BYTE` (lines of its
metrics after that byte, and its state), `study:NAME` (that something in it has changed).
"""

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import holder
from headway.run.status import state_of
from headway.workbench.curves import read_line
from headway.workbench.paths import NotThereError, folder_with
from headway.workbench.runs import RunTable, word_of

INTERVAL = 0.25
"""Seconds between two looks at watched files."""
SHARE = 0.02
"""The largest share of a core spent on updating the table; with very many runs, it is updated less often."""
BEHIND = 200
"""Messages that a page may fall behind before it is told to reload."""
LINES = 200
"""Lines of metrics in one message; if a training writes more at once, only every n-th step is sent."""
PING = 15.0
END = b""


class Hub:
    def __init__(self, folder: Path, table: RunTable):
        self.folder, self.table = folder, table
        self._watched: dict[str, _Topic] = {}
        self._task: asyncio.Task[None] | None = None

    async def listen(self, topics: list[str]) -> AsyncGenerator[bytes, None]:
        """Events of these topics from now on, as bytes for the browser."""
        inbox: asyncio.Queue[bytes] = asyncio.Queue(BEHIND)
        mine: list[_Topic] = []
        try:
            for asked in topics:
                key, _, since = asked.partition("@")
                topic = self._watched.get(key)
                if topic is None:
                    topic = self._watched[key] = self._made(key, int(since) if since.isdecimal() else None)
                elif since.isdecimal():
                    for message in topic.missed(int(since)):
                        inbox.put_nowait(message)
                topic.inboxes.add(inbox)
                mine.append(topic)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look())
            yield b"retry: 1000\n\n"
            while True:
                try:
                    async with asyncio.timeout(PING):
                        message = await inbox.get()
                    if message is END:
                        return
                    yield message
                except TimeoutError:
                    yield b": here\n\n"
        finally:
            for topic in mine:
                topic.inboxes.discard(inbox)
            self._watched = {key: topic for key, topic in self._watched.items() if topic.inboxes}

    def close(self) -> None:
        """End all streams, because the server shuts down."""
        for topic in self._watched.values():
            topic.tell(END)

    def _made(self, key: str, since: int | None) -> "_Topic":
        kind, _, name = key.partition(":")
        if kind == "runs":
            return _Table(self.table, since)
        if kind == "run":
            return _Run(name, folder_with(self.folder, name, "run.json", "run"), since)
        if kind == "study":
            return _Study(name, folder_with(self.folder, name, "study.yaml", "study"))
        raise NotThereError(f"unknown topic {key!r}; there are: runs, run:NAME, study:NAME")

    async def _look(self) -> None:
        while self._watched:
            for key, topic in list(self._watched.items()):
                if time.monotonic() < topic.due:
                    continue
                began = time.monotonic()
                try:  # in a thread: a hanging disk must not block the server
                    messages, took = await asyncio.to_thread(topic.timed)
                except Exception as error:  # an error in one folder must not affect the others
                    print(f"watching {key}: {type(error).__name__}: {error}", file=sys.stderr)
                    topic.due = began + PING
                    continue
                topic.due = began + (0.0 if topic.has_more else max(topic.interval, took / SHARE))
                for message in messages:
                    topic.tell(message)
            await asyncio.sleep(INTERVAL)


class _Topic:
    interval = INTERVAL
    has_more = False
    """There was not enough time to look at everything; the next look follows at once."""

    def __init__(self) -> None:
        self.inboxes: set[asyncio.Queue[bytes]] = set()
        self.due = 0.0

    def look(self) -> list[bytes]:
        """The messages about changes since the last look."""
        raise NotImplementedError

    def timed(self) -> tuple[list[bytes], float]:
        """The messages, and the CPU time of the look in seconds."""
        began = time.thread_time()
        return self.look(), time.thread_time() - began

    def missed(self, since: int) -> list[bytes]:
        return []

    def tell(self, message: bytes) -> None:
        for inbox in self.inboxes:
            if inbox.qsize() >= BEHIND - 1:  # a page that does not read: drop its messages, and let it reload
                while not inbox.empty():
                    inbox.get_nowait()
                inbox.put_nowait(_event("anew", {}))
            inbox.put_nowait(message)


class _Table(_Topic):
    interval = 1.0

    def __init__(self, table: RunTable, since: int | None):
        super().__init__()
        self.table = table
        known = table.version if since is None else since
        self.at = known if known <= table.version else 0  # a larger number is from an earlier server

    def look(self) -> list[bytes]:
        if not self.table.unread:  # otherwise the background thread is updating it
            self.table.refresh()
        self.table.read_on()
        self.has_more = self.table.unread > 0
        at, self.at = self.at, self.table.version
        return self.missed(at)

    def missed(self, since: int) -> list[bytes]:
        """Changes since a version. Requests update the table too, and what they found is reported here as well."""
        at = self.table.version
        changed, gone = self.table.since(since if since <= at else 0)
        if not changed and not gone:
            return []
        return [_event("runs", {"at": at, "changed": [row.facts for row in changed], "gone": gone})]


class _Run(_Topic):
    """The events of one run, for all pages that watch it."""

    def __init__(self, name: str, folder: Path, since: int | None):
        super().__init__()
        self.name, self.folder, self.file = name, folder, folder / "metrics.jsonl"
        self.at, self._inode = since or 0, 0
        with contextlib.suppress(OSError):
            self._inode = self.file.stat().st_ino
            self.at = self.file.stat().st_size if since is None else since
        self._told: dict[str, Any] = {}
        self._mark: tuple[Any, ...] = ()

    def look(self) -> list[bytes]:
        return self._new_lines() + self._state()

    def missed(self, since: int) -> list[bytes]:
        told = [_event("run", self._told)] if self._told else []
        return told + (self._lines(since, self.at) if since < self.at else [])

    def _new_lines(self) -> list[bytes]:
        try:
            facts = self.file.stat()
        except OSError:
            return []
        if facts.st_size < self.at or (self._inode and facts.st_ino != self._inode):  # rewritten by a resumed run
            self.at, self._inode = 0, facts.st_ino
            return [_event("anew", {"name": self.name})]
        self._inode = facts.st_ino
        return self._lines(self.at, None) if facts.st_size > self.at else []

    def _lines(self, since: int, until: int | None) -> list[bytes]:
        with contextlib.suppress(OSError), self.file.open("rb") as file:
            file.seek(since)
            whole, _, _ = file.read(min(1 << 22, (until or 1 << 62) - since)).rpartition(b"\n")
            if not whole:
                return []
            at = since + len(whole) + 1
            if until is None:
                self.at = at
            lines = [_clean(found) for line in whole.splitlines() if (found := read_line(line)) is not None]
            every = math.ceil(len(lines) / LINES)
            kept = [line for k, line in enumerate(lines) if k % every == 0 or "loss" not in line or k == len(lines) - 1]
            return [_event("metrics", {"name": self.name, "from": since, "at": at, "lines": kept})]
        return []

    def _state(self) -> list[bytes]:
        files = ("run.json", "events.jsonl", "metrics.jsonl", "scores.json", "audit.json")
        mark = (*(_time(self.folder / file) for file in files), holder(self.folder))
        if mark == self._mark:
            return []
        self._mark = mark
        try:
            state = state_of(self.folder)
            told = {"name": self.name, "state": word_of(state), "said": str(state), **state.as_json()}
            told["ended"] = [_time(self.folder / file) for file in ("scores.json", "audit.json")]
        except (UserError, OSError) as error:
            told = {"name": self.name, "state": "cannot be read", "said": str(error)}
        if told == self._told:
            return []
        self._told = told
        return [_event("run", told)]


class _Study(_Topic):
    interval = 1.0

    def __init__(self, name: str, folder: Path):
        super().__init__()
        self.name, self.folder = name, folder
        self._mark = self._marked()

    def look(self) -> list[bytes]:
        mark, before = self._marked(), self._mark
        self._mark = mark
        return [] if mark == before else [_event("study", {"name": self.name, "there": bool(mark)})]

    def _marked(self) -> tuple[Any, ...]:
        try:
            runs = sorted((self.folder / "runs").iterdir())
        except OSError:
            runs = []
        own = tuple(_time(self.folder / name) for name in ("", "events.jsonl", "verdicts.json", "failures"))
        steps = tuple(_time(run / "metrics.jsonl") for run in runs)
        return (*own, holder(self.folder), tuple(map(_time, runs)), steps) if self.folder.exists() else ()


def _time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _clean(line: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}


def _event(kind: str, told: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(told)}\n\n".encode()
