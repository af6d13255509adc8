"""Tune the learning rate of the narrowest model of a ladder; the rates of the others follow by the scaling rule.

The candidate rates are trained as one population, so on a GPU all of them cost about as much as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError
from headway.core.events import Listener
from headway.scoring.metrics import LOSS
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.execution.ladder_plan import Climb
from headway.study.execution.plan import Sizes
from headway.study.results.results import read_results

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
"""Candidate rates, relative to the recipe's."""


@dataclass(frozen=True)
class TunedRate:
    rate: float
    losses: dict[float, float]
    """Rate → valid loss, as the mean over seeds; rates at which a run diverged are missing."""
    study: Study
    """The ladder with the tuned rate."""

    @property
    def is_at_edge(self) -> bool:
        return self.rate in (min(self.losses), max(self.losses))


def tune_rate(study: Study, folder: Path, seeds: int = 2, listeners: Sequence[Listener] = ()) -> TunedRate:
    """Train the narrowest model with the smallest of its budgets at several rates, as a study of its own in
    `folder`."""
    ladder = study.ladder
    assert ladder is not None
    base = study.base.with_changes(study.changes, "")
    rung = next(rung for rung in ladder.rungs if ladder.narrowest in rung.widths)
    recipe = Climb(base, ladder).recipe(ladder.narrowest)
    steps = max(1, round(rung.flops / Sizes().of(recipe).flops_per_step))
    rates = [float(f"{factor * base.training.optimizer.learning_rate:.3g}") for factor in FACTORS]
    tree = {
        "title": f"Which learning rate suits width {ladder.narrowest}?",
        "base": recipe.with_changes([f"training.duration={steps} steps"], ""),
        "arms": {f"{rate:g}": [f"training.optimizer.learning_rate={rate:g}"] for rate in rates},
        "seeds": seeds,
    }
    trial = Study.model_validate(tree)
    outcome = execute(trial, folder, InProcess(), listeners)
    if outcome.interrupted:
        raise KeyboardInterrupt
    table = read_results(folder, trial).table(f"valid.{LOSS.name}")
    losses = {float(arm): sum(of.values()) / len(of) for arm, of in table.items() if len(of) == seeds}
    if not losses:
        raise UserError(f"no learning rate from {min(rates):g} to {max(rates):g} trained width {ladder.narrowest}")
    best = min(losses, key=lambda rate: losses[rate])
    changes = [*study.changes, f"training.optimizer.learning_rate={best:g}"]
    return TunedRate(best, losses, study.model_copy(update={"changes": changes}))
