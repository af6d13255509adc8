"""Which runs of a study can be trained as one, and where those stand that were begun before."""

import json
from collections.abc import Iterable
from pathlib import Path

from headway.core.yaml import flat
from headway.experiment.assembly import MAY_VARY
from headway.experiment.resume import resumable_together
from headway.recipe.recipe import Recipe
from headway.study.design.study import PlannedRun


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


def by_progress(runs: list[PlannedRun], folder: Path) -> list[list[PlannedRun]]:
    """Runs of one shape that can go on together."""
    return [[runs[k] for k in group] for group in resumable_together([folder / run.name for run in runs])]
