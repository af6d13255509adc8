"""Which pairs a translator sees at which step.

As for other data, a sampler is a pure function of the step. Pairs of similar length go together, and every step has
about as many tokens as every other:

    buckets   ranges of length (of the longer side), such that as little as possible is filled up
    rows      of the longest bucket training.batch of them; of a shorter one as many more as have the same room
    epoch     each bucket's pairs in an order of their own, drawn anew by every replica from its own seed
    turn      which bucket a step takes its batch from: drawn by epoch, and the same for all seeds

A bucket is a shape. What a step of one shape reads is computed on the device from the number of the step alone
(`of_shape`), so that each shape can be recorded as a CUDA graph, and none is filled up beyond its own bucket.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.data.labelled.batches import BATCHES_PER_BUCKET
from headway.data.pairs.dataset import PairedTexts
from headway.data.running.batches import Step, on_device


@dataclass(frozen=True)
class PairBatch:
    """Sources, and their targets twice: as what is known (END, y₁ …), and as what is asked for (y₁ …, END)."""

    inputs: Int64[Tensor, "R B T"]
    targets: Int64[Tensor, "R B T"]
    padding_mask: Bool[Tensor, "R B T"]
    """Where there is a target and not padding."""
    sources: Int64[Tensor, "R B S"]
    source_mask: Bool[Tensor, "R B S"]
    first_row: int = 0
    """Where in the whole batch these rows are; 0 for the whole. Noise is drawn by row, so parts get what is theirs."""

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """Every pair stands for itself: no row continues one of the step before."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    def part(self, k: int, n: int) -> "PairBatch":
        """The k-th of n equal slices of the rows, for batches that are too large to be taken at once."""
        rows, left_over = divmod(self.inputs.shape[1], n)
        if left_over:
            raise UserError(f"a batch of {self.inputs.shape[1]} rows cannot be taken in {n} equal parts")
        mine: dict[str, Any] = {
            field.name: part[:, k * rows : (k + 1) * rows]
            for field in fields(self)
            if isinstance(part := getattr(self, field.name), Tensor)
        }
        return replace(self, **mine, first_row=self.first_row + k * rows)


class PairSampler(Protocol):
    steps_per_epoch: int

    def at(self, step: Step) -> PairBatch: ...


class PairBatchSpec(Variant):
    """Which pairs a step sees."""

    by_seed: ClassVar[bool] = True
    """Whether each seed sees others."""
    each_once: ClassVar[bool] = False
    """Whether an epoch has every pair once."""

    @abstractmethod
    def build(self, pairs: PairedTexts, longest: int, batch: int, seeds: Sequence[int], device: str) -> PairSampler:
        """Of these pairs, those that have no more than `longest` tokens on either side."""


class Buckets(PairBatchSpec):
    """In every epoch every pair once, in another order, pairs of similar length together."""

    each_once = True

    kind: Literal["buckets"] = "buckets"
    buckets: int = Field(default=4, ge=1)
    """Pairs of similar length share a batch: the number of length ranges; 1 = pairs of any length together. Fewer are
    used where pairs are few."""
    equal: Literal["tokens", "rows"] = "tokens"
    """What batches have in common: about the same number of tokens (more rows where pairs are short), or training.batch
    rows."""

    def build(self, pairs: PairedTexts, longest: int, batch: int, seeds: Sequence[int], device: str) -> "BucketSampler":
        kept = np.flatnonzero(pairs.longer <= longest)
        if not len(kept):
            shortest = int(pairs.longer.min())
            reason = f"all {len(pairs):,} pairs of train are longer than {longest} tokens, the shortest has {shortest}"
            raise UserError(f"{reason}: set model.context")
        pairs = pairs.only(kept)
        widths = least_padding(pairs.longer, self.buckets, BATCHES_PER_BUCKET * batch)
        rows = [batch * (widths[-1] // width if self.equal == "tokens" else 1) for width in widths]
        return BucketSampler(pairs, widths, rows, seeds, device)


def least_padding(lengths: Int[np.ndarray, " N"], buckets: int, enough: int) -> list[int]:
    """The longest pair of each bucket, ascending: of all ways to cut the lengths into so many ranges (or fewer, where
    one would have less than `enough` pairs) the one with the fewest slots."""
    ends, pairs = np.unique(lengths, return_counts=True)  # a bucket ends at a length that some pair has
    ends, below = np.concatenate(([0], ends)), np.concatenate(([0], np.cumsum(pairs)))
    never, last = np.iinfo(np.int64).max // 2, len(ends) - 1
    slots = np.full(len(ends), never)  # the fewest that all pairs up to each end take, by as many buckets as rounds
    slots[0] = 0
    came_from: list[Int[np.ndarray, " n"]] = []
    for _ in range(buckets):
        found, from_ = slots.copy(), np.arange(len(ends))
        for k in range(1, len(ends)):
            there = below[k] - below[:k]
            costs = np.where(there >= enough, slots[:k] + there * ends[k], never)
            if k == last:
                costs[0] = there[0] * ends[k]
            a = int(costs.argmin())
            if costs[a] < found[k]:
                found[k], from_[k] = costs[a], a
        if (found == slots).all():  # more buckets save nothing
            break
        slots = found
        came_from.append(from_)
    widths, k = [], last
    for from_ in reversed(came_from):
        if from_[k] != k:
            widths, k = [int(ends[k]), *widths], int(from_[k])
    return widths


class BucketSampler:
    def __init__(self, pairs: PairedTexts, widths: list[int], rows: list[int], seeds: Sequence[int], device: str):
        bucket = np.searchsorted(widths, pairs.longer)  # of each pair
        members = [np.flatnonzero(bucket == k) for k in range(len(widths))]
        turns = [math.ceil(len(mine) / n) for mine, n in zip(members, rows, strict=True)]
        self.steps_per_epoch = sum(turns)
        # The turns of an epoch, before they are shuffled: which bucket's, and which of that bucket's batches.
        self._turn_bucket = torch.repeat_interleave(torch.arange(len(turns)), torch.tensor(turns))
        self._turn_keys = random.stream_keys([0], "turns")
        keys, turn_batch = random.stream_keys(seeds, "texts"), torch.cat([torch.arange(n) for n in turns])
        self._shapes = [
            _OneShape(pairs.only(mine), n, keys, self._turn_keys, turn_batch, device)
            for mine, n in zip(members, rows, strict=True)
        ]

    def shape_of(self, step: int) -> int:
        """Which of the shapes this step has. Asked on the host, which knows its step."""
        epoch, now = divmod(step, self.steps_per_epoch)
        return int(self._turn_bucket[_turns(self._turn_keys, epoch, self.steps_per_epoch)[now]])

    def of_shape(self, shape: int) -> PairSampler:
        """For steps of this shape alone: nothing in it waits for the device."""
        return self._shapes[shape]

    def at(self, step: Step) -> PairBatch:
        return self.of_shape(self.shape_of(int(step))).at(step)

    @property
    def tokens_per_step(self) -> int:
        """Of targets, on average."""
        return round(sum(one.tokens for one in self._shapes) / self.steps_per_epoch)

    @property
    def slots_per_step(self) -> list[tuple[int, int, int, float]]:
        """Of each shape: rows, slots of a source, slots of a target, and its share of the steps."""
        counts = torch.bincount(self._turn_bucket, minlength=len(self._shapes)).tolist()
        return [(*one.shape, n / self.steps_per_epoch) for one, n in zip(self._shapes, counts, strict=True)]


class _OneShape:
    """The pairs of one bucket."""

    def __init__(self, pairs: PairedTexts, rows: int, keys: Tensor, turn_keys: Tensor, turn_batch: Tensor, device: str):
        self.steps_per_epoch = len(turn_batch)
        self.tokens = int(pairs.target.lengths.sum())
        tables = [side.padded(int(side.lengths.max())) for side in (pairs.source, pairs.target)]
        self.shape = rows, tables[0][0].shape[1], tables[1][0].shape[1]
        (self._sources, self._source_lengths), (self._targets, self._target_lengths) = (
            tuple(torch.as_tensor(part).to(device) for part in table) for table in tables
        )
        self._keys, self._turn_keys, self._turn_batch = keys.to(device), turn_keys.to(device), turn_batch.to(device)
        self._rows, self._end = rows, pairs.target.end

    def at(self, step: Step) -> PairBatch:
        step = on_device(step, self._keys)
        epoch, now = step // self.steps_per_epoch, step % self.steps_per_epoch
        N = len(self._sources)
        order = random.integers(self._keys, epoch, 2**31, N).argsort(dim=1, stable=True)
        turn = _turns(self._turn_keys, epoch, self.steps_per_epoch)[now.view(1)]  # a lone number would make us wait
        places = torch.arange(self._rows, device=order.device) + self._turn_batch[turn] * self._rows
        rows = order[:, places % N]  # [R, B]
        targets = self._targets[rows].long()
        inputs = torch.cat((torch.full_like(targets[..., :1], self._end), targets[..., :-1]), 2)
        sources = self._sources[rows].long()
        told, source_told = (
            torch.arange(ids.shape[2], device=ids.device) < lengths[rows][..., None]
            for ids, lengths in ((targets, self._target_lengths), (sources, self._source_lengths))
        )
        return PairBatch(inputs, targets, told, sources, source_told)


def _turns(keys: Tensor, epoch: Tensor | int, steps: int) -> Int64[Tensor, " S"]:
    """The order of an epoch's turns."""
    return random.integers(keys, epoch, 2**31, steps)[0].argsort(stable=True)
