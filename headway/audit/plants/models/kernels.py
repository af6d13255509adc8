"""Faults of faster implementations, in evaluation or in training: kernels, caches, random numbers."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from headway.audit.plants.models.parts import fused
from headway.audit.plants.needs import ATTENTION, DROPOUT, FUSED, HEADS, WEIGHT_DROPOUT, positions, rows_of
from headway.audit.plants.planting import Bed
from headway.nn import backends, kv_cache, replicated
from headway.nn import positions as schemes

_bed = Bed("kernels, caches, noise")


# --- kernels ---------------------------------------------------------------------------------------------------------


@_bed.plant("kernel", FUSED)
def wrong_scale_in_the_fused_kernel(patch):
    patch.setattr(backends.Sdpa, "attend", fused(scale=0.1))


@_bed.plant("kernel", FUSED, positions("alibi"), also=("order",))
def bias_forgotten_by_the_fused_kernel(patch):
    patch.setattr(backends.Sdpa, "attend", fused(mask=lambda context: context.allowed))


@_bed.plant("kernel", FUSED)
def wrong_scale_in_training_only(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        return honest(self, q / math.sqrt(q.shape[-1]) if drop.training else q, k, v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


@_bed.plant("kernel", FUSED)
def values_rounded_in_training_only(patch):
    """To the eight bits of bf16, as in a kernel with its own precision."""
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        return honest(self, q, k, v.bfloat16().to(v.dtype) if drop.training else v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


@_bed.plant("kernel", FUSED, HEADS, also=("moved",))
def last_head_left_out_by_the_fused_kernel(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        found = honest(self, q, k, v, context, drop).clone()
        found[:, :, -1] = 0
        return found

    patch.setattr(backends.Sdpa, "attend", attend)


@_bed.plant("kernel", WEIGHT_DROPOUT)
def dropped_weights_rescaled_to_one(patch):
    def attend(self, q, k, v, context, drop):
        kept = drop(backends.weights(q, k, context.allowed, context.bias, self.similarity))
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-9) @ v

    patch.setattr(backends.Plain, "attend", attend)


# --- caches ----------------------------------------------------------------------------------------------------------


@_bed.plant("cache", ATTENTION)
def cache_one_step_late(patch):
    honest = kv_cache.Cache.extended

    def extended(self, *new):
        joined = honest(self, *new)
        return replace(joined, values=joined.values.roll(1, dims=3))

    patch.setattr(kv_cache.Cache, "extended", extended)


@_bed.plant("cache", ATTENTION)
def cache_that_forgets_its_first_token(patch):
    honest = kv_cache.Cache.extended

    def extended(self, *new):
        joined = honest(self, *new)
        keys = joined.keys.clone()
        keys[:, :, :, 0] = 0
        return replace(joined, keys=keys)

    patch.setattr(kv_cache.Cache, "extended", extended)


@_bed.plant("cache", ATTENTION, rows_of(24))
def cache_of_the_last_eight_tokens(patch):
    honest = kv_cache.Cache.extended

    def extended(self, new):
        joined = honest(self, new)
        lost = torch.arange(joined.keys.shape[3]) < self.keys.shape[3] - 8
        return replace(joined, values=joined.values.masked_fill(lost[:, None], 0))

    patch.setattr(kv_cache.Cache, "extended", extended)


@_bed.plant("cache", positions("learned"))
def positions_that_start_again_with_every_piece(patch):
    honest = schemes.LearnedPositions.embed
    patch.setattr(schemes.LearnedPositions, "embed", lambda self, x, at: honest(self, x, at - at.min()))


# --- noise -----------------------------------------------------------------------------------------------------------


@_bed.plant("determinism", DROPOUT, also=("causal-gradient",))
def dropout_on_in_evaluation(patch):
    honest = replicated.Dropout.forward

    def forward(self, x):
        before, self.training = self.training, True
        try:
            return honest(self, x)
        finally:
            self.training = before

    patch.setattr(replicated.Dropout, "forward", forward)


@_bed.plant("determinism", DROPOUT)
def dropout_from_a_global_generator(patch):
    patch.setattr(replicated.Dropout, "forward", lambda self, x: F.dropout(x, 0.2))


@_bed.plant("determinism", DROPOUT)
def training_dropout_from_a_global_generator(patch):
    patch.setattr(replicated.Dropout, "forward", lambda self, x: F.dropout(x, 0.2, self.training))


@_bed.plant("dropout", DROPOUT)
def dropout_that_drops_nothing(patch):
    patch.setattr(replicated.Dropout, "forward", lambda self, x: x)


@_bed.plant("dropout", DROPOUT)
def kept_values_that_are_not_rescaled(patch):
    honest, factors = replicated.Dropout.forward, replicated.Dropout.factors
    patch.setattr(
        replicated.Dropout, "factors", lambda self, *given: (factors(self, *given) != 0).to(factors(self, *given).dtype)
    )
    # On a GPU one kernel draws and multiplies, and does not call `factors`.
    patch.setattr(replicated.Dropout, "forward", lambda self, x: torch.where(honest(self, x) == 0, 0 * x, x))


@_bed.plant("dropout", DROPOUT)
def half_the_rate(patch):
    honest = replicated.Dropout.set_rates
    patch.setattr(replicated.Dropout, "set_rates", lambda self, rates: honest(self, [rate / 2 for rate in rates]))
