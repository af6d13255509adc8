"""Trains populations that may not fit in memory: measures how many replicas fit, and trains the rest in turns."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from headway import tasks
from headway.core.errors import UserError
from headway.core.events import Event, Listener, Noted, Warned, tell
from headway.core.files import check_names
from headway.experiment.assembly import assemble, check_population
from headway.experiment.resume import ended_apart
from headway.experiment.size import needed_at_most
from headway.experiment.train import train
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
    listeners: Sequence[Listener] = (),
    together: int | None = None,
) -> list[Run]:
    """Train these recipes as populations of `together` replicas; without it, of as many as the device holds.

    The largest population is measured with a training step. If memory still runs out, in an evaluation or because other
    programs use the device, the rest continues in halves. Returns the runs in the order of their names; after Ctrl-C,
    those that were trained by then.
    """
    with started() as processes:
        turns = Turns(recipes, tuple(names), runs, resume, listeners, processes)
        turns.check()
        turns.size = turns.measured(together)
        return turns.take()


@dataclasses.dataclass
class Turns:
    """Replicas that are trained a few at a time; a run is identified by its index."""

    recipes: Sequence[Recipe]
    names: tuple[str, ...]
    runs: Path
    resume: bool
    listeners: Sequence[Listener]
    processes: Processes
    size: int = 1
    """Replicas per turn."""
    made: dict[int, Run] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Check all replicas before the first turn."""
        with self.processes.together():
            check_population(self.recipes)
            check_names(self.names)
            asked = self.recipes[0].training.device
            device = settings.choose(self.recipes[0].training, self.recipes[0].model.width, self.processes).device
            gpus = torch.cuda.device_count() if self.processes.world == 1 and device.type == "cuda" else 0
            if (idle := idle_gpus(asked, len(self.recipes), gpus)) is not None:
                self._tell(Noted(of=self.names, text=idle))
            for name in self.names if self.processes.is_writer and not self.resume else ():
                check_new(self.runs / name)

    def measured(self, together: int | None) -> int:
        """How many replicas per turn: as many as fit, or as requested."""
        size = min(together, len(self.recipes)) if together else len(self.recipes)
        if len(self.recipes) == 1 or self.processes.world > 1:  # several processes could measure different sizes
            return size
        fits, reason = capacity(self.recipes, size)
        if together and fits < size:
            raise UserError(
                f"{size} replicas do not fit on the device; the largest population that fits is {fits}: {reason}"
            )
        self._tell(Noted(of=self.names, text=reason))
        return fits

    def take(self) -> list[Run]:
        """Take one turn after the other, until the last or Ctrl-C."""
        groups = [list(range(len(self.names)))]
        if self.resume and self.processes.world == 1:
            groups = ended_apart([self.runs / name for name in self.names])
        while groups:
            turn = groups[0][: self.size]
            trained = self._trained(turn)
            if trained is None:
                self._halve(turn)
                continue
            self.made |= zip(turn, trained, strict=True)
            groups = [rest for rest in (groups[0][len(turn) :], *groups[1:]) if rest]
            stopped = self.processes.is_writer and any(run.status.is_interrupted for run in trained)
            if self.processes.agree(stopped) == (True,):
                break
        return [self.made[k] for k in sorted(self.made)]

    def _trained(self, turn: list[int]) -> list[Run] | None:
        """Train one turn; None if it did not fit. (The error is dropped here: it refers to the tensors that filled the
        memory.)"""
        names = [self.names[k] for k in turn]
        # Only turns that were started before, or just did not fit, have something to resume.
        here = self.processes.is_writer and any((self.runs / name).exists() for name in names)
        (begun,) = self.processes.agree(here)
        resume = begun or (self.resume and not self.made)
        try:
            return train([self.recipes[k] for k in turn], names, self.runs, resume, self.listeners)
        except Exception as error:
            if not is_out_of_memory(error) or len(turn) == 1 or self.processes.world > 1:
                raise
        return None

    def _halve(self, turn: list[int]) -> None:
        free_memory()
        self.size = -(-len(turn) // 2)
        text = f"out of memory: continuing with {self.size} replicas at a time, from the last checkpoints"
        self._tell(Warned(of=tuple(self.names[k] for k in turn), text=text))

    def _tell(self, event: Event) -> None:
        tell(self.listeners if self.processes.is_writer else (), event)


def idle_gpus(asked: str, replicas: int, gpus: int) -> str | None:
    """A note about GPUs that stay idle, with a way to use them. A population is one process on one GPU; whoever asked
    for cuda:1 knows that."""
    if gpus < 2 or replicas < 2 or ":" in asked:
        return None
    return (
        f"one of {gpus} GPUs trains all {replicas} replicas; a study distributes its runs over all GPUs: "
        "headway study run FILE"
    )


def capacity(recipes: Sequence[Recipe], wanted: int, share: float | None = None) -> Capacity:
    """How many of these replicas fit at once, found with training steps of one and two replicas if it is in doubt.
    `share`: the share of the device's memory that may be used; None = this process's own."""
    recipe = recipes[0]
    setting = settings.choose(recipe.training, recipe.model.width)
    plain = dataclasses.replace(setting, compiled=False, recorded=False)  # needs as much memory or more, in less time
    task = tasks.load(recipe)

    def step_with(replicas: int) -> None:
        population, sampler = assemble(recipes[:replicas], task, plain)
        alive = torch.ones(replicas, dtype=torch.bool, device=plain.device)
        update = Update(population.model, population.optimizer, sampler, recipe.training, plain, alive)
        update(0, 0.0)

    return largest_population(setting.device, wanted, step_with, needed_at_most(recipe, task), share)
