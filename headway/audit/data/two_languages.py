"""Which side of a pair is which, told by runs of three letters: no language must be known, only that the two differ."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from headway.audit.audit import DoesNotApply

Pairs = Sequence[tuple[str, str]]

LEARNT = 1000
"""Pairs that say what sources and targets are made of; as many others say whether that tells them apart."""
TELLS = 0.75
"""Of those, so many must be told rightly: by chance half of them are."""
SURE = 4.0
"""Standard deviations of a share: some dozens are looked at, and the largest may not lie above that by chance."""


class TwoLanguages:
    """What sources and targets are made of, learnt from every other of the first pairs of a text."""

    def __init__(self, pairs: Pairs):
        first = [pair for pair in pairs[: 2 * LEARNT] if all(pair) and pair[0] != pair[1]]
        if len(first) < 40:
            raise DoesNotApply("there are too few pairs to tell the sides apart by")
        counts = [Counter(chain.from_iterable(_runs(pair[side]) for pair in first[::2])) for side in (0, 1)]
        totals = [math.log(sum(count.values()) + len(count)) for count in counts]
        self._worth = {
            run: math.log(counts[0][run] + 0.5) - totals[0] - math.log(counts[1][run] + 0.5) + totals[1]
            for run in counts[0].keys() | counts[1].keys()
        }
        others = first[1::2]
        self.mistaken = self._look_turned(others)  # taken for turned round, where nobody has turned any
        if self.mistaken > 1 - TELLS:
            raise DoesNotApply("the letters of sources and targets do not tell them apart")

    def turned(self, pairs: Pairs) -> tuple[float, float]:
        """The share of pairs that are turned round; and what it may seem to be by chance, where none is."""
        mistaken = self.mistaken  # of those that are, and of those that are not
        by_chance = SURE * math.sqrt(mistaken * (1 - mistaken) / len(pairs))
        return (self._look_turned(pairs) - mistaken) / (1 - 2 * mistaken), by_chance / (1 - 2 * mistaken)

    def _look_turned(self, pairs: Pairs) -> float:
        return sum(self.are_turned(pair) for pair in pairs) / len(pairs)

    def are_turned(self, pair: tuple[str, str]) -> bool:
        """The source looks like a target, and the target like a source."""
        source, target = (sum(self._worth.get(run, 0.0) for run in _runs(text)) for text in pair)
        return source < target


def _runs(text: str) -> list[str]:
    text = f" {text.lower()} "
    return [text[k : k + 3] for k in range(len(text) - 2)]
