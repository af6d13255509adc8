"""Fewer cases that say as much: every value of each axis meets every value of every other axis at least once.

A bug in how variants go together nearly always needs two of them; the whole product meets each pair a dozen times."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*axes: Sequence[Any], hard: Sequence[tuple] = ()) -> list[tuple]:
    """Cases for `pytest.mark.parametrize`: those known to be `hard`, and as many others as it takes (the greedy
    choice: always the case with most pairs that have not met)."""
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
