"""Trials that are hopeless are given up, by what their evaluations show so far."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.trial import Trial

from headway.core.progress import Reporter
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, metric_of, parsed

Pruning = Literal["none", "median", "halving"]
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    # The first evaluation may be in the warm-up, and says little.
    "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
    "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
}


class Watching:
    """Reports every evaluation to Optuna, and ends the trials that it gives up.

    What Optuna calls a step is for us an evaluation, the first, the second …: halving after the first, third and ninth
    means something, whatever the number of steps between them.
    """

    def __init__(self, trials: Mapping[str, Trial], on: str):
        self.trials, self.on, self.total = trials, on, 0
        self.members: list[Trial] = []
        self.evaluations: list[int] = []

    def start(self, members: Sequence[Run], resumed: bool, total: int, reporter: Reporter) -> None:
        self.members, self.total = [self.trials[run.name] for run in members], total
        self.evaluations = [sum("scores" in line for line in run.metrics()) for run in members]

    def metrics(self, replica: int, lines: Sequence[dict[str, Any]]) -> str | None:
        trial = self.members[replica]
        for line in lines:
            if "scores" not in line:
                continue
            self.evaluations[replica] += 1
            told = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
            if self.evaluations[replica] not in told:  # a resumed trial may come by again
                trial.report(self._value(line["scores"]), self.evaluations[replica])
            if line["step"] < self.total and trial.should_prune():
                return "others were better by then"
        return None

    def end(self) -> None:
        """Nothing is kept open."""

    def _value(self, scores: Mapping[str, float]) -> float:
        """The score that decides, where evaluations have it; else the loss, turned so that it runs the same way."""
        if self.on in scores:
            return scores[self.on]
        loss = scores[f"{parsed(self.on).split}.{LOSS.name}"]
        return loss if metric_of(self.on).lower_is_better else -loss
