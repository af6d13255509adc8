"""What every part of the workbench stands on: the folder that is served, who watches it, who works for it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from headway.workbench.curves import Curves
from headway.workbench.events import Hub
from headway.workbench.jobs import Jobs
from headway.workbench.paths import folder_with
from headway.workbench.runs import RunTable
from headway.workbench.workers import AnsweringProcess


@dataclass
class Bench:
    folder: Path
    read_only: bool = False
    models: AnsweringProcess = field(default_factory=lambda: AnsweringProcess(seconds=600.0))
    """Keeps models, and shows what is in them."""
    readers: AnsweringProcess = field(default_factory=AnsweringProcess)
    """Understands recipes and studies."""

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.table, self.curves, self.jobs = RunTable(self.folder), Curves(), Jobs(self.folder)
        self.hub = Hub(self.folder, self.table)

    @property
    def cookie(self) -> str:
        """Of this folder alone: cookies know no ports, and there may be several workbenches on one machine."""
        return "headway-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]

    def run(self, name: str) -> Path:
        return folder_with(self.folder, name, "run.json", "run")

    def study(self, name: str) -> Path:
        return folder_with(self.folder, name, "study.yaml", "study")


def _here(request: Request) -> Bench:
    return request.app.state.bench


Here = Annotated[Bench, Depends(_here)]
