"""The shared state of the workbench: the served folder, its watchers, and the worker processes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from headway.core.errors import UserError, did_you_mean
from headway.core.files import check_names
from headway.recipe.library import packaged
from headway.workbench.curves import Curves
from headway.workbench.events import Hub
from headway.workbench.jobs import Jobs
from headway.workbench.paths import NotThereError, folder_with, inside
from headway.workbench.runs import RunTable
from headway.workbench.workers import AnsweringProcesses


@dataclass
class Bench:
    folder: Path
    read_only: bool = False
    models: AnsweringProcesses = field(default_factory=lambda: AnsweringProcesses(most=3, seconds=600.0))
    """Workers that keep models loaded."""
    readers: AnsweringProcesses = field(default_factory=lambda: AnsweringProcesses(most=2))
    """Workers that parse recipes and studies."""
    planners: AnsweringProcesses = field(default_factory=lambda: AnsweringProcesses(most=1, idle=60.0))
    """A worker that measures what a training takes, which needs seconds of computation, so nothing else waits for it.
    Only one, since two measurements at once would disturb each other."""

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.table, self.curves, self.jobs = RunTable(self.folder), Curves(), Jobs(self.folder)
        self.hub = Hub(self.folder, self.table)

    @property
    def cookie(self) -> str:
        """The cookie's name. It contains the folder, since cookies ignore ports and one machine may have several
        workbenches."""
        return "headway-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]

    def run(self, name: str) -> Path:
        return folder_with(self.folder, name, "run.json", "run")

    def study(self, name: str) -> Path:
        return folder_with(self.folder, name, "study.yaml", "study")

    @property
    def studies(self) -> Path:
        """The folder for new studies: one that contains studies, otherwise `studies/`."""
        return self._home("studies", "study.yaml")

    @property
    def runs(self) -> Path:
        """The folder for new runs: one that contains runs, otherwise `runs/`."""
        return self._home("runs", "run.json")

    def _home(self, name: str, file: str) -> Path:
        is_it = self.folder.name == name or next(self.folder.glob(f"*/{file}"), None) is not None
        return self.folder if is_it else self.folder / name

    def recipe_of(self, run: Path) -> str:
        """The path of a run's recipe for a command in the served folder."""
        return f"../{run.name}/recipe.yaml" if run == self.folder else self.shown(run / "recipe.yaml")

    def shown(self, path: Path) -> str:
        """The path of a file or folder for a command in the served folder; it never looks like an option."""
        words = path.relative_to(self.folder).as_posix()
        return f"./{words}" if words.startswith("-") else words

    def training(self, recipe: str, changes: Sequence[str], name: str | None) -> list[str]:
        """The words after `headway` that train a packaged recipe, or that of a run or file in the folder."""
        if recipe not in packaged():
            path = inside(self.folder, recipe)
            path = path / "recipe.yaml" if path.is_dir() else path
            if path.suffix not in (".yaml", ".yml") or not path.is_file():
                raise NotThereError(f"there is no recipe {recipe!r}{did_you_mean(recipe, packaged())}")
            recipe = str(path)
        for change in changes:
            if "=" not in change or change.startswith("-"):
                raise UserError(f"{change!r} is not a change; expected KEY=VALUE, such as model.positions=alibi")
        if name is not None:
            check_names([name])
        words = ["train", recipe, *changes, "--runs", str(self.runs)]
        return [*words, *([f"--name={name}"] if name else [])]


def _here(request: Request) -> Bench:
    return request.app.state.bench


Here = Annotated[Bench, Depends(_here)]
