"""Bootstrap for scores that are not means: rows are resampled, with the same samples for all systems compared.

A corpus score such as BLEU is computed from sums over sentences. Each sentence's contribution is a row of `counts`, so
the score of any sample of sentences is the score of the sum of their rows. The samples depend only on the number of
rows: two systems on one test set get the same samples (Koehn 2004, https://aclanthology.org/W04-3250), and the same
scores always have the same interval.
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
"""The minimal number of rows for an interval."""
OfSums = Callable[[np.ndarray], np.ndarray]
"""From sums `[..., k]` to scores `[...]`."""


@lru_cache(maxsize=2)
def draws(rows: int, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each row is drawn in each resample, `[resamples, rows]`."""
    generator = np.random.default_rng(random.key("rows", rows, resamples))
    chosen = generator.integers(0, rows, (resamples, rows)) + rows * np.arange(resamples)[:, None]
    return np.bincount(chosen.ravel(), minlength=resamples * rows).reshape(resamples, rows).astype(np.float32)


def resampled(counts: np.ndarray, score: OfSums, drawn: np.ndarray | None = None) -> np.ndarray:
    """The score of each resample: `[..., N, k]` → `[..., resamples]`."""
    drawn = draws(counts.shape[-2]) if drawn is None else drawn
    return score(drawn.astype(np.float64) @ counts)


def interval(counts: np.ndarray, score: OfSums) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the score of `[N, k]` counts; None if there are too few rows."""
    if len(counts) < FEWEST:
        return None
    low, high = np.quantile(resampled(counts, score), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


# --- two systems on the same rows ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairedResamples:
    """The difference of two systems, first minus second, trained with the same seeds."""

    differences: np.ndarray
    """`[S]`: the difference on all rows, at each seed."""
    drawn: np.ndarray
    """`[S, resamples]`: the difference on each resample of rows; the resamples are the same for all seeds."""

    @property
    def effect(self) -> float:
        return float(self.differences.mean())

    @property
    def p_by_seed(self) -> list[float]:
        """Two-sided p values over rows alone: how often the lead of a pair of models vanishes in a resample (Koehn)."""
        ahead, behind = ((self.drawn * sign > 0).sum(1) for sign in (1, -1))
        return [
            min(1.0, 2 * (self.drawn.shape[1] - n + 1) / (self.drawn.shape[1] + 1)) for n in np.maximum(ahead, behind)
        ]

    @property
    def over_rows(self) -> tuple[float, float]:
        """The interval for other rows and the same trained models."""
        low, high = np.quantile(self.drawn.mean(0), [LEVEL / 2, 1 - LEVEL / 2])
        return float(low), float(high)

    @property
    def over_both(self) -> tuple[float, float]:
        """The interval for other rows and other seeds, by resampling both. With few seeds it is too short; use
        `contrast` then."""
        S, B = self.drawn.shape
        generator = np.random.default_rng(random.key("seeds", S, B))
        chosen = generator.integers(0, S, (S, B))
        means = np.take_along_axis(self.drawn, chosen, 0).mean(0)
        low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
        return float(low), float(high)

    def contrast(self, seeds: Sequence[int], size: float, sign: int = 1, stopping: Stopping = FIXED_SEEDS) -> Contrast:
        """The effect with a standard error that covers other rows and other seeds. `sign` is -1 if lower is better.

        Rows and seeds are crossed factors. The variance of seeds shows in the differences, that of rows in the
        resamples, and each includes their interaction once, so it is subtracted (as in stats/paired.py, where the score
        is a mean). Degrees of freedom are by Satterthwaite, those of rows taken as infinite. The variance of seeds is
        estimated from few of them. If it is underestimated by chance, the error would be too small and the degrees of
        freedom too large, so for the latter it is taken (S + 3)/(S - 1) times as large. In simulations, intervals then
        cover 95 % from three seeds on (`python -m benchmarks.coverage_of_bleu`); two seeds get a single degree of
        freedom.
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
    """Compare two `[S, N, k]` arrays of per-row counts with the same seeds and rows in the same order."""
    found = [score(one.sum(-2)) for one in (first, second)]
    of_draws = [resampled(one, score, drawn) for one in (first, second)]
    return PairedResamples(found[0] - found[1], of_draws[0] - of_draws[1])
