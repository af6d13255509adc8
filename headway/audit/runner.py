"""Which audits there are, and what they find in a finished run: the one place where all subjects come together.

What is read is the run folder, like every later stage reads it: what is judged is what was kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headway import tasks
from headway.audit.answers import ABOUT_ANSWERS, finite
from headway.audit.attention import ABOUT_ATTENTION
from headway.audit.audit import Audit, Finding, Report, run_audits, write_report
from headway.audit.baselines import BASELINE_AUDITS
from headway.audit.evidence import evidence_of
from headway.audit.heads import HEAD_AUDITS, HeadEntropies
from headway.audit.labels import LABEL_AUDITS
from headway.audit.learning import ABOUT_LEARNING, moved, one_batch
from headway.audit.probe import Probe
from headway.audit.rows import ROW_AUDITS
from headway.audit.text import TEXT_AUDITS, TOKEN_AUDITS
from headway.audit.training import TRAINING_AUDITS
from headway.core.errors import UserError, did_you_mean
from headway.recipe.recipe import Recipe, load, packaged
from headway.run.folder import Run, all_runs, open_run
from headway.tasks.task import Task
from headway.training.population import load_weights

MODEL_AUDITS = (*ABOUT_ANSWERS, *ABOUT_ATTENTION, *ABOUT_LEARNING)
DATA_AUDITS = (*ROW_AUDITS, *TEXT_AUDITS, *TOKEN_AUDITS, *LABEL_AUDITS)
ALL_AUDITS: tuple[Audit, ...] = (*MODEL_AUDITS, *HEAD_AUDITS, *DATA_AUDITS, *BASELINE_AUDITS, *TRAINING_AUDITS)
"""Every audit there is, in the order in which they are run and shown."""

OF_EACH_REPLICA = (finite, moved)
"""What replicas may differ in; they share an architecture, so the other audits of a model are made once."""


def audit_by_name(name: str, changes: Sequence[str], runs: Path) -> Report:
    """All audits of a run, which are kept with it; or, where there is no such run or it is to be changed, what can be
    said of a recipe before it is trained."""
    is_run = any((folder / "run.json").exists() for folder in (runs / name, Path(name)))
    if not is_run or changes:
        recipes = packaged()
        is_file = "/" in name or name.endswith((".yaml", ".yml"))
        if is_run and name not in recipes:
            raise UserError(f"{name} is a run, and {changes[0]} cannot be changed any more; audit a recipe with it")
        if name not in recipes and not is_file:
            known = [*recipes, *(run.name for run in all_runs(runs))]
            raise UserError(f"there is neither a run nor a recipe '{name}'{did_you_mean(name, known)}")
        return audit_recipe(load(name, changes))
    run = open_run(name, runs)
    report = audit_run(run)
    write_report(run.folder, report)
    return report


def audit_run(run: Run) -> Report:
    """All audits of one run."""
    return audit_runs([run], tasks.load_for(run))[0]


def audit_runs(runs: Sequence[Run], task: Task) -> list[Report]:
    """All audits of runs that were trained as one population, a report each."""
    evidence = evidence_of(task)
    of_models, of_data = audit_models(runs, task), evidence.data + evidence.reading()
    return [model + of_data + evidence.audit(run) for model, run in zip(of_models, runs, strict=True)]


def audit_recipe(recipe: Recipe) -> Report:
    """What can be said before training: the audits of the data, and of a fresh model."""
    task = tasks.load(recipe)
    model = audit_model(_exam(recipe, task, lambda device: task.build([recipe.seed], device)))
    evidence = evidence_of(task)
    return model + evidence.data + evidence.reading()


def audit_models(runs: Sequence[Run], task: Task) -> list[Report]:
    """The audits of the models of these runs. One is looked at closely; of the others, what may differ."""
    shared: Report | None = None
    own: list[Report] = []
    by_rate: dict[float, Report] = {}  # whether a model can learn hangs on its learning rate
    for run in runs:
        probe = _exam_of(run, task)
        own.append(audit_model(probe, OF_EACH_REPLICA) + _heads(probe))
        rate = run.recipe.training.optimizer.learning_rate
        if rate not in by_rate:
            by_rate[rate] = audit_model(replace(probe, model=probe.fresh()), (one_batch,))
        # The architecture can be judged on any weights; where all were lost, on those that training began with.
        if shared is None and (probe.is_whole or run is runs[-1]):
            closely = probe if probe.is_whole else replace(probe, model=probe.fresh(), trained=False)
            shared = audit_model(closely, [one for one in MODEL_AUDITS if one is not one_batch])
    assert shared is not None, "there is no run to audit"
    rates = [run.recipe.training.optimizer.learning_rate for run in runs]
    return [_merged(mine, by_rate[rate], shared) for mine, rate in zip(own, rates, strict=True)]


def audit_model(probe: Probe, audits: Sequence[Audit] = MODEL_AUDITS) -> Report:
    """The audits of one model. Where a weight is lost all answers are, and there is nothing to compare."""
    with torch.no_grad():
        if probe.is_whole:
            return run_audits(audits, probe)
        lost = {one.name: "the weights are not finite numbers" for one in audits if one is not finite}
        return finite.run(probe) + Report(not_run=lost)


def _heads(probe: Probe) -> Report:
    """Of weights that came from a checkpoint; where they were imported, somebody else trained them."""
    if not probe.is_whole:
        return Report(not_run={one.name: "the weights are not finite numbers" for one in HEAD_AUDITS})
    return run_audits(HEAD_AUDITS, HeadEntropies.of(probe.model, probe.sentences))


def _exam_of(run: Run, task: Task) -> Probe:
    probe = _exam(run.recipe, task, lambda device: tasks.of(run.recipe).rebuild(run, device))
    load_weights(probe.model, 0, run.checkpoint("auto").weights)
    return replace(probe, trained="imported_from" not in run.facts)


def _exam(recipe: Recipe, task: Task, build: Callable[[str], Any]) -> Probe:
    """Of a fresh model of this recipe."""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def fresh() -> Any:
        return build(device).eval()

    return Probe(fresh(), recipe, task.sampler([recipe.seed], device).at(0), fresh, trained=False)


def _merged(*reports: Report) -> Report:
    """One report, in the order of all audits; what an earlier one says of an audit counts."""
    said: dict[str, Finding | str] = {}
    for report in reversed(reports):
        said |= report.not_run
        said |= {finding.audit: finding for finding in report.findings}
    in_order = [(one.name, said[one.name]) for one in ALL_AUDITS if one.name in said]
    findings = tuple(what for _, what in in_order if isinstance(what, Finding))
    return Report(findings, {name: what for name, what in in_order if isinstance(what, str)})
