"""Loads the stored models of a population for the audits: all of them as one model, and each alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch

from headway.audit.populations.members import Member
from headway.audit.probe import Probe
from headway.audit.scores.scored import OutputsAlone
from headway.core.errors import UserError
from headway.nn.replicated import set_dropout
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

    def heard(self) -> list[OutputsAlone | None]:
        """The outputs of each member alone, if there are several. One model is built and loaded with the weights of one
        member after the other, since building takes longer than evaluating. (A model with plugin layers is built every
        time, because such layers may have other state than weights.)"""
        found: list[OutputsAlone | None] = [None] * len(self.runs)
        build = lambda place: self.task.build([self.runs[place].recipe.seed], device()).eval()  # noqa: E731
        lent = build(0) if self._usable and _is_built_in(self._everyone.model) else None
        for place in self._usable:
            model = build(place) if lent is None else lent
            load_weights(model, 0, self.checkpoints[place].weights)
            batch = self.task.sampler([self.runs[place].recipe.seed], device()).at(0)
            found[place] = OutputsAlone.of(model, batch, self.task)
        return found

    @cached_property
    def _usable(self) -> list[int]:
        """Indices of members that can be evaluated together. Weights that are not finite are left out, since they could
        affect the others."""
        kept = enumerate(zip(self.runs, self.checkpoints, strict=True)) if len(self.runs) > 1 else ()
        return [
            place
            for place, (run, own) in kept
            if is_trained(run, self.task) and not _is_lost(run, own) and _is_finite(own)
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


def _is_built_in(model: Any) -> bool:
    return all(type(one).__module__.partition(".")[0] in ("headway", "torch") for one in model.modules())


def _is_finite(kept: Checkpoint) -> bool:
    return all(bool(torch.stack(torch.aminmax(w)).isfinite().all()) for w in kept.weights.values() if w.numel())


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
