"""The runs in a folder, at once, however many there are: what was read is kept, and read again where it changed.

The index lies among the caches, so a folder that cannot be written has one too, and one that somebody sends brings none
along. It may be deleted at any time. Whether a run has changed is told by its files: their places on the disk, sizes
and times, of which the last (of a file's entry itself) nobody can set. What happens now is never kept: a run that is
being trained is read every time, as is one whose files are younger than a moment.
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
"""Seconds. A file that is younger may change once more without its times showing it."""


@dataclass(frozen=True)
class ListedRun:
    """What a list of runs shows of one; or why it cannot be read."""

    folder: Path
    created: str = ""
    headline: str = ""
    """The metric that it is judged by; empty where its folder does not say so."""
    scores: Mapping[str, float | None] | None = None
    """By name, without those of single classes."""
    failed: tuple[str, ...] = ()
    """Audits."""
    warned: tuple[str, ...] = ()
    sealed: bool = True
    state: RunState | None = None
    damage: str = ""

    @property
    def name(self) -> str:
        return self.folder.name


def list_runs(runs: Path) -> list[ListedRun]:
    """Every run in a folder, oldest first; those that cannot be read say so, and hide none of the others."""
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
                kept[name] = {"stamp": stamp, **_told(row)}
        rows.append(row)
    if changed or kept.keys() != known.keys():
        _write(home, kept)
    return sorted(rows, key=lambda row: (row.created, row.name))


def listed(folder: Path) -> ListedRun:
    """One run, as if nobody had looked before."""
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
        raise UnreadableError(folder / "audit.json", f"{DAMAGED}; remove it, and audit again") from None
    return {word: tuple(audit for verdict, audit in found if verdict == word) for word in ("fail", "warn")}


# --- what is kept ----------------------------------------------------------------------------------------------------


def _stamp(folder: Path) -> tuple[str, float]:
    """What the files of a run look like from outside, and when the youngest of them was changed."""
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


def _told(row: ListedRun) -> dict[str, Any]:
    told = {name: value for name, value in asdict(row).items() if name not in ("folder", "state")}
    if row.state is None:
        return {**told, "state": None}
    return {**told, "state": {**row.state.as_json(), **row.state.status.as_json(), "at": row.state.step, "last": None}}


def _restored(folder: Path, entry: Mapping[str, Any]) -> ListedRun | None:
    """None where this is not what is written here."""
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
    except (OSError, RuntimeError):  # this user has no home folder
        return None


def _read(home: Path | None) -> dict[str, Any]:
    """By name; nothing where there is no index, or none of ours."""
    try:
        head, _, content = read_bytes(home).partition(b"\n") if home else (b"", b"", b"")
        if head.decode() != f"{__version__} {FORMAT} {checksum(content)}":
            return {}
        found = json.loads(content)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, UserError):
        return {}


def _write(home: Path | None, kept: Mapping[str, Any]) -> None:
    """If it can be; it is only about time."""
    content = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        if home is not None:
            home.parent.mkdir(parents=True, exist_ok=True)
            write_whole(home, f"{__version__} {FORMAT} {checksum(content)}\n".encode() + content)
    except (OSError, UserError):
        pass
