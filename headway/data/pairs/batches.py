"""Batches of pairs: which pairs a translator sees at each step.

As for other data, a sampler is a pure function of the step. Pairs of similar length share a batch, and all steps have
about the same number of tokens:

    buckets   ranges of length (of the longer side), chosen for the least padding
    rows      training.batch of them from the longest bucket; more from shorter ones, so that the tokens are about equal
    epoch     each bucket's pairs in an order of their own, drawn anew by every replica from its own seed
    turn      which bucket a step takes its batch from: drawn by epoch, and the same for all seeds

Each bucket has one shape. The batch of a step is computed on the device from the step number alone (`of_shape`), so
each shape can be captured as a CUDA graph, and no batch is padded beyond its own bucket.
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
    """Sources, decoder inputs (END, y₁ …) and targets (y₁ …, END)."""

    inputs: Int64[Tensor, "R B T"]
    targets: Int64[Tensor, "R B T"]
    padding_mask: Bool[Tensor, "R B T"]
    """True for target tokens, false for padding."""
    sources: Int64[Tensor, "R B S"]
    source_mask: Bool[Tensor, "R B S"]
    first_row: int = 0
    """The index of the first row in the whole batch. Noise is drawn by row, so a part of a batch gets the same noise as
    in the whole."""

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """Always true: no row continues one of the previous step."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    def part(self, k: int, n: int) -> "PairBatch":
        """The k-th of n equal slices of the rows, for gradient accumulation."""
        rows, left_over = divmod(self.inputs.shape[1], n)
        if left_over:
            raise UserError(f"a batch of {self.inputs.shape[1]} rows cannot be split into {n} equal parts")
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
    """How batches of pairs are formed."""

    by_seed: ClassVar[bool] = True
    """Whether the batches depend on the seed."""
    each_once: ClassVar[bool] = False
    """Whether every pair occurs once per epoch."""

    @abstractmethod
    def build(self, pairs: PairedTexts, longest: int, batch: int, seeds: Sequence[int], device: str) -> PairSampler:
        """A sampler of the pairs with at most `longest` tokens on either side."""


class Buckets(PairBatchSpec):
    """Every pair once per epoch, in a new random order, pairs of similar length together."""

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
    """The longest pair of each bucket, ascending, such that the total padded size is minimal. There are at most so many
    buckets, each with at least `enough` pairs."""
    longest = int(lengths.max())
    below = np.concatenate(([0], np.cumsum(np.bincount(lengths, minlength=longest + 1)[1:])))  # pairs up to each length
    # best[w]: the smallest padded size of all pairs up to length w, and the widths for it; one more bucket per round.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for _ in range(buckets):
        found = dict(best)
        for w in range(1, longest + 1):
            for a, (slots, widths) in best.items():
                there = int(below[w] - below[a]) if a < w else 0
                if there and (there >= enough or (a == 0 and w == longest)):
                    cost = slots + there * w
                    if w not in found or cost < found[w][0]:
                        found[w] = (cost, [*widths, w])
        best = found
    return best[longest][1]


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
        """The index of this step's shape. Computed on the CPU, where the step is known."""
        epoch, now = divmod(step, self.steps_per_epoch)
        return int(self._turn_bucket[_turns(self._turn_keys, epoch, self.steps_per_epoch)[now]])

    def of_shape(self, shape: int) -> PairSampler:
        """A sampler for steps of this shape only; it never waits for the device."""
        return self._shapes[shape]

    def at(self, step: Step) -> PairBatch:
        return self.of_shape(self.shape_of(int(step))).at(step)

    @property
    def tokens_per_step(self) -> int:
        """The mean number of target tokens."""
        return round(sum(one.tokens for one in self._shapes) / self.steps_per_epoch)

    @property
    def slots_per_step(self) -> list[tuple[int, int, int, float]]:
        """For each shape: rows, padded source length, padded target length, and its share of the steps."""
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
        turn = _turns(self._turn_keys, epoch, self.steps_per_epoch)[now.view(1)]  # a scalar would synchronise
        places = torch.arange(self._rows, device=order.device) + self._turn_batch[turn] * self._rows
        rows = order[:, places % N]  # [R, B]
        targets = self._targets[rows].long()
        inputs = torch.cat((torch.full_like(targets[..., :1], self._end), targets[..., :-1]), 2)
        sources = self._sources[rows].long()
        padding_mask, source_mask = (
            torch.arange(ids.shape[2], device=ids.device) < lengths[rows][..., None]
            for ids, lengths in ((targets, self._target_lengths), (sources, self._source_lengths))
        )
        return PairBatch(inputs, targets, padding_mask, sources, source_mask)


def _turns(keys: Tensor, epoch: Tensor | int, steps: int) -> Int64[Tensor, " S"]:
    """The order of the batches of an epoch."""
    return random.integers(keys, epoch, 2**31, steps)[0].argsort(stable=True)
