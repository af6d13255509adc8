"""Stops unpromising trials early, based on their evaluations so far."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import optuna
from optuna.trial import Trial

from headway.core.events import Began, Event, Scored
from headway.run.folder import open_run
from headway.scoring.metrics import LOSS, metric_of, parsed

Pruning = Literal["none", "median", "halving"]
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    # The first evaluation may be in the warm-up, and says little.
    "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
    "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
}


class PruningListener:
    """Reports every evaluation to Optuna, and ends the trials that it prunes.

    One of Optuna's steps is one evaluation here: the first, the second …. So halving after the first, third and ninth
    has a meaning, whatever the number of training steps between them.
    """

    def __init__(self, trials: Mapping[str, Trial], on: str):
        self.trials, self.on, self.total = trials, on, 0
        self.evaluations: dict[str, int] = {}

    def __call__(self, event: Event) -> str | None:
        match event:
            case Began():
                runs = {name: open_run(name, Path(event.folder)) for name in event.of}
                self.total = event.total
                self.evaluations = {name: len(run.evaluations()) for name, run in runs.items()}
            case Scored():
                return self._judge(event.of[0], event)
            case _:
                pass
        return None

    def _judge(self, name: str, event: Scored) -> str | None:
        trial = self.trials[name]
        self.evaluations[name] += 1
        told = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        if self.evaluations[name] not in told:  # a resumed trial may repeat an evaluation
            trial.report(self._value(event.scores), self.evaluations[name])
        return "other trials were better by then" if event.step < self.total and trial.should_prune() else None

    def _value(self, scores: Mapping[str, float]) -> float:
        """The score that decides, if it was evaluated; otherwise the loss, with the sign that gives the same order."""
        if self.on in scores:
            return scores[self.on]
        loss = scores[f"{parsed(self.on).split}.{LOSS.name}"]
        return loss if metric_of(self.on).lower_is_better else -loss
