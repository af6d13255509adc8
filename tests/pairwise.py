"""Pairwise test cases: every value of each axis occurs with every value of every other axis at least once.

Nearly every bug in how variants combine involves two of them, and the full product would test each pair a dozen
times."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*axes: Sequence[Any], hard: Sequence[tuple] = ()) -> list[tuple]:
    """Cases for `pytest.mark.parametrize`: the `hard` ones, and as many others as are needed, chosen greedily by the
    number of new pairs."""
    numbers = [range(len(axis)) for axis in axes]
    chosen = [tuple(axis.index(value) for axis, value in zip(axes, case, strict=True)) for case in hard]
    waiting = list(product(*numbers))
    unmet = set().union(*map(_pairs, waiting)).difference(*map(_pairs, chosen))
    while unmet:
        best = max(waiting, key=lambda case: len(unmet & _pairs(case)))
        chosen.append(best)
        unmet -= _pairs(best)
    return [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in chosen]


def _pairs(case: tuple[int, ...]) -> set[tuple]:
    return set(combinations(enumerate(case), 2))
