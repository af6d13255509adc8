"""Studies as their folders describe them, without parsing the study: the planned runs, their states, and the time left.
What follows from the results is computed by a worker (`studied.py`).
"""

import json
import re
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.events import Opened, last, read_events
from headway.core.files import holder
from headway.core.status import ENDS
from headway.core.yaml import read_tree
from headway.run.record import read_json
from headway.workbench.runs import SEED, RunRow, RunTable

TITLE = re.compile(r"^title:.*\n(?:[ ].*\n)*", re.MULTILINE)
LOG = 4000
"""Characters shown from the end of a study's log."""


def listed(table: RunTable, folder: Path) -> dict[str, Any]:
    """One study, or one worked exercise, as a row of the list."""
    rows = rows_of(table, folder)
    arms = arms_of(folder, rows)
    return {
        "name": table.name_of(folder),
        "title": title_of(folder),
        "exercise": not (folder / "study.yaml").is_file(),
        "running": holder(folder) is not None,
        "runs": len(arms),
        "ended": sum(has_ended(row) for row in rows.values()),
        "failed": len(failures(folder)),
        "outcomes": outcomes(folder),
        "report": (folder / "report.html").is_file(),
        "changed": folder.stat().st_mtime,
    }


def opened(table: RunTable, folder: Path) -> dict[str, Any]:
    """One study: its runs as cells by arm and seed, with their states, and the time left."""
    rows = rows_of(table, folder)
    arm_of = arms_of(folder, rows)
    failed, process = failures(folder), holder(folder)
    home = ".." if folder == table.folder else table.name_of(folder).rpartition("/")[0] or "."
    cells = {name: {"arm": arm, "seed": _seed(name, arm), **_cell(rows.get(name))} for name, arm in arm_of.items()}
    for name, why in failed.items():
        if name in cells and not has_ended(rows.get(name)):
            cells[name] |= {"state": "failed", "reason": why}
    return {
        "name": table.name_of(folder),
        "title": title_of(folder),
        "process": process,
        "arms": list(dict.fromkeys(arm_of.values())),
        "cells": cells,
        "ended": sum(has_ended(rows.get(name)) for name in arm_of),
        "seconds_left": seconds_left(arm_of, rows) if process is not None else None,
        "report": (folder / "report.html").is_file(),
        "log": _tail(folder / "log.txt"),
        "command": shlex.join(["headway", "study", "run", folder.name, "--studies", home]),
    }


def rows_of(table: RunTable, folder: Path) -> dict[str, RunRow]:
    """The runs of a study, by their folder names."""
    home = folder / "runs"
    return {path.name: row for path, row in list(table.rows.items()) if path.parent == home}


def arms_of(folder: Path, rows: Mapping[str, RunRow]) -> dict[str, str]:
    """Every planned run and its arm, as recorded when the study started. Before that, only the runs that exist."""
    begun = last(read_events(folder), Opened)
    if begun is not None:
        return dict(begun.arm_of)
    return {name: found["arm"] for name in sorted(rows) if (found := SEED.fullmatch(name))}


def has_ended(row: RunRow | None) -> bool:
    return row is not None and row.facts["state"] in ENDS


def seconds_left(arm_of: Mapping[str, str], rows: Mapping[str, RunRow]) -> float | None:
    """The time left, estimated from the times of finished runs (of the same arm if there are any) and from how many
    train at once. None if nothing is known yet."""
    took: dict[str, list[float]] = {}
    for name, row in rows.items():
        if has_ended(row) and row.facts.get("seconds"):
            took.setdefault(arm_of.get(name, ""), []).append(float(row.facts["seconds"]))
    if not took:
        return None
    typical = statistics.fmean(second for seconds in took.values() for second in seconds)
    running = [name for name, row in rows.items() if row.facts["state"] == "running"]
    left = 0.0
    for name, arm in arm_of.items():
        row = rows.get(name)
        if has_ended(row):
            continue
        whole = statistics.fmean(took.get(arm, [typical]))
        done = row.facts["step"] / row.facts["total"] if row and row.facts.get("total") else 0.0
        left += whole * (1.0 - min(1.0, done))
    return left / max(1, len(running))


def failures(folder: Path) -> dict[str, str]:
    """Runs that failed, and why."""
    found = {}
    for path in sorted((folder / "failures").glob("*.json")):
        try:
            found[path.stem] = str(read_json(path).get("reason") or "failed")
        except UserError as error:
            found[path.stem] = str(error)
    return found


def outcomes(folder: Path) -> list[str]:
    """The outcomes of the verdicts, or of an exercise's claims, as last stored."""
    path = folder / "verdicts.json"
    if not path.is_file():
        return []

    try:
        found = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict):
            return [str(one["standing"]) for one in found["claims"]]
        return [str(one["outcome"]) for one in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def title_of(folder: Path) -> str:
    """The title from a study's file; the folder's name if that cannot be read."""
    try:
        if (folder / "study.yaml").is_file():
            found = TITLE.search((folder / "study.yaml").read_text("utf-8"))
            return str(read_tree(found[0], "study.yaml")[0]["title"]) if found else folder.name
        return str(read_json(folder / "verdicts.json").get("title") or folder.name)
    except (UserError, OSError, UnicodeDecodeError, KeyError):
        return folder.name


def _cell(row: RunRow | None) -> dict[str, Any]:
    if row is None:
        return {"state": "not begun", "step": 0}
    known = ("name", "state", "reason", "step", "total", "scores", "metric", "failed", "seconds")
    return {key: row.facts.get(key) for key in known}


def _seed(name: str, arm: str) -> int | None:
    tail = name.removeprefix(f"{arm}.seed-")
    return int(tail) if tail.isdecimal() else None


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG:].decode("utf-8", "replace")
    except OSError:
        return ""
