"""More replicas than fit: how many go at once, and the rest in turns."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from headway import tasks
from headway.core.errors import UserError
from headway.core.files import check_names
from headway.core.progress import Reporter
from headway.experiment.resume import ended_apart
from headway.experiment.trackers import Observer
from headway.experiment.train import assemble, check_population, train
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, check_new
from headway.training import setting as settings
from headway.training.capacity import Capacity, free_memory, is_out_of_memory, largest_population
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
    """Train these recipes as populations of `together` replicas; without it, as many at once as the device holds.

    What fits is measured on a step of training. Where memory runs out all the same, in an evaluation or because others
    use the device, the rest goes on in halves. Gives the runs in the order of their names; after Ctrl-C, those that
    were trained by then.
    """
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
    made: dict[int, Run] = {}
    groups = [list(range(len(names)))]
    if resume and processes.world == 1:
        groups = ended_apart([runs / name for name in names])
    while groups:
        turn = groups[0][:size]
        these, called = [recipes[k] for k in turn], [names[k] for k in turn]
        # Turns that were never begun have nothing to resume; what was begun was so before, or did not fit just now.
        here = processes.is_writer and any((runs / name).exists() for name in called)
        (begun,) = processes.agree(here)
        try:
            trained = train(these, called, runs, begun or (resume and not made), reporter, observers)
        except Exception as error:
            if not is_out_of_memory(error) or len(turn) == 1 or processes.world > 1:
                raise
            trained = None
        if trained is None:  # and the error is forgotten, which held on to what filled the memory
            free_memory()
            size = -(-len(turn) // 2)
            reporter.warn(f"the memory was full: going on with {size} at a time, from what was saved")
            continue
        made |= zip(turn, trained, strict=True)
        groups = [rest for rest in (groups[0][size:], *groups[1:]) if rest]
        (stop,) = processes.agree(processes.is_writer and any(run.status.is_interrupted for run in trained))
        if stop:
            break
    return [made[k] for k in sorted(made)]


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
