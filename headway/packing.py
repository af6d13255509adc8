"""More replicas than fit: how many go at once, and the rest in turns."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from headway import tasks
from headway.errors import UserError
from headway.experiment import assemble, check_names, check_population, train
from headway.progress import Reporter
from headway.recipe import Recipe
from headway.run import Run, check_new
from headway.trackers import Observer
from headway.training import setting as settings
from headway.training.capacity import Capacity, largest_population
from headway.training.processes import Processes, started
from headway.training.update import Update


def train_in_turns(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    runs: Path = Path("runs"),
    resume: bool = False,
    reporter: Reporter | None = None,
    together: int | None = None,
    observers: Sequence[Observer] = (),
) -> list[Run]:
    """Train these recipes as populations of `together` replicas; without it, as many at once as the device holds."""
    with started() as processes:
        return _in_turns(recipes, names, runs, resume, reporter or Reporter(), together, observers, processes)


def _in_turns(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    runs: Path,
    resume: bool,
    reporter: Reporter,
    together: int | None,
    observers: Sequence[Observer],
    processes: Processes,
) -> list[Run]:
    with processes.together():
        check_population(recipes)
        check_names(names)
        settings.choose(recipes[0].training, recipes[0].model.width, processes)
        for name in names if processes.is_writer and not resume else ():
            check_new(runs / name)
    size = min(together, len(recipes)) if together else len(recipes)
    if len(recipes) > 1 and processes.world == 1:  # several would measure several answers
        fits, reason = capacity(recipes, size)
        if together and fits < size:
            raise UserError(
                f"{size} replicas do not fit on the device; the largest population that does is {fits}: {reason}"
            )
        size = fits
        reporter.say(reason)
    made: list[Run] = []
    for first in range(0, len(recipes), size):
        turn = slice(first, first + size)
        # Turns that were never begun have nothing to resume.
        here = processes.is_writer and any((runs / name).exists() for name in names[turn])
        (begun,) = processes.agree(here)
        made += train(recipes[turn], names[turn], runs, resume and (begun or first == 0), reporter, observers)
        (stop,) = processes.agree(processes.is_writer and any(_interrupted(run) for run in made))
        if stop:
            break
    return made


def _interrupted(run: Run) -> bool:
    return str(run.facts["status"]).startswith("interrupted")


def capacity(recipes: Sequence[Recipe], wanted: int) -> Capacity:
    """How many of these replicas fit at once, found by a step of one and a step of two."""
    recipe = recipes[0]
    setting = settings.choose(recipe.training, recipe.model.width)
    plain = dataclasses.replace(setting, compiled=False, recorded=False)  # the same memory or more, in less time
    task = tasks.load(recipe)

    def step_with(replicas: int) -> None:
        population, sampler = assemble(recipes[:replicas], task, plain)
        alive = torch.ones(replicas, dtype=torch.bool, device=plain.device)
        update = Update(population.model, population.optimizer, sampler, recipe.training, plain, alive)
        update(0, 0.0)

    return largest_population(setting.device, wanted, step_with)
