"""The arms of a study as ensembles over their seeds, and their gain over the mean run.

The results are stored in the study's folder as ensembles.json for the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import as_json
from headway.core.seal import rewriting
from headway.core.status import State
from headway.experiment.ensemble import Ensemble, score_together
from headway.run.folder import Run
from headway.run.record import read_json
from headway.study.results.results import Result, Results, read_results

FILE = "ensembles.json"


@dataclass(frozen=True)
class ArmAsOne:
    arm: str
    seeds: tuple[int, ...]
    ensemble: Ensemble
    failed: tuple[str, ...]
    """Audits that at least one of the runs fails."""

    def as_json(self) -> dict[str, Any]:
        found = self.ensemble.as_json()
        told = {"scores": found["scores"], "gains": found["gains"]}
        return {"arm": self.arm, "seeds": list(self.seeds), "failed_audits": list(self.failed), **told}


def arms_as_one(folder: Path, splits: Sequence[str] | None = None) -> tuple[list[ArmAsOne], dict[str, str]]:
    """Score an ensemble for every arm with at least two finished runs; also returns why other arms have none."""
    results = read_results(folder)
    found, none = [], {}
    for arm in results.arms:
        ended = _ended(results, arm)
        if len(ended) < 2:
            none[arm] = f"{len(ended)} of its runs have finished; an ensemble needs at least two"
            continue
        runs = [Run(run.folder, results.study.recipes[arm].model_copy(update={"seed": run.seed})) for run in ended]
        failed = tuple(dict.fromkeys(finding.audit for run in ended for finding in run.failures))
        found.append(ArmAsOne(arm, tuple(run.seed for run in ended), score_together(runs, splits), failed))
    if not found:
        raise UserError(f"no arm of {folder.name} has two finished runs")
    with rewriting(folder) as new:
        new[FILE] = as_json({"arms": [one.as_json() for one in found]})
    return found, none


def arms_with_ensemble(results: Results) -> list[str]:
    """The arms with at least two finished runs."""
    return [arm for arm in results.arms if len(_ended(results, arm)) > 1]


def kept(results: Results) -> list[dict[str, Any]]:
    """The stored ensembles as JSON, without arms to which runs were added since."""
    path = results.folder / FILE
    try:
        arms = read_json(path)["arms"] if path.exists() else []
        return [one for one in arms if one["seeds"] == [run.seed for run in _ended(results, one["arm"])]]
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} cannot be read: remove it; headway study ensembles creates it again") from None


def _ended(results: Results, arm: str) -> list[Result]:
    return [run for run in results.of(arm) if run.status.state in (State.FINISHED, State.STOPPED)]
