"""Members of a population in other company: what stands for asking each of them alone, at the cost of a few passes.

Alone is the truth that a population is held to; but on a GPU a pass of one small model takes as long as one of all. So
where there are many members, they are asked in two smaller groups, in which nobody has the place or the neighbours
that they have among all, and one of each group is asked alone. What goes wrong by a member's place or its neighbours,
or only among so many, is then not the same among all and in the group; and what goes wrong in the same way for everyone
beside others, whoever they are, is not the same alone.
"""

from collections.abc import Sequence

ONE_BY_ONE = 4
"""So few members are asked each by itself."""
GROUPS = 2
"""That more of them are dealt out to."""


def companies(members: Sequence[int]) -> list[list[int]]:
    """Each member once: alone, or dealt out in turns. (The first keeps its place; it is the one of its group that is
    asked alone.)"""
    if len(members) <= ONE_BY_ONE:
        return [[one] for one in members]
    return [list(members[first::GROUPS]) for first in range(GROUPS)]


def asked_alone_too(together: Sequence[Sequence[int]]) -> list[int]:
    """One of each group: of the first its first, of the second its second, and so on."""
    return [group[place % len(group)] for place, group in enumerate(together)]
