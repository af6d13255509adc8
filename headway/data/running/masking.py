"""Masking: select tokens of a text for masked language models to predict (https://arxiv.org/abs/1810.04805).

    row      [CLS] the cat sat on the mat [SEP]
    input    [CLS] the [MASK] sat on the mat [SEP]
    places   2                                       positions of the tokens to predict
    targets  cat

In every row the same share of tokens is selected: usually 15 %, rounded, and at least one. Most of these become [MASK];
some become a random token and some stay unchanged, so that a model cannot rely on [MASK] to know where it is tested.
The selection is a pure function of (seed, step, row, position) and differs from step to step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.data.marks import Marks
from headway.data.running.batches import Step, on_device

HIGH = 2**31


class MaskedShares(Protocol):
    """How many tokens are selected, and what replaces them; part of the model spec."""

    @property
    def share(self) -> float: ...
    @property
    def masked(self) -> float: ...
    @property
    def random(self) -> float: ...


@dataclass(frozen=True)
class MaskedBatch:
    """Rows of text in which some tokens are masked, and those tokens."""

    inputs: Int64[Tensor, "R B T"]
    places: Int64[Tensor, "R B K"]
    """Positions of the tokens to predict; a row with fewer has further ones that do not count."""
    targets: Int64[Tensor, "R B K"]
    """The original tokens."""
    asked: Bool[Tensor, "R B K"] | None = None
    """Which of the places count; None = all, if rows have the same length."""
    padding_mask: Bool[Tensor, "R B T"] | None = None
    first_row: int = 0
    """The index of the first row in the whole batch."""

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """Always true: rows are independent."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    @property
    def restored(self) -> Int64[Tensor, "R B T"]:
        """The original rows, without masking."""
        return self.inputs.scatter(2, self.places, self.targets)

    def part(self, k: int, n: int) -> "MaskedBatch":
        """The k-th of n equal slices of the rows, for gradient accumulation."""
        rows, left_over = divmod(self.inputs.shape[1], n)
        if left_over:
            raise UserError(f"a batch of {self.inputs.shape[1]} rows cannot be split into {n} equal parts")
        return self.of_rows(slice(k * rows, (k + 1) * rows), self.first_row + k * rows)

    def of_rows(self, mine: slice, first_row: int = 0) -> "MaskedBatch":
        asked, padding_mask = (None if one is None else one[:, mine] for one in (self.asked, self.padding_mask))
        return MaskedBatch(
            self.inputs[:, mine], self.places[:, mine], self.targets[:, mine], asked, padding_mask, first_row
        )


class RowSource(Protocol):
    """A sampler of rows: of equal length without special tokens, or with special tokens and padding."""

    steps_per_epoch: int

    def at(self, step: Step) -> Any: ...


class Hiding:
    """Masks tokens of rows with at most `longest` tokens, with random numbers from these seeds."""

    def __init__(
        self,
        spec: MaskedShares,
        marks: Marks,
        words: Int64[Tensor, " W"],
        seeds: Sequence[int],
        longest: int,
        what: str,
    ):
        """`words`: the tokens that may replace another one; `what`: a name for the random keys."""
        self.spec, self.marks, self.words, self.longest = spec, marks, words, longest
        self._marks = torch.tensor(marks.all, device=words.device)
        self._choice, self._fate, self._other = (
            random.stream_keys(seeds, f"{what} {part}").to(words.device) for part in ("choice", "fate", "other")
        )

    def __call__(
        self,
        rows: Int64[Tensor, "R B T"],
        padding_mask: Bool[Tensor, "R B T"] | None,
        step: Int32[Tensor, ""] | int,
        first: int = 0,
    ) -> MaskedBatch:
        """Mask rows that have special tokens; the first row has number `first`."""
        (_, B, T), spec = rows.shape, self.spec
        text = ~torch.isin(rows, self._marks)
        text = text if padding_mask is None else text & padding_mask
        draws = self._drawn(self._choice, step, HIGH, B, first)[..., :T] * T + torch.arange(T, device=rows.device)
        # The number of places depends on the shape only, so batches have a fixed shape without synchronising.
        most = max(1, round(spec.share * (T - self.marks.room())))
        places = torch.where(text, draws, HIGH * T).topk(most, dim=2, largest=False, sorted=True).indices
        targets = rows.gather(2, places)
        fate = self._drawn(self._fate, step, 2**16, B, first)[..., :T].gather(2, places)
        other = self.words[self._drawn(self._other, step, len(self.words), B, first)[..., :T].gather(2, places)]
        hidden, exchanged = (round(share * 2**16) for share in (spec.masked, spec.masked + spec.random))
        put = torch.where(fate < hidden, self.marks.mask, torch.where(fate < exchanged, other, targets))
        if padding_mask is None:
            return MaskedBatch(rows.scatter(2, places, put), places, targets)
        count = text.sum(2, keepdim=True)
        wanted = torch.minimum((spec.share * count.double()).round().clamp(min=1), count)
        asked = torch.arange(most, device=rows.device) < wanted  # [R, B, K]
        put = torch.where(asked, put, targets)
        return MaskedBatch(rows.scatter(2, places, put), places, targets, asked, padding_mask)

    def _drawn(self, keys: Tensor, step: Tensor | int, high: int, rows: int, first: int) -> Int[Tensor, "R B L"]:
        """A random number for every position of every row, independent of the rest of the batch."""
        drawn = random.integers(keys, step, high, rows * self.longest, first * self.longest)
        return drawn.view(len(keys), rows, self.longest)


class MaskedSampler:
    """Rows from another sampler, with special tokens and masking."""

    def __init__(self, source: RowSource, hide: Hiding):
        self.source, self.hide = source, hide
        self.steps_per_epoch = source.steps_per_epoch

    def at(self, step: Step) -> MaskedBatch:
        step = on_device(step, self.hide.words)
        batch = self.source.at(step)
        if (padding_mask := getattr(batch, "padding_mask", None)) is not None:
            return self.hide(batch.inputs, padding_mask, step)
        return self.hide(with_marks(batch.inputs, self.hide.marks), None, step)


def with_marks(rows: Int64[Tensor, "R B T"], marks: Marks) -> Int64[Tensor, "R B T_and_marks"]:
    """Add [CLS] before and [SEP] after rows of equal length."""
    edges = marks.around([np.zeros(0, np.int64)]).tolist()
    one = torch.ones_like(rows[..., :1])  # created on the device, because copying would synchronise
    before, behind = ([one * mark for mark in edge] for edge in (edges[: marks.before], edges[marks.before :]))
    return torch.cat((*before, rows, *behind), -1)
