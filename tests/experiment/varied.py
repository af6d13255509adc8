"""Helpers to train four recipes as one population and to compare their runs."""

from typing import Any

import torch

from headway.experiment.train import train
from headway.recipe.recipe import Recipe
from headway.run.folder import Run

STEPS = 12
VARIED = [
    ["seed=3", "training.optimizer.learning_rate=0.001", "model.dropout=0.0"],
    ["seed=1", "training.optimizer.learning_rate=0.003", "model.dropout=0.1"],
    ["seed=4", "training.optimizer.learning_rate=0.01", "model.dropout=0.3", "training.optimizer.weight_decay=0.0"],
    ["seed=5", "training.optimizer.learning_rate=0.003", "model.dropout=0.5"],
]


def names(recipes: list[Recipe], prefix: str) -> list[str]:
    return [f"{prefix}-{k}" for k in range(len(recipes))]


def trained(recipes: list[Recipe], prefix: str = "run", **settings: Any) -> list[Run]:
    return train(recipes, names(recipes, prefix), **settings)


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if "loss" in line]


def evaluations(run: Run) -> dict[int, float]:
    return {line["step"]: line["scores"]["valid.loss"] for line in run.metrics() if "scores" in line}


def same_end(a: Run, b: Run) -> bool:
    """Weights, optimizer, progress (except the time it took) and metrics are bit-identical."""
    ours, theirs = a.checkpoint("last"), b.checkpoint("last")
    replica_states = [{**c.facts["standing"], "seconds": 0} for c in (ours, theirs)]
    return (
        ours.step == theirs.step
        and replica_states[0] == replica_states[1]
        and equal(ours.weights, theirs.weights)
        and equal(ours.optimizer, theirs.optimizer)
        and a.metrics() == b.metrics()
        and [(s.name, s.value) for s in a.scores()] == [(s.name, s.value) for s in b.scores()]
    )


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
