"""Which audits there are, and what they find in a finished run: the one place where all subjects come together.

What is read is the run folder, like every later stage reads it: what is judged is what was kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from headway import tasks
from headway.audit.attention import ABOUT_ATTENTION
from headway.audit.audit import Audit, Report, run_audits
from headway.audit.exam import Exam
from headway.audit.learning import ABOUT_LEARNING, moved, one_batch
from headway.audit.model import ABOUT_ANSWERS, finite
from headway.recipe import Recipe
from headway.run import Run
from headway.tasks.task import Task
from headway.training.population import load_weights

MODEL_AUDITS = (*ABOUT_ANSWERS, *ABOUT_ATTENTION, *ABOUT_LEARNING)
ALL_AUDITS: tuple[Audit, ...] = (*MODEL_AUDITS,)
"""Every audit there is, in the order in which they are run and shown."""

OF_EACH_REPLICA = (finite, moved)
"""What replicas may differ in; they share an architecture, so the other audits of a model are made once."""


def audit_run(run: Run) -> Report:
    """All audits of one run."""
    return audit_runs([run], tasks.load(run.recipe))[0]


def audit_runs(runs: Sequence[Run], task: Task) -> list[Report]:
    """All audits of runs that were trained as one population, a report each."""
    return audit_models(runs, task)


def audit_recipe(recipe: Recipe) -> Report:
    """What can be said before training: the audits of the data, and of a fresh model."""
    task = tasks.load(recipe)
    return audit_model(_exam(recipe, task, lambda device: task.build([recipe.seed], device)))


def audit_models(runs: Sequence[Run], task: Task) -> list[Report]:
    """The audits of the models of these runs."""
    exams = [_exam_of(run, task) for run in runs]
    whole = [exam for exam in exams if exam.is_whole]
    # The architecture can be judged on any weights; where all were lost, on those that training began with.
    shared = audit_model(whole[0] if whole else replace(exams[0], model=exams[0].fresh(), trained=False))
    by_rate = {_rate(whole[0] if whole else exams[0]): shared}
    reports = []
    for exam in exams:
        own = run_audits(OF_EACH_REPLICA, exam)
        if _rate(exam) not in by_rate:
            by_rate[_rate(exam)] = run_audits((one_batch,), exam)
        reports.append(_in_order(own, by_rate[_rate(exam)], shared))
    return reports


def audit_model(exam: Exam, audits: Sequence[Audit] = MODEL_AUDITS) -> Report:
    """The audits of one model. Where a weight is lost all answers are, and there is nothing to compare."""
    with torch.no_grad():
        if exam.is_whole:
            return run_audits(audits, exam)
        lost = {one.name: "the weights are not finite numbers" for one in audits if one is not finite}
        return finite.run(exam) + Report(not_run=lost)


def _exam_of(run: Run, task: Task) -> Exam:
    exam = _exam(run.recipe, task, lambda device: tasks.of(run.recipe).rebuild(run, device))
    load_weights(exam.model, 0, run.checkpoint("auto").weights)
    return replace(exam, trained="imported_from" not in run.facts)


def _exam(recipe: Recipe, task: Task, build: Callable[[str], Any]) -> Exam:
    """Of a fresh model of this recipe."""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def fresh() -> Any:
        return build(device).eval()

    return Exam(fresh(), recipe, task.sampler([recipe.seed], device).at(0), fresh, trained=False)


def _rate(exam: Exam) -> float:
    return exam.recipe.training.optimizer.learning_rate


def _in_order(*reports: Report) -> Report:
    """One report, in the order of all audits; of two findings of one audit, the first."""
    findings = {f.audit: f for report in reversed(reports) for f in report.findings}
    not_run = {
        name: why for report in reversed(reports) for name, why in report.not_run.items() if name not in findings
    }
    return Report(tuple(findings[a.name] for a in ALL_AUDITS if a.name in findings), not_run)
