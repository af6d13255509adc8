"""Effect sizes and their confidence intervals. Nothing here depends on models.

A *contrast* is a weighted sum of the means of some arms: +1 and -1 for "is A better than B", +1 -1 -1 +1 for "does the
effect of one thing depend on another". Arms run with the same seeds are compared seed by seed, because a seed that
gives an easy data order does so for every arm; the common part cancels in the difference.

The t interval is the main result; a bootstrap interval is added from five seeds on. With fewer seeds there is too
little to resample, and the bootstrap interval is too short (`python -m benchmarks.coverage` measures by how much). The
t interval accounts for few seeds by its degrees of freedom and keeps its coverage, even for moderately skewed
differences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist

import numpy as np

from headway.core import random
from headway.stats.stopping import FIXED_SEEDS, Stopping

LEVEL = 0.05
"""The significance level of every test; intervals have a coverage of 1 − LEVEL, 95 %."""
POWER = 0.8
RESAMPLES = 4000
MIN_TO_RESAMPLE = 5  # three values have only ten different resamples, too few for an interval
MIN_FOR_POWER = 3  # degrees of freedom: with fewer, the true standard deviation may be 6 times the estimate
NO_SPREAD = 1e-12  # relative: anything less is rounding


@dataclass(frozen=True)
class Visible:
    """The effect that seeds detect with a given power. It is computed from the standard deviation estimated from the
    same seeds, so it has an interval of its own, which is wide for few seeds."""

    effect: float
    interval: tuple[float, float]
    """95 %, from the chi-square interval of the standard deviation."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """An effect and its uncertainty."""

    estimate: float
    error: float
    """Standard error of the estimate."""
    degrees_of_freedom: float
    """Degrees of freedom of that error."""
    differences: np.ndarray | None
    """The contrast at every seed if the arms share their seeds; None if they were compared unpaired."""
    seeds: tuple[int, ...]
    """The seeds that were used."""
    size: float
    """The magnitude of the input values, to distinguish spread from rounding."""
    stopping: Stopping = FIXED_SEEDS
    """How the number of seeds was decided."""

    @property
    def paired(self) -> bool:
        return self.differences is not None

    @property
    def has_spread(self) -> bool:
        """Whether anything varied between seeds. Otherwise the seeds say nothing about chance."""
        return self.error > NO_SPREAD * max(self.size, 1e-300)

    @property
    def t(self) -> float:
        return self.estimate / self.error

    @property
    def p(self) -> float:
        """The two-sided p value: how often chance alone gives at least this difference if there is no effect."""
        return self.stopping.p(self.degrees_of_freedom, self.t)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        return self.estimate - self.reach(level), self.estimate + self.reach(level)

    def reach(self, level: float) -> float:
        """Half the length of the interval."""
        return self.stopping.reach(self.degrees_of_freedom, level) * self.error

    @cached_property
    def bootstrap(self) -> tuple[float, float] | None:
        """The bootstrap interval over seeds. None if there are too few pairs to resample, or if seeds were added after
        a look, which the bootstrap cannot account for."""
        if self.differences is None or len(self.differences) < MIN_TO_RESAMPLE or self.stopping is not FIXED_SEEDS:
            return None
        low, high = bootstrap_interval(self.differences)
        return float(low), float(high)

    def smallest_visible(self, level: float = LEVEL, power: float = POWER) -> Visible | None:
        """The effect that these seeds detect with this power; None if too few seeds estimate the spread."""
        freedom = self.degrees_of_freedom
        critical = self.stopping.reach(freedom, level)
        if freedom < MIN_FOR_POWER or not math.isfinite(critical):
            return None
        return visible(noncentrality(freedom, critical, power) * self.error, freedom)


def contrast(
    columns: Sequence[Mapping[int, float]], weights: Sequence[float], stopping: Stopping = FIXED_SEEDS
) -> Contrast | None:
    """The weighted sum of these arms' means; `columns` are finite values by seed. None if there are too few seeds.

    Paired on the seeds that all arms share, if these are at least half of every arm's seeds. Otherwise unpaired over
    all seeds, with a separate variance for each arm (Welch) and degrees of freedom by Satterthwaite.
    """
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    size = max((abs(value) for column in columns for value in column.values()), default=0.0)
    if len(shared) >= 2 and 2 * len(shared) >= max(map(len, columns)):
        values = np.array([[column[seed] for seed in shared] for column in columns])
        differences = np.asarray(weights) @ values
        n = len(shared)
        error = float(differences.std(ddof=1)) / math.sqrt(n)
        return Contrast(float(differences.mean()), error, n - 1, differences, tuple(shared), size, stopping)
    if any(len(column) < 2 for column in columns):
        return None
    arrays = [np.array(list(column.values())) for column in columns]
    parts = [w * w * a.var(ddof=1) / len(a) for w, a in zip(weights, arrays, strict=True)]
    estimate = float(sum(w * a.mean() for w, a in zip(weights, arrays, strict=True)))
    squares = sum(part**2 / (len(a) - 1) for part, a in zip(parts, arrays, strict=True))
    degrees_of_freedom = float(sum(parts) ** 2 / squares) if squares > 0 else float(sum(map(len, arrays)) - len(arrays))
    seeds = tuple(sorted(set.union(*(set(column) for column in columns))))
    return Contrast(estimate, math.sqrt(sum(parts)), degrees_of_freedom, None, seeds, size, stopping)


def visible(effect: float, freedom: float) -> Visible:
    """This effect with its interval, given the degrees of freedom of the standard deviation it is computed from."""
    from scipy import special

    low, high = (math.sqrt(freedom / special.chdtri(freedom, tail)) for tail in (LEVEL / 2, 1 - LEVEL / 2))
    return Visible(effect, (low * effect, high * effect))


def bootstrap_interval(values: np.ndarray, level: float = LEVEL, resamples: int = RESAMPLES) -> np.ndarray:
    """The studentised bootstrap interval of a mean (Efron's bootstrap-t). `[..., n]` → `[2, ...]`.

    The statistic resampled is t, which includes each resample's own standard deviation. Unlike the t interval, it
    follows the skewness of the values. Resamples of a single value have no spread and are left out. All studies in a
    stack use the same draws, which depend only on n, so the same values always give the same interval.
    """
    n = values.shape[-1]
    shares = _resampling(n, resamples)
    mean = values.mean(-1, keepdims=True)
    centred = values - mean  # for numerical precision of the squares if the mean is far from 0
    moved = centred @ shares.T
    spread = np.sqrt(np.maximum((centred**2) @ shares.T - moved**2, 0) * n / (n - 1))
    has_spread = shares.max(1) < 1
    t = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)[..., has_spread]
    low, high = np.quantile(t, [level / 2, 1 - level / 2], axis=-1)
    error = values.std(-1, ddof=1)
    return np.stack([mean[..., 0] - high * error, mean[..., 0] - low * error])


@cache
def _resampling(n: int, resamples: int) -> np.ndarray:
    """The share of each value in each resample, `[resamples, n]`."""
    draws = np.random.default_rng(random.key("bootstrap", n, resamples)).multinomial(n, [1 / n] * n, size=resamples)
    return draws / n


@cache
def noncentrality(degrees_of_freedom: float, critical: float, power: float) -> float:
    """How many standard errors an effect must be for |t| to exceed the critical value with this power."""
    from scipy import special

    # The power of a z test, averaged over the ratio of the estimated to the true standard deviation.
    spreads = np.sqrt(special.chdtri(degrees_of_freedom, (np.arange(2000) + 0.5) / 2000) / degrees_of_freedom)

    def found(effect: float) -> float:
        return float((special.ndtr(effect - critical * spreads) + special.ndtr(-effect - critical * spreads)).mean())

    low, high = 0.0, 2 * critical
    while found(high) < power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    return high


def wilson(hits: int, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a proportion. It stays within 0 … 1, even if all or none are hits.
    (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953)"""
    if n == 0:
        return None
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    p, shrunk = hits / n, 1 + z * z / n
    centre, half = (p + z * z / (2 * n)) / shrunk, z / shrunk * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if hits == 0 else centre - half, 1.0 if hits == n else centre + half)
