"""Rows drawn anew, for scores that are no means: the same rows for everything that is compared.

A corpus score such as BLEU is made of sums over sentences. What each sentence adds to them is a row of `counts`, so the
score of any sentences, of drawn ones as well, is the score of the sum of their rows. Which rows are drawn follows from
how many there are, and from nothing else: two systems on one test set meet the same draws (Koehn 2004,
https://aclanthology.org/W04-3250), and the same scores always have the same interval.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from headway.core import random
from headway.stats.intervals import LEVEL

RESAMPLES = 1000
FEWEST = 10
"""Rows that an interval is read off: with fewer there is too little to draw from."""
OfSums = Callable[[np.ndarray], np.ndarray]
"""From sums `[..., k]` to scores `[...]`."""


@lru_cache(maxsize=2)
def draws(rows: int, resamples: int = RESAMPLES) -> np.ndarray:
    """`[resamples, rows]`: how often each row is drawn in each."""
    generator = np.random.default_rng(random.key("rows", rows, resamples))
    drawn = np.empty((resamples, rows), dtype=np.float32)  # sums up to 2²⁴ are exact
    for k in range(resamples):
        drawn[k] = np.bincount(generator.integers(0, rows, rows), minlength=rows)
    return drawn


def resampled(counts: np.ndarray, score: OfSums, drawn: np.ndarray | None = None) -> np.ndarray:
    """`[..., N, k]` → `[..., resamples]`: the score of each draw."""
    drawn = draws(counts.shape[-2]) if drawn is None else drawn
    return score(drawn.astype(np.float64) @ counts)


def interval(counts: np.ndarray, score: OfSums) -> tuple[float, float] | None:
    """Of `[N, k]`: where the score of other rows from the same source would lie, 95 times in 100. None = too few."""
    if len(counts) < FEWEST:
        return None
    low, high = np.quantile(resampled(counts, score), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)
