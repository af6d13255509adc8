"""Multiple testing: corrections for several questions at once, and for picking the best of many arms.

The test of a single contrast is in `intervals.py`.
"""

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple testing (Holm 1979): the probability that any is below 0.05 by chance is at most 5
    %, for any dependence between them."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[k]))
        corrected[k] = highest
    return corrected


def picked_among(arms: int) -> float:
    """The factor for the p value of a pair if one of the pair was picked as the best of this many arms.

    It is half the number of the other arms: the truly best arm is missed only if another one leads it by chance, and
    there are arms - 1 that could, each in one direction (Bonferroni, which also holds for unequal variances). It is at
    least 1: of two equal arms, one may be called best in at most 5 % of studies.
    """
    return max(1.0, (arms - 1) / 2)


def shrunk_best(values: np.ndarray, lower_is_better: bool) -> float:
    """The expected score of the best arm if it is run again, from `[seeds, arms]`: its mean, shrunk towards that of
    all.

    The best of several arms was probably also lucky. The shrinkage depends on how much of the variance between arms is
    explained by seeds alone (an empirical-Bayes estimate with a normal distribution of arms).
    """
    seeds, arms = values.shape
    means = values.mean(0)
    residuals = values - means - values.mean(1, keepdims=True) + values.mean()
    by_chance = float((residuals**2).sum()) / ((seeds - 1) * (arms - 1)) / seeds
    seen = float(means.var(ddof=1))
    kept = max(0.0, 1 - by_chance / seen) if seen > 0 else 0.0
    best = float(means.min() if lower_is_better else means.max())
    return float(means.mean()) + kept * (best - float(means.mean()))
