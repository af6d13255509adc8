"""Evaluate a study once runs have finished: take further measurements, answer the questions, write the report."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from headway.core.files import write_json
from headway.core.status import Status
from headway.study.design.measures import Chosen, Measure
from headway.study.design.questions import Better, Question
from headway.study.execution.plan import Sizes
from headway.study.folder import StudyFolder
from headway.study.results.ensembles import arms_as_one, arms_with_ensemble, kept
from headway.study.results.evidence import best_arms
from headway.study.results.ladder_points import points_of, write_points
from headway.study.results.measuring import measure
from headway.study.results.results import Results, correct_in, ending, read_results
from headway.study.verdicts.analyse import analyse
from headway.study.verdicts.analysis import Verdict
from headway.study.verdicts.judgement import Judgement, judge
from headway.study.verdicts.wording import listed


@dataclass(frozen=True)
class Conclusion:
    results: Results
    verdicts: list[Verdict]
    judgements: list[Judgement]
    """The judgements of the report's claims, if the study is a case."""
    report: Path | None
    """The HTML file; None if it is not written yet."""

    def as_json(self) -> dict[str, Any]:
        found = {"verdicts": [v.as_json() for v in self.verdicts], "claims": [j.as_json() for j in self.judgements]}
        return {**self.results.as_json(), **found, "report": self.report and str(self.report)}


def conclude(folder: Path) -> Conclusion:
    """Evaluate all runs that have ended, and write verdicts and report into the study's folder."""
    from headway.study.report.report import write_report

    measure_all(folder)
    found = so_far(folder)
    if found.results.study.ladder is not None and found.results.runs:
        write_points(folder, points_of(found.results))
    StudyFolder(folder).note_look({str(verdict.question): verdict.outcome for verdict in found.verdicts})
    write_json(folder / "verdicts.json", [verdict.as_json() for verdict in found.verdicts])
    if not found.results.runs:
        return found
    if found.results.study.ensembles and len(kept(found.results)) < len(arms_with_ensemble(found.results)):
        arms_as_one(folder)
    return replace(found, report=write_report(found.results, found.verdicts, found.judgements))


def write_again(folder: Path) -> Path | None:
    """Write the report again from the current results; None if there was none."""
    from headway.study.report.report import write_report

    found = so_far(folder)
    return write_report(found.results, found.verdicts, found.judgements) if found.report else None


def so_far(folder: Path) -> Conclusion:
    """Evaluate what has been measured so far, without measuring or writing anything."""
    results, report = read_results(folder), folder / "report.html"
    verdicts = _answered(results) if results.runs else []
    return Conclusion(results, verdicts, judge(results, verdicts), report if report.exists() else None)


def _answered(results: Results) -> list[Verdict]:
    """A verdict for every question; 'cannot say' if the study was interrupted before its scores were measured."""
    known = set(results.score_names)
    lacking = {str(question): _lacking(question, results, known) for question in results.study.asked}
    ready = [question for question in results.study.asked if not lacking[str(question)]]
    rows = None if results.study.reads_other_rows else correct_in(results.folder / "runs")
    found = dict(zip(map(str, ready), analyse(ready, results, rows), strict=True))
    return [found.get(str(one)) or _not_measured(one, lacking[str(one)]) for one in results.study.asked]


def _lacking(question: Question, results: Results, known: Container[str]) -> list[str]:
    """The scores a question needs that no run has yet. Baselines are computed with a run's audits, which come last."""
    found = [score for score in question.scores if score not in known]
    if found or not isinstance(question, Better) or question.than in results.arms:
        return found
    return [] if question.than in results.cheap(question.on) else [f"{question.on} of {question.than}"]


def _not_measured(question: Question, lacking: Sequence[str]) -> Verdict:
    why = f"cannot say: {listed(lacking)} has not been measured yet"
    return Verdict(question, "cannot say", f"{why}; headway study run continues, headway study report measures it")


def measure_all(folder: Path) -> None:
    """Take the measurements that the study asks for in addition to the scores of its recipes."""
    home = StudyFolder(folder)
    study, sizes = home.study, Sizes()
    if not study.measures:
        return
    ended = {run.name: ending(home.runs / run.name) for run in study.runs(home.budgets)}
    results = read_results(folder)
    choosers = {one: set(best_arms(results, one.on, one.of).values()) for one in study.measures if _chooses(one, ended)}
    for run in study.runs(home.budgets):
        status = ended[run.name]
        if status is not None and not status.is_diverged:
            meant = [one for one in study.measures if not isinstance(one, Chosen) or run.arm in choosers.get(one, ())]
            measure(home.runs / run.name, run.recipe, sizes.task(run.recipe), study.measures, meant)


def _chooses(one: Measure, ended: Mapping[str, Status | None]) -> TypeGuard[Chosen]:
    """Whether this measure picks the best arms and all runs have ended, so that they can be picked."""
    return isinstance(one, Chosen) and None not in ended.values()
