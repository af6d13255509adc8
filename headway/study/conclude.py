"""What follows from the runs of a study: more is measured, the questions are answered, the report is written."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.files import write_json
from headway.study.folder import StudyFolder
from headway.study.inquiry import Verdict
from headway.study.judgement import Judgement, judge
from headway.study.measures import measure
from headway.study.plan import Sizes
from headway.study.results import Results, ending, read_results
from headway.study.rows import correct_in
from headway.study.verdicts import answer


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
    from headway.study.report import write_report

    measure_all(folder)
    found = so_far(folder)
    write_json(folder / "verdicts.json", [verdict.as_json() for verdict in found.verdicts])
    if not found.results.runs:
        return found
    return replace(found, report=write_report(found.results, found.verdicts, found.judgements))


def so_far(folder: Path) -> Conclusion:
    """What follows from what is there; nothing is measured and nothing written."""
    results, report = read_results(folder), folder / "report.html"
    verdicts = answer(results.study.asked, results, correct_in(folder / "runs")) if results.runs else []
    return Conclusion(results, verdicts, judge(results, verdicts), report if report.exists() else None)


def measure_all(folder: Path) -> None:
    """What the study asks to be measured beside the scores of its recipes."""
    home = StudyFolder(folder)
    study, sizes = home.study, Sizes()
    if not study.measures:
        return
    for run in study.runs(home.budgets):
        status = ending(home.runs / run.name)
        if status is not None and not status.startswith("diverged"):
            measure(home.runs / run.name, run.recipe, sizes.task(run.recipe), study.measures)
