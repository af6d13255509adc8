"""Group the runs of a study into populations that can be trained together, and distribute them over GPUs."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from headway.core.yaml import flat
from headway.experiment.assembly import MAY_VARY
from headway.experiment.resume import resumable_together
from headway.recipe.recipe import Recipe
from headway.study.design.study import PlannedRun

MAX_IMBALANCE = 1.1
"""The load of the busiest GPU, relative to the ideal, at which populations are split no further."""


def shape(recipe: Recipe) -> str:
    """Equal for recipes that can be members of one population."""
    tree = flat(recipe.model_dump(mode="json"))
    return json.dumps({key: value for key, value in tree.items() if key not in MAY_VARY}, sort_keys=True)


def by_shape(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """Runs of one shape together, in the order of the study."""
    known: dict[str, str] = {}
    found: dict[str, list[PlannedRun]] = {}
    for run in runs:
        # The runs of an arm differ only in their seed.
        key = known.get(run.arm) or known.setdefault(run.arm, shape(run.recipe))
        found.setdefault(key, []).append(run)
    return list(found.values())


def by_progress(runs: list[PlannedRun], folder: Path) -> list[list[PlannedRun]]:
    """Group runs of one shape that can be resumed together."""
    return [[runs[k] for k in group] for group in resumable_together([folder / run.name for run in runs])]


def populations_for(runs: Iterable[PlannedRun], gpus: int) -> list[list[PlannedRun]]:
    """The populations to train, in the order of the study; without a GPU, every run by itself. A population costs
    little more than one of its runs, so it is split into as few parts as keep all GPUs busy."""
    if gpus == 0:
        return [[run] for run in runs]
    shapes = by_shape(runs)
    cut: list[list[PlannedRun]] = []
    for parts in range(1, max(map(len, shapes), default=0) + 1):
        cut = [part for members in shapes for part in _parts(members, parts)]
        if max(loads([len(part) for part in cut], gpus)) <= MAX_IMBALANCE * -(-sum(map(len, shapes)) // gpus):
            break
    return cut


def loads(costs: Sequence[float], hands: int) -> list[float]:
    """The total load of each worker if the next piece always goes to the one that is free first."""
    busy = [0.0] * hands
    for cost in costs:
        first = min(range(hands), key=lambda k: busy[k])
        busy[first] += cost
    return busy


def _parts(members: list[PlannedRun], parts: int) -> list[list[PlannedRun]]:
    size = -(-len(members) // parts)
    return [members[k : k + size] for k in range(0, len(members), size)]
