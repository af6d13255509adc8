"""How large an effect is and how sure: intervals. Nothing here knows what a model is.

A *contrast* is a weighted sum of the means of some arms: +1 and -1 for "is A better than B", +1 -1 -1 +1 for "does the
effect of one thing depend on another". Arms that were run on the same seeds are compared seed by seed, because a seed
that draws an easy data order does so for every arm; what is common to them falls out of the difference.

The t interval is the headline, and the bootstrap stands beside it from five seeds on. Below that there is too little to
resample, and the interval it finds is too short (`python -m benchmarks.coverage` measures by how much); t pays for few
seeds with degrees of freedom and covers what it should, also for differences that are moderately skewed.
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
"""Of every test; intervals hold what is left, 95 %."""
POWER = 0.8
RESAMPLES = 4000
FEWEST_TO_RESAMPLE = 5  # three values have ten different resamples: no interval can be read off those
FEWEST_FOR_POWER = 3  # degrees of freedom: with fewer, the spread may be 6 times what was seen
NO_SPREAD = 1e-12  # relative: less than this is rounding, and no spread


@dataclass(frozen=True)
class Visible:
    """The effect that seeds would find with a given probability. It follows from how much they spread, which these same
    seeds have estimated: so it has an interval of its own, and with few seeds a long one."""

    effect: float
    interval: tuple[float, float]
    """95 %, from the chi-square interval of the spread."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """An effect, and what is known of its uncertainty."""

    estimate: float
    error: float
    """Standard error of the estimate."""
    degrees_of_freedom: float
    """Degrees of freedom of that error."""
    differences: np.ndarray | None
    """The contrast at every seed, where the arms share their seeds; None where they were compared unpaired."""
    seeds: tuple[int, ...]
    """Those that were used."""
    size: float
    """How large the numbers are that went in, to tell spread from rounding."""
    stopping: Stopping = FIXED_SEEDS
    """How it was decided that these seeds are enough."""

    @property
    def paired(self) -> bool:
        return self.differences is not None

    @property
    def has_spread(self) -> bool:
        """Whether anything varied from seed to seed. Without that, seeds say nothing about chance."""
        return self.error > NO_SPREAD * max(self.size, 1e-300)

    @property
    def t(self) -> float:
        return self.estimate / self.error

    @property
    def p(self) -> float:
        """Two-sided: how often chance alone shows at least as much, if there is no effect."""
        return self.stopping.p(self.degrees_of_freedom, self.t)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        return self.estimate - self.reach(level), self.estimate + self.reach(level)

    def reach(self, level: float) -> float:
        """Half the length of the interval."""
        return self.stopping.reach(self.degrees_of_freedom, level) * self.error

    @cached_property
    def bootstrap(self) -> tuple[float, float] | None:
        """The interval that resampling the seeds gives; None where there are no pairs to resample, or where seeds were
        added after a look, of which resampling knows nothing."""
        if self.differences is None or len(self.differences) < FEWEST_TO_RESAMPLE or self.stopping is not FIXED_SEEDS:
            return None
        low, high = bootstrap_interval(self.differences)
        return float(low), float(high)

    def smallest_visible(self, level: float = LEVEL, power: float = POWER) -> Visible | None:
        """The effect that seeds with this spread find with this probability. None: too few to know their spread."""
        freedom = self.degrees_of_freedom
        critical = self.stopping.reach(freedom, level)
        if freedom < FEWEST_FOR_POWER or not math.isfinite(critical):
            return None
        return visible(noncentrality(freedom, critical, power) * self.error, freedom)


def contrast(
    columns: Sequence[Mapping[int, float]], weights: Sequence[float], stopping: Stopping = FIXED_SEEDS
) -> Contrast | None:
    """The weighted sum of these arms' means; `columns` are value by seed, all finite. None: too few seeds to say.

    Paired on the seeds that all arms share, if these are at least half of any arm's; else unpaired, over all seeds,
    each arm with its own spread (Welch), with the degrees of freedom that Satterthwaite gives.
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
    """This effect, which follows from a spread that is known with so many degrees of freedom."""
    from scipy import special

    low, high = (math.sqrt(freedom / special.chdtri(freedom, tail)) for tail in (LEVEL / 2, 1 - LEVEL / 2))
    return Visible(effect, (low * effect, high * effect))


def bootstrap_interval(values: np.ndarray, level: float = LEVEL, resamples: int = RESAMPLES) -> np.ndarray:
    """The interval of a mean, by resampling: studentised (Efron's bootstrap-t). `[..., n]` → `[2, ...]`.

    What is resampled is t, so that each resample's own spread counts; it follows the skew of the values, as the t
    interval does not. Resamples of one value only have no spread and are left out. Every study in a stack is resampled
    with the same draws, which follow from n alone: the same values always give the same interval.
    """
    n = values.shape[-1]
    shares = _resampling(n, resamples)
    mean = values.mean(-1, keepdims=True)
    centred = values - mean  # a mean far from 0 would cost the squares their digits
    moved = centred @ shares.T
    spread = np.sqrt(np.maximum((centred**2) @ shares.T - moved**2, 0) * n / (n - 1))
    has_spread = shares.max(1) < 1
    t = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)[..., has_spread]
    low, high = np.quantile(t, [level / 2, 1 - level / 2], axis=-1)
    error = values.std(-1, ddof=1)
    return np.stack([mean[..., 0] - high * error, mean[..., 0] - low * error])


@cache
def _resampling(n: int, resamples: int) -> np.ndarray:
    """`[resamples, n]`: the share of each value in each resample."""
    draws = np.random.default_rng(random.key("bootstrap", n, resamples)).multinomial(n, [1 / n] * n, size=resamples)
    return draws / n


@cache
def noncentrality(degrees_of_freedom: float, critical: float, power: float) -> float:
    """How many standard errors an effect must measure for |t| to exceed the critical value with this power."""
    from scipy import special

    # The power of a z test, averaged over what the estimated spread may turn out to be, in units of the true one.
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
    """The 95 % interval of a proportion. It stays inside 0 … 1, also where all or none are hits.
    (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953)"""
    if n == 0:
        return None
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    p, shrunk = hits / n, 1 + z * z / n
    centre, half = (p + z * z / (2 * n)) / shrunk, z / shrunk * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if hits == 0 else centre - half, 1.0 if hits == n else centre + half)
