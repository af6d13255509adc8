"""Runs all audits on finished runs, and on recipes before they are trained.

Runs are read from their folders, so that what is audited is what was stored. A task defines how its models are called
(`probing`) and what its data provide (`evidence`); the audits themselves are in headway/audit/.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from headway import tasks
from headway.audit.audit import Report, write_report
from headway.audit.populations.members import Member
from headway.audit.populations.populations import audit_population
from headway.audit.populations.side_by_side import MEMBERS, SideBySide
from headway.audit.probe import LONGEST, TOKENS
from headway.audit.runner import OF_A_TRAINED_MODEL, CloseLook, audit_model, audit_models
from headway.audit.scores.scored import ScoredPopulation
from headway.audit.scores.scores import audit_scores
from headway.audit.training.trained import diverged
from headway.core.errors import UserError, did_you_mean
from headway.core.files import side_by_side
from headway.core.plugins import reason_of
from headway.experiment import assembly
from headway.experiment.kept import KeptMembers, device, probe_of_recipe, start_is_there
from headway.experiment.size import check_weights
from headway.nn.kernels.trusted import using_known_kernels
from headway.nn.seeding import drawn_once
from headway.recipe.library import packaged
from headway.recipe.recipe import Recipe, load
from headway.run.folder import Run, open_run
from headway.run.record import run_names
from headway.tasks.task import Task
from headway.training.checkpoint import Checkpoint
from headway.training.setting import Setting

WEIGHTS_AT_ONCE = 2**28
"""Limit of the weights held at a time, for all members together: 1 GiB."""
ANSWERS_AT_ONCE = 2**26
"""Limit of the numbers in the outputs for one row of all members: half a GiB in float64."""
ASKED_AT_ONCE = {"cpu": 2**27, "cuda": 2**30}
"""Limit of the numbers in the outputs for the probe sentences of all members: half a GiB, and four."""


def audit_by_name(name: str, changes: Sequence[str], runs: Path) -> Report:
    """Run all audits of a run, and store them with it. If there is no such run, or there are changes, audit the recipe
    before training instead."""
    if not _is_run(name, runs) or changes:
        return audit_recipe(_recipe(name, changes, runs))
    run = open_run(name, runs)
    report = audit_run(run)
    try:
        write_report(run.folder, report)
    except (OSError, UserError) as error:  # a read-only run can still be audited
        print(f"the audits could not be stored in {run.folder}: {reason_of(error)}", file=sys.stderr)
    return report


def recipe_by_name(name: str, changes: Sequence[str], runs: Path) -> Recipe:
    """The recipe of this name; if there is none, that of a run."""
    if _is_run(name, runs) and name not in packaged():
        return open_run(name, runs).recipe.with_changes(changes)
    return _recipe(name, changes, runs)


def _is_run(name: str, runs: Path) -> bool:
    return any((folder / "run.json").exists() for folder in (runs / name, Path(name)))


def _recipe(name: str, changes: Sequence[str], runs: Path) -> Recipe:
    recipes = packaged()
    is_file = Path(name).is_file() or name.endswith((".yaml", ".yml"))
    if _is_run(name, runs) and name not in recipes:
        raise UserError(f"{name} is a run, so {changes[0]} can no longer be changed; audit a recipe with it instead")
    if name not in recipes and not is_file:
        known = [*recipes, *run_names(runs)]
        raise UserError(f"'{name}' is neither a run nor a recipe{did_you_mean(name, known)}")
    return load(name, changes)


def audit_run(run: Run) -> Report:
    """Run all audits of one run."""
    return audit_runs([run], tasks.load_for(run))[0]


def audit_runs(runs: Sequence[Run], task: Task) -> list[Report]:
    """Run all audits of runs that were trained as one population. Returns one report per run."""
    evidence, looks = task.evidence, _looks.get()
    look = None if looks is None else looks.setdefault(_but_for_the_seed(runs[0].recipe, task), CloseLook())
    of_data = evidence.data + evidence.reading()
    at_once, of_runs = _at_once(runs, task), list[Report]()
    kept = lru_cache(at_once)(lambda run: run.checkpoint("auto"))

    def members() -> Iterator[Member]:
        """Yield the members, a few loaded at a time, and audit their scores after their models."""
        for some in (runs[first : first + at_once] for first in range(0, len(runs), at_once)):
            side_by_side([partial(kept, run) for run in some])  # in parallel, since checksums take longest
            beside = KeptMembers(some, [kept(run) for run in some], task)
            yield from beside.members
            scored = scored_population(some, task, beside.checkpoints, len(some) / len(runs), beside)
            of_runs.extend(evidence.audit(one.run, one.unaided) + audit_scores(one) for one in scored.members)

    with drawn_once(), using_known_kernels():  # building kernels takes longer than a few steps do without them
        of_models = audit_models(members(), look)
        population = population_report(runs, task, kept, at_once)
    reports = [model + population + of_data + run for model, run in zip(of_models, of_runs, strict=True)]
    return [_of_diverged(one) if run.status.is_diverged else one for run, one in zip(runs, reports, strict=True)]


def _at_once(runs: Sequence[Run], task: Task) -> int:
    """How many members may be loaded at once, by the size of their weights and outputs. Runs whose starting weights are
    gone can only be rebuilt one by one from their folders."""
    if not all(start_is_there(run, task) for run in runs):
        return 1
    weights, recipe = int(runs[0].facts.get("parameters", 1)), runs[0].recipe
    choices = task.data.tokenizer.size if task.probing.per_token else 1
    maps = recipe.model.layers * recipe.model.largest(min(LONGEST, recipe.segment))  # attention maps, for `heads.py`
    asked = ASKED_AT_ONCE[device()] // (TOKENS * max(choices, maps))
    answers = ANSWERS_AT_ONCE // (recipe.scoring_segment * choices), asked
    return max(1, min(WEIGHTS_AT_ONCE // weights, *answers))


def _of_diverged(report: Report) -> Report:
    """Report only the divergence: what else is wrong with such weights, curves and scores follows from it."""
    found = report.finding(diverged.name)
    if found is None or found.verdict != "fail":
        return report
    follows = {one.name for one in OF_A_TRAINED_MODEL if one is not diverged}
    folded = {finding.audit: "the training diverged" for finding in report.findings if finding.audit in follows}
    findings = tuple(finding for finding in report.findings if finding.audit not in folded)
    return Report(findings, report.not_run | folded, report.baselines)


_looks: ContextVar[dict[str, CloseLook] | None] = ContextVar("looks", default=None)


@contextmanager
def one_close_look_each() -> Iterator[None]:
    """Within this context, runs that differ only in the seed are audited like members of one population although they
    are trained one after the other: one is audited in full, the others only in what may differ."""
    before = _looks.set({})
    try:
        yield
    finally:
        _looks.reset(before)


def _but_for_the_seed(recipe: Recipe, task: Task) -> str:
    return f"{recipe.model_copy(update={'seed': 0}).hash} {task.data.identity}"


def audit_recipe(recipe: Recipe) -> Report:
    """Audit a recipe before training: its data, and a freshly initialized model."""
    task = tasks.load(recipe)
    check_weights(recipe, task, 1, torch.device(device()))
    with drawn_once():
        model = audit_model(probe_of_recipe(recipe, task))
    return model + task.evidence.data + task.evidence.reading()


def population_report(
    runs: Sequence[Run], task: Task, kept: Callable[[Run], Checkpoint], at_once: int = MEMBERS
) -> Report:
    """Run the audits of populations: on members that were trained together, or on one of them with others rebuilt from
    their seeds. Runs trained alone have none. `at_once`: how many members may be in memory at a time."""
    members: list[Run | None] = [*runs]
    recipes = [run.recipe for run in runs]
    if len(runs) == 1:  # the folders of the others may have been moved
        others = list(runs[0].facts.get("population", ()))
        if runs[0].recipe.seed in others:
            others.remove(runs[0].recipe.seed)
        recipes += [recipes[0].model_copy(update={"seed": seed}) for seed in others[: MEMBERS - 1]]
        members += [None] * (len(recipes) - 1)
    if len(recipes) == 1:
        return Report()
    at_hand = len(runs) <= at_once
    weights = [
        None if run is None or not (at_hand or place < MEMBERS) else kept(run).weights
        for place, run in enumerate(members)
    ]

    def assemble(recipes: Sequence[Recipe]) -> Any:
        setting = Setting(torch.device(device()), torch.float32, False, False, ())
        return assembly.assemble(recipes, task, setting)[0]

    everyone = SideBySide(recipes, weights, members, task, device(), assemble)
    return audit_population(everyone.first(MEMBERS), everyone)


def scored_population(
    runs: Sequence[Run],
    task: Task,
    kept: Sequence[Checkpoint],
    share: float = 1.0,
    beside: KeptMembers | None = None,
) -> ScoredPopulation:
    """The population with its scores. Its audits may take their share of one second, or of 5 % of the training time."""
    seconds = share * max(1.0, 0.05 * float(runs[0].facts.get("seconds", 0)))
    if beside is None or len(runs) == 1:
        return ScoredPopulation(runs, kept, task, device(), seconds)
    return ScoredPopulation(runs, kept, task, device(), seconds, beside.controls(), beside.together)
