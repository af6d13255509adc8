"""Audits of the batches of pairs that training reads: are they pairs of train, all of them, and complete?"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, UInt64

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.data.batches import Place
from headway.data.pairs.dataset import PairedTexts

MOST_ROWS = 200_000
"""Maximum number of rows an audit reads, which takes seconds."""

Marks = UInt64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class PairsRead:
    """The batches that a translator is trained on, and the pairs they should contain."""

    sampler: Any
    """A sampler of one replica."""
    train: PairedTexts
    longest: int
    """Maximum number of tokens; longer pairs are not trained on."""
    each_once: bool
    """Whether an epoch should contain every pair once."""

    @cached_property
    def kept(self) -> PairedTexts:
        return self.train.only(np.flatnonzero(self.train.longer <= self.longest))

    @cached_property
    def marks(self) -> Marks:
        """A hash of each pair of train."""
        sides = [side.padded(self.longest) for side in (self.kept.source, self.kept.target)]
        return sum((_marks(ids, _until(ids, n), k) for k, (ids, n) in enumerate(sides)), np.uint64(0))  # pyright: ignore

    def find(self, batch: Any) -> list[Place | None]:
        """The index in train of each row of the batch; None if it is not there."""
        return [self._known.get(mark) for mark in marks_of(batch).tolist()]

    @cached_property
    def _known(self) -> dict[int, Place]:
        last = {mark: k for k, mark in enumerate(self.marks.tolist())}
        first = {mark: k for k, mark in reversed(list(enumerate(self.marks.tolist())))}
        return {mark: Place(first[mark], last[mark]) for mark in last}

    def epoch(self) -> Iterator[Any]:
        return (self.sampler.at(step) for step in range(self.sampler.steps_per_epoch))


@audit("data")
def batch_pairs(given: PairsRead) -> Outcome:
    """Every source in a batch has a target that it has in train, beginning with the token that decoding starts from.

    The tokens of both sides of each row are looked up among the pairs of train. A single row that is not a pair of
    train is a failure: if the two sides are sorted or shuffled separately, training raises no error, but the translator
    becomes a language model of its targets. So is a single row that does not begin with END, from which decoding
    starts: the first token is then learnt after a token that is never there. If it fails, look at the code that orders
    the rows (data/pairs/batches.py).
    """
    batches = [given.sampler.at(step) for step in range(3)]
    rows = [place for batch in batches for place in given.find(batch)]
    strange = sum(place is None for place in rows)
    if strange:
        return failed(strange / len(rows), f"{strange} of {len(rows)} rows of batches are no pair of train")
    if begun := sum(int((batch.inputs[0, :, 0] != given.train.target.end).sum()) for batch in batches):
        return failed(begun / len(rows), f"{begun} of {len(rows)} targets in batches begin with another token than END")
    return passed(0, f"all {len(rows)} rows looked up in batches are pairs of train")


@audit("data")
def every_pair(given: PairsRead) -> Outcome:
    """An epoch has every pair of train once; none is lost between the length buckets or in a last batch.

    All batches of the first epoch are read, and each pair of train that is short enough for model.context is counted. A
    missing pair is a failure. The last batch of a length bucket is filled up with repeated pairs; more repetitions than
    that are also a failure, because a pair that is read twice has twice the weight. If it fails, look at how pairs are
    divided by their lengths, and at the number of steps of an epoch.
    """
    if not given.each_once:
        raise DoesNotApply("these batches are not meant to have every pair once")
    if len(given.kept) > MOST_ROWS:
        raise DoesNotApply(f"{len(given.kept):,} pairs are too many to read for an audit")
    known, which, there = np.unique(given.marks, return_inverse=True, return_counts=True)
    read, rows, filled = np.zeros(len(known), dtype=np.int64), 0, {}
    for batch in given.epoch():
        marks = marks_of(batch)
        at = np.searchsorted(known, marks).clip(max=len(known) - 1)
        np.add.at(read, at[known[at] == marks], 1)
        rows += len(marks)
        filled[batch.sources.shape, batch.targets.shape] = len(marks) - 1
    n, missing = len(given.kept), np.maximum(there - read, 0)
    if lost := int(missing.sum()):
        lengths = given.kept.longer[(missing > 0)[which]]
        sentence = (
            f"{lost:,} of {n:,} pairs are missing from an epoch: those of {lengths.min()} to {lengths.max()} tokens"
        )
        return failed(lost / n, sentence)
    again = rows - n
    if again > max(sum(filled.values()), 0):
        return failed(again / n, f"an epoch has {rows:,} rows for {n:,} pairs: {again:,} are read more than once")
    return passed(0, f"an epoch has each of {n:,} pairs; {again:,} are repeated to fill up a last batch")


def marks_of(batch: Any) -> Marks:
    """A hash of each row of a batch; equal to those of the same pairs of train."""
    sides = (batch.sources, batch.source_mask), (batch.targets, batch.padding_mask)
    return sum((_marks(*(part[0].cpu().numpy() for part in side), k) for k, side in enumerate(sides)), np.uint64(0))  # pyright: ignore


def _marks(ids: Int[np.ndarray, "n T"], is_real: Bool[np.ndarray, "n T"], side: int) -> Marks:
    """The sum over positions of a random number times the token: collisions are practically impossible."""
    draw = np.random.default_rng(side).integers(1, 2**63, size=ids.shape[1], dtype=np.uint64)
    return ((ids.astype(np.uint64) + np.uint64(1)) * is_real * draw).sum(1, dtype=np.uint64)


def _until(ids: Int[np.ndarray, "n T"], lengths: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n T"]:
    return np.arange(ids.shape[1]) < lengths[:, None]


BATCH_AUDITS: list[Audit] = [batch_pairs, every_pair]
