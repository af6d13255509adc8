"""What the audits of a model are given: the model alone, its recipe, a batch of its training, and sentences to try.

Sentences are as long as those of training and scoring, half of them real and half drawn from the whole vocabulary: what
holds of the first 24 tokens need not hold of the next. What is asked of positions one by one has a row for each, as
many as a budget of operations allows; where it does not allow all, those where masks are known to go wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply
from headway.audit.probing import Probing
from headway.core import random as noise
from headway.nn.mixer import Mixer
from headway.nn.taps import watch
from headway.recipe.recipe import Recipe

LENGTH = 24
"""Tokens of a sentence to try, at least, if the model can read so many."""
LONGEST = 256
"""Where a question is about pairs of tokens, or asked in many ways: more would take too long."""
TOKENS = 1024
"""Of all sentences together: eight short ones, or four of the longest."""
OPERATIONS = 2e9
"""Multiplications of one pass that asks of positions one by one: a fraction of a second on any machine."""
FEWEST_CUTS = 4
ANSWERS = 2**25
"""Numbers that are held at a time: 128 MiB of them."""
COMPARED = 2**23
"""Numbers that sentences are answered by: where there are many choices, there are fewer sentences."""
LATE = 10_000
"""A step that is far behind any warm-up."""
TINY = 1e-3
"""Of the spread of the outputs: what sums in another order may differ by, a hundred times over. Real faults are above
a hundredth."""


Found = TypeVar("Found")


class Cut(NamedTuple):
    """Sentences, each cut in two behind another position."""

    ids: Tensor
    """[1, rows, T]"""
    behind: Tensor
    """The last position before each cut [rows]."""
    later: Tensor
    """What comes after it [1, rows, T]."""


class Padded(NamedTuple):
    begun: Tensor
    """Beginnings of the sentences, without padding [R, rows, n]."""
    ids: Tensor
    """The same with padding [R, rows, T]."""
    padding_mask: Tensor
    """Where `ids` is not padding."""
    before: list[int]
    """How much of the padding stands before each row."""
    room: int
    """How much padding each row has."""


@dataclass(frozen=True)
class Probe:
    model: Any
    """A single replica, in evaluation mode; or several side by side, where all are asked at once
    (`populations/members.py`)."""
    recipe: Recipe
    batch: Any
    """A batch of training: inputs [R, B, T] and what belongs to them."""
    how: Probing
    """How models of its kind are asked."""
    fresh: Callable[[], Any]
    """Builds a model of the recipe as training began with it, which is a pure function of the seed."""
    trained: bool = True
    """Training led from `fresh` to `model`; False for imported weights, and for a recipe that was not trained yet."""
    to_train: bool = True
    """Whether training is what is asked about, too; False for imported weights that nobody has trained on."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def answer(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.how.answer(self.model, ids, padding_mask)

    @property
    def is_whole(self) -> bool:
        """All weights are finite numbers."""
        return all(self.are_whole)

    @cached_property
    def are_whole(self) -> list[bool]:
        """Of each replica. (The least and the largest, which are NaN where one is, are found in a tenth of the time
        that it takes to ask each; and the device is waited for once.)"""
        weights = [p.detach().reshape(len(p), -1) for p in self.model.parameters() if p.numel()]
        ends = [end.double() for each in weights for end in torch.aminmax(each, dim=1)]
        return torch.stack(ends).isfinite().all(0).tolist()

    def share(self, measure: "Callable[[Probe], Sequence[Found]]") -> Found:
        """Of a measure that is taken of every replica, where this is the only one."""
        (own,) = self.shares(measure)
        return own

    def shares(self, measure: "Callable[[Probe], Sequence[Found]]") -> Sequence[Found]:
        """What is measured of each replica, in one pass for all."""
        if measure not in self._measured:
            self._measured[measure] = measure(self)
        return self._measured[measure]

    @cached_property
    def _measured(self) -> dict[Callable[..., Any], Sequence[Any]]:
        return {}

    @property
    def reach(self) -> int:
        """Of the widest window; 0 where there is none."""
        return max((mixer.reach or 0 for mixer in self.mixers), default=0)

    @property
    def mixers(self) -> list[Mixer]:
        return [module for module in self.model.modules() if isinstance(module, Mixer)]

    @property
    def lengths(self) -> list[int]:
        """Of the rows that the model was trained on, at most, and of those it is scored on; and where rows are filled
        up to the longest of a batch, of those in this one."""
        told = getattr(self.batch, "padding_mask", None)
        here = set() if told is None else {told.shape[2]}
        return sorted({self.recipe.segment, self.recipe.scoring_segment} | here)

    @cached_property
    def length(self) -> int:
        """Of the sentences that all audits share."""
        readable = max(self.recipe.model.context, *self.lengths)
        return min(readable, LONGEST, max(LENGTH, self.reach + 8, *self.lengths))

    @cached_property
    def sentences(self) -> Tensor:
        """[R, 4 to 8, T]: the first half of the training text, the others drawn from the vocabulary."""
        tokens = min(TOKENS, COMPARED // self.model.vocabulary) if self.how.per_token else TOKENS
        rows = min(8, max(4, tokens // self.length))
        return self.text(rows, self.length)[:, [*range(0, rows, 2), *range(1, rows, 2)]]

    @cached_property
    def answers(self) -> Tensor:
        """To these sentences: what several audits compare others with."""
        return self.answer(self.sentences)

    @cached_property
    def start(self) -> Any:
        """A fresh model to look at, and not to change."""
        return self.fresh()

    def text(self, rows: int, length: int) -> Tensor:
        """[R, rows, length]: by turns of the training text, as far as that goes, and drawn from the vocabulary."""
        ids = self.batch.inputs[:, :, :length]
        found = self.how.draw(self.model, "sentences", rows, length).to(self.device).repeat(len(ids), 1, 1)
        padding_mask = getattr(self.batch, "padding_mask", None)
        told = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask[:, :, :length]
        real = torch.arange((rows + 1) // 2, device=self.device) % ids.shape[1]
        begun = found[:, ::2, : ids.shape[2]]
        found[:, ::2, : ids.shape[2]] = torch.where(told[:, real], ids[:, real], begun)
        return found

    def cuts(self, share: float = 1.0) -> Iterator[Cut]:
        """Sentences of the lengths of training and of scoring, cut behind every position if the budget (or this share
        of it) allows; else behind the first and last, around powers of two, the window and the shorter of the two
        lengths, and behind some that are drawn. A few at a time."""
        for length in self.lengths if self.lengths[-1] > 1 else [self.length]:
            if length < 2:
                continue
            behind = torch.tensor(self.some_places(length - 1, self.affordable(length, share)), device=self.device)
            ids = self.text(len(behind), length)
            later = (torch.arange(length, device=self.device) > behind[:, None])[None]
            size = max(1, ANSWERS // (length * max(self.model.vocabulary, 16 * length)))
            for first in range(0, len(behind), size):
                some = slice(first, first + size)
                yield Cut(ids[:, some], behind[some], later[:, some])

    def as_in_training(self) -> Iterator[Cut]:
        """As many sentences at once as a batch of training has rows, of its length; in each the cut is elsewhere."""
        rows, length = self.recipe.training.batch // self.recipe.training.accumulate, self.recipe.segment
        if length < 2 or rows * length * max(self.model.vocabulary, 16 * length) > 4 * ANSWERS:
            return
        behind = torch.arange(rows, device=self.device) * 7 % (length - 1)
        later = (torch.arange(length, device=self.device) > behind[:, None])[None]
        yield Cut(self.text(rows, length), behind, later)

    @contextmanager
    def late_in_training(self) -> Iterator[None]:
        """In training mode, long after the first step."""
        step = int(self.model.clock.step)
        self.model.train()
        self.model.clock.set(LATE)
        try:
            yield
        finally:
            self.model.clock.set(step)
            self.model.eval()

    def affordable(self, length: int, share: float = 1.0) -> int:
        """Rows of this length that can be answered at once, by this share of the budget."""
        return max(FEWEST_CUTS, int(share * OPERATIONS / sum(p.numel() for p in self.model.parameters()) / length))

    def some_places(self, slots: int, most: int) -> list[int]:
        """All of so many slots, or those where masks are known to go wrong, and some that are drawn."""
        places = list(range(slots))
        if slots > most:
            length = slots + 1
            borders = [self.reach, self.lengths[0], length // 2, *(2**n for n in range(3, length.bit_length()))]
            drawn = noise.integers(noise.stream_keys([0], "audit cuts"), 0, slots, 2 * most)[0].tolist()
            wanted = [slots - 1, 0, *(b - 1 for b in borders), *drawn[: most // 2], *borders, *drawn]
            places = [at for at in dict.fromkeys(wanted) if 0 <= at < slots][:most]
        return sorted(places)

    def draw(self, purpose: str, rows: int) -> Tensor:
        """Sentences [1, rows, T] of random tokens, the same every time."""
        return self.how.draw(self.model, purpose, rows, self.length).to(self.device)

    def exchanged(self, ids: Tensor, where: Tensor) -> Tensor:
        """Other tokens at these places: none stays what it is."""
        by = self.how.draw(self.model, "exchanged", *ids.shape[1:]).to(self.device)
        return self.how.exchanged(self.model, ids, where, by)

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
        told = (slots >= before[:, None]) & (slots < before[:, None] + begun.shape[2])
        padding_mask = told.expand(len(begun), -1, -1)
        ids = (
            self.draw("padding", begun.shape[1]).repeat(len(begun), 1, 1)
            if random
            else torch.zeros_like(self.sentences)
        )
        ids[padding_mask] = begun.flatten()
        return Padded(begun, ids, padding_mask, before.tolist(), room)

    @cached_property
    def trains_as_it_evaluates(self) -> bool:
        """Nothing is dropped in training mode, nor anything else done there: in sentences of every length it gives the
        answers of evaluation, and their gradients, bit for bit."""
        return all(map(self._same_in_training, {self.length, *self.lengths}))

    def _same_in_training(self, length: int) -> bool:
        ids, found = self.text(2, length), []
        try:
            for training in (False, True):
                self.model.train(training)
                with torch.enable_grad(), watch(self.model, "embedded") as seen:
                    answers = self.answer(ids)
                    alternately = 1 - 2 * (torch.arange(answers.numel(), device=self.device) % 7 % 2)
                    told = (answers * alternately.view(answers.shape)).sum()
                    found.append((answers.detach(), *torch.autograd.grad(told, seen["embedded"])))
        finally:
            self.model.eval()
        return all(torch.equal(one, other) for one, other in zip(*found, strict=True))

    def in_both_modes(self, probe: Callable[[], Found]) -> dict[str, Found]:
        """What a probe finds in evaluation, and in training mode with its noise: that of a step is a pure function of
        the step, so that two passes of one step can be compared as exactly as two evaluations. Where training mode
        does the same as evaluation, what holds of the one holds of the other, and is found once."""
        found = {"evaluation": probe()}
        if self.trains_as_it_evaluates:
            return found | {"training": found["evaluation"]}
        self.model.train()
        try:
            found["training"] = probe()
        finally:
            self.model.eval()
        return found


def are_finite(weights: Iterable[Tensor]) -> bool:
    """All of them, found in one look. (The least and the largest are no numbers where one is none.)"""
    ends = [end for one in weights if one.numel() for end in torch.aminmax(one)]
    return not ends or bool(torch.stack(ends).isfinite().all())


def difference(one: Tensor, other: Tensor, of: Tensor | None = None) -> float:
    """The largest difference of two answers, in units of how much answers (`of` more rows than these) vary from place
    to place."""
    return (one - other).abs().max().item() / unit_of(other if of is None else of)


def differences(one: Tensor, other: Tensor) -> list[float]:
    """The same of each replica [R, …], by itself, in one look at the device."""
    one, other = (answers.reshape(len(answers), -1, answers.shape[-1]) for answers in (one, other))
    spread = (other - other.mean(1, keepdim=True)).square().mean((1, 2)).sqrt()
    unit = torch.maximum(spread, 0.01 * other.abs().amax((1, 2))).clamp(min=torch.finfo(torch.float32).tiny)
    return ((one - other).abs().amax((1, 2)) / unit).tolist()


def unit_of(answers: Tensor) -> float:
    """How much answers vary from place to place. Where they hardly do, a hundredth of the largest: float32 knows no
    more."""
    spread = (answers - answers.flatten(0, -2).mean(0)).square().mean().sqrt()
    return max(spread.item(), 0.01 * answers.abs().max().item(), torch.finfo(torch.float32).tiny)


def larger(so_far: float, found: float) -> float:
    """NaN is the largest of all."""
    return found if not found <= so_far else so_far
