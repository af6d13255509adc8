"""Faults between the loss and the weights: gradients, clipping, optimizers, rates, averages. Models still train."""

from typing import Any

import torch

from headway.audit.plants.needs import ADAM, LANGUAGE_MODEL, PUNISHED, averaging, part
from headway.audit.plants.planting import Bed, Need, Patch
from headway.data.running.batches import Batch
from headway.models import language_model
from headway.models.language_model import LanguageModel
from headway.nn.penalty import PenaltySpec
from headway.training import adam, optimizers, schedule
from headway.training.adam import Adam, AdamOptimizer, AdamWOptimizer, MomentsOptimizer
from headway.training.averaging import Averages, Moving, Tail
from headway.training.update import Update

_bed = Bed("steps")
STEP = "step"
PARTS = Need("a batch in parts", lambda recipe: recipe.training.accumulate > 1, ("training.accumulate=2",))
TIED = Need("a tied output", lambda recipe: bool(part(recipe, "model.tied")), ("model.tied=true",))
CLIPPED = Need("training.clip", lambda recipe: recipe.training.clip is not None)
DECAYS = Need("weight decay", lambda recipe: recipe.training.optimizer.weight_decay > 0)
L2 = Need(
    "Adam with weight decay",
    lambda recipe: isinstance(recipe.training.optimizer, Adam) and recipe.training.optimizer.weight_decay > 0,
    ("training.optimizer={kind: adam, learning_rate: 3e-3, weight_decay: 0.1}",),
)
WARMS_UP = Need(
    "a warm-up",
    lambda recipe: recipe.training.schedule.warmup is not None,
    ("training.schedule={kind: cosine, warmup: 5 steps}",),
)
ALSO = ("did-it-train", "beats-chance", "beats-counting", "underfitted", "collapsed-heads", "collapsed-answers")


@_bed.plant("gradient", LANGUAGE_MODEL, TIED)
def output_table_without_a_gradient(patch):
    honest = language_model.mean_cross_entropy
    patch.setattr(language_model, "mean_cross_entropy", lambda x, weight, *rest: honest(x, weight.detach(), *rest))


def _before_the_step(patch: Patch, change: Any, limit: Any = lambda given: given) -> None:
    honest = MomentsOptimizer.step

    def step(self: Any, factor: Any, alive: Any, given: Any = None) -> Any:
        with torch.no_grad():
            change(self, given)
        return honest(self, factor, alive, limit(given))

    patch.setattr(MomentsOptimizer, "step", step)


@_bed.plant(STEP, ADAM)
def bias_correction_lost(patch):
    _before_the_step(patch, lambda optimizer, limit: optimizer.steps.fill_(10_000))


@_bed.plant(STEP, ADAM, DECAYS)
def norms_and_biases_decayed(patch):
    for module in (optimizers, adam):
        patch.setattr(module, "is_decayed", lambda p: True)


@_bed.plant(STEP, ADAM, DECAYS)
def nothing_decayed(patch):
    for module in (optimizers, adam):
        patch.setattr(module, "is_decayed", lambda p: False)


@_bed.plant(STEP, L2)
def decay_that_is_no_part_of_the_gradient(patch):
    patch.setattr(AdamOptimizer, "kernel", AdamWOptimizer.kernel)


@_bed.plant(STEP, ADAM, CLIPPED)
def clipped_tensor_by_tensor(patch):
    def change(optimizer, limit):
        for p in optimizer.parameters if limit else ():
            p.grad *= (limit / (p.grad.norm() + 1e-6)).clamp(max=1.0)

    _before_the_step(patch, change, limit=lambda given: None)


@_bed.plant(STEP, ADAM, CLIPPED)
def limit_that_is_not_used(patch):
    _before_the_step(patch, lambda optimizer, limit: None, limit=lambda given: None)


@_bed.plant(STEP, ADAM, PARTS)
def parts_of_a_batch_added_up(patch):
    def change(optimizer, limit):
        for p in optimizer.parameters:
            p.grad *= 2

    _before_the_step(patch, change)


@_bed.plant(STEP, LANGUAGE_MODEL, PARTS)
def the_last_part_of_a_batch_only(patch):
    honest = Batch.part
    patch.setattr(Batch, "part", lambda self, k, n: honest(self, n - 1, n))


@_bed.plant(STEP, ADAM)
def gradients_that_are_not_zeroed(patch):
    def change(optimizer, limit):
        before = vars(optimizer).get("before")
        for k, p in enumerate(optimizer.parameters):
            p.grad += 0 if before is None else before[k]
        optimizer.before = [p.grad.clone() for p in optimizer.parameters]

    _before_the_step(patch, change)


@_bed.plant(STEP)
def rate_of_the_schedule_not_used(patch):
    honest = Update.__call__
    patch.setattr(Update, "__call__", lambda self, step, rate: honest(self, step, 1.0))


@_bed.plant(STEP, averaging("moving"))
def average_that_is_the_last_weights(patch):
    def update(self, step, alive):
        for name, average in self.tensors.items():
            average.copy_(self.parameters[name].detach())

    patch.setattr(Averages, "update", update)


@_bed.plant(STEP, averaging("moving"))
def average_that_remembers_the_start(patch):
    patch.setattr(Moving, "share", lambda self, step, total: torch.full_like(step, 1 - self.decay))


@_bed.plant(STEP, averaging("tail"))
def average_of_everything_called_a_tail(patch):
    patch.setattr(Tail, "share", lambda self, step, total: 1 / (step + 1))


# --- what is lowered, in training only -------------------------------------------------------------------------------


@_bed.plant("loss", LANGUAGE_MODEL)
def label_smoothing_in_training_mode(patch):
    honest = LanguageModel.loss

    def loss(self, batch, state=None):
        nats, after = honest(self, batch, state)
        if self.training:
            nats = 0.9 * nats - 0.1 * self(batch.inputs)[0].log_softmax(-1).mean((1, 2, 3))
        return nats, after

    patch.setattr(LanguageModel, "loss", loss)


@_bed.plant("loss", PUNISHED)
def penalty_left_out(patch):
    patch.setattr(PenaltySpec, "of", lambda self, x: x.new_zeros(len(x)))


@_bed.plant("loss", PUNISHED)
def penalty_counted_in_evaluation(patch):
    honest = LanguageModel.loss

    def loss(self, batch, state=None):
        found, after = honest(self, batch, state)
        if not self.training:
            found = found + self.spec.penalty.of(self.hidden(batch.inputs, self.going_on_from(state))[0])
        return found, after

    patch.setattr(LanguageModel, "loss", loss)


@_bed.plant("gradient", PUNISHED)
def penalty_of_the_change_over_rows(patch):
    """From row to row instead of token to token, which is nearly the same number after a norm."""

    def of(self, x):
        change = x.diff(dim=1 if x.shape[1] > 1 else 2)
        return self.size * x.square().mean((1, 2, 3)) + self.change * change.square().mean((1, 2, 3))

    patch.setattr(PenaltySpec, "of", of)


@_bed.plant("gradient", PUNISHED)
def penalty_reported_but_not_trained(patch):
    honest = PenaltySpec.of
    patch.setattr(PenaltySpec, "of", lambda self, x: honest(self, x.detach()))


# --- rates -----------------------------------------------------------------------------------------------------------


@_bed.plant("schedule", WARMS_UP, also=ALSO, trains=True)
def schedule_that_ends_half_way(patch):
    honest = schedule.factor
    patch.setattr(schedule, "factor", lambda spec, step, warmup, total: honest(spec, step, warmup, total // 2))


@_bed.plant("schedule", WARMS_UP, also=ALSO, trains=True)
def warm_up_left_out(patch):
    honest = schedule.factor
    patch.setattr(schedule, "factor", lambda spec, step, warmup, total: honest(spec, step, 0, total))
