"""Runs that another study has made already: recipe, seed and data being the same, so is the run, and nobody trains it
again. It is copied, and says where it comes from.

This is also how a study that has ended gets more seeds, arms or questions: the changed file gets a name of its own, and
reuses the first. (Seeds that are added because a verdict was not to one's liking make a bad verdict.)
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway import __version__, tasks
from headway.errors import UserError
from headway.files import write_folder_whole, write_json
from headway.recipe import Recipe
from headway.run import read_json
from headway.study.design import PlannedRun
from headway.study.place import Log
from headway.study.results import ending

KEPT_AWAY = shutil.ignore_patterns("lock", ".*")


def take_over(runs: Sequence[PlannedRun], studies: Sequence[Path], log: Log) -> list[str]:
    """Copy what these studies have made of these runs; gives the names of those that need not be trained any more."""
    for study in studies:
        if study.resolve() == log.folder.path.resolve():
            raise UserError(f"{study} cannot reuse itself; --reuse names another study")
    made, data = _made_by(studies), _Data()
    taken: dict[str, Path] = {}
    for run in runs:
        folder = log.folder.runs / run.name
        source = made.get(run.recipe.hash)
        if source is not None and not folder.exists() and data.identity(run.recipe) == _facts(source).get("corpus"):
            _copy(source, folder)
            taken[run.name] = source.parent.parent
    for study in studies:
        count = Counter(taken.values())[study]
        log.say(
            f"{count} of {len(runs)} runs taken over from {study}"
            + ("" if count else ": recipe, seed, data and version of Headway would have to be the same")
        )
    return list(taken)


def _made_by(studies: Sequence[Path]) -> dict[str, Path]:
    """Runs that have ended, by what they were made from; what another version made may not be what this one makes."""
    found: dict[str, Path] = {}
    for study in studies:
        for folder in sorted((study / "runs").iterdir()):
            if ending(folder) and _facts(folder).get("headway") == __version__:
                found.setdefault(str(_facts(folder).get("recipe_hash")), folder)
    return found


class _Data:
    """What the data of recipes are; a recipe says only where. Most runs of a study have the same."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def identity(self, recipe: Recipe) -> str:
        key = recipe.data.model_dump_json()
        if key not in self.known:
            self.known[key] = tasks.load(recipe).data.identity
        return self.known[key]


def _facts(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run.json")


def _copy(source: Path, folder: Path) -> None:
    def fill(partial: Path) -> None:
        shutil.copytree(source, partial, ignore=KEPT_AWAY, dirs_exist_ok=True)
        facts = _facts(source)
        origin = facts.get("taken_from", str(source.parent.parent))
        write_json(partial / "run.json", {**facts, "name": folder.name, "taken_from": origin})

    write_folder_whole(folder, fill, new=True)
