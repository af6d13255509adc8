"""Which side of a pair is which, told by runs of three letters: no language must be known, only that the two differ.

    A    the source is made of what targets are made of                  told of each side by itself
    B    the target is made of what sources are made of

Where languages are alike, A and B happen now and then, and have nothing to do with each other. In pairs that are turned
round they happen together: so their covariance tells how many such pairs there are, however alike the languages.

They happen together, too, where one side is the other read backwards, or shares its words: what is rare in one is rare
in both. But then the sides of most pairs differ by little. Turned pairs differ as much as others do, the other way: so
differences lie in two heaps, and few of them about nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from headway.audit.audit import DoesNotApply

Pairs = Sequence[tuple[str, str]]
Worths = Mapping[str, float]
"""Of a run of letters: above 0 where it is rather one of sources."""

LEARNT = 1000
"""Pairs that say what sources and targets are made of; as many others say whether that tells them apart."""
TELLS = 0.75
"""Of those, so many must be told rightly: by chance half of them are."""
SURE = 4.0
"""Standard deviations of a share: some dozens are looked at, and the largest may not lie above that by chance."""
TOGETHER = 6.0
"""Standard deviations of the covariance, where nothing is turned."""
TOLD_APART = 0.7
"""By how much likelier a target is to be taken for one than a source is. Below that, letters tell registers and topics
apart rather than languages, and one side of a pair often has what the other lacks."""
TWO_HEAPS = 0.7
"""The square of the mean size of the differences, by the mean of their squares: 1 of two points, 2/π = 0.64 of one
normal heap about nothing. Multi30k, TED and numbers in words have 0.88 and more, with up to 40 % of them turned, words
of Pig Latin with 30 % 0.75; digits beside themselves read backwards 0.6."""
ENOUGH = 100
"""Pairs, for a covariance."""
OF_A_LENGTH = 10
"""Groups of pairs of about one length, within which covariances are taken: of short texts both sides tell little."""


class Mixed(NamedTuple):
    """Pairs some of which are turned round, here and there among the others."""

    share: float
    told_apart: float
    """By how much likelier a target is to be taken for one than a source is, where pairs are as they should be."""
    deviations: float
    """By which the sides go together more often than by chance."""
    heaps: float = 1.0
    """How far the differences of sides lie in two heaps, as `TWO_HEAPS` counts."""

    @property
    def is_sure(self) -> bool:
        return self.told_apart >= TOLD_APART and self.deviations >= TOGETHER and self.heaps >= TWO_HEAPS


class TwoLanguages:
    """What sources and targets are made of, learnt from every other of the first pairs of a text."""

    def __init__(self, pairs: Pairs):
        first = _each_text_once(pair for pair in pairs[: 2 * LEARNT] if all(pair) and pair[0] != pair[1])
        if len(first) < 40:
            raise DoesNotApply("there are too few pairs to tell the sides apart by")
        self._learnt, self._others = first[::2], first[1::2]
        self._worth = _worths(self._learnt)
        self.mistaken = self._look_turned(self._others)  # taken for turned round, where nobody has turned any

    @property
    def are_told_apart(self) -> bool:
        return self.mistaken <= 1 - TELLS

    def turned(self, pairs: Pairs) -> tuple[float, float]:
        """The share of pairs that are turned round; and what it may seem to be by chance, where none is."""
        mistaken = self.mistaken  # of those that are, and of those that are not
        by_chance = SURE * math.sqrt(mistaken * (1 - mistaken) / len(pairs))
        return (self._look_turned(pairs) - mistaken) / (1 - 2 * mistaken), by_chance / (1 - 2 * mistaken)

    def mixed(self) -> Mixed:
        """Of the pairs that were learnt from, each half told by what the other is made of."""
        if len(self._learnt) + len(self._others) < ENOUGH:
            return Mixed(0.0, 0.0, 0.0)
        halves = (self._others, self._worth), (self._learnt, _worths(self._others))
        worths = np.array([[_worth_of(side, worth) for side in pair] for pairs, worth in halves for pair in pairs])
        lengths = np.array([[len(side) for side in pair] for pairs, _ in halves for pair in pairs])
        found = mixture(worths[:, 0] < 0, worths[:, 1] > 0, lengths.sum(1))
        return found._replace(heaps=_in_two_heaps((worths / lengths) @ (1, -1)))

    def _look_turned(self, pairs: Pairs) -> float:
        return sum(self.are_turned(pair) for pair in pairs) / len(pairs)

    def are_turned(self, pair: tuple[str, str]) -> bool:
        """The source looks like a target, and the target like a source."""
        source, target = (_worth_of(text, self._worth) for text in pair)
        return source < target


def mixture(source: Bool[np.ndarray, " n"], target: Bool[np.ndarray, " n"], lengths: np.ndarray) -> Mixed:
    """Of pairs whose source, and whose target, look like the other side's. If a share e is turned, and D is by how much
    sides are told apart, then 1 - P(A) - P(B) = D (1 - 2e), and the covariance of A and B is D² e (1 - e)."""
    covariance, variance, n = 0.0, 0.0, len(lengths)
    for rows in np.array_split(np.argsort(lengths, kind="stable"), OF_A_LENGTH):
        ours, theirs = source[rows].astype(float), target[rows].astype(float)
        covariance += float(((ours - ours.mean()) * (theirs - theirs.mean())).sum()) / n
        variance += float(ours.var() * theirs.var()) * len(rows) / n**2
    apart = 1 - float(source.mean() + target.mean())
    if covariance <= 0 or apart <= 0:
        return Mixed(0.0, max(0.0, apart), 0.0)
    ratio = covariance / apart**2  # e (1 - e) / (1 - 2e)²
    share = (1 - math.sqrt(1 - 4 * ratio / (1 + 4 * ratio))) / 2
    return Mixed(share, apart / (1 - 2 * share), covariance / math.sqrt(max(variance, 1e-12)))


def _each_text_once(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Else what was learnt of a text would tell the same text apart, with another translation."""
    by_source = {source: (source, target) for source, target in pairs}
    return list({target: (source, target) for source, target in by_source.values()}.values())


def _worths(pairs: Pairs) -> Worths:
    counts = [Counter(chain.from_iterable(_runs(pair[side]) for pair in pairs)) for side in (0, 1)]
    totals = [math.log(sum(count.values()) + len(count)) for count in counts]
    return {
        run: math.log(counts[0][run] + 0.5) - totals[0] - math.log(counts[1][run] + 0.5) + totals[1]
        for run in counts[0].keys() | counts[1].keys()
    }


def _in_two_heaps(differences: Float[np.ndarray, " n"]) -> float:
    return float(np.abs(differences).mean() ** 2 / max(np.square(differences).mean(), 1e-12))


def _worth_of(text: str, worth: Worths) -> float:
    return sum(worth.get(run, 0.0) for run in _runs(text))


def _runs(text: str) -> list[str]:
    text = f" {text.lower()} "
    return [text[k : k + 3] for k in range(len(text) - 2)]
