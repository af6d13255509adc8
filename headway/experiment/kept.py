"""Loads the stored models of a population for the audits: all of them as one model, and each alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch

from headway.audit.populations.control_groups import also_alone, control_groups
from headway.audit.populations.members import Member
from headway.audit.probe import Probe, are_finite
from headway.audit.scores.scored import ControlOutputs, answers_of_each
from headway.core.errors import UserError
from headway.nn.replicated import set_dropout
from headway.nn.seeding import seed_noise
from headway.nn.trainable import is_built_in
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.tasks.task import Task
from headway.training.checkpoint import Checkpoint
from headway.training.population import load_side_by_side, load_weights


@dataclass(frozen=True)
class KeptMembers:
    runs: Sequence[Run]
    checkpoints: Sequence[Checkpoint]
    """The checkpoint of each run that is scored."""
    task: Task

    @property
    def members(self) -> list[Member]:
        places = {place: beside for beside, place in enumerate(self._usable)}
        return [self._member(place, places.get(place)) for place in range(len(self.runs))]

    @property
    def together(self) -> Any:
        """All members in one model, if there are several and all have trained, finite weights."""
        return self._everyone.model if len(self._usable) == len(self.runs) else None

    def controls(self) -> list[ControlOutputs | None]:
        """The outputs of each run outside the population, if there are several: alone, or in control groups if there
        are many. A run whose answers in its group differ from those in the population is evaluated alone, as is the
        whole group if its sample differs from itself alone. (Runs with user-defined layers are always evaluated alone,
        because such layers may keep other state than their weights.)"""
        found: list[ControlOutputs | None] = [None] * len(self.runs)
        groups, reused = control_groups(self._usable), dict[int, Any]()
        if len(groups) == len(self._usable) or not is_built_in(self._everyone.model):
            for place in self._usable:
                (found[place],) = self._outputs([place], reused)
            return found
        everyone = self._everyone
        answers = answers_of_each(everyone.model, everyone.batch, everyone.how)
        among_all = dict(zip(self._usable, answers, strict=True))
        for group, sample in zip(groups, also_alone(groups), strict=True):
            in_group = dict(zip(group, self._outputs(group, reused), strict=True))
            (alone,) = self._outputs([sample], reused)
            is_right = alone.agrees_with(in_group[sample])
            for place, own in in_group.items():
                is_same = is_right and own.has_answers(among_all[place])
                (found[place],) = [own] if is_same else self._outputs([place], reused)
        return found

    def _outputs(self, places: Sequence[int], reused: dict[int, Any]) -> list[ControlOutputs]:
        """The outputs of these runs in one model. The model is reused for the next group of the same size, because
        building it takes longer than evaluating it."""
        seeds = [self.runs[place].recipe.seed for place in places]
        model = reused.get(len(places)) or self.task.build(seeds, device()).eval()
        if is_built_in(model):
            reused[len(places)] = model
        seed_noise(model, seeds)
        load_side_by_side(model, [self.checkpoints[place].weights for place in places])
        return ControlOutputs.of_each(model, self.task.sampler(seeds, device()).at(0), self.task)

    @cached_property
    def _usable(self) -> list[int]:
        """Indices of members that can be evaluated together. Weights that are not finite are left out, since they could
        affect the others."""
        kept = enumerate(zip(self.runs, self.checkpoints, strict=True)) if len(self.runs) > 1 else ()
        return [
            place
            for place, (run, own) in kept
            if is_trained(run, self.task) and not _is_lost(run, own) and are_finite(own.weights.values())
        ]

    @cached_property
    def _everyone(self) -> Probe:
        """The members that can be evaluated together, as one model."""
        recipes = [self.runs[place].recipe for place in self._usable]
        everyone = _probe(recipes, self.task, partial(self.task.build, [recipe.seed for recipe in recipes]))
        load_side_by_side(everyone.model, [self.checkpoints[place].weights for place in self._usable])
        return replace(everyone, trained=True)

    def _member(self, place: int, beside: int | None) -> Member:
        run = self.runs[place]
        alone = cache(lambda: probe_of(run, self.task, self.checkpoints[place]))
        everyone, among = (alone(), 0) if beside is None else (self._everyone, beside)
        return Member(everyone, among, run.recipe, alone)


def probe_of(run: Run, task: Task, kept: Checkpoint) -> Probe:
    """The probe of a single run."""
    trained = is_trained(run, task)
    probe = _probe(
        [run.recipe], task, partial(task.build, [run.recipe.seed]) if trained else partial(task.rebuild, run)
    )
    if not _is_lost(run, kept):
        load_weights(probe.model, 0, kept.weights)
    elif trained:  # the architecture can still be audited, with initial weights
        trained = False
    return replace(probe, trained=trained, to_train=kept.step > 0 or "imported_from" not in run.facts)


def probe_of_recipe(recipe: Recipe, task: Task) -> Probe:
    """The probe of a freshly initialized model."""
    return _probe([recipe], task, partial(task.build, [recipe.seed]))


def _probe(recipes: Sequence[Recipe], task: Task, build: Callable[[str], Any]) -> Probe:
    """The probe of freshly initialized models of these recipes, as one model."""
    where = device()

    def fresh() -> Any:
        model = build(where)
        set_dropout(model, [recipe.model.dropout for recipe in recipes])  # the task only knows its first member's
        return model.eval()

    batch = task.sampler([recipe.seed for recipe in recipes], where).at(0)
    return Probe(fresh(), recipes[0], batch, task.probing, fresh, trained=False)


def is_trained(run: Run, task: Task) -> bool:
    """Whether its weights were trained from a start that can still be rebuilt."""
    return "imported_from" not in run.facts and start_is_there(run, task)


def start_is_there(run: Run, task: Task) -> bool:
    """Whether the start of training can still be rebuilt: pretrained weights may be gone or have changed."""
    try:
        return run.facts.get("start") == task.facts.get("start")
    except UserError:
        return False


def _is_lost(run: Run, kept: Checkpoint) -> bool:
    """Whether the run diverged, and only its weights from then or later were stored."""
    return run.status.is_diverged and kept.step >= (run.status.step or 0)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
