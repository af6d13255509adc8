"""Faults that let a language model see the token it must predict: everywhere, or at some positions or lengths."""

from collections.abc import Callable
from typing import Any

import torch

from headway.audit.plants.models.parts import causal_but, fused, norm_over, written_out
from headway.audit.plants.needs import ATTENTION, FUSED, LONGER_SCORES, WEIGHT_DROPOUT, norm, rows_of
from headway.audit.plants.planting import Bed, Need, Patch
from headway.models.backbone import Backbone
from headway.nn import backends, heads, masks, replicated
from headway.nn.context import AttentionContext

_bed = Bed("leaks", ATTENTION)
LEAKS = ("causal-gradient", "attention-rows", "cache", "hard-mask", "padding", "kernel")
LONG = rows_of(48)
AS_MANY_ROWS_AS_TOKENS = Need(
    "batches with as many rows as a row has tokens",
    lambda recipe: recipe.training.batch == recipe.segment * recipe.training.accumulate,
    ("training.batch=32",),
)
BY_STATISTICS = ("causal-gradient", "cache", "padding")


# --- masks -----------------------------------------------------------------------------------------------------------


@_bed.plant("causality", also=LEAKS)
def mask_off_by_one(patch):
    written_out(patch)
    patch.setattr(masks.Causal, "allows", lambda self, row, i, j: j <= i + 1)


@_bed.plant("causality", also=LEAKS)
def no_mask_at_all(patch):
    causal_but(patch, lambda i, j, length: torch.ones_like(i + j, dtype=torch.bool))


@_bed.plant("causality", FUSED, also=LEAKS)
def mask_forgotten_by_the_fused_kernel(patch):
    patch.setattr(AttentionContext, "is_plainly_causal", property(lambda self: False))
    patch.setattr(backends.Sdpa, "attend", fused(mask=lambda context: None))


@_bed.plant("causality", WEIGHT_DROPOUT, also=("causal-gradient", "kernel"))
def mask_dropped_when_weights_are(patch):
    def attend(self, q, k, v, context, drop):
        allowed = None if drop.training and drop.active else context.allowed
        return drop(backends.weights(q, k, allowed, context.bias, self.similarity)) @ v

    patch.setattr(backends.Plain, "attend", attend)


@_bed.plant("causality", FUSED, also=LEAKS)
def mask_lost_in_training_only(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        attend = fused(mask=lambda context: None).__get__(self) if drop.training else honest.__get__(self)
        return attend(q, k, v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


def _mask_lost(patch: Patch, where: Callable) -> None:
    """Drop the mask where `where(q, model)` says so, for queries [R, B, H, T, d] and the model that runs."""
    honest, asked = Backbone.hidden, []

    def hidden(self: Any, *given: Any, **named: Any) -> Any:
        asked[:] = [self]
        return honest(self, *given, **named)

    def attend(self: Any, q: Any, k: Any, v: Any, context: Any, drop: Any) -> Any:
        allowed = torch.ones_like(context.allowed) if where(q, asked[0]) else context.allowed
        return drop(backends.weights(q, k, allowed, context.bias, self.similarity)) @ v

    patch.setattr(Backbone, "hidden", hidden)
    patch.setattr(backends.Plain, "attend", attend)
    written_out(patch)


@_bed.plant("causality", also=(*LEAKS, "kernel", "definition"))
def mask_lost_late_in_training(patch):
    _mask_lost(patch, lambda q, model: model.training and int(model.clock.step) > 100)


@_bed.plant("causality", AS_MANY_ROWS_AS_TOKENS, also=(*LEAKS, "kernel", "cache", "definition"))
def mask_lost_where_there_are_as_many_rows_as_tokens(patch):
    """It was broadcast along the wrong axis."""
    _mask_lost(patch, lambda q, model: q.shape[1] == q.shape[3])


@_bed.plant("causality", also=LEAKS)
def no_mask_in_one_layer_of_all(patch):
    """In the first layer of a forward pass."""
    written_out(patch)

    def attend(self, q, k, v, context, drop):
        first = not getattr(context, "was_asked", False)
        object.__setattr__(context, "was_asked", True)
        return drop(backends.weights(q, k, None if first else context.allowed, context.bias, self.similarity)) @ v

    for kernel in (backends.Plain, backends.Sdpa):
        patch.setattr(kernel, "attend", attend)


# --- at some positions or lengths only -------------------------------------------------------------------------------


@_bed.plant("causality", LONG, also=LEAKS)
def no_mask_from_position_24_on(patch):
    causal_but(patch, lambda i, j, length: i >= 24)


@_bed.plant("causality", LONG, also=LEAKS)
def no_mask_from_position_40_on(patch):
    causal_but(patch, lambda i, j, length: i >= 40)


@_bed.plant("causality", LONG, also=LEAKS)
def no_mask_in_the_last_three_positions(patch):
    causal_but(patch, lambda i, j, length: i >= length - 3)


@_bed.plant("causality", LONG, also=LEAKS)
def no_mask_in_long_rows(patch):
    causal_but(patch, lambda i, j, length: torch.full_like(i + j, length > 32, dtype=torch.bool))


@_bed.plant("causality", LONG, also=LEAKS)
def the_second_half_sees_itself(patch):
    causal_but(patch, lambda i, j, length: (i >= length // 2) & (j >= length // 2))


@_bed.plant("causality", LONG, also=LEAKS)
def off_by_one_beyond_position_32(patch):
    causal_but(patch, lambda i, j, length: (i > 32) & (j == i + 1))


@_bed.plant("causality", LONG, also=LEAKS)
def one_position_sees_the_next(patch):
    causal_but(patch, lambda i, j, length: (i == 37) & (j == 38))


@_bed.plant("causality", LONGER_SCORES, also=LEAKS)
def no_mask_at_the_length_of_scoring(patch):
    causal_but(patch, lambda i, j, length: torch.full_like(i + j, length > 32, dtype=torch.bool))


@_bed.plant("causality", FUSED, LONG, also=LEAKS)
def mask_forgotten_by_the_fused_kernel_in_long_rows(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        if q.shape[3] <= 32:
            return honest(self, q, k, v, context, drop)
        return fused(mask=lambda context: None)(self, q, k, v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


# --- by statistics over the wrong axis -------------------------------------------------------------------------------


@_bed.plant("causality", norm("layer"), also=BY_STATISTICS)
def normalisation_over_time(patch):
    patch.setattr(replicated.LayerNorm, "forward", norm_over(2))


@_bed.plant("causality", norm("rms"), also=BY_STATISTICS)
def mean_square_over_time(patch):
    def forward(self, x):
        return x / x.square().mean((2, 3), keepdim=True).add(1e-5).sqrt() * self.weight[:, None, None]

    patch.setattr(replicated.RMSNorm, "forward", forward)


@_bed.plant("causality", LONG, norm("layer"), also=BY_STATISTICS)
def normalisation_over_the_last_of_time(patch):
    honest = replicated.LayerNorm.forward

    def forward(self, x):
        y = honest(self, x)
        return torch.cat((y[:, :, :36], y[:, :, 36:] - y[:, :, 36:].mean(2, keepdim=True)), 2)

    patch.setattr(replicated.LayerNorm, "forward", forward)


@_bed.plant("causality", also=BY_STATISTICS)
def head_norm_over_the_sequence(patch):
    def forward(self, given, padding_mask=None):
        norms = torch.linalg.vector_norm(given, dim=(-2, -1), keepdim=True)
        return heads.side_by_side(given * norms / norms.mean(2, keepdim=True))

    patch.setattr(heads.Fusion, "forward", forward)


@_bed.plant("causality", also=BY_STATISTICS)
def heads_reshaped_without_transposing(patch):
    patch.setattr(heads, "side_by_side", lambda given: given.reshape(*given.shape[:2], given.shape[3], -1))


@_bed.plant("causality", also=(*BY_STATISTICS, "gradient"))
def mean_over_time_without_a_gradient(patch):
    """Gradients do not show it."""

    def forward(self, given, padding_mask=None):
        return heads.side_by_side(given + 0.01 * given.mean(3, keepdim=True).detach())

    patch.setattr(heads.Fusion, "forward", forward)


@_bed.plant("causal-gradient", also=("causality",))
def a_leak_too_small_to_move_an_answer(patch):
    """A tiny fraction of the mean over time, below what float32 shows in an output."""

    def forward(self, given, padding_mask=None):
        return heads.side_by_side(given + 1e-9 * given.mean(3, keepdim=True))

    patch.setattr(heads.Fusion, "forward", forward)
