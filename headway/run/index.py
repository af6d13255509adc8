"""An index of the runs in a folder, so that listing is fast: only runs that changed are read again.

The index is in the cache folder, so read-only run folders have one too, and it does not travel with a run folder. It
may be deleted at any time. Changes are detected by the inodes, sizes and times of a run's files, including ctime, which
users cannot set. Runs in training are never cached, nor are runs whose files changed a moment ago.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core.errors import UserError
from headway.core.files import cache_folder, checksum, write_whole
from headway.core.reading import DAMAGED, UnreadableError, parse_json, read_bytes
from headway.core.seal import read_several
from headway.core.status import Status
from headway.run.record import check_format, check_recipe_text, run_names, scores_in
from headway.run.status import RunState, state_of
from headway.scoring.metrics import parsed

FORMAT = 1
FILES = ("run.json", "recipe.yaml", "scores.json", "audit.json", "seal.json", "events.jsonl", "metrics.jsonl", "lock")
MOMENT = 0.1
"""In seconds. A file that changed more recently may change again within the resolution of its times."""


@dataclass(frozen=True)
class ListedRun:
    """A run as shown in a list, or the reason why it cannot be read."""

    folder: Path
    created: str = ""
    headline: str = ""
    """The main metric; empty if the folder does not state it."""
    scores: Mapping[str, float | None] | None = None
    """Values by name, without those of single classes."""
    failed: tuple[str, ...] = ()
    """Failed audits."""
    warned: tuple[str, ...] = ()
    sealed: bool = True
    state: RunState | None = None
    damage: str = ""

    @property
    def name(self) -> str:
        return self.folder.name


def list_runs(runs: Path) -> list[ListedRun]:
    """Every run in a folder, oldest first. Unreadable runs are listed with the reason."""
    home = _home_of(runs)
    known, kept, rows = _read(home), {}, []
    now, changed = time.time(), False
    for name in run_names(runs):
        folder = runs / name
        stamp, youngest = _stamp(folder)
        if (entry := known.get(name)) and entry["stamp"] == stamp and (row := _restored(folder, entry)):
            kept[name] = entry
        else:
            row, changed = listed(folder), True
            is_running = row.state is not None and row.state.is_running
            if not is_running and youngest < now - MOMENT and _stamp(folder)[0] == stamp:
                kept[name] = {"stamp": stamp, **_entry_of(row)}
        rows.append(row)
    if changed or kept.keys() != known.keys():
        _write(home, kept)
    return sorted(rows, key=lambda row: (row.created, row.name))


def listed(folder: Path) -> ListedRun:
    """Read one run, without the index."""
    try:
        read, is_sealed = read_several(folder, FILES[:4])
        facts = parse_json(read["run.json"] or b"", folder / "run.json")
        check_format(folder, facts)
        check_recipe_text(folder, read["recipe.yaml"])
        findings = parse_json(read["audit.json"], folder / "audit.json") if read["audit.json"] is not None else {}
        scores = {one.name: one.value for one in scores_in(folder, read["scores.json"])}
        by_verdict = _by_verdict(folder, findings)
        return ListedRun(
            folder,
            str(facts.get("created", "")),
            str(facts.get("headline") or ""),
            {name: value for name, value in scores.items() if not parsed(name).part},
            by_verdict["fail"],
            by_verdict["warn"],
            is_sealed,
            state_of(folder, facts),
        )
    except (UserError, OSError) as error:
        return ListedRun(folder, damage=str(error))


def _by_verdict(folder: Path, report: Any) -> dict[str, tuple[str, ...]]:
    try:
        found = [(str(one["verdict"]), str(one["audit"])) for one in report.get("findings", [])]
    except (AttributeError, KeyError, TypeError):
        raise UnreadableError(folder / "audit.json", f"{DAMAGED}; remove it and audit again") from None
    return {word: tuple(audit for verdict, audit in found if verdict == word) for word in ("fail", "warn")}


# --- what is kept ----------------------------------------------------------------------------------------------------


def _stamp(folder: Path) -> tuple[str, float]:
    """A hash of the file attributes of a run, and the time of the latest change."""
    seen, youngest, home = [], 0.0, str(folder)
    for name in FILES:
        try:
            found = os.lstat(f"{home}/{name}")
        except OSError:
            seen.append(None)
            continue
        seen.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode))
        youngest = max(youngest, found.st_ctime)
    return hashlib.blake2b(repr(seen).encode(), digest_size=12).hexdigest(), youngest


def _entry_of(row: ListedRun) -> dict[str, Any]:
    told = {name: value for name, value in asdict(row).items() if name not in ("folder", "state")}
    if row.state is None:
        return {**told, "state": None}
    return {**told, "state": {**row.state.as_json(), **row.state.status.as_json(), "at": row.state.step, "last": None}}


def _restored(folder: Path, entry: Mapping[str, Any]) -> ListedRun | None:
    """The run from an index entry; None if the entry is not valid."""
    try:
        told, state = dict(entry), entry["state"]
        del told["stamp"]
        if state is not None:
            told["state"] = RunState(Status.read(state), None, state["since"], state["at"], state["total"], None)
        told |= {"failed": tuple(told["failed"]), "warned": tuple(told["warned"])}
        return ListedRun(folder, **told)
    except (KeyError, TypeError, UserError):
        return None


def _home_of(runs: Path) -> Path | None:
    try:
        place = hashlib.blake2b(os.fsencode(runs.resolve()), digest_size=12).hexdigest()
        return cache_folder() / "runs" / f"{place}.json"
    except (OSError, RuntimeError):  # the user has no home folder
        return None


def _read(home: Path | None) -> dict[str, Any]:
    """The index entries by name; empty if there is no valid index."""
    try:
        head, _, content = read_bytes(home).partition(b"\n") if home else (b"", b"", b"")
        if head.decode() != f"{__version__} {FORMAT} {checksum(content)}":
            return {}
        found = json.loads(content)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, UserError):
        return {}


def _write(home: Path | None, kept: Mapping[str, Any]) -> None:
    """Write the index; failures are ignored, since it only saves time."""
    content = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        if home is not None:
            home.parent.mkdir(parents=True, exist_ok=True)
            write_whole(home, f"{__version__} {FORMAT} {checksum(content)}\n".encode() + content)
    except (OSError, UserError):
        pass
