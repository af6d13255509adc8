"""Looks inside finished runs: attention maps, rollout, gradients, gradient flow. Reads only run folders."""

import re
from collections.abc import Sequence
from typing import Any

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.draw.picture import Grid, Picture
from headway.experiment.load import load_usable
from headway.look.comparison import MapComparison
from headway.look.flow_page import FlowOfArm, FlowPage
from headway.look.gradient_flow import GradientFlow, gradient_flow
from headway.look.gradients import Gradients
from headway.look.maps import Maps
from headway.run.folder import Run
from headway.tasks.abilities import FollowsGradients

SUBJECTS = ("heads", "rollout", "gradients")
FLOW_ROWS = 32
"""Rows of a split used for the gradient flow."""


def look_at(run: Run, text: str, checkpoint: str = "auto") -> Maps:
    """The attention maps of a run for a text."""
    model, _ = load_usable(run, checkpoint)
    return tasks.of(run.recipe).maps(run, model, text)


def gradients_at(run: Run, text: str, checkpoint: str = "auto") -> Gradients:
    """What a run's predictions depend on; also for models without attention."""
    model, _ = load_usable(run, checkpoint)
    return tasks.of(run.recipe).gradients(run, model, text)


def look(
    runs: list[Run], text: str, show: str, layer: int | None, head: int | None, checkpoint: str
) -> tuple[Picture, dict[str, Any]]:
    """What `headway look` shows of one run, or of two side by side: the picture, and its numbers."""
    if show == "gradient-flow":
        raise UserError("gradient flow is measured on a split, not on a sentence: look RUN [RUN …] --gradient-flow")
    if show not in SUBJECTS:
        raise UserError(f"unknown --show {show}{did_you_mean(show, SUBJECTS)}")
    if show == "gradients" and (layer, head) != (None, None):
        raise UserError("gradients cover the whole model: leave out --layer and --head")
    if show == "rollout" and head is not None:
        raise UserError("rollout averages the heads of each layer: leave out --head; --layer sets the last layer")
    found: list[tuple[Grid, Picture, dict[str, Any]]] = []
    for run in runs:
        if show == "gradients":
            gradients = gradients_at(run, text, checkpoint)
            made = gradients.grid(), gradients.draw(), gradients.as_json()
        else:
            maps = look_at(run, text, checkpoint)
            grid = maps.grid(layer, head) if show == "heads" else maps.rollout_grid(layer)
            picture = maps.draw(layer, head) if show == "heads" else maps.draw_rollout(layer)
            made = grid, picture, maps.as_json()
        found.append((made[0], made[1], {"run": str(run.folder), "show": show, **made[2]}))
    if len(found) == 1:
        return found[0][1:]
    (ours, picture, numbers), (theirs, other, other_numbers) = found
    notes = list(dict.fromkeys([*picture.notes, *other.notes]))
    comparison = MapComparison(ours, theirs, picture.sentence, picture.subtitle, notes)
    return comparison.draw(), {**numbers, "with": other_numbers, "comparison": comparison.as_json()}


def flow_in(run: Run, split: str = "valid", distance: int | None = None, checkpoint: str = "auto") -> GradientFlow:
    """The gradient flow of a run, on a split of its own data."""
    tasks.able(run, FollowsGradients)
    task: Any = tasks.load_for(run)
    task.check_split(split)
    model, _ = load_usable(run, checkpoint)
    return gradient_flow(model, task.followed(split, FLOW_ROWS), distance, run.name)


def flow_through(
    runs: Sequence[Run], split: str = "valid", distance: int | None = None, checkpoint: str = "auto"
) -> FlowPage:
    """The gradient flow of several runs in one picture. Runs that differ only in the seed form a curve with a band."""
    found = [FlowOfArm(name, [flow_in(run, split, distance, checkpoint) for run in same]) for name, same in alike(runs)]
    return FlowPage(found, split)


def alike(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Group runs that differ only in the seed, with a name for each group."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.recipe.model_copy(update={"seed": 0}).hash, []).append(run)
    return [(same[0].name if len(same) == 1 else _without_seed(same[0].name), same) for same in arms.values()]


def _without_seed(name: str) -> str:
    """A run's name without its seed: lstm.seed-0 and lstm.seed-1 become lstm."""
    return re.sub(r"[.\-_]?seed[-=_]?\d+$", "", name) or name
