"""Read a run's folder without its recipe: facts, status, scores. Nothing here needs torch.

This is enough for listing hundreds of runs quickly; `folder.py` opens a run for further work.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core.errors import UserError
from headway.core.reading import DAMAGED, UnreadableError, as_text, parse_json
from headway.core.seal import read_sealed, read_sealed_json
from headway.core.status import Status
from headway.scoring.score import Score

FORMAT = 1


class RunRecord:
    """A run folder, read without its recipe."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def facts(self) -> dict[str, Any]:
        return read_json(self.folder / "run.json")

    @property
    def status(self) -> Status:
        return read_status(self.folder)

    def scores(self) -> list[Score]:
        return list(read_scores(self.folder).values())

    def check_format(self) -> None:
        """Raise a UserError if this version cannot read the run."""
        check_format(self.folder, self.facts)

    def recipe_text(self) -> str:
        """The text of recipe.yaml, not parsed."""
        try:
            content = read_sealed(self.folder / "recipe.yaml")
        except FileNotFoundError:
            content = None
        return check_recipe_text(self.folder, content)


def all_runs(runs: Path) -> list[RunRecord]:
    """Every readable run in a folder, oldest first."""
    found = []
    for path in _run_files(runs):
        run = RunRecord(path.parent)
        try:
            run.check_format()
            _ = run.recipe_text(), run.status, run.scores()  # check that they can be read
            found.append((str(run.facts.get("created", "")), run.name, run))
        except UserError as error:
            print(f"skipping {run.name}: {error}", file=sys.stderr)
    return [run for *_, run in sorted(found, key=lambda one: one[:2])]


def run_names(runs: Path) -> list[str]:
    """The names of the runs in a folder, without opening any."""
    return [path.parent.name for path in _run_files(runs)]


def _run_files(runs: Path) -> list[Path]:
    """The run.json files of all runs. Folders that begin with a dot are still being created."""
    try:
        with os.scandir(runs) as found:
            names = sorted(one.name for one in found if not one.name.startswith("."))
    except OSError:
        return []
    return [path for name in names if _is_run((path := runs / name / "run.json").parent)]


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run. A run that lost its run.json is recognised by its other files, and reported as
    damaged. (Studies and searches have a seal too, but no checkpoints.)"""
    there = os.path.lexists
    return there(folder / "run.json") or (there(folder / "seal.json") and there(folder / "checkpoints"))


def is_of_another(folder: Path, recipe_hash: str) -> bool:
    """Whether the folder exists and belongs to another recipe."""
    try:
        return folder.exists() and read_json(folder / "run.json").get("recipe_hash") != recipe_hash
    except UserError:
        return True


def check_format(folder: Path, facts: Any) -> None:
    """Raise a UserError if this version cannot read a folder with these facts."""
    if not isinstance(facts, dict):
        raise UnreadableError(folder / "run.json", f"expected keys and values; {DAMAGED}")
    if not isinstance(facts.get("format"), int) or facts["format"] > FORMAT:
        raise UserError(
            f"{folder} was written by Headway {facts.get('headway', '?')} in format {facts.get('format')}; "
            f"this is {__version__}, which reads formats up to {FORMAT}: use a newer Headway"
        )


def check_recipe_text(folder: Path, content: bytes | None) -> str:
    """The text of recipe.yaml, or a UserError if it cannot be a recipe."""
    if content is None:
        raise UserError(f"{folder} is an incomplete run: recipe.yaml is missing")
    text = as_text(content, folder / "recipe.yaml")
    if not re.search(r"^\w+:", text, re.MULTILINE):
        raise UnreadableError(folder / "recipe.yaml", f"it is empty; {DAMAGED}")
    return text


def read_status(folder: Path) -> Status:
    """The status of a run from its run.json."""
    return status_in(folder, read_json(folder / "run.json"))


def status_in(folder: Path, facts: Mapping[str, Any]) -> Status:
    try:
        return Status.read(facts)
    except UserError as error:
        raise UserError(f"{folder / 'run.json'}: {error}") from None


def read_scores(folder: Path) -> dict[str, Score]:
    """The scores by name; empty if the run was not scored yet."""
    try:
        content = read_sealed(folder / "scores.json")
    except FileNotFoundError:
        content = None
    return {score.name: score for score in scores_in(folder, content)}


def scores_in(folder: Path, content: bytes | None) -> list[Score]:
    path = folder / "scores.json"
    stored = {} if content is None else parse_json(content, path)
    try:
        return [Score.from_json(name, one) for name, one in stored.items()]
    except (TypeError, KeyError, ValueError, AttributeError):
        raise UnreadableError(path, DAMAGED) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read one of Headway's own JSON files and check its seal."""
    try:
        return _keys_and_values(path)
    except FileNotFoundError as error:
        raise UnreadableError(path, str(error.strerror)) from None


def _keys_and_values(path: Path) -> dict[str, Any]:
    found = read_sealed_json(path)
    if not isinstance(found, dict):
        raise UnreadableError(path, f"expected keys and values; {DAMAGED}")
    return found
