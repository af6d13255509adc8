"""Trains the runs of a study in this process, as populations."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError
from headway.core.plugins import reason_of
from headway.experiment.audit import one_close_look_each
from headway.experiment.population import train_in_turns
from headway.run.folder import Run
from headway.study.design.study import PlannedRun
from headway.study.execution.executor import Log, Workforce
from headway.study.execution.populations import by_progress, by_shape
from headway.study.execution.workers import dismiss_spares
from headway.study.results.results import ending


@dataclass(frozen=True)
class InProcess:
    """Trains in this process: runs of one shape as populations, as many at once as fit on the device."""

    together: int | None = None
    """The maximal number of runs at once; None = as many as fit."""
    workforce = Workforce(processes=1, gpus=1)

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        dismiss_spares()
        with one_close_look_each():  # one in-depth audit per arm, even if its runs go in several turns
            return self._train(runs, log)

    def _train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        folder = log.folder.runs
        for alike in by_shape(runs):
            for members in by_progress(alike, folder):
                try:
                    made = self._population(members, folder, log)
                except KeyboardInterrupt:
                    return True
                except Exception as error:
                    self._note(members, folder, log, error)
                    continue
                if any(run.status.is_interrupted for run in made):
                    return True
                for run in made:
                    log.ended(run.name, run.status)
        return False

    def _population(self, members: list[PlannedRun], folder: Path, log: Log) -> list[Run]:
        names = [run.name for run in members]
        resume = any((folder / name).exists() for name in names)
        recipes = [run.recipe for run in members]
        return train_in_turns(recipes, names, folder, resume, [log.of_population], self.together)

    def _note(self, members: list[PlannedRun], folder: Path, log: Log, error: Exception) -> None:
        """Log a failed population; some of its runs may have ended before."""
        details = "" if isinstance(error, UserError) else "".join(traceback.format_exception(error))
        for run in members:
            if status := ending(folder / run.name):
                log.ended(run.name, status)
            else:
                log.failed(run.name, reason_of(error), details)
