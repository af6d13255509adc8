"""Batches of labelled texts sorted by length: each is padded to its own longest text only.

Texts are sorted by length, and a batch is a piece of that sequence. Where the pieces begin and their order is drawn per
epoch, the same for all seeds; the order among texts of equal length is drawn by every replica.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from headway.core import random
from headway.data.labelled.batches import RowBatch, RowBatchSpec, RowTable
from headway.data.running.batches import Step, on_device


class ByLength(RowBatchSpec):
    """Every text once per epoch, texts of equal length together: each batch is padded to its own longest text, and on a
    GPU, where a CUDA graph is captured for each shape, to a multiple of eight. A text that is the only one of its
    length always has the same neighbours: with few texts of many lengths, use shuffled."""

    kind: Literal["by-length"] = "by-length"

    def build(self, texts: RowTable, batch: int, seeds: Sequence[int]) -> "ByLengthSampler":
        return ByLengthSampler(texts, batch, seeds)


class ByLengthSampler:
    """The sorted texts are cut into one batch more than fit, so that two adjacent batches overlap: by how much depends
    on the data, and where on the epoch."""

    def __init__(self, texts: RowTable, batch: int, seeds: Sequence[int]):
        N = len(texts.lengths_on_host)
        self.steps_per_epoch = N // batch + 1 if batch < N else 1
        self._batch, self._overlap = batch, self.steps_per_epoch * batch - N
        self._in_line = np.sort(texts.lengths_on_host)
        self.texts = texts
        self._keys = random.stream_keys(seeds, "texts").to(texts.device)
        self._turn_keys = random.stream_keys([0], "turns").to(texts.device)
        self._on_host = self._turn_keys.cpu()
        self._recordable = torch.device(texts.device).type == "cuda"  # few shapes, and no synchronisation
        self._known: tuple[int, Tensor] | None = None

    def at(self, step: Step) -> RowBatch:
        return self.of_shape(self.shape_of(int(step))).at(step)

    def rows_at(self, step: Step) -> Int64[Tensor, "R B"]:
        step = on_device(step, self._keys)
        epoch, now = step // self.steps_per_epoch, step % self.steps_per_epoch
        first = self._firsts(self._turn_keys, epoch)[now.view(1)]  # indexing with a scalar would synchronise
        places = first + torch.arange(self._batch, device=first.device)
        return self._line(epoch)[:, places % len(self._in_line)]

    def shape_of(self, step: int) -> int:
        """The padded length of this step's batch. Computed on the CPU, where the step is known."""
        epoch, now = divmod(step, self.steps_per_epoch)
        last = int(self._firsts(self._on_host, epoch)[now]) + self._batch - 1
        longest = int(self._in_line[min(last, len(self._in_line) - 1)])
        return min(math.ceil(longest / 8) * 8 if self._recordable else longest, self.texts.table.shape[1])

    def of_shape(self, shape: int) -> "OfOneLength":
        """A sampler for steps of this shape only; it never waits for the device."""
        return OfOneLength(self, shape)

    def _firsts(self, keys: Tensor, epoch: Step) -> Int64[Tensor, " S"]:
        """Where in the sorted texts the batches of an epoch begin, in their order."""
        S = self.steps_per_epoch
        pieces = torch.arange(S, device=keys.device)
        *turns, cut = random.integers(keys, epoch, 2**31, S + 1)[0].split([S, 1])
        behind = pieces > cut % max(1, S - 1)
        return (pieces * self._batch - behind * self._overlap)[turns[0].argsort(stable=True)]

    def _line(self, epoch: Int32[Tensor, ""]) -> Int64[Tensor, "R N"]:
        """Every replica's texts sorted by length; among equal lengths, in the replica's random order of this epoch."""
        if not self._recordable and self._known and self._known[0] == int(epoch):
            return self._known[1]
        drawn = random.integers(self._keys, epoch, 2**31, len(self._in_line))
        line = (self.texts.lengths.long() * 2**31 + drawn).argsort(dim=1, stable=True)
        if not self._recordable:
            self._known = int(epoch), line
        return line


@dataclass(frozen=True)
class OfOneLength:
    """The steps of a sampler whose batches have this length."""

    sampler: ByLengthSampler
    longest: int

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch

    def at(self, step: Step) -> RowBatch:
        return self.sampler.texts.batch(self.sampler.rows_at(step), self.longest)
