"""Tests of several things at once: many questions, the best of many arms, effects that depend on each other.

One contrast brings its own test along (`intervals.py`). Here is what it takes to ask several, and not to be fooled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for there being several (Holm 1979): the chance that any of them is below 0.05 by luck alone is at most
    5 %, however they hang together."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[k]))
        corrected[k] = highest
    return corrected


def picked_among(arms: int) -> float:
    """What the p value of a pair is multiplied by, if one of the pair was picked as the best of so many arms.

    By half the number of the others: the truly best arm is dropped only if some other leads it by luck, and there are
    arms - 1 to do so, in one direction each (Bonferroni, which holds for unequal spreads, too). And by no less than 1:
    of two equal arms neither must be called the best more often than in 5 of 100 studies.
    """
    return max(1.0, (arms - 1) / 2)


@dataclass(frozen=True)
class InteractionTest:
    f: float
    degrees_of_freedom: tuple[float, float]
    p: float


def interaction(values: np.ndarray) -> InteractionTest:
    """Does the effect of the rows depend on the columns? `[seeds, rows, columns]`, every seed with every cell.

    The F test of the interaction with seeds as blocks. Greenhouse and Geisser's factor takes degrees of freedom away
    where cells vary unequally; for 2 × 2 it is 1, and the test is the t test of the one contrast there is.
    """
    seeds, rows, columns = values.shape
    contrasts = np.kron(_differences(rows), _differences(columns))
    scores = values.reshape(seeds, -1) @ contrasts.T
    covariance = np.atleast_2d(np.cov(scores.T))
    total = float(np.trace(covariance))
    q = len(contrasts)
    f = seeds * float((scores.mean(0) ** 2).sum()) / total
    evenness = total**2 / (q * float((covariance**2).sum()))
    degrees_of_freedom = (evenness * q, evenness * q * (seeds - 1))
    return InteractionTest(f, degrees_of_freedom, float(special.fdtrc(*degrees_of_freedom, f)))


def _differences(levels: int) -> np.ndarray:
    """`[levels - 1, levels]`: orthonormal contrasts (Helmert's), each level against the mean of those before it."""
    table = np.tril(-np.ones((levels, levels)), -1)[1:]
    table[np.arange(levels - 1), np.arange(1, levels)] = np.arange(1, levels)
    return table / np.linalg.norm(table, axis=1, keepdims=True)


def shrunk_best(values: np.ndarray, lower_is_better: bool) -> float:
    """What to expect of the best arm when it is run again, `[seeds, arms]`: its mean, drawn towards that of all arms.

    The best of several was also the luckiest of them. How far the means are drawn in follows from how much of their
    spread the seeds alone explain (an empirical-Bayes estimate, the spread between arms taken as bell-shaped).
    """
    seeds, arms = values.shape
    means = values.mean(0)
    residuals = values - means - values.mean(1, keepdims=True) + values.mean()
    by_chance = float((residuals**2).sum()) / ((seeds - 1) * (arms - 1)) / seeds
    seen = float(means.var(ddof=1))
    kept = max(0.0, 1 - by_chance / seen) if seen > 0 else 0.0
    best = float(means.min() if lower_is_better else means.max())
    return float(means.mean()) + kept * (best - float(means.mean()))
