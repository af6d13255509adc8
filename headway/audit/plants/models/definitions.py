"""Faults that break no rule, but compute something else than the name says."""

from dataclasses import replace

import torch

from headway.audit.plants.models.parts import replaced_weights, scaled
from headway.audit.plants.needs import ATTENTION, CLASSIFIER, HEADS, norm
from headway.audit.plants.planting import Bed
from headway.nn import attention, backends, replicated

_bed = Bed("definitions")


@_bed.plant("definition", ATTENTION)
def scores_without_a_scale(patch):
    scaled(patch, lambda d: 1.0)


@_bed.plant("definition", ATTENTION)
def scores_divided_by_the_width_of_a_head(patch):
    scaled(patch, lambda d: 1 / d)


@_bed.plant("definition", ATTENTION, CLASSIFIER)
def scores_of_an_encoder_without_a_scale(patch):
    scaled(patch, lambda d: 1.0)


@_bed.plant("definition", ATTENTION)
def softmax_twice(patch):
    honest = backends.weights

    def weights(queries, keys, allowed=None, bias=None, *similarity):
        once = honest(queries, keys, allowed, bias, *similarity)
        again = once.masked_fill(~allowed, -torch.inf).softmax(-1) if allowed is not None else once.softmax(-1)
        return again.nan_to_num(0.0)

    replaced_weights(patch, weights)


@_bed.plant("definition", HEADS, also=("moved",))
def one_heads_keys_for_all(patch):
    honest = attention.SelfProjection.forward

    def forward(self, x, context, past):
        q, cache = honest(self, x, context, past)
        return q, replace(cache, keys=cache.keys[:, :, :1].expand_as(cache.keys))

    patch.setattr(attention.SelfProjection, "forward", forward)


@_bed.plant("definition", ATTENTION, also=("moved", "padding", "cache"))
def values_taken_for_keys(patch):
    honest = attention.SelfProjection.forward

    def forward(self, x, context, past):
        q, cache = honest(self, x, context, past)
        return q, replace(cache, keys=cache.values)

    patch.setattr(attention.SelfProjection, "forward", forward)


@_bed.plant("definition", norm("layer"))
def layer_norm_that_does_not_centre(patch):
    def forward(self, x):
        normal = x / x.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return normal * self.weight[:, None, None] + self.bias[:, None, None]

    patch.setattr(replicated.LayerNorm, "forward", forward)


@_bed.plant("definition", norm("layer"), also=("attention-rows",))
def layer_norm_by_the_variance(patch):
    """The square root was forgotten."""

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        normal = centred / centred.square().mean(-1, keepdim=True).add(1e-5)
        return normal * self.weight[:, None, None] + self.bias[:, None, None]

    patch.setattr(replicated.LayerNorm, "forward", forward)


@_bed.plant("definition", norm("rms"))
def rms_norm_by_the_mean_of_sizes(patch):
    def forward(self, x):
        return x / x.abs().mean(-1, keepdim=True).add(1e-5) * self.weight[:, None, None]

    patch.setattr(replicated.RMSNorm, "forward", forward)
