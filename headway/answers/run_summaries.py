"""Summaries of runs as JSON, for `--json` and the workbench."""

from collections.abc import Sequence
from typing import Any

from headway.audit.audit import Report, read_report
from headway.core.errors import CodeNotRunError
from headway.run.record import RunRecord
from headway.run.status import state_of
from headway.scoring.score import Score


def run_as_json(
    run: RunRecord, scores: Sequence[Score], report: Report, weights: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`weights`: the weights that were scored; by default those scored by the training."""
    found = {"run": str(run.folder), "scores": {s.name: s.as_json() for s in scores}}
    return {**found, "audits": report.as_json(), "weights": weights or run.facts.get("weights")}


def runs_as_json(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """`run`, `scores` and `audits` of the first run; if there are several, of every run under `runs`."""
    all_of_them = [run_as_json(run, run.scores(), kept(run)) | run.status.as_json() for run in runs]
    return all_of_them[0] | ({"runs": all_of_them} if len(runs) > 1 else {})


def listed_as_json(run: RunRecord) -> dict[str, Any]:
    found = run_as_json(run, run.scores(), kept(run))
    return found | {"facts": run.facts, "state": state_of(run.folder).as_json()}


def kept(run: RunRecord) -> Report:
    """The stored findings of the audits; an empty report if there are none."""
    return read_report(run.folder) or Report()


def headline_of(run: RunRecord) -> str:
    """The metric by which a run is judged. Folders of early versions do not store it."""
    if told := run.facts.get("headline"):
        return str(told)
    from headway import tasks
    from headway.run.folder import Run

    try:
        recipe = (run if isinstance(run, Run) else Run(run.folder)).recipe
        return tasks.of(recipe).headline_of(recipe).name
    except CodeNotRunError:
        return ""
