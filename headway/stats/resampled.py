"""Bootstrap for scores that are no means: rows are resampled, the same ones for everything that is compared.

A corpus score such as BLEU is made of sums over sentences. What each sentence adds to them is a row of `counts`, so the
score of any sentences, of drawn ones as well, is the score of the sum of their rows. Which rows are drawn follows from
how many there are, and from nothing else: two systems on one test set meet the same draws (Koehn 2004,
https://aclanthology.org/W04-3250), and the same scores always have the same interval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headway.core import random
from headway.stats.intervals import LEVEL, Contrast
from headway.stats.stopping import FIXED_SEEDS, Stopping

RESAMPLES = 1000
FEWEST = 10
"""Rows that an interval is read off: with fewer there is too little to draw from."""
OfSums = Callable[[np.ndarray], np.ndarray]
"""From sums `[..., k]` to scores `[...]`."""


@lru_cache(maxsize=2)
def draws(rows: int, resamples: int = RESAMPLES) -> np.ndarray:
    """`[resamples, rows]`: how often each row is drawn in each."""
    generator = np.random.default_rng(random.key("rows", rows, resamples))
    chosen = generator.integers(0, rows, (resamples, rows)) + rows * np.arange(resamples)[:, None]
    return np.bincount(chosen.ravel(), minlength=resamples * rows).reshape(resamples, rows).astype(np.float32)


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


# --- two systems on the same rows ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairedResamples:
    """The difference of two systems, first less second, that were trained with the same seeds."""

    differences: np.ndarray
    """`[S]`: of all rows, at each seed."""
    drawn: np.ndarray
    """`[S, resamples]`: of the rows of each draw, which are the same for all."""

    @property
    def effect(self) -> float:
        return float(self.differences.mean())

    @property
    def p_by_seed(self) -> list[float]:
        """Over rows alone, two-sided: how often the lead of a pair of models is gone in a draw (Koehn's test)."""
        ahead, behind = ((self.drawn * sign > 0).sum(1) for sign in (1, -1))
        return [
            min(1.0, 2 * (self.drawn.shape[1] - n + 1) / (self.drawn.shape[1] + 1)) for n in np.maximum(ahead, behind)
        ]

    @property
    def over_rows(self) -> tuple[float, float]:
        """For other rows and the same trained models."""
        low, high = np.quantile(self.drawn.mean(0), [LEVEL / 2, 1 - LEVEL / 2])
        return float(low), float(high)

    @property
    def over_both(self) -> tuple[float, float]:
        """For other rows and other seeds, by drawing both. It takes the seeds for all there are, and with few of them
        is too short: `contrast` is not."""
        S, B = self.drawn.shape
        generator = np.random.default_rng(random.key("seeds", S, B))
        chosen = generator.integers(0, S, (S, B))
        means = np.take_along_axis(self.drawn, chosen, 0).mean(0)
        low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
        return float(low), float(high)

    def contrast(self, seeds: Sequence[int], size: float, sign: int = 1, stopping: Stopping = FIXED_SEEDS) -> Contrast:
        """The effect, with an error for other rows and other seeds at once. `sign`: -1 where lower is better.

        Rows and seeds are crossed. What seeds add is seen in the spread of the differences, what rows add in that of
        the draws, and each of the two holds once what they add together: it is taken off (as in stats/paired.py, where
        the score is a mean). Degrees of freedom by Satterthwaite, those of rows taken as endless. What seeds add is
        known from few of them, and where it seems small by chance both the error and the degrees of freedom would be
        wrong to the same side: so for the latter it is taken (S + 3)/(S - 1) times as large. Simulated, intervals then
        hold 95 in 100 from three seeds on (`python -m benchmarks.coverage_of_bleu`); two are given one degree alone.
        """
        S = len(self.differences)
        of_seeds = float(self.differences.var(ddof=1)) / S
        means = self.drawn.mean(0)
        of_rows = float(means.var(ddof=1))
        of_both = float((self.drawn - means).var(1, ddof=1).sum()) / (S - 1) / S
        total = max(of_seeds + of_rows - of_both, of_seeds, of_rows)
        freedom = S - 1.0
        if S > 2 and of_seeds > 0:
            large = of_seeds * (S + 3) / (S - 1)
            freedom *= max(1.0, max(large + of_rows - of_both, of_rows) / large) ** 2
        differences = sign * self.differences
        return Contrast(
            sign * self.effect, math.sqrt(total), min(freedom, 1e6), differences, tuple(seeds), size, stopping
        )


def paired(first: np.ndarray, second: np.ndarray, score: OfSums, drawn: np.ndarray | None = None) -> PairedResamples:
    """From `[S, N, k]`: what each row adds at each seed; the same seeds and rows in the same order."""
    found = [score(one.sum(-2)) for one in (first, second)]
    of_draws = [resampled(one, score, drawn) for one in (first, second)]
    return PairedResamples(found[0] - found[1], of_draws[0] - of_draws[1])
