"""Faults of masks and padding, and of anything that mixes rows: what may be seen, and what must not count."""

import torch

from headway.audit.plants.models.parts import FUTURE, norm_over, weighed, written_out
from headway.audit.plants.needs import ATTENTION, CLASSIFIER, FUSED, LANGUAGE_MODEL, WINDOW, norm, pooling, positions
from headway.audit.plants.planting import Bed
from headway.models import encoder
from headway.models import pooling as pools
from headway.nn import masks, replicated
from headway.nn import positions as schemes
from headway.nn.context import AttentionContext

_bed = Bed("masks and padding")


# --- masks -----------------------------------------------------------------------------------------------------------


@_bed.plant("attention-rows", LANGUAGE_MODEL, ATTENTION, also=("hard-mask",))
def mask_that_hides_oneself(patch):
    written_out(patch)
    patch.setattr(masks.Causal, "allows", lambda self, row, i, j: j < i)


@_bed.plant("hard-mask", ATTENTION, also=("attention-rows",))
def finite_mask(patch):
    weighed(patch, lambda scores, allowed: scores.masked_fill(~allowed, -1e4).softmax(-1))


@_bed.plant("hard-mask", CLASSIFIER, ATTENTION, also=("attention-rows",))
def finite_mask_of_padding(patch):
    finite_mask(patch)


@_bed.plant("hard-mask", FUSED, positions("alibi"))
def finite_mask_in_the_fused_kernel(patch):
    patch.setattr(AttentionContext, "addend", property(lambda self: torch.where(self.allowed, self.bias, -1e4)))


@_bed.plant("attention-rows", ATTENTION, also=(*FUTURE, "cache", "padding", "hard-mask"))
def mask_after_the_softmax(patch):
    weighed(patch, lambda scores, allowed: scores.softmax(-1) * allowed)


@_bed.plant("attention-rows", ATTENTION, also=(*FUTURE, "cache", "padding"))
def softmax_over_the_queries(patch):
    weighed(patch, lambda scores, allowed: scores.masked_fill(~allowed, -1e30).softmax(-2) * allowed)


@_bed.plant("attention-rows", WINDOW)
def window_ignored(patch):
    patch.setattr(masks.Window, "allows", lambda self, row, i, j: (i - j).abs() < 1000)


@_bed.plant("attention-rows", CLASSIFIER, positions("none"), also=("order",))
def encoder_with_a_decoders_mask(patch):
    patch.setattr(encoder, "Everything", masks.Causal)


@_bed.plant("finite", LANGUAGE_MODEL, ATTENTION, also=("attention-rows", "padding", "hard-mask", "kernel"))
def nan_where_nothing_may_be_seen(patch):
    weighed(patch, lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).softmax(-1))


@_bed.plant("finite", LANGUAGE_MODEL, ATTENTION)
def nan_masked_afterwards(patch):
    """The outputs are fine, but the gradient is not."""

    def weigh(scores, allowed):
        return (scores + torch.where(allowed, 0.0, -torch.inf)).softmax(-1).nan_to_num(0.0)

    weighed(patch, weigh)


# --- padding ---------------------------------------------------------------------------------------------------------


@_bed.plant("padding", ATTENTION, also=("attention-rows", "hard-mask"))
def padding_attended(patch):
    written_out(patch)
    patch.setattr(masks.Padding, "allows", lambda self, row, i, j: torch.ones_like(self.padding_mask[row, j]))


@_bed.plant("padding", CLASSIFIER, ATTENTION, also=("attention-rows", "hard-mask"))
def padding_attended_by_an_encoder(patch):
    padding_attended(patch)


@_bed.plant("padding", CLASSIFIER, pooling("mean"))
def padding_averaged_into_the_pool(patch):
    patch.setattr(pools.Mean, "pool", lambda self, x, padding_mask: x.mean(2))


@_bed.plant("padding", CLASSIFIER, pooling("max"))
def padding_in_the_maximum(patch):
    patch.setattr(pools.Max, "pool", lambda self, x, padding_mask: x.amax(2))


@_bed.plant("padding", CLASSIFIER, pooling("first"))
def the_first_slot_taken_for_the_first_token(patch):
    patch.setattr(pools.First, "pool", lambda self, x, padding_mask: x[:, :, 0])


@_bed.plant("padding", positions("learned"))
def positions_shifted_by_left_padding(patch):
    honest = schemes.LearnedPositions.embed

    def embed(self, x, at):
        return honest(self, x, at if at.ndim == 1 else torch.arange(x.shape[2]).expand(at.shape))

    patch.setattr(schemes.LearnedPositions, "embed", embed)


@_bed.plant("padding", CLASSIFIER, norm("layer"))
def normalisation_over_padded_time(patch):
    patch.setattr(replicated.LayerNorm, "forward", norm_over(2))


# --- rows that are mixed ---------------------------------------------------------------------------------------------


@_bed.plant("batch-invariance", norm("layer"), also=("padding", *FUTURE))
def normalisation_over_the_batch(patch):
    patch.setattr(replicated.LayerNorm, "forward", norm_over(1))


@_bed.plant("batch-invariance", norm("rms"), also=("padding", *FUTURE))
def mean_square_over_the_batch(patch):
    def forward(self, x):
        return x / x.square().mean((1, 3), keepdim=True).add(1e-5).sqrt() * self.weight[:, None, None]

    patch.setattr(replicated.RMSNorm, "forward", forward)
