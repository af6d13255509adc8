"""When the seeds end: at a number fixed beforehand, or whenever somebody has seen enough.

A t interval promises 95 % for one look at a number of seeds that was fixed before. Whoever looks after every seed from
3 to 20, and stops at the first significant difference, is fooled in nearly one of four studies that have none. Where
seeds were added after a verdict was seen, it goes by a *confidence sequence*: intervals that all hold the truth at once
with 95 %, at every number of seeds there will ever be, so that it does not matter when, why or how often one looks.

It is the sequential t test with a Gaussian prior on the effect in units of the spread, and the right Haar prior on the
spread (Wang and Ramdas 2023, https://arxiv.org/abs/2310.03722, after Lai 1976). A correction for the number of looks
would be shorter after two or three of them, but rests on every look having been counted, and nobody counts them all.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


class Stopping(ABC):
    """What it takes to conclude something, given how it was decided that the seeds are enough."""

    @abstractmethod
    def reach(self, degrees_of_freedom: float, level: float) -> float:
        """Half the length of the interval, in standard errors."""

    @abstractmethod
    def p(self, degrees_of_freedom: float, t: float) -> float:
        """Two-sided; below `level` exactly where the interval leaves 0 out."""


class FixedSeeds(Stopping):
    """As many seeds as were planned: Student's t."""

    def reach(self, degrees_of_freedom: float, level: float) -> float:
        from scipy import special

        return float(special.stdtrit(degrees_of_freedom, 1 - level / 2))

    def p(self, degrees_of_freedom: float, t: float) -> float:
        from scipy import special

        return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


@dataclass(frozen=True)
class AnyTime(Stopping):
    """Seeds that were added to after a look: valid at every number of them at once."""

    prior: float = 10.0
    """A priori variance of the effect in units of the spread. Any is valid; this one is short at 4 to 30 seeds."""

    def reach(self, degrees_of_freedom: float, level: float) -> float:
        seeds = degrees_of_freedom + 1
        wider = 1 + seeds * self.prior
        ratio = (wider / level**2) ** (1 / seeds)
        if ratio >= wider:  # with so few seeds, no difference is large enough
            return math.inf
        return math.sqrt(degrees_of_freedom * (ratio - 1) / (1 - ratio / wider))

    def p(self, degrees_of_freedom: float, t: float) -> float:
        """One over how much likelier an effect makes this t than none does, averaged over the prior."""
        seeds = degrees_of_freedom + 1
        wider, square = 1 + seeds * self.prior, t * t / degrees_of_freedom
        evidence = seeds / 2 * (math.log1p(square) - math.log1p(square / wider)) - math.log(wider) / 2
        return math.exp(min(0.0, -evidence))


FIXED_SEEDS, ANY_TIME = FixedSeeds(), AnyTime()
