"""Multiple testing: several questions at once, or the best of many arms.

One contrast brings its own test along (`intervals.py`). Here is what it takes to ask several, and not to be fooled.
"""

from collections.abc import Sequence

import numpy as np


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
