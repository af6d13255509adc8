"""Which runs of a study can be trained as one, and where those stand that were begun before."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from headway.experiment import MAY_VARY
from headway.recipe import Recipe
from headway.resuming import flat
from headway.study.design import PlannedRun
from headway.training.checkpoint import saved_steps


def shape(recipe: Recipe) -> str:
    """Equal for recipes that can be members of one population."""
    tree = flat(recipe.model_dump(mode="json"))
    return json.dumps({key: value for key, value in tree.items() if key not in MAY_VARY}, sort_keys=True)


def by_shape(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """Runs of one shape together, in the order of the study."""
    known: dict[str, str] = {}
    found: dict[str, list[PlannedRun]] = {}
    for run in runs:
        # The runs of an arm differ in their seed alone.
        key = known.get(run.arm) or known.setdefault(run.arm, shape(run.recipe))
        found.setdefault(key, []).append(run)
    return list(found.values())


def by_standing(runs: list[PlannedRun], folder: Path) -> list[list[PlannedRun]]:
    """Runs of one shape that can go on together: from a step that all of them have saved, most of them first. What was
    begun but saved nothing starts with what was not begun at all, and before it in the list."""
    saved = {run.name: set(saved_steps(folder / run.name / "checkpoints")) for run in runs}
    left, found = list(runs), []
    while count := Counter(step for run in left for step in saved[run.name]):
        step = max(count, key=lambda step: (count[step], step))
        found.append([run for run in left if step in saved[run.name]])
        left = [run for run in left if step not in saved[run.name]]
    left.sort(key=lambda run: not (folder / run.name).exists())
    return [*found, left] if left else found
