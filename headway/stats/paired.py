"""Compare two classifiers on the same rows: McNemar's test, and a test over rows and seeds together.

Rows and seeds are two sources of chance. A test over rows says whether these two trained models would differ on other
rows; a test over seeds says whether other training runs would differ on these rows. Rows of several seeds must not be
pooled as if they were more rows: the same sentence is hard for every seed and counts only once.
"""

import math
from dataclasses import dataclass

import numpy as np

from headway.core.errors import UserError
from headway.stats.intervals import LEVEL


@dataclass(frozen=True)
class McNemar:
    """The number of rows that only one of two classifiers gets right, for each of them."""

    only_first: int
    only_second: int

    @property
    def p(self) -> float:
        """The exact two-sided p value: under the null hypothesis each disagreement is a fair coin flip."""
        from scipy import special

        few, rows = min(self.only_first, self.only_second), self.only_first + self.only_second
        return min(1.0, 2 * float(special.bdtr(few, rows, 0.5))) if rows else 1.0


def mcnemar(first: np.ndarray, second: np.ndarray) -> McNemar:
    """From `[N]` booleans: whether each classifier is right on each row (`Predictions.correct`)."""
    _check_same_rows(first, second)
    return McNemar(int((first & ~second).sum()), int((second & ~first).sum()))


@dataclass(frozen=True)
class RowsAndSeeds:
    """The difference in accuracy of two arms with several seeds each on the same rows."""

    per_seed: tuple[McNemar, ...]
    effect: float
    """Accuracy of the first minus that of the second, as the mean over seeds."""
    interval: tuple[float, float]
    """Covers other rows and other seeds."""
    p: float

    @property
    def outcome(self) -> str:
        return "different" if self.p < LEVEL else "not distinguishable"

    @property
    def sentence(self) -> str:
        low, high = (100 * end for end in self.interval)
        shown = f"{100 * self.effect:+.2f} [{low:.2f}, {high:.2f}] points"
        differing = sum(test.p < LEVEL for test in self.per_seed)
        return (
            f"{self.outcome} for other rows and seeds: {shown}; McNemar's exact test over rows alone is significant "
            f"(p < 0.05) at {differing} of {len(self.per_seed)} seeds"
        )


def rows_and_seeds(first: np.ndarray, second: np.ndarray) -> RowsAndSeeds:
    """Compare two `[S, N]` arrays of booleans with the same seeds and rows in the same order.

    The seeds are not pooled as rows. Seed and row are crossed factors, so the variance of the mean difference is the
    sum of the variance components of seeds, rows and their interaction, estimated by mean squares; degrees of freedom
    by Satterthwaite.
    """
    _check_same_rows(first, second)
    if first.ndim != 2 or min(first.shape) < 2:
        raise UserError("at least two rows and two seeds are needed; for one seed use McNemar's test")
    per_seed = tuple(mcnemar(a, b) for a, b in zip(first, second, strict=True))
    d = first.astype(float) - second.astype(float)
    from scipy import special

    S, N = d.shape
    effect, by_seed, by_row = float(d.mean()), d.mean(1), d.mean(0)
    of_seeds = N * float(((by_seed - effect) ** 2).sum()) / (S - 1)
    of_rows = S * float(((by_row - effect) ** 2).sum()) / (N - 1)
    of_both = float(((d - by_seed[:, None] - by_row + effect) ** 2).sum()) / ((S - 1) * (N - 1))
    # A negative variance component counts as 0, so the variance is never below that of rows (or seeds) alone.
    total = max(of_seeds + of_rows - of_both, of_seeds, of_rows)
    if total == 0:  # the difference is the same at every row and seed
        return RowsAndSeeds(per_seed, effect, (effect, effect), 1.0 if effect == 0 else 0.0)
    parts = (of_seeds**2 / (S - 1), of_rows**2 / (N - 1), of_both**2 / ((S - 1) * (N - 1)))
    degrees_of_freedom = max(S - 1.0, total**2 / sum(parts))
    error = math.sqrt(total / (S * N))
    reach = float(special.stdtrit(degrees_of_freedom, 1 - LEVEL / 2)) * error
    p = float(2 * special.stdtr(degrees_of_freedom, -abs(effect) / error))
    return RowsAndSeeds(per_seed, effect, (effect - reach, effect + reach), p)


def _check_same_rows(first: np.ndarray, second: np.ndarray) -> None:
    if first.shape != second.shape or not first.size:
        raise UserError(
            f"only answers to the same rows can be compared row by row, but the shapes are {first.shape} and "
            f"{second.shape}"
        )
