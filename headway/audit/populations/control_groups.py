"""Control groups: members of a population evaluated outside it, to verify what they output inside it.

The reference is each member by itself. But on a GPU a pass of one small model takes as long as a pass of all of them.
So a large population is also evaluated in two smaller groups, where every member has another place and other
neighbours, and one member of each group is evaluated alone. A fault that depends on a member's place, its neighbours or
the size of the population then gives different results in the population and in the group; a fault that affects every
member of any group in the same way gives different results in the group and alone.
"""

from collections.abc import Sequence

MAX_ALONE = 4
"""Populations of up to this size are evaluated member by member instead."""
GROUPS = 2


def control_groups(members: Sequence[int]) -> list[list[int]]:
    """Each member once: alone, or dealt out in turn. (The first keeps its place, but it is evaluated alone, too.)"""
    if len(members) <= MAX_ALONE:
        return [[one] for one in members]
    return [list(members[first::GROUPS]) for first in range(GROUPS)]


def also_alone(groups: Sequence[Sequence[int]]) -> list[int]:
    """One member of each group: the first of the first, the second of the second, and so on."""
    return [group[place % len(group)] for place, group in enumerate(groups)]
