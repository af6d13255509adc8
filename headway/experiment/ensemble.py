"""Ensembles: averages the probabilities of several runs, and measures the gain over the mean run.

The runs must have the same task, data and vocabulary. Runs of one shape, such as seeds trained as a population, are
evaluated in one pass, as one model with several replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.load import check_usable
from headway.experiment.same_tokens import check_same_tokens, naming_in_errors
from headway.run.folder import Run
from headway.scoring.ensemble import Gain
from headway.scoring.score import Score
from headway.tasks.abilities import JoinsOthers, ReadingWindow, ReadsSegments
from headway.tasks.task import Task
from headway.training.population import load_weights

AT_ONCE = 16
"""Replicas evaluated in one pass."""


@dataclass(frozen=True)
class Ensemble:
    runs: Sequence[Run]
    scores: list[Score]
    members: list[list[Score]]
    """The scores of each run alone."""
    gains: list[Gain]

    def as_json(self) -> dict[str, Any]:
        """The ensemble's results, without the audits of its runs."""
        each = zip(self.runs, self.members, strict=True)
        members = [{"run": str(run.folder), "scores": {s.name: s.as_json() for s in scores}} for run, scores in each]
        gains = {gain.name: gain.as_json() for gain in self.gains}
        return {"scores": {s.name: s.as_json() for s in self.scores}, "members": members, "gains": gains}


def score_together(
    runs: Sequence[Run], splits: Sequence[str] | None = None, window: ReadingWindow | None = None, which: str = "auto"
) -> Ensemble:
    """Score an ensemble on whole splits: those given, or those of the first recipe."""
    check_together(runs)
    for run in runs:
        if run.status.is_diverged:
            check_usable(run, run.checkpoint(which))
    window = window or ReadingWindow()
    task = tasks.load_for(runs[0])
    named = list(splits) if splits else task.scored_splits
    for split in named:
        task.check_split(split)
    told: list[dict[str, Any]] = [{} for _ in runs]
    for members in _of_one_shape(runs):
        some = [runs[k] for k in members]
        model, own = _side_by_side(some, task, which), replace(task, recipe=some[0].recipe)
        if any(window):
            tasks.able(some[0], ReadsSegments)
            with naming_in_errors(some[0]):
                own = own.in_segments(model, window)  # pyright: ignore[reportAttributeAccessIssue]
        for split in named:
            for k, said in zip(members, own.told(model, split), strict=True):  # pyright: ignore
                told[k][split] = said
    assert isinstance(task, JoinsOthers)
    found = [task.together(split, [one[split] for one in told]) for split in named]
    for run in runs:
        run.count_looks_at_test(named)
    members = [[score for one in found for score in one.members[k]] for k in range(len(runs))]
    scores, gains = ([x for one in found for x in getattr(one, what)] for what in ("scores", "gains"))
    return Ensemble(runs, scores, members, gains)


def check_together(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot be averaged."""
    if len(runs) < 2:
        raise UserError("an ensemble needs at least two runs")
    first = runs[0]
    tasks.able(first, JoinsOthers)
    for run in runs:
        a, b = (tasks.of(one.recipe) for one in (first, run))
        if not issubclass(a, b) and not issubclass(b, a):
            kinds = f"{first.recipe.model.kind} and {run.recipe.model.kind}"
            raise UserError(f"{first.name} and {run.name} are of different kinds ({kinds}) and cannot be averaged")
    check_same_tokens(runs)


def _of_one_shape(runs: Sequence[Run]) -> list[list[int]]:
    """Group the runs that can be evaluated in one pass, by index."""
    found: list[list[int]] = []
    for k, run in enumerate(runs):
        for members in found:
            if len(members) < AT_ONCE and _shape(runs[members[0]]) == _shape(run):
                members.append(k)
                break
        else:
            found.append([k])
    return found


def _shape(run: Run) -> Any:
    """What determines a model's shape and how it is read. Dropout is ignored, since it is off in evaluation."""
    return run.recipe.model.model_copy(update={"dropout": 0.0}), run.recipe.training.tuning, run.recipe.reading


def _side_by_side(runs: Sequence[Run], task: Task, which: str) -> Any:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own = replace(task, recipe=runs[0].recipe)
    model = own.build([run.recipe.seed for run in runs], device)
    for r, run in enumerate(runs):
        load_weights(model, r, run.checkpoint(which).weights)
    return model.eval()
