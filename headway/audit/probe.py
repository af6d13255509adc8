"""What the audits of a model are given: the model alone, its recipe, a batch of its training, and sentences to try.

Sentences are short (a leak does not need length to show), half of them real and half drawn from the whole vocabulary.
One row probes one position, so that all positions are probed in one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply
from headway.core import random as noise
from headway.models.language_model import LanguageModel
from headway.recipe.recipe import Recipe

LENGTH = 24
"""Tokens of a sentence to try; more where a window must be left behind."""
LONGEST = 64
TINY = 1e-3
"""Of the spread of the outputs: what sums in another order may differ by, a hundred times over. Real faults are above
a hundredth."""


Found = TypeVar("Found")


class Padded(NamedTuple):
    begun: Tensor
    """Beginnings of the sentences, without padding [1, rows, n]."""
    ids: Tensor
    """The same with padding [1, rows, T]."""
    padding_mask: Tensor
    """Where `ids` is not padding."""
    before: list[int]
    """How much of the padding stands before each row."""
    room: int
    """How much padding each row has."""


@dataclass(frozen=True)
class Probe:
    model: Any
    """A single replica, in evaluation mode."""
    recipe: Recipe
    batch: Any
    """A batch of training: inputs [1, B, T] and what belongs to them."""
    fresh: Callable[[], Any]
    """Builds a model of the recipe as training began with it, which is a pure function of the seed."""
    trained: bool = True
    """Training led from `fresh` to `model`; False for imported weights, and for a recipe that was not trained yet."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def is_causal(self) -> bool:
        return isinstance(self.model, LanguageModel)

    def answer(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Everything the model says: [1, B, T, V] of a language model, [1, B, C] of a classifier."""
        given = {} if padding_mask is None else {"padding_mask": padding_mask}
        found = self.model(ids, **given)
        return found[0] if isinstance(found, tuple) else found

    @property
    def is_whole(self) -> bool:
        """All weights are finite numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    @property
    def choices(self) -> int:
        """How many answers there are: words, or classes."""
        return self.model.vocabulary if self.is_causal else self.model.classes

    @cached_property
    def length(self) -> int:
        window = self.recipe.model.mixer.window or 0
        return min(self.recipe.model.context, LONGEST, max(LENGTH, window + 8))

    @cached_property
    def sentences(self) -> Tensor:
        """[1, 8, T]: four rows of the training text, four drawn from the vocabulary."""
        drawn = self.draw("sentences", 8)
        ids = self.batch.inputs[:1, :4, : self.length]
        padding_mask = getattr(self.batch, "padding_mask", None)
        told = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask[:1, :4, : self.length]
        rows, length = ids.shape[1:]
        drawn[:, :rows, :length] = torch.where(told, ids, drawn[:, :rows, :length])
        return drawn

    def draw(self, purpose: str, rows: int) -> Tensor:
        """Sentences [1, rows, T] of random tokens, the same every time."""
        count = rows * self.length
        keys = noise.stream_keys([0], f"audit {purpose}")
        return noise.integers(keys, 0, self.model.vocabulary, count).view(1, rows, -1).to(self.device)

    def exchanged(self, ids: Tensor, where: Tensor) -> Tensor:
        """Other tokens at these places: none stays what it is."""
        if self.model.vocabulary == 1:
            raise DoesNotApply("there is only one kind of token, and nothing to exchange it for")
        step = 1 + self.draw("exchanged", ids.shape[1]) % (self.model.vocabulary - 1)
        return torch.where(where, (ids + step) % self.model.vocabulary, ids)

    def excerpt(self, rows: int, tokens: int) -> Any:
        """Of the training batch, so many rows and the beginnings of them: enough to judge by, in little time."""
        inputs, targets = self.batch.inputs[:1, :rows, :tokens], self.batch.targets
        if self.is_causal:
            return replace(self.batch, inputs=inputs, targets=targets[:1, :rows, :tokens])
        return replace(
            self.batch,
            inputs=inputs,
            padding_mask=self.batch.padding_mask[:1, :rows, :tokens],
            targets=targets[:1, :rows],
        )

    def padded(self, random: bool = False) -> Padded:
        """The beginnings of the sentences, and the same with padding: more of it before each row, the rest behind."""
        room = min(8, self.length // 3)
        if room == 0:
            raise DoesNotApply("sequences of one or two tokens leave no room for padding")
        begun = self.sentences[:, :, : self.length - room]
        before = torch.linspace(0, room, begun.shape[1], device=self.device).round().long()
        slots = torch.arange(self.length, device=self.device)
        padding_mask = ((slots >= before[:, None]) & (slots < before[:, None] + begun.shape[2]))[None]
        ids = self.draw("padding", begun.shape[1]) if random else torch.zeros_like(self.sentences)
        ids[padding_mask] = begun.flatten()
        return Padded(begun, ids, padding_mask, before.tolist(), room)

    def in_both_modes(self, probe: Callable[[], Found]) -> dict[str, Found]:
        """What a probe finds in evaluation, and in training mode with its noise: that of a step is a pure function of
        the step, so that two passes of one step can be compared as exactly as two evaluations."""
        found = {"evaluation": probe()}
        self.model.train()
        try:
            found["training"] = probe()
        finally:
            self.model.eval()
        return found


def difference(one: Tensor, other: Tensor, of: Tensor | None = None) -> float:
    """The largest difference of two answers, in units of how much answers (`of` more rows than these) vary from place
    to place. Where they hardly vary, the unit is a hundredth of the largest: float32 knows no more."""
    of = other if of is None else of
    spread = (of - of.flatten(0, -2).mean(0)).square().mean().sqrt()
    unit = max(spread.item(), 0.01 * of.abs().max().item(), torch.finfo(torch.float32).tiny)
    return (one - other).abs().max().item() / unit


def larger(so_far: float, found: float) -> float:
    """NaN is the largest of all."""
    return found if not found <= so_far else so_far
