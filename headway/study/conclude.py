"""What follows from the runs of a study: more is measured, the questions are answered, the report is written."""

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
from headway.study.results.ensembles import arms_as_one, could_be_one, kept
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
    """Of what the report claims, where the study is a case."""
    report: Path | None
    """Where it is written down; None: nowhere yet."""

    def as_json(self) -> dict[str, Any]:
        found = {"verdicts": [v.as_json() for v in self.verdicts], "claims": [j.as_json() for j in self.judgements]}
        return {**self.results.as_json(), **found, "report": self.report and str(self.report)}


def conclude(folder: Path) -> Conclusion:
    """Everything that can be said of the runs that have ended; written down in the study's folder."""
    from headway.study.report.report import write_report

    measure_all(folder)
    found = so_far(folder)
    if found.results.study.ladder is not None and found.results.runs:
        write_points(folder, points_of(found.results))
    StudyFolder(folder).note_look({str(verdict.question): verdict.outcome for verdict in found.verdicts})
    write_json(folder / "verdicts.json", [verdict.as_json() for verdict in found.verdicts])
    if not found.results.runs:
        return found
    if found.results.study.ensembles and len(kept(found.results)) < len(could_be_one(found.results)):
        arms_as_one(folder)
    return replace(found, report=write_report(found.results, found.verdicts, found.judgements))


def write_again(folder: Path) -> Path | None:
    """The report that is there, with what is known now; None where there is none yet."""
    from headway.study.report.report import write_report

    found = so_far(folder)
    return write_report(found.results, found.verdicts, found.judgements) if found.report else None


def so_far(folder: Path) -> Conclusion:
    """What follows from what is there; nothing is measured and nothing written."""
    results, report = read_results(folder), folder / "report.html"
    verdicts = _answered(results) if results.runs else []
    return Conclusion(results, verdicts, judge(results, verdicts), report if report.exists() else None)


def _answered(results: Results) -> list[Verdict]:
    """Every question; those about what was not measured yet, because somebody stopped before, with that."""
    known = set(results.score_names)
    lacking = {str(question): _lacking(question, results, known) for question in results.study.asked}
    ready = [question for question in results.study.asked if not lacking[str(question)]]
    rows = None if results.study.reads_other_rows else correct_in(results.folder / "runs")
    found = dict(zip(map(str, ready), analyse(ready, results, rows), strict=True))
    return [found.get(str(one)) or _not_measured(one, lacking[str(one)]) for one in results.study.asked]


def _lacking(question: Question, results: Results, known: Container[str]) -> list[str]:
    """What a question is about and no run has yet. Cheap methods come with a run's audits, which come last."""
    found = [score for score in question.scores if score not in known]
    if found or not isinstance(question, Better) or question.than in results.arms:
        return found
    return [] if question.than in results.cheap(question.on) else [f"{question.on} of {question.than}"]


def _not_measured(question: Question, lacking: Sequence[str]) -> Verdict:
    why = f"cannot say: {listed(lacking)} was not measured yet"
    return Verdict(question, "cannot say", f"{why}; headway study run goes on, headway study report measures it")


def measure_all(folder: Path) -> None:
    """What the study asks to be measured beside the scores of its recipes."""
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
    """What is best can be told when all have ended, and not before."""
    return isinstance(one, Chosen) and None not in ended.values()
