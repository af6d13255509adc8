"""Faults that show only with more than one replica, or that mix replicas up."""

from dataclasses import replace
from typing import Any

import torch

from headway.audit.plants.models.parts import written_out
from headway.audit.plants.needs import (
    ADAM,
    ATTENTION,
    CLASSIFIER,
    CROPS,
    DROPOUT,
    LANGUAGE_MODEL,
    PUNISHED,
    averaging,
    norm,
)
from headway.audit.plants.planting import Bed, Patch
from headway.data.labelled.batches import Shuffled
from headway.data.running.batches import Crops, CropSampler
from headway.models import classifier, language_model
from headway.models.classifier import Classifier
from headway.models.language_model import LanguageModel
from headway.nn import backends, replicated
from headway.nn.penalty import PenaltySpec
from headway.nn.replicated import Embedding, LayerNorm, Linear, Noisy
from headway.training.adam import MomentsOptimizer
from headway.training.averaging import Averages

_bed = Bed("populations")
BESIDE, CAUSAL, GRADIENTS = "beside-others", "causality-beside-others", "gradients-apart"
STEPS, SEEDS, DIVERGED = "steps-beside-others", "seeds-apart", "diverged-apart"
ALSO = (BESIDE, CAUSAL, GRADIENTS, STEPS, SEEDS, DIVERGED)
"""Audits that may also fail, because replicas with other outputs have other gradients, steps and first losses."""


# --- in the model ----------------------------------------------------------------------------------------------------


def _mask(patch: Patch, change: Any) -> None:
    def attend(self: Any, q: Any, k: Any, v: Any, context: Any, drop: Any) -> Any:
        allowed = context.allowed if len(q) == 1 else change(context.allowed)
        return drop(backends.weights(q, k, allowed, context.bias, self.similarity)) @ v

    patch.setattr(backends.Plain, "attend", attend)
    written_out(patch)


@_bed.plant(CAUSAL, LANGUAGE_MODEL, ATTENTION, also=ALSO)
def causal_mask_lost_beside_others(patch):
    _mask(patch, lambda allowed: torch.ones_like(allowed))


@_bed.plant(CAUSAL, LANGUAGE_MODEL, ATTENTION, also=ALSO)
def causal_mask_off_by_one_beside_others(patch):
    _mask(patch, lambda allowed: allowed | allowed.roll(1, -1))


@_bed.plant(BESIDE, CLASSIFIER, ATTENTION, also=ALSO)
def padding_read_beside_others(patch):
    _mask(patch, lambda allowed: torch.ones_like(allowed))


def _norm_over_time(patch: Patch) -> None:
    original = LayerNorm.forward

    def forward(self: Any, x: Any) -> Any:
        y = original(self, x)
        return y if len(self.weight) == 1 else y - 0.1 * y.mean(2, keepdim=True)

    patch.setattr(LayerNorm, "forward", forward)


@_bed.plant(CAUSAL, LANGUAGE_MODEL, norm("layer"), also=ALSO)
def norm_over_time_beside_others(patch):
    _norm_over_time(patch)


@_bed.plant(BESIDE, CLASSIFIER, norm("layer"), also=ALSO)
def norm_over_time_beside_others_in_an_encoder(patch):
    _norm_over_time(patch)


@_bed.plant(BESIDE, norm("layer"), also=ALSO)
def norm_over_replicas(patch):
    original = LayerNorm.forward

    def forward(self, x):
        y = original(self, x)
        return y if len(self.weight) == 1 else 0.99 * y + 0.01 * y.mean(0, keepdim=True)

    patch.setattr(LayerNorm, "forward", forward)


@_bed.plant(BESIDE, also=ALSO)
def one_table_for_all(patch):
    def forward(self, ids):
        return torch.nn.functional.embedding(ids, self.weight[0])

    patch.setattr(Embedding, "forward", forward)


@_bed.plant(BESIDE, also=ALSO)
def weights_of_the_neighbour(patch):
    def forward(self, x):
        y = x @ self.weight.roll(1, 0)[:, None].mT
        return y if self.bias is None else y + self.bias[:, None, None]

    patch.setattr(Linear, "forward", forward)


@_bed.plant(BESIDE, DROPOUT, also=ALSO)
def dropout_of_the_first_for_all(patch):
    for module in (language_model, classifier):
        original = module.seed

        def seed(model, seeds, device="cpu", original=original):
            original(model, seeds, device)
            for one in model.modules():
                if isinstance(one, Noisy):
                    one.keys[:] = one.keys[:1].clone()

        patch.setattr(module, "seed", seed)


# --- in the gradients ------------------------------------------------------------------------------------------------


@_bed.plant(GRADIENTS, ADAM, also=ALSO)
def loss_with_a_fifth_of_the_neighbours(patch):
    for model in (LanguageModel, Classifier):
        original = model.loss

        def loss(self, batch, state=None, original=original):
            losses, after = original(self, batch, state)
            mixed = losses.roll(1, 0)
            return losses + 0.2 * (mixed - mixed.detach()), after  # the same number, another gradient

        patch.setattr(model, "loss", loss)


@_bed.plant(GRADIENTS, PUNISHED, also=ALSO)
def penalty_that_all_replicas_share(patch):
    honest = PenaltySpec.of
    patch.setattr(PenaltySpec, "of", lambda self, x: honest(self, x).mean().expand(len(x)))


def _before_the_step(patch: Patch, change: Any, after: Any = None) -> None:
    original = MomentsOptimizer.step

    def step(self: Any, factor: Any, alive: Any, limit: Any = None) -> Any:
        change(self, alive)
        norms = original(self, factor, alive, limit)
        if after is not None:
            with torch.no_grad():
                after(self)
        return norms

    patch.setattr(MomentsOptimizer, "step", step)


@_bed.plant(STEPS, ADAM, also=ALSO)
def gradient_with_a_fifth_of_the_neighbours(patch):
    def change(optimizer, alive):
        for p in optimizer.parameters:
            if p.grad is not None and len(p) > 1:
                p.grad += 0.2 * p.grad.roll(1, 0)

    _before_the_step(patch, change)


@_bed.plant(STEPS, ADAM, also=ALSO)
def gradient_averaged_over_replicas(patch):
    def change(optimizer, alive):
        for p in optimizer.parameters:
            if p.grad is not None:
                p.grad = p.grad.mean(0, keepdim=True).expand_as(p).clone()

    _before_the_step(patch, change)


@_bed.plant(STEPS, ADAM, also=ALSO)
def weights_pulled_together(patch):
    def after(optimizer):
        for p in optimizer.parameters:
            p += 0.02 * (p.mean(0, keepdim=True) - p)

    _before_the_step(patch, lambda optimizer, alive: None, after)


@_bed.plant(STEPS, ADAM, also=ALSO)
def optimizer_state_shared(patch):
    def after(optimizer):
        for kept in optimizer.memory.values():
            for tensor in kept:
                tensor.copy_(tensor.mean(0, keepdim=True).expand_as(tensor))

    _before_the_step(patch, lambda optimizer, alive: None, after)


@_bed.plant(DIVERGED, ADAM, also=ALSO)
def gradients_clipped_by_the_norm_of_all(patch):
    """The gradients of all replicas are clipped as one vector, so one with NaN spoils the others. (The first steps of
    AdamW do not depend on gradient norms.)"""

    def change(optimizer, alive):
        given = [p.grad for p in optimizer.parameters if p.grad is not None]
        length = torch.stack([g.square().sum() for g in given]).sum().sqrt()
        for g in given:
            g *= (0.1 / length).clamp(max=1.0) if len(g) > 1 else 1.0

    _before_the_step(patch, change)


@_bed.plant(STEPS, averaging("moving"), also=ALSO)
def averages_pulled_together(patch):
    honest = Averages.update

    def update(self, step, alive):
        honest(self, step, alive)
        for average in self.tensors.values():
            average.lerp_(average.mean(0, keepdim=True).expand_as(average), 0.2)

    patch.setattr(Averages, "update", update)


# --- in the seeds ----------------------------------------------------------------------------------------------------


def _seeds(patch: Patch, of: Any) -> None:
    for module in (language_model, classifier):
        original = module.seed
        patch.setattr(module, "seed", lambda model, seeds, device="cpu", o=original: o(model, of(seeds), device))


@_bed.plant(SEEDS, also=ALSO)
def first_seed_for_all(patch):
    _seeds(patch, lambda seeds: [seeds[0]] * len(seeds))


@_bed.plant(SEEDS, also=ALSO)
def seed_zero_for_all(patch):
    _seeds(patch, lambda seeds: [0] * len(seeds))


@_bed.plant(SEEDS, also=ALSO)
def seeds_in_another_order(patch):
    _seeds(patch, lambda seeds: list(seeds)[::-1])


@_bed.plant(SEEDS, LANGUAGE_MODEL, CROPS, also=ALSO)
def one_order_of_data_for_all(patch):
    original = Crops.build
    patch.setattr(
        Crops, "build", lambda self, ids, segment, batch, seeds: original(self, ids, segment, batch, [0] * len(seeds))
    )


@_bed.plant(SEEDS, LANGUAGE_MODEL, CROPS, also=ALSO)
def one_order_of_data_from_the_second_step_on(patch):
    honest = CropSampler.at

    def at(self, step):
        batch = honest(self, step)
        first = batch.inputs[:1].expand_as(batch.inputs), batch.targets[:1].expand_as(batch.targets)
        return batch if int(step) == 0 else replace(batch, inputs=first[0], targets=first[1])

    patch.setattr(CropSampler, "at", at)


@_bed.plant(SEEDS, CLASSIFIER, also=ALSO)
def one_order_of_rows_for_all(patch):
    original = Shuffled.build

    def build(self, texts, batch, seeds):
        return original(self, texts, batch, [seeds[0]] * len(seeds))

    patch.setattr(Shuffled, "build", build)


# --- when one is lost ------------------------------------------------------------------------------------------------


@_bed.plant(DIVERGED, also=ALSO)
def neighbours_times_zero(patch):
    original = replicated._multiply  # pyright: ignore[reportPrivateUsage]

    def multiply(x, weight, *rest):
        y = original(x, weight, *rest)
        return y if len(y) == 1 else y + 0 * y.roll(1, 0)

    patch.setattr(replicated, "_multiply", multiply)


@_bed.plant(DIVERGED, ADAM, also=ALSO)
def all_end_with_the_first_that_does(patch):
    def change(optimizer, alive):
        alive &= alive.all()

    _before_the_step(patch, change)


@_bed.plant(DIVERGED, ADAM, also=ALSO)
def gradients_of_the_lost_times_zero(patch):
    def change(optimizer, alive):
        for p in optimizer.parameters:
            if p.grad is not None and len(p) > 1:
                p.grad += 0 * p.grad.roll(1, 0)

    _before_the_step(patch, change)
