"""Which words of two languages go together, counted from the pairs themselves, to find pairs that do not.

Words that are next to each other more often than chance explains are associated: Hund and dog. If a source and a target
belong together, its words explain those of the target better than the words of other sources of the same length do. The
source of a misaligned pair is one like any other, so its rank among them is random:

    rank of the own source     0 ……………… 19
    pairs that belong together               █     nearly all at the top
    misaligned pairs           ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁     as many at every rank

So twice the share of pairs in the lower half is the share of misaligned ones, and so is four times that in the lowest
quarter, if the others are clearly at the top.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from headway.audit.audit import DoesNotApply

Pairs = Sequence[tuple[str, str]]

LEARNT, ASKED, OTHERS = 10_000, 500, 19
"""Pairs of train that are read, pairs of each half that are ranked, and sources that each of these is ranked with."""
ENOUGH = 400
"""Minimum number of pairs: from fewer too little is learnt about the words of sentences."""
UNITS, VOCABULARY = 24, 3000
"""Different words that are read of a text, and the commonest words of a side that are counted."""
SHORT = 2.5
"""A side whose texts have fewer words, on average, is read as pairs of letters: single words, or Chinese."""
OF_SIMILAR_LENGTH = 60
"""The other sources are at most so far away in the order of lengths."""
TELLS, TELLS_CLEARLY = 0.7, 0.8
"""Minimum share at the top of all ranks among the pairs that belong together. In thousands of pairs of parallel text,
spelt-out numbers and words to sort it is 0.8 or more, with up to half of the pairs misaligned; in hundreds, or in very
short texts, it is less. Between sentences and the next ones it is 0.5, between sums and their results 0.2."""

_UNIT = re.compile(r"\w+|[^\w\s]")


class Misaligned(NamedTuple):
    share: float
    told: float
    """The share at the top of all ranks, among the pairs that belong together."""

    @property
    def is_sure(self) -> bool:
        return self.told >= TELLS

    @property
    def is_clear(self) -> bool:
        return self.told >= TELLS_CLEARLY


class Associations:
    """Learnt from each half of a sample of pairs, to rank those of the other half, or pairs of another split."""

    def __init__(self, pairs: Pairs):
        if len(pairs) < ENOUGH:
            raise DoesNotApply(f"there are fewer than {ENOUGH} pairs to learn which words go together")
        self._rng = np.random.default_rng(0)
        some = [pairs[k] for k in np.sort(self._rng.permutation(len(pairs))[:LEARNT])]
        self._by_letters = [sum(len(pair[side].split()) for pair in some) < SHORT * len(some) for side in (0, 1)]
        units = [[self._units(pair[side], side) for pair in some] for side in (0, 1)]
        commonest = (Counter(unit for text in texts for unit in text).most_common(VOCABULARY) for texts in units)
        # From a word that occurs once, nothing can be learnt for another pair.
        self._ids = [{unit: k for k, (unit, count) in enumerate(counted) if count > 1} for counted in commonest]
        sources, targets = (self._table(texts, ids) for texts, ids in zip(units, self._ids, strict=True))
        self._halves = [(sources[half::2], targets[half::2]) for half in (0, 1)]
        self._learnt = [_associated(*half) for half in self._halves]

    def of_train(self) -> Misaligned:
        ranked = zip(self._halves, reversed(self._learnt), strict=True)
        return _mixture(np.concatenate([self._ranks(*half, learnt) for half, learnt in ranked]))

    def of(self, pairs: Pairs) -> Misaligned:
        """Of pairs that were not learnt from."""
        if len(pairs) < ENOUGH:
            return Misaligned(0.0, 0.0)
        sources, targets = (self._table([self._units(pair[k], k) for pair in pairs], self._ids[k]) for k in (0, 1))
        return _mixture(self._ranks(sources, targets, self._learnt[0]))

    def _units(self, text: str, side: int) -> list[str]:
        """The different words of a text, or its pairs of letters."""
        text = text.lower()
        letters = self._by_letters[side]
        found = [f" {text} "[k : k + 2] for k in range(len(text) + 1)] if letters else _UNIT.findall(text)
        return list(dict.fromkeys(found))[:UNITS]

    def _table(self, texts: Sequence[Sequence[str]], ids: dict[str, int]) -> Int[np.ndarray, "n units"]:
        """The known words of each text, then -1."""
        table = np.full((len(texts), UNITS), -1, np.int32)
        for row, units in zip(table, texts, strict=True):
            known = [ids[unit] for unit in units if unit in ids]
            row[: len(known)] = known
        return table

    def _ranks(
        self,
        sources: Int[np.ndarray, "n units"],
        targets: Int[np.ndarray, "n units"],
        learnt: Float[np.ndarray, "words words"],
    ) -> Int[np.ndarray, " asked"]:
        """Of some pairs: how many other sources explain the target less well than its own does. Repeated pairs count
        once, and pairs that share the known words of a side with one of the others are left out: whose source is the
        better one cannot be told for them."""
        alike = [_same_rows(side) for side in (sources, targets)]
        by_length = np.argsort((sources >= 0).sum(1), kind="stable")
        _, first = np.unique(np.stack(alike)[:, by_length], axis=1, return_index=True)
        by_length = by_length[np.sort(first)]
        if len(by_length) <= OTHERS:
            return np.zeros(0, int)
        asked = self._rng.permutation(len(by_length))[:ASKED]
        away = self._rng.integers(1, OF_SIMILAR_LENGTH, (len(asked), OTHERS)) * self._rng.choice(
            [-1, 1], (len(asked), OTHERS)
        )
        own, others = by_length[asked], by_length[(asked[:, None] + away) % len(by_length)]
        explained = _explained(learnt, sources[np.concatenate([own[:, None], others], 1)], targets[own][:, None])
        differ = np.all([(side[others] != side[own][:, None]).all(1) for side in alike], axis=0)
        explained = explained[differ & (explained.max(1) > 0)]  # of the other targets no word is known
        explained += 1e-6 * self._rng.random(explained.shape)  # ties are broken at random
        return (explained[:, :1] > explained[:, 1:]).sum(1)


def _same_rows(table: Int[np.ndarray, "n units"]) -> Int[np.ndarray, " n"]:
    """A number for each row, the same for rows with the same words."""
    return np.unique(np.sort(table, 1), axis=0, return_inverse=True)[1].reshape(-1)


def _associated(
    sources: Int[np.ndarray, "n units"], targets: Int[np.ndarray, "n units"]
) -> Float[np.ndarray, "words words"]:
    """The logarithm of how many times more often than by chance a word of a source is beside a word of a target; one
    is added to both counts, because rare words meet by accident. Less often than by chance is 0."""
    both = (sources[:, :, None] >= 0) & (targets[:, None, :] >= 0)
    at = (sources[:, :, None].astype(np.int64) * VOCABULARY + targets[:, None, :])[both]
    counts = np.bincount(at, minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY).astype(np.float32)
    ours, theirs = (
        np.bincount(side[side >= 0], minlength=VOCABULARY).astype(np.float32) for side in (sources, targets)
    )
    return np.log((counts + 1) / (np.outer(ours, theirs) / len(sources) + 1)).clip(min=0)


def _explained(
    learnt: Float[np.ndarray, "words words"],
    sources: Int[np.ndarray, "n k units"],
    targets: Int[np.ndarray, "n 1 units"],
) -> Float[np.ndarray, "n k"]:
    """The sum over the words of a target, each with the word of the source that it is most associated with."""
    known: Bool[np.ndarray, "n k units units"] = (sources[..., :, None] >= 0) & (targets[..., None, :] >= 0)
    return np.where(known, learnt[sources[..., :, None], targets[..., None, :]], 0).max(-2).sum(-1)


def _mixture(ranks: Int[np.ndarray, " n"]) -> Misaligned:
    if len(ranks) < ENOUGH // 2:  # in most of them no word is known
        return Misaligned(0.0, 0.0)
    half, quarter = (float((ranks < (OTHERS + 1) / parts).mean()) * parts for parts in (2, 4))
    share = min(1.0, half, quarter)  # where little was learnt from, pairs that belong together reach the middle ranks
    top = float((ranks == OTHERS).mean()) - share / (OTHERS + 1)
    return Misaligned(share, top / max(1 - share, 0.05))
