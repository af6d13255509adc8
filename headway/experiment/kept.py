"""What the runs of one population have kept, for the audits: all of them side by side, and each alone."""

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
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.tasks.task import Task
from headway.training.checkpoint import Checkpoint
from headway.training.population import load_side_by_side, load_weights


@dataclass(frozen=True)
class KeptMembers:
    runs: Sequence[Run]
    checkpoints: Sequence[Checkpoint]
    """The one of each that is scored."""
    task: Task

    @property
    def members(self) -> list[Member]:
        places = {place: beside for beside, place in enumerate(self._beside)}
        return [self._member(place, places.get(place)) for place in range(len(self.runs))]

    @property
    def together(self) -> Any:
        """All of them in one model, if there are several and each has weights that training led to."""
        return self._everyone.model if len(self._beside) == len(self.runs) else None

    def controls(self) -> list[ControlOutputs | None]:
        """The outputs of each run outside the population, if there are several: alone, or in control groups if there
        are many. A run whose answers in its group differ from those in the population is evaluated alone, as is the
        whole group if its sample differs from itself alone. (Runs with user-defined layers are always evaluated alone,
        because such layers may keep other state than their weights.)"""
        found: list[ControlOutputs | None] = [None] * len(self.runs)
        groups, reused = control_groups(self._beside), dict[int, Any]()
        if len(groups) == len(self._beside) or not _is_of_the_house(self._everyone.model):
            for place in self._beside:
                (found[place],) = self._outputs([place], reused)
            return found
        everyone = self._everyone
        answers = answers_of_each(everyone.model, everyone.batch, everyone.how)
        among_all = dict(zip(self._beside, answers, strict=True))
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
        if _is_of_the_house(model):
            reused[len(places)] = model
        load_side_by_side(model, [self.checkpoints[place].weights for place in places])
        return ControlOutputs.of_each(model, self.task.sampler(seeds, device()).at(0), self.task)

    @cached_property
    def _beside(self) -> list[int]:
        """Those that can be asked at once: what is no number is not passed through a layer beside the others."""
        kept = enumerate(zip(self.runs, self.checkpoints, strict=True)) if len(self.runs) > 1 else ()
        return [
            place
            for place, (run, own) in kept
            if is_trained(run, self.task) and not _is_lost(run, own) and are_finite(own.weights.values())
        ]

    @cached_property
    def _everyone(self) -> Probe:
        """These."""
        recipes = [self.runs[place].recipe for place in self._beside]
        everyone = _probe(recipes, self.task, partial(self.task.build, [recipe.seed for recipe in recipes]))
        load_side_by_side(everyone.model, [self.checkpoints[place].weights for place in self._beside])
        return replace(everyone, trained=True)

    def _member(self, place: int, beside: int | None) -> Member:
        run = self.runs[place]
        alone = cache(lambda: probe_of(run, self.task, self.checkpoints[place]))
        everyone, among = (alone(), 0) if beside is None else (self._everyone, beside)
        return Member(everyone, among, run.recipe, alone)


def probe_of(run: Run, task: Task, kept: Checkpoint) -> Probe:
    """Of one by itself."""
    trained = is_trained(run, task)
    probe = _probe(
        [run.recipe], task, partial(task.build, [run.recipe.seed]) if trained else partial(task.rebuild, run)
    )
    if not _is_lost(run, kept):
        load_weights(probe.model, 0, kept.weights)
    elif trained:  # the architecture can be judged all the same, by the weights that training began with
        trained = False
    return replace(probe, trained=trained, to_train=kept.step > 0 or "imported_from" not in run.facts)


def probe_of_recipe(recipe: Recipe, task: Task) -> Probe:
    """Of a fresh model."""
    return _probe([recipe], task, partial(task.build, [recipe.seed]))


def _probe(recipes: Sequence[Recipe], task: Task, build: Callable[[str], Any]) -> Probe:
    """Of fresh models of these recipes, side by side."""
    where = device()

    def fresh() -> Any:
        model = build(where)
        set_dropout(model, [recipe.model.dropout for recipe in recipes])  # those of the task are its first member's
        return model.eval()

    batch = task.sampler([recipe.seed for recipe in recipes], where).at(0)
    return Probe(fresh(), recipes[0], batch, task.probing, fresh, trained=False)


def is_trained(run: Run, task: Task) -> bool:
    """Whether its weights came from a start that can still be made."""
    return "imported_from" not in run.facts and start_is_there(run, task)


def start_is_there(run: Run, task: Task) -> bool:
    """Whether what training began with can still be made: borrowed weights may be gone, or be others by now."""
    try:
        return run.facts.get("start") == task.facts.get("start")
    except UserError:
        return False


def _is_lost(run: Run, kept: Checkpoint) -> bool:
    """It diverged, and what was kept is what was left then."""
    return run.status.is_diverged and kept.step >= (run.status.step or 0)


def _is_of_the_house(model: Any) -> bool:
    return all(type(one).__module__.partition(".")[0] in ("headway", "torch") for one in model.modules())


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
