"""Batches of labelled texts: which texts a classifier sees at each step.

As for running text (`batches.py`), a sampler is a pure function of the step. Shorter texts of a batch are padded; to
waste little on padding, texts of similar length share a batch:

    buckets   ranges of length that hold about as many texts each
    epoch     each bucket's texts in an order of their own, drawn anew by every replica from its own seed
    turn      which bucket a step takes its batch from: drawn by epoch, and the same for all seeds

So the shape of a step depends on data and step alone, and a replica's dropout does not depend on the other replicas. A
step captured as a CUDA graph has one fixed shape, so on a GPU every batch is padded to the longest text of all: the
rows are the same as on a CPU, with more padding.

`by_length.py` has a sampler with a shape for every length.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Int64
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.data.running.batches import Step, on_device

BATCHES_PER_BUCKET = 8
"""The minimum. A bucket's last batch is completed from its first texts, and few texts should be seen twice."""


@dataclass(frozen=True)
class RowBatch:
    """Texts, and the class of each."""

    inputs: Int64[Tensor, "R B T"]
    padding_mask: Bool[Tensor, "R B T"]
    targets: Int64[Tensor, "R B"]
    first_row: int = 0
    """The index of the first row in the whole batch. Noise is drawn by row, so a part of a batch gets the same noise as
    in the whole."""

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """Always true: no row continues one of the previous step."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    def part(self, k: int, n: int) -> "RowBatch":
        """The k-th of n equal slices of the rows, for gradient accumulation."""
        rows, left_over = divmod(self.inputs.shape[1], n)
        if left_over:
            raise UserError(f"a batch of {self.inputs.shape[1]} rows cannot be split into {n} equal parts")
        mine = slice(k * rows, (k + 1) * rows)
        return RowBatch(
            self.inputs[:, mine], self.padding_mask[:, mine], self.targets[:, mine], self.first_row + k * rows
        )


class RowTable:
    """All texts on the device, padded to one length, with their classes; batches are taken from it."""

    def __init__(
        self,
        table: Int[np.ndarray, "N L"],
        lengths: Int[np.ndarray, " N"],
        labels: Int[np.ndarray, " N"],
        device: str,
    ):
        self.device, self.lengths_on_host = device, lengths  # for computing batch shapes without synchronising
        self.table, self.lengths, self.labels = (torch.as_tensor(a).to(device) for a in (table, lengths, labels))
        self._slots = torch.arange(table.shape[1], device=device)

    def batch(self, rows: Int64[Tensor, "R B"], longest: int) -> RowBatch:
        """A batch of these texts, with padding up to `longest`."""
        padding_mask = self._slots[:longest] < self.lengths[rows][..., None]
        return RowBatch(self.table[rows][..., :longest].long(), padding_mask, self.labels[rows])


@runtime_checkable
class RowSampler(Protocol):
    steps_per_epoch: int

    def at(self, step: Step) -> RowBatch: ...

    def rows_at(self, step: Step) -> Int64[Tensor, "R B"]:
        """The indices of this step's texts, computed without waiting for the device."""
        ...


class RowBatchSpec(Variant):
    """Which texts a step sees."""

    by_seed: ClassVar[bool] = True
    """Whether the batches depend on the seed."""

    @abstractmethod
    def build(self, texts: RowTable, batch: int, seeds: Sequence[int]) -> RowSampler: ...


class Shuffled(RowBatchSpec):
    """Every text once per epoch, in a new random order, texts of similar length together."""

    kind: Literal["shuffled"] = "shuffled"
    buckets: int = Field(default=4, ge=1)
    """Texts of similar length share a batch: the number of length ranges; 1 = texts of any length together. Fewer are
    used where texts are few."""

    def build(self, texts: RowTable, batch: int, seeds: Sequence[int]) -> "ShuffledSampler":
        return ShuffledSampler(texts, batch, bucket_widths(texts.lengths_on_host, self.buckets, batch), seeds)


def bucket_widths(lengths: Int[np.ndarray, " N"], buckets: int, batch: int) -> list[int]:
    """The longest text of each bucket, ascending. Texts of equal length are in the same bucket."""
    enough = BATCHES_PER_BUCKET * batch
    widths: list[int] = []
    for share in range(1, buckets + 1):
        width = int(np.quantile(lengths, share / buckets, method="higher"))
        above = widths[-1] if widths else -1
        if np.sum((lengths > above) & (lengths <= width)) >= enough:
            widths.append(width)
    # Texts longer than the last width are too few for a bucket of their own, so they join it.
    return [*widths[:-1], int(lengths.max())]


class ShuffledSampler:
    def __init__(self, texts: RowTable, batch: int, widths: list[int], seeds: Sequence[int]):
        device = texts.device
        bucket = np.searchsorted(widths, texts.lengths_on_host)  # of each text
        sizes = np.bincount(bucket, minlength=len(widths))
        turns = [math.ceil(size / batch) for size in sizes]
        self.steps_per_epoch = sum(turns)
        self._widths, self._batch = widths, batch
        self._texts = texts
        self._bucket, self._sizes = (torch.as_tensor(a).to(device) for a in (bucket, sizes))
        self._firsts = self._sizes.cumsum(0) - self._sizes
        # The turns of an epoch, before they are shuffled: which bucket's, and which of that bucket's batches.
        self._turn_bucket = torch.repeat_interleave(torch.arange(len(turns)), torch.tensor(turns)).to(device)
        self._turn_batch = torch.cat([torch.arange(n) for n in turns]).to(device)
        self._keys = random.stream_keys(seeds, "texts").to(device)
        self._turn_keys = random.stream_keys([0], "turns").to(device)
        self._recordable = torch.device(device).type == "cuda"  # one shape for all steps, and no synchronisation
        self._known: tuple[int, Tensor, Tensor] | None = None

    def at(self, step: Step) -> RowBatch:
        rows, bucket = self._found(step)
        longest = self._texts.table.shape[1] if self._recordable else self._widths[int(bucket)]
        return self._texts.batch(rows, longest)

    def rows_at(self, step: Step) -> Int64[Tensor, "R B"]:
        return self._found(step)[0]

    def _found(self, step: Step) -> tuple[Int64[Tensor, "R B"], Int64[Tensor, "1"]]:
        """The indices of a step's texts, and their bucket."""
        step = on_device(step, self._keys)
        epoch, now = step // self.steps_per_epoch, step % self.steps_per_epoch
        order, turns = self._drawn(epoch)
        turn = turns[now.view(1)]  # shape [1], as bucket and k: indexing with a scalar would synchronise
        bucket, k = self._turn_bucket[turn], self._turn_batch[turn]
        places = torch.arange(self._batch, device=order.device) + k * self._batch
        return order[:, places % self._sizes[bucket] + self._firsts[bucket]], bucket

    def _drawn(self, epoch: Int32[Tensor, ""]) -> tuple[Int64[Tensor, "R N"], Int64[Tensor, " S"]]:
        """For an epoch: every replica's texts, bucket after bucket, shuffled within each, and the order of turns."""
        if not self._recordable and self._known and self._known[0] == int(epoch):
            return self._known[1:]
        drawn = random.integers(self._keys, epoch, 2**31, len(self._texts.labels))
        order = (self._bucket * 2**31 + drawn).argsort(dim=1, stable=True)
        turns = random.integers(self._turn_keys, epoch, 2**31, self.steps_per_epoch)[0].argsort(stable=True)
        if not self._recordable:
            self._known = int(epoch), order, turns
        return order, turns


@dataclass(frozen=True)
class FeatureBatch:
    """Precomputed features of texts, and their classes."""

    features: Float[Tensor, "R B D"]
    targets: Int64[Tensor, "R B"]
    first_row: int = 0

    @property
    def begins(self) -> Bool[Tensor, ""]:
        return torch.ones((), dtype=torch.bool, device=self.targets.device)

    def part(self, k: int, n: int) -> "FeatureBatch":
        """The k-th of n equal slices of the rows."""
        rows = self.targets.shape[1] // n
        mine = slice(k * rows, (k + 1) * rows)
        return FeatureBatch(self.features[:, mine], self.targets[:, mine], self.first_row + k * rows)
