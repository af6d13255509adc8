"""Exact arithmetic. A float64 number is an integer times a power of two, so sums and products of such numbers can be
computed exactly with Python's integers. Answers are verified this way. If float64 is too coarse to find an answer, keys
are also expressed in terms of each other exactly.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from headway.solve.inputs import Keys, Vector, Weights

Integers = Any
"""An array of Python integers (dtype object), of any size."""
Rationals = list[Fraction]

UNDERFLOW = -2000
"""A score this far below the best one has an exponential of 0."""


class BeyondFloat64Error(ArithmeticError):
    """A search cannot continue: magnitudes are so different that float64 cannot represent their ratios, or an iteration
    does not converge. This is not a bug; it only means that this search has no answer."""


def as_floats(values: Integers | Rationals, divisor: int = 1) -> np.ndarray:
    """Convert integers or fractions, divided by `divisor`, to float64."""
    try:
        return (np.array(values, dtype=object) / divisor).astype(np.float64)
    except OverflowError as error:
        raise BeyondFloat64Error from error


def finite(values: np.ndarray) -> np.ndarray:
    """Return the values if none of them has overflowed; otherwise raise."""
    if not np.isfinite(values).all():
        raise BeyondFloat64Error
    return values


def fixed_point(values: np.ndarray) -> tuple[Integers, int]:
    """The values as integers times 2**exponent."""
    mantissas, exponents = np.frexp(values)
    some = mantissas != 0
    exponents = exponents - 53
    least = int(exponents.min(initial=2000, where=some)) if some.any() else 0
    whole = (mantissas * 2.0**53).astype(np.int64).astype(object)
    return whole << np.where(some, exponents - least, 0).astype(object), least


@dataclass(frozen=True)
class ExactKeys:
    """The exact keys relative to one of them: softmax only depends on their differences."""

    keys: Keys
    origin: int
    scale: float

    @cached_property
    def _fixed(self) -> tuple[Integers, int]:
        return fixed_point(self.keys)

    @cached_property
    def around(self) -> Integers:
        """k_j − k_origin, in units of 2**exponent."""
        whole = self._fixed[0]
        return whole - whole[self.origin]

    @cached_property
    def unit(self) -> Fraction:
        return Fraction(2) ** self._fixed[1]

    def weights(self, query: Vector | Rationals) -> Weights:
        """softmax(scale · q Kᵀ) of this very query: only the exponentials are rounded."""
        e = np.exp(self.below(query))
        return e / e.sum()

    def below(self, query: Vector | Rationals) -> Weights:
        """The scores, less the largest of them; −∞ where that is so low that the weight is 0."""
        if isinstance(query, list):
            divisor = lcm(*(part.denominator for part in query))
            whole, unit = np.array([int(part * divisor) for part in query], dtype=object), Fraction(1, divisor)
        else:
            whole, exponent = fixed_point(query)
            unit = Fraction(2) ** exponent
        scores = self.around @ whole
        above, under = (Fraction(self.scale) * self.unit * unit).as_integer_ratio()
        scores = (scores - scores.max()) * above
        return np.array([s / under if s > UNDERFLOW * under else -np.inf for s in scores])

    def mean(self, change: Weights) -> Rationals:
        """Σ ν_j k_j for a change ν of the weights; the counterweight makes it sum to 0."""
        i = self.counterweight(change)
        whole, exponent = fixed_point(change)
        return [Fraction(v) * Fraction(2) ** exponent * self.unit for v in whole @ (self.around - self.around[i])]

    def counterweight(self, change: Weights) -> int:
        """The key whose change is determined by the others so that they sum to 0: the one where a small difference has
        the least relative effect on the mean."""
        moved = np.abs(change) @ np.abs(self.keys)
        shows = np.where(moved > 0, np.abs(self.keys) / np.where(moved > 0, moved, 1), 0).max(1)
        return int(np.where(change != 0, shows, np.inf).argmin())


def product(one: Vector, two: Vector) -> Fraction:
    (a, e), (b, f) = fixed_point(one), fixed_point(two)
    return Fraction(int(a @ b)) * Fraction(2) ** (e + f)


class Basis:
    """The rows of a matrix X as combinations of some of them: X = (table / divisor) · X[rows].

    Rows are added until they span all candidates, then exchanged as long as some row has a coordinate above 2. The
    result has nearly the largest volume of all bases, so no row has large coordinates, whatever the lengths are.
    """

    def __init__(self, X: Integers):
        self._table, self._columns = X, []
        self.divisor, self.rows = 1, []

    @property
    def table(self) -> Integers:
        return self._table[:, self._columns]

    def extend(self, candidates: np.ndarray) -> None:
        begin = len(self.rows)
        while len(candidates) and len(self._columns) < self._table.shape[1]:
            sizes = np.abs(self._table[candidates])
            sizes[:, self._columns] = 0
            row, column = np.unravel_index(sizes.argmax(), sizes.shape)
            if sizes[row, column] == 0:
                break
            self._pivot(int(candidates[row]), int(column))
            self.rows.append(int(candidates[row]))
            self._columns.append(int(column))
        while len(self.rows) > begin:
            sizes = np.abs(self._table[np.ix_(candidates, self._columns[begin:])])
            row, place = np.unravel_index(sizes.argmax(), sizes.shape)
            if sizes[row, place] <= 2 * abs(self.divisor):
                break
            self._pivot(int(candidates[row]), self._columns[begin + int(place)])
            self.rows[begin + int(place)] = int(candidates[row])

    def _pivot(self, row: int, column: int) -> None:
        """Column operations after which this row is zero except in this column, where it is unchanged.

        Fraction-free elimination (Bareiss): all entries are minors of X, and the division by the previous pivot, which
        is a minor too, has no remainder.
        """
        A, pivot = self._table, self._table[row, column]
        self._table = (A * pivot - np.outer(A[:, column], A[row])) // self.divisor
        self._table[:, column] = A[:, column]
        self.divisor = pivot


def shortest_solution(X: Integers, values: Vector) -> Rationals:
    """The shortest q with X·q = values, for linearly independent rows: q = Xᵀ(XXᵀ)⁻¹ values."""
    size = len(X)
    gram = Basis(np.vstack([X @ X.T, np.eye(size, dtype=int).astype(object)]))
    gram.extend(np.arange(size))
    inverse = gram.table[size:]  # in the order of the basis; times 1/divisor
    whole, exponent = fixed_point(values)
    q = X.T @ (inverse @ whole[gram.rows])
    return [Fraction(int(v), int(gram.divisor)) * Fraction(2) ** exponent for v in q]
