"""What the audits of a model are given: one model, its recipe, a training batch, and test sentences.

The sentences are as long as those of training and scoring, half of them real and half random tokens, because a property
that holds for the first 24 tokens need not hold later. Checks of single positions get one row per position, as many as
a budget of operations allows; where it does not allow all, positions where masks typically go wrong are chosen.
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
"""Minimum number of tokens of a test sentence, if the model can read so many."""
LONGEST = 256
"""Maximum length, since some checks are quadratic in it or run many times."""
TOKENS = 1024
"""Of all sentences together: eight short ones, or four of the longest."""
OPERATIONS = 2e9
"""Multiplications in one pass of a check of single positions: a fraction of a second on any machine."""
FEWEST_CUTS = 4
ANSWERS = 2**25
"""Numbers held in memory at a time: 128 MiB."""
MOST_OUTPUTS = 2**23
"""Maximum number of output values for all sentences: with a large vocabulary there are fewer sentences."""
LATE_STEP = 10_000
"""A step far after any warm-up."""
TINY = 1e-3
"""Tolerance in standard deviations of the outputs: about 100 times what another order of summation changes. Real faults
are above a hundredth."""


Found = TypeVar("Found")


class Cut(NamedTuple):
    """Sentences, each with a cut after a different position."""

    ids: Tensor
    """[1, rows, T]"""
    behind: Tensor
    """The last position before each cut [rows]."""
    later: Tensor
    """Mask of the tokens after the cut [1, rows, T]."""


class Padded(NamedTuple):
    begun: Tensor
    """Prefixes of the sentences, without padding [R, rows, n]."""
    ids: Tensor
    """The same with padding [R, rows, T]."""
    padding_mask: Tensor
    """Where `ids` is not padding."""
    before: list[int]
    """Number of padding slots before each row."""
    room: int
    """Number of padding slots of each row in total."""


@dataclass(frozen=True)
class Probe:
    model: Any
    """A single replica in evaluation mode; or several replicas, for audits that check all in one pass
    (`populations/members.py`)."""
    recipe: Recipe
    batch: Any
    """A training batch: inputs [R, B, T] and whatever else the task adds."""
    how: Probing
    """How to query models of this kind."""
    fresh: Callable[[], Any]
    """Builds the model as it was before training, which is a pure function of the seed."""
    trained: bool = True
    """Whether `model` was trained from `fresh`; False for imported weights, and for a recipe not trained yet."""
    to_train: bool = True
    """Whether the audits of training apply; False for imported weights that have not been trained here."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def answer(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.how.answer(self.model, ids, padding_mask)

    @property
    def is_whole(self) -> bool:
        """Whether all weights are finite numbers."""
        return all(self.are_whole)

    @cached_property
    def are_whole(self) -> list[bool]:
        """The same for each replica. (Checking only the minimum and maximum, which are NaN where any value is, takes a
        tenth of the time of checking every weight, and the device is synchronised once.)"""
        weights = [p.detach().reshape(len(p), -1) for p in self.model.parameters() if p.numel()]
        ends = [end.double() for each in weights for end in torch.aminmax(each, dim=1)]
        return torch.stack(ends).isfinite().all(0).tolist()

    def share(self, measure: "Callable[[Probe], Sequence[Found]]") -> Found:
        """This replica's result of a measure that is taken of all replicas; for a probe of one replica."""
        (own,) = self.shares(measure)
        return own

    def shares(self, measure: "Callable[[Probe], Sequence[Found]]") -> Sequence[Found]:
        """The result of a measure for each replica, computed in one pass for all and cached."""
        if measure not in self._measured:
            self._measured[measure] = measure(self)
        return self._measured[measure]

    @cached_property
    def _measured(self) -> dict[Callable[..., Any], Sequence[Any]]:
        return {}

    @property
    def reach(self) -> int:
        """The widest attention window; 0 where there is none."""
        return max((mixer.reach or 0 for mixer in self.mixers), default=0)

    @property
    def mixers(self) -> list[Mixer]:
        return [module for module in self.model.modules() if isinstance(module, Mixer)]

    @property
    def lengths(self) -> list[int]:
        """The maximum lengths of the rows in training and in scoring; for padded batches also the padded length of this
        batch."""
        mask = getattr(self.batch, "padding_mask", None)
        here = set() if mask is None else {mask.shape[2]}
        return sorted({self.recipe.segment, self.recipe.scoring_segment} | here)

    @cached_property
    def length(self) -> int:
        """The length of the sentences that all audits share."""
        readable = max(self.recipe.model.context, *self.lengths)
        return min(readable, LONGEST, max(LENGTH, self.reach + 8, *self.lengths))

    @cached_property
    def sentences(self) -> Tensor:
        """[R, 4 to 8, T]: the first half is training text, the others are random tokens."""
        tokens = min(TOKENS, MOST_OUTPUTS // self.model.vocabulary) if self.how.per_token else TOKENS
        rows = min(8, max(4, tokens // self.length))
        return self.text(rows, self.length)[:, [*range(0, rows, 2), *range(1, rows, 2)]]

    @cached_property
    def answers(self) -> Tensor:
        """The outputs for these sentences, with which several audits compare others."""
        return self.answer(self.sentences)

    @cached_property
    def start(self) -> Any:
        """A fresh model to look at; it must not be changed."""
        return self.fresh()

    def text(self, rows: int, length: int) -> Tensor:
        """[R, rows, length]: rows of training text, as far as it goes, alternating with random tokens."""
        ids = self.batch.inputs[:, :, :length]
        found = self.how.draw(self.model, "sentences", rows, length).to(self.device).repeat(len(ids), 1, 1)
        padding_mask = getattr(self.batch, "padding_mask", None)
        is_text = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask[:, :, :length]
        real = torch.arange((rows + 1) // 2, device=self.device) % ids.shape[1]
        begun = found[:, ::2, : ids.shape[2]]
        found[:, ::2, : ids.shape[2]] = torch.where(is_text[:, real], ids[:, real], begun)
        return found

    def cuts(self, share: float = 1.0) -> Iterator[Cut]:
        """Sentences of the lengths of training and of scoring, cut after every position if the budget (or this share
        of it) allows; else after the first and last, around powers of two, the window and the shorter of the two
        lengths, and after some random ones. Yields a few at a time."""
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
        """As many sentences as a training batch has rows, at the training length, each cut at another position."""
        rows, length = self.recipe.training.batch // self.recipe.training.accumulate, self.recipe.segment
        if length < 2 or rows * length * max(self.model.vocabulary, 16 * length) > 4 * ANSWERS:
            return
        behind = torch.arange(rows, device=self.device) * 7 % (length - 1)
        later = (torch.arange(length, device=self.device) > behind[:, None])[None]
        yield Cut(self.text(rows, length), behind, later)

    @contextmanager
    def late_in_training(self) -> Iterator[None]:
        """Context manager: the model in training mode, long after the first step."""
        step = int(self.model.clock.step)
        self.model.train()
        self.model.clock.set(LATE_STEP)
        try:
            yield
        finally:
            self.model.clock.set(step)
            self.model.eval()

    def affordable(self, length: int, share: float = 1.0) -> int:
        """The number of rows of this length that one pass can answer within this share of the budget."""
        return max(FEWEST_CUTS, int(share * OPERATIONS / sum(p.numel() for p in self.model.parameters()) / length))

    def some_places(self, slots: int, most: int) -> list[int]:
        """All positions if there are at most `most`; else those where masks typically go wrong, and random ones."""
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
        """These tokens replaced by others; none stays the same."""
        by = self.how.draw(self.model, "exchanged", *ids.shape[1:]).to(self.device)
        return self.how.exchanged(self.model, ids, where, by)

    def excerpt(self, rows: int, tokens: int) -> Any:
        """The first rows of the training batch, cut to so many tokens: enough to judge by, in little time."""
        return self.how.excerpt(self.batch, rows, tokens)

    def padded(self, random: bool = False) -> Padded:
        """Prefixes of the sentences, without padding and with it: before each row more of it, the rest after."""
        room = min(8, self.length // 3)
        if room == 0:
            raise DoesNotApply("sequences of one or two tokens leave no room for padding")
        begun = self.sentences[:, :, : self.length - room]
        before = torch.linspace(0, room, begun.shape[1], device=self.device).round().long()
        slots = torch.arange(self.length, device=self.device)
        is_text = (slots >= before[:, None]) & (slots < before[:, None] + begun.shape[2])
        padding_mask = is_text.expand(len(begun), -1, -1)
        ids = (
            self.draw("padding", begun.shape[1]).repeat(len(begun), 1, 1)
            if random
            else torch.zeros_like(self.sentences)
        )
        ids[padding_mask] = begun.flatten()
        return Padded(begun, ids, padding_mask, before.tolist(), room)

    @cached_property
    def trains_as_it_evaluates(self) -> bool:
        """Whether training mode computes the same as evaluation (no dropout, nothing else): the outputs for sentences
        of every length, and their gradients, are equal bit for bit."""
        return all(map(self._same_in_training, {self.length, *self.lengths}))

    def _same_in_training(self, length: int) -> bool:
        ids, found = self.text(2, length), []
        try:
            for training in (False, True):
                self.model.train(training)
                with torch.enable_grad(), watch(self.model, "embedded") as seen:
                    answers = self.answer(ids)
                    alternately = 1 - 2 * (torch.arange(answers.numel(), device=self.device) % 7 % 2)
                    total = (answers * alternately.view(answers.shape)).sum()
                    found.append((answers.detach(), *torch.autograd.grad(total, seen["embedded"])))
        finally:
            self.model.eval()
        return all(torch.equal(one, other) for one, other in zip(*found, strict=True))

    def in_both_modes(self, probe: Callable[[], Found]) -> dict[str, Found]:
        """The result of a check in evaluation and in training mode. Dropout is a pure function of the step, so two
        passes of one step can be compared as exactly as two evaluations. Where training mode computes the same as
        evaluation, the check is run once."""
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
    """The largest difference between two outputs, in standard deviations of the outputs over positions (`of`: outputs
    with more rows to take the standard deviation from)."""
    return (one - other).abs().max().item() / unit_of(other if of is None else of)


def differences(one: Tensor, other: Tensor) -> list[float]:
    """The same of each replica [R, …], by itself, in one look at the device."""
    one, other = (answers.reshape(len(answers), -1, answers.shape[-1]) for answers in (one, other))
    spread = (other - other.mean(1, keepdim=True)).square().mean((1, 2)).sqrt()
    unit = torch.maximum(spread, 0.01 * other.abs().amax((1, 2))).clamp(min=torch.finfo(torch.float32).tiny)
    return ((one - other).abs().amax((1, 2)) / unit).tolist()


def unit_of(answers: Tensor) -> float:
    """The standard deviation of the outputs over positions. Where they hardly vary, a hundredth of the largest value,
    below which float32 is too coarse to compare."""
    spread = (answers - answers.flatten(0, -2).mean(0)).square().mean().sqrt()
    return max(spread.item(), 0.01 * answers.abs().max().item(), torch.finfo(torch.float32).tiny)


def larger(so_far: float, found: float) -> float:
    """The larger number; NaN counts as the largest."""
    return found if not found <= so_far else so_far
