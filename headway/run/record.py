"""What a run's folder tells without its recipe: facts, how it ended, what it scored. Nothing here needs torch.

Who lists hundreds of runs wants no more than that, and at once; who goes on with one opens it (`folder.py`).
"""

import re
import sys
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core.errors import UserError
from headway.core.reading import DAMAGED, UnreadableError
from headway.core.seal import read_sealed_json, read_sealed_text
from headway.core.status import Status
from headway.scoring.score import Score

FORMAT = 1


class RunRecord:
    """A run folder, looked at from outside."""

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
        """Whether this version can read it."""
        facts = self.facts
        if not isinstance(facts.get("format"), int) or facts["format"] > FORMAT:
            raise UserError(
                f"{self.folder} was written by Headway {facts.get('headway', '?')} in format {facts.get('format')}; "
                f"this is {__version__}, which reads formats up to {FORMAT}: use a newer Headway"
            )

    def recipe_text(self) -> str:
        """As it was written; what it means is another question."""
        path = self.folder / "recipe.yaml"
        try:
            text = read_sealed_text(path)
        except FileNotFoundError:
            raise UserError(f"{self.folder} is not a whole run: recipe.yaml is missing") from None
        if not re.search(r"^\w+:", text, re.MULTILINE):
            raise UserError(f"{path} cannot be read: it is empty; {DAMAGED}")
        return text


def all_runs(runs: Path) -> list[RunRecord]:
    """Every readable run in a folder, oldest first."""
    found = []
    for path in _run_files(runs):
        run = RunRecord(path.parent)
        try:
            run.check_format()
            _ = run.recipe_text(), run.status, run.scores()  # can they be read?
            found.append((str(run.facts.get("created", "")), run.name, run))
        except UserError as error:
            print(f"passing over {run.name}: {error}", file=sys.stderr)
    return [run for *_, run in sorted(found, key=lambda one: one[:2])]


def run_names(runs: Path) -> list[str]:
    """What the runs in a folder are called; none of them is opened."""
    return [path.parent.name for path in _run_files(runs)]


def _run_files(runs: Path) -> list[Path]:
    return [path for path in runs.glob("*/run.json") if not path.parent.name.startswith(".")]  # not the half-made ones


def is_of_another(folder: Path, recipe_hash: str) -> bool:
    """Whether a folder has this name already, and holds what another recipe has made."""
    try:
        return folder.exists() and read_json(folder / "run.json").get("recipe_hash") != recipe_hash
    except UserError:
        return True


def read_status(folder: Path) -> Status:
    """How the run in this folder stands, by its run.json."""
    try:
        return Status.read(read_json(folder / "run.json"))
    except UserError as error:
        raise UserError(f"{folder / 'run.json'}: {error}") from None


def read_scores(folder: Path) -> dict[str, Score]:
    """By name; none where it was not scored yet."""
    path = folder / "scores.json"
    try:
        stored = _keys_and_values(path)
    except FileNotFoundError:
        return {}
    try:
        return {name: Score.from_json(name, one) for name, one in stored.items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise UnreadableError(path, DAMAGED) from None


def read_json(path: Path) -> dict[str, Any]:
    """What one of Headway's own files holds, if it is what was written."""
    try:
        return _keys_and_values(path)
    except FileNotFoundError as error:
        raise UnreadableError(path, str(error.strerror)) from None


def _keys_and_values(path: Path) -> dict[str, Any]:
    found = read_sealed_json(path)
    if not isinstance(found, dict):
        raise UnreadableError(path, f"expected keys and values; {DAMAGED}")
    return found
