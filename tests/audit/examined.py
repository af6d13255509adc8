"""Small models for the tests of audits, with token sequences and labels made by a rule."""

import copy
from functools import cache

import torch
from torch import Tensor

from headway import tasks
from headway.audit.models.learning import initial_loss, one_batch
from headway.audit.probe import Probe
from headway.audit.runner import MODEL_AUDITS
from headway.core import random as noise
from headway.data.labelled.batches import RowBatch
from headway.recipe.recipe import Recipe, from_tree

OF_WEIGHTS = tuple(one for one in MODEL_AUDITS if one not in (initial_loss, one_batch))
"""The audits of the weights as they are. The other two train a new model, and take half the time."""

CLASSIFIER = "model.kind=classifier"
VOCABULARY, CLASSES, CONTEXT = 40, 5, 32

BASE = {
    "model": {"layers": 2, "width": 32, "context": CONTEXT, "mixer": {"heads": 4}, "positions": "rotary"},
    "training": {"batch": 4, "optimizer": {"learning_rate": 3e-3}, "schedule": {"warmup": "5 steps"}},
}


def examine(*changes: str, steps: int = 0) -> Probe:
    """A probe of a model of this recipe, trained for this number of steps."""
    recipe = small_recipe(*changes)
    how, batch = tasks.of(recipe).probing, batch_at(recipe, 0)
    probe = Probe(fresh(recipe), recipe, batch, how, lambda: fresh(recipe), trained=steps > 0)
    if steps:
        train(probe, steps)
    return probe


def small_recipe(*changes: str) -> Recipe:
    tree = copy.deepcopy(BASE)
    if CLASSIFIER in changes:  # as an override, it would reset the whole model section
        tree["data"] = {"kind": "labelled"}
        tree["model"]["kind"] = "classifier"
    return from_tree(tree, "small", overrides=[change for change in changes if change != CLASSIFIER])


def fresh(recipe: Recipe):
    if recipe.model.kind == "classifier":
        return recipe.model.build(VOCABULARY, CLASSES, [recipe.seed]).eval()
    return recipe.model.build(VOCABULARY, [recipe.seed]).eval()


def batch_at(recipe: Recipe, step: int):
    if recipe.model.kind != "classifier":
        return recipe.data.batches.build(language(), CONTEXT, recipe.training.batch, [recipe.seed]).at(step)
    rows = language()[: 8 * CONTEXT].view(1, 8, CONTEXT).roll(step, 1)
    padding_mask = torch.arange(CONTEXT) < torch.tensor([32, 20, 9, 32, 14, 32, 27, 30])[:, None]
    return RowBatch(rows, padding_mask[None], rows[..., 0] % CLASSES)


def train(probe: Probe, steps: int) -> None:
    spec = probe.recipe.training
    optimizer = spec.optimizer.build(dict(probe.model.named_parameters()), [spec.optimizer.learning_rate], [0.1])
    alive, whole_rate = torch.ones(1, dtype=torch.bool), torch.tensor(1.0)
    probe.model.train()
    for step in range(steps):
        probe.model.clock.set(step)
        probe.model.loss(batch_at(probe.recipe, step))[0].sum().backward()
        optimizer.step(whole_rate, alive, spec.clip)
        probe.model.zero_grad()
    probe.model.eval()


@cache
def language() -> Tensor:
    """Token sequences in which a rule determines most next tokens."""
    drawn = noise.integers(noise.stream_keys([0], "language"), 0, VOCABULARY, 2000)[0]
    ids = [0]
    for k, random in enumerate(drawn.tolist()):
        ids.append(random if k % 3 == 0 else (3 * ids[-1] + 7) % VOCABULARY)
    return torch.tensor(ids)
