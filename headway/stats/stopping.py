"""Stopping rules: a number of seeds fixed beforehand, or optional stopping after any look.

A t interval has its 95 % coverage for one look at a number of seeds fixed beforehand. If you look after every seed from
3 to 20 and stop at the first significant difference, you find one in nearly a quarter of studies that have none. If
seeds were added after a verdict was seen, a *confidence sequence* is used instead: intervals that all cover the truth
simultaneously with 95 %, for every number of seeds, so that it does not matter when, why or how often you look.

It is the sequential t test with a Gaussian prior on the effect in units of the standard deviation, and the right Haar
prior on the standard deviation (Wang and Ramdas 2023, https://arxiv.org/abs/2310.03722, after Lai 1976). A correction
for the number of looks would give shorter intervals for two or three looks, but it requires that every look is counted.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


class Stopping(ABC):
    """The test and the interval, given how the number of seeds was decided."""

    @abstractmethod
    def reach(self, degrees_of_freedom: float, level: float) -> float:
        """Half the length of the interval, in standard errors."""

    @abstractmethod
    def p(self, degrees_of_freedom: float, t: float) -> float:
        """The two-sided p value; below `level` exactly if the interval excludes 0."""


class FixedSeeds(Stopping):
    """A number of seeds fixed beforehand: Student's t."""

    def reach(self, degrees_of_freedom: float, level: float) -> float:
        from scipy import special

        return float(special.stdtrit(degrees_of_freedom, 1 - level / 2))

    def p(self, degrees_of_freedom: float, t: float) -> float:
        from scipy import special

        return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


@dataclass(frozen=True)
class AnyTime(Stopping):
    """Seeds may be added after a look: a confidence sequence, valid at every number of seeds simultaneously."""

    prior: float = 10.0
    """Prior variance of the effect in units of the variance. Any value is valid; this one gives short intervals for 4
    to 30 seeds."""

    def reach(self, degrees_of_freedom: float, level: float) -> float:
        seeds = degrees_of_freedom + 1
        wider = 1 + seeds * self.prior
        ratio = (wider / level**2) ** (1 / seeds)
        if ratio >= wider:  # with so few seeds, no difference is large enough to be significant
            return math.inf
        return math.sqrt(degrees_of_freedom * (ratio - 1) / (1 - ratio / wider))

    def p(self, degrees_of_freedom: float, t: float) -> float:
        """The inverse of the Bayes factor for an effect against no effect, averaged over the prior; at most 1."""
        seeds = degrees_of_freedom + 1
        wider, square = 1 + seeds * self.prior, t * t / degrees_of_freedom
        evidence = seeds / 2 * (math.log1p(square) - math.log1p(square / wider)) - math.log(wider) / 2
        return math.exp(min(0.0, -evidence))


FIXED_SEEDS, ANY_TIME = FixedSeeds(), AnyTime()
