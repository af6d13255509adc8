"""Replicas together in one model, as in training, and each alone: what `populations.py` compares."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headway.audit.populations.members import cut
from headway.audit.probing import Probing
from headway.nn.replicated import set_dropout
from headway.nn.seeding import drawn_anew
from headway.nn.trainable import Trainable, moving
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.training.averaging import Averages
from headway.training.population import load_weights
from headway.training.setting import Setting
from headway.training.update import Update

MEMBERS = 3
"""Enough for one to have a neighbour on either side."""
ROWS, LONGEST = 4, 128
ANSWERS = 2**23
"""Maximum number of output values of all replicas: with a larger vocabulary, only two rows are used."""
STEPS_AVERAGED = 2
USUAL_RATE = 0.03
"""Above this learning rate, rounding errors of the first step make a second one incomparable."""
LATER = 3
"""A step other than the first."""


@dataclass(frozen=True)
class SideBySide:
    """The replicas of a population, as they were trained."""

    recipes: Sequence[Recipe]
    weights: Sequence[dict[str, Tensor] | None]
    """Of each replica; None stands for its initial weights."""
    runs: Sequence[Run | None]
    """Of each replica, if it is available."""
    task: Any
    device: str
    assemble: Callable[[Sequence[Recipe]], Any] | None = None
    """Builds replicas into one model as training does (a `Population`); None: it is done here."""

    def first(self, members: int) -> "SideBySide":
        """The first so many replicas, as a population of their own."""
        recipes, weights, runs = (one[:members] for one in (self.recipes, self.weights, self.runs))
        return replace(self, recipes=recipes, weights=weights, runs=runs)

    @property
    def how(self) -> Probing:
        return self.task.probing

    @property
    def seeds(self) -> list[int]:
        return [recipe.seed for recipe in self.recipes]

    def model(self, members: Sequence[int], trained: bool = True) -> Trainable:
        """A new model of these replicas, in evaluation mode."""
        with nullcontext() if trained else drawn_anew():
            model = self.task.build([self.seeds[r] for r in members], self.device)
        set_dropout(model, [self.recipes[r].model.dropout for r in members])
        for place, r in enumerate(members):
            weights = self.weights[r]
            if trained and weights is not None:
                load_weights(model, place, weights)
        return model.eval()

    @property
    def all(self) -> list[int]:
        return list(range(len(self.recipes)))

    @cached_property
    def together(self) -> Trainable:
        return self.model(self.all)

    @cached_property
    def alone(self) -> list[Trainable]:
        return [self.model([r]) for r in self.all]

    @cached_property
    def sampler(self) -> Any:
        return self.task.sampler(self.seeds, self.device)

    def batch(self, step: int | Tensor = 0, member: int | None = None) -> Any:
        """A few rows of every replica's batch; or of this replica's."""
        which = slice(None) if member is None else slice(member, member + 1)
        drawn = self._first if isinstance(step, int) and step == 0 else self.sampler.at(step)
        return cut(drawn, (which, slice(self.rows), slice(LONGEST)))

    @cached_property
    def _first(self) -> Any:
        return self.sampler.at(0)

    @cached_property
    def rows(self) -> int:
        model: Any = self.together
        per_row = min(LONGEST, self.recipes[0].segment) * model.vocabulary if self.how.per_token else 0
        return ROWS if len(self.recipes) * ROWS * per_row <= ANSWERS else 2

    @cached_property
    def said(self) -> list[tuple[Tensor, Tensor]]:
        """The outputs of each replica alone, and its loss, in evaluation mode."""
        found = []
        for r, alone in enumerate(self.alone):
            alone.clock.set(LATER)
            own = self.batch(member=r)
            with torch.no_grad():
                found.append((self.answers(alone, own), alone.loss(own)[0]))
        return found

    @cached_property
    def gradients(self) -> list[dict[str, Tensor]]:
        """The gradient of each replica alone, in all trained weights."""
        return [self.gradient_of(alone, self.batch(member=r), 0) for r, alone in enumerate(self.alone)]

    def gradient_of(self, model: Trainable, batch: Any, r: int) -> dict[str, Tensor]:
        """The gradient of replica r's loss in all trained weights, with the dropout of the first step; if training
        carries a state, with rows that start from one. (One forward pass for each, because compiled graphs allow only
        one backward pass.)"""
        parameters, before = moving(dict(model.named_parameters())), None
        model.train()
        model.clock.set(0)
        if self.recipes[0].model.remembers and self.recipes[0].data.rows_go_on:
            with torch.no_grad():
                _, before = model.loss(batch)
        loss = model.loss(batch, before)[0][r]
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        model.eval()
        both = zip(parameters.items(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in both}

    @contextmanager
    def to_train(self, model: Trainable) -> Iterator[Trainable]:
        """Context manager: a shared model that may be changed; afterwards it is restored."""
        kept = [*model.parameters(), *model.buffers()]
        before = [one.detach().clone() for one in kept]
        try:
            yield model
        finally:
            with torch.no_grad():
                for one, was in zip(kept, before, strict=True):
                    one.copy_(was)
            model.zero_grad()
            model.eval()

    def update(self, model: Trainable, members: Sequence[int]) -> Update:
        """Real training steps, in float32."""
        training = self.recipes[0].training
        rates = [self.recipes[r].training.optimizer.learning_rate for r in members]
        decays = [self.recipes[r].training.optimizer.weight_decay for r in members]
        trained = moving(dict(model.named_parameters()))
        optimizer = training.optimizer.build(trained, rates, decays)
        alive = torch.ones(len(members), dtype=torch.bool, device=self.device)
        setting = Setting(torch.device(self.device), torch.float32, False, False, ())
        reads = _Reads(self, None if len(members) > 1 else members[0])
        spec, averages = training.model_copy(update={"accumulate": 1}), None
        if training.averaging is not None:
            averages = Averages(training.averaging, trained, STEPS_AVERAGED)
        return Update(model, optimizer, reads, spec, setting, alive, averages=averages)

    def update_of_training(self) -> Update:
        """The same for all replicas, put together as training does it: with its model, learning rates and decays."""
        if self.assemble is None:
            return self.update(self.model(self.all), self.all)
        population = self.assemble(self.recipes)
        for r, alone in enumerate(self.alone):
            load_weights(population.model, r, {name: p[0].detach() for name, p in alone.named_parameters()})
        made = self.update(population.model, self.all)
        made.optimizer = population.optimizer
        return made

    def in_both_modes(self, look: Callable[[str], None]) -> None:
        for mode in ("evaluation", "training"):
            for model in (self.together, *self.alone):
                model.train(mode == "training")
                model.clock.set(LATER)
            try:
                with torch.no_grad():
                    look(mode)
            finally:
                for model in (self.together, *self.alone):
                    model.eval()

    def answers(self, model: Any, batch: Any) -> Tensor:
        return self.how.answer_batch(model, batch)


class _Reads:
    """A sampler of a few rows."""

    steps_per_epoch = 1

    def __init__(self, members: SideBySide, member: int | None):
        self.members, self.member = members, member

    def at(self, step: Any) -> Any:
        return self.members.batch(step, self.member)


def in_a_row(tensors: Iterable[Tensor]) -> Tensor:
    """All values of each replica, flattened and concatenated [R, N], to compare many tensors at once."""
    return torch.cat([t.detach().reshape(len(t), -1) for t in tensors], 1)
