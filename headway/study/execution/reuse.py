"""Reuse runs of another study: if recipe, seed and data are the same, the run is copied instead of trained again. The
copy records where it comes from.

This is also how to add seeds, arms or questions to a finished study: give the changed file a new name and reuse the
first study. (Adding seeds because you did not like a verdict biases the new verdict.)
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway import __version__, tasks
from headway.core.errors import UserError
from headway.core.files import as_json, write_folder_whole
from headway.core.reading import opened
from headway.core.seal import damages, rewriting
from headway.run.record import read_json
from headway.study.design.study import PlannedRun
from headway.study.execution.executor import Log
from headway.study.folder import StudyFolder
from headway.study.results.results import ending


def take_over(runs: Sequence[PlannedRun], studies: Sequence[Path], log: Log) -> list[str]:
    """Copy the runs that these studies have already made; returns the names of those that need no training any more."""
    for study in studies:
        if study.resolve() == log.folder.path.resolve():
            raise UserError(f"{study} cannot reuse itself; give another study to --reuse")
    taken: list[str] = []
    data = _Data()
    for study in dict.fromkeys(studies):
        left = [run for run in runs if not (log.folder.runs / run.name).exists()]  # runs begun here continue here
        if not left:
            break
        made = _made_by(study, log)
        same = [run for run in left if run.recipe.hash in made and data.is_what_was_read(made[run.recipe.hash], run)]
        if same:
            log.folder.take_over_looks(StudyFolder(study))
        for run in list(same):
            try:
                _copy(made[run.recipe.hash], log.folder.runs / run.name, study)
            except UserError as error:
                log.note(f"skipping {run.name}: {error}")
                same.remove(run)
        why = "" if same else ": recipe, seed, data and version of Headway must be the same"
        log.note(f"{len(same)} of {len(left)} runs reused from {study}{why}")
        taken += [run.name for run in same]
    return taken


def _made_by(study: Path, log: Log) -> dict[str, Path]:
    """Finished runs by recipe hash, made by this version of Headway; another version might give different results."""
    found: dict[str, Path] = {}
    for folder in sorted(study.glob("runs/[!.]*")):  # with a dot: being copied by that study right now
        try:
            if ending(folder) and _facts(folder).get("headway") == __version__:
                if damaged := damages(folder):
                    raise UserError(damaged[0])
                found.setdefault(str(_facts(folder).get("recipe_hash")), folder)
        except UserError as error:
            log.note(f"skipping {folder.name}: {error}")
    return found


class _Data:
    """The identity of the data of recipes, cached: a recipe only says where the data are."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def is_what_was_read(self, source: Path, run: PlannedRun) -> bool:
        key = run.recipe.data.model_dump_json()
        if key not in self.known:
            self.known[key] = tasks.load(run.recipe).data.identity
        return _facts(source).get("corpus") == self.known[key]


def _facts(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run.json")


def _copy(source: Path, folder: Path, study: Path) -> None:
    def fill(partial: Path) -> None:
        _copy_content(source, partial)
        with rewriting(partial) as new:
            new["run.json"] = as_json({"taken_from": str(study), **_facts(source), "name": folder.name})

    try:
        write_folder_whole(folder, fill, new=True)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} disappeared while {source} was being copied") from None


def _copy_content(source: Path, target: Path) -> None:
    """Copy contents but not permissions, since the source may be a read-only archive. Write errors name no file here,
    so they are reported for the new folder."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name == "lock" or path.name.startswith("."):
            continue
        if path.is_dir() and (not path.is_symlink() or path.name == "checkpoints"):
            _copy_content(path, target / path.name)
        else:
            with opened(path) as old, (target / path.name).open("wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
