"""What the audits of a model are given: the model alone, its recipe, a batch of its training, and sentences to try;
and from its task, how such models are asked.

Sentences are short (a leak does not need length to show), half of them real and half drawn from the whole vocabulary.
One row probes one position, so that all positions are probed in one pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply
from headway.core import random as noise
from headway.nn.mixer import Mixer
from headway.recipe.recipe import Recipe

LENGTH = 24
"""Tokens of a sentence to try; more where a window must be left behind."""
LONGEST = 64
TINY = 1e-3
"""Of the spread of the outputs: what sums in another order may differ by, a hundred times over. Real faults are above
a hundredth."""


Found = TypeVar("Found")


class Probing(ABC):
    """How a kind of model is asked, and what is known of its answers beforehand. Every task gives one; here is what
    holds of models that read tokens."""

    per_token: ClassVar[bool]
    """Whether there is an answer at every token, [1, B, T, …], or one for each row, [1, B, …]."""
    looks_ahead: ClassVar[bool]
    """Whether an answer may depend on tokens that come later."""
    by_heart: ClassVar[int] = 64
    """Tokens of each row, where four rows are to be learnt by heart in few steps."""
    audits: ClassVar[Sequence[Audit]] = ()
    """Those of models of this kind alone."""
    claimed: ClassVar[list[Audit]] = []
    """The audits that any kind has for itself; all others are of every model."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        Probing.claimed += cls.audits

    def answer(self, model: Any, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Everything the model says of rows [1, B, T]."""
        given = {} if padding_mask is None else {"padding_mask": padding_mask}
        found = model(ids, **given)
        return found[0] if isinstance(found, tuple) else found

    def go_on(self, model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The answers to the next piece of rows, and the state to go on from."""
        raise DoesNotApply("such a model reads everything at once")

    @abstractmethod
    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        """What training should lower, by its plain definition."""

    def clueless(self, model: Any) -> tuple[float, str]:
        """The loss of a model that knows nothing, and what that is in words."""
        raise DoesNotApply("nobody can say what the loss of such a model is before it is trained")

    def draw(self, model: Any, purpose: str, rows: int, length: int) -> Tensor:
        """Rows [1, rows, T] of random tokens, the same every time."""
        keys = noise.stream_keys([0], f"audit {purpose}")
        return noise.integers(keys, 0, model.vocabulary, rows * length).view(1, rows, -1)

    def exchanged(self, model: Any, ids: Tensor, where: Tensor, by: Tensor) -> Tensor:
        """Other tokens at these places, as random numbers say: none stays what it is."""
        if model.vocabulary == 1:
            raise DoesNotApply("there is only one kind of token, and nothing to exchange it for")
        step = 1 + by % (model.vocabulary - 1)
        return torch.where(where, (ids + step) % model.vocabulary, ids)

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Of a batch of one replica, so many rows and the beginnings of them."""
        cut = (slice(1), slice(rows), slice(tokens))
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **{n: p[cut[: p.ndim]] for n, p in parts.items() if isinstance(p, Tensor)})


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
    how: Probing
    """How models of its kind are asked."""
    fresh: Callable[[], Any]
    """Builds a model of the recipe as training began with it, which is a pure function of the seed."""
    trained: bool = True
    """Training led from `fresh` to `model`; False for imported weights, and for a recipe that was not trained yet."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def answer(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.how.answer(self.model, ids, padding_mask)

    @property
    def is_whole(self) -> bool:
        """All weights are finite numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    @cached_property
    def length(self) -> int:
        reach = max((mixer.reach or 0 for mixer in self.model.modules() if isinstance(mixer, Mixer)), default=0)
        return min(self.recipe.model.context, LONGEST, max(LENGTH, reach + 8))

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
        return self.how.draw(self.model, purpose, rows, self.length).to(self.device)

    def exchanged(self, ids: Tensor, where: Tensor) -> Tensor:
        """Other tokens at these places: none stays what it is."""
        return self.how.exchanged(self.model, ids, where, self.draw("exchanged", ids.shape[1]))

    def excerpt(self, rows: int, tokens: int) -> Any:
        """Of the training batch, so many rows and the beginnings of them: enough to judge by, in little time."""
        return self.how.excerpt(self.batch, rows, tokens)

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
