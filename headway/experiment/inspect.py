"""Look inside finished runs: attention maps, rollout, gradients, and two runs side by side. Reads run folders only."""

from functools import partial
from typing import Any

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.draw.picture import Grid, Picture
from headway.experiment.train import load_model
from headway.look.comparison import MapComparison
from headway.look.gradients import Gradients, gradients_of
from headway.look.maps import Maps, maps_of
from headway.run.folder import Run

SUBJECTS = ("heads", "rollout", "gradients")


def look_at(run: Run, text: str, checkpoint: str = "auto") -> Maps:
    """The attention of a run on a sentence."""
    model, _ = load_model(run, checkpoint)
    (maps,) = maps_of(model, run.tokenizer, [text], run.name)
    return maps


def gradients_at(run: Run, text: str, checkpoint: str = "auto") -> Gradients:
    """What the predictions of a run depend on; for models without attention, too."""
    model, _ = load_model(run, checkpoint)
    return gradients_of(model, run.tokenizer, text, run.name, partial(tasks.of(run.recipe).explain, run))


def look(
    runs: list[Run], text: str, show: str, layer: int | None, head: int | None, checkpoint: str
) -> tuple[Picture, dict[str, Any]]:
    """What `headway look` shows of one run, or of two side by side: the picture, and what it says in numbers."""
    if show not in SUBJECTS:
        raise UserError(f"--show {show} is not known{did_you_mean(show, SUBJECTS)}")
    if show == "gradients" and (layer, head) != (None, None):
        raise UserError("gradients go through the whole model: they have no --layer and no --head")
    if show == "rollout" and head is not None:
        raise UserError("rollout averages the heads of each layer: it has no --head; --layer says where it ends")
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
