"""Runs that another study has made already: recipe, seed and data being the same, so is the run, and nobody trains it
again. It is copied, and says where it comes from.

This is also how a study that has ended gets more seeds, arms or questions: the changed file gets a name of its own, and
reuses the first. (Seeds that are added because a verdict was not to one's liking make a bad verdict.)
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
    """Copy what these studies have made of these runs; gives the names of those that need not be trained any more."""
    for study in studies:
        if study.resolve() == log.folder.path.resolve():
            raise UserError(f"{study} cannot reuse itself; --reuse names another study")
    taken: list[str] = []
    data = _Data()
    for study in dict.fromkeys(studies):
        left = [run for run in runs if not (log.folder.runs / run.name).exists()]  # what was begun here goes on here
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
                log.note(f"passing over {run.name}: {error}")
                same.remove(run)
        why = "" if same else ": recipe, seed, data and version of Headway would have to be the same"
        log.note(f"{len(same)} of {len(left)} runs taken over from {study}{why}")
        taken += [run.name for run in same]
    return taken


def _made_by(study: Path, log: Log) -> dict[str, Path]:
    """Runs that have ended, by what they were made from; what another version made may not be what this one makes."""
    found: dict[str, Path] = {}
    for folder in sorted(study.glob("runs/[!.]*")):  # with a dot: what that study is taking over itself just now
        try:
            if ending(folder) and _facts(folder).get("headway") == __version__:
                if damaged := damages(folder):
                    raise UserError(damaged[0])
                found.setdefault(str(_facts(folder).get("recipe_hash")), folder)
        except UserError as error:
            log.note(f"passing over {folder.name}: {error}")
    return found


class _Data:
    """What the data of recipes are; a recipe says only where. Most runs of a study have the same."""

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
        raise UserError(f"{error.filename} went away while {source} was copied") from None


def _copy_content(source: Path, target: Path) -> None:
    """Not who may write it: what is reused may be an archive that nobody may change. An error of writing names no file
    here, and so comes to be said of the new folder."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name == "lock" or path.name.startswith("."):
            continue
        if path.is_dir() and (not path.is_symlink() or path.name == "checkpoints"):
            _copy_content(path, target / path.name)
        else:
            with opened(path) as old, (target / path.name).open("wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
