"""Faults that real code has had, planted in Headway's own modules, and the audit that must find each of them.

A plant says which audit is meant for it (`caught_by`), and which others look at the same thing and may fail as well
(`also`). An audit in neither list that fails is a false alarm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pytest import MonkeyPatch

from headway.audit.probe import Probe
from headway.data.running.batches import Batch, CropSampler
from headway.models import classifier, pooling
from headway.models.backbone import Backbone
from headway.models.language_model import LanguageModel
from headway.nn import attention, backends, heads, masks, positions, replicated
from headway.nn.context import AttentionContext
from headway.training import optimizers

FUTURE = ("causality", "causal-gradient")


@dataclass(frozen=True)
class Plant:
    name: str
    caught_by: str
    also: tuple[str, ...]
    recipe: tuple[str, ...]
    """Changes to the recipe under which the fault shows."""
    plant: Callable[[MonkeyPatch], None] | None = None
    """Into modules, before the model is built."""
    spoil: Callable[[Probe], None] | None = None
    """The model, after it was built."""


PLANTS: list[Plant] = []


def plant(caught_by: str, *recipe: str, also: tuple[str, ...] = ()):
    def keep(function: Callable[[MonkeyPatch], None]) -> Callable[[MonkeyPatch], None]:
        PLANTS.append(Plant(function.__name__, caught_by, also, recipe, plant=function))
        return function

    return keep


def spoil(caught_by: str, *recipe: str, also: tuple[str, ...] = ()):
    def keep(function: Callable[[Probe], None]) -> Callable[[Probe], None]:
        PLANTS.append(Plant(function.__name__, caught_by, also, recipe, spoil=function))
        return function

    return keep


def settings(name: str, caught_by: str, *recipe: str, also: tuple[str, ...] = ()) -> None:
    """A fault of the recipe itself."""
    PLANTS.append(Plant(name, caught_by, also, recipe))


PLAIN = "model.mixer.backend=plain"
ENCODER = "model.kind=classifier"

# --- masks -----------------------------------------------------------------------------------------------------------


@plant("causality", PLAIN, also=("causal-gradient", "attention-rows", "cache", "hard-mask"))
def mask_off_by_one(patch):
    patch.setattr(masks.Causal, "allows", lambda self, row, i, j: j <= i + 1)


@plant("attention-rows", PLAIN)
def mask_that_hides_oneself(patch):
    patch.setattr(masks.Causal, "allows", lambda self, row, i, j: j < i)


@plant("causality", also=("causal-gradient", "kernel", "cache", "padding", "hard-mask"))
def mask_forgotten_by_the_fused_kernel(patch):
    patch.setattr(AttentionContext, "is_plainly_causal", property(lambda self: False))
    patch.setattr(backends.Sdpa, "attend", _sdpa(mask=lambda context: None))


@plant("causality", PLAIN, "model.mixer.dropout=0.1", also=("causal-gradient", "kernel"))
def mask_dropped_when_weights_are(patch):
    def attend(self, q, k, v, context, drop):
        allowed = None if drop.training and drop.active else context.allowed
        return drop(backends.weights(q, k, allowed, context.bias)) @ v

    patch.setattr(backends.Plain, "attend", attend)


@plant("hard-mask", PLAIN, also=("attention-rows",))
def finite_mask(patch):
    _patch_weights(patch, lambda scores, allowed: scores.masked_fill(~allowed, -1e4).softmax(-1))


@plant("hard-mask", "model.positions=alibi")
def finite_mask_in_the_fused_kernel(patch):
    def finite(self):
        return torch.where(self.allowed, self.bias, -1e4)

    patch.setattr(AttentionContext, "addend", property(finite), raising=False)


@plant("attention-rows", PLAIN, also=(*FUTURE, "cache", "padding", "hard-mask"))
def mask_after_the_softmax(patch):
    _patch_weights(patch, lambda scores, allowed: scores.softmax(-1) * allowed)


@plant("attention-rows", PLAIN, also=(*FUTURE, "cache", "padding"))
def softmax_over_the_queries(patch):
    _patch_weights(patch, lambda scores, allowed: scores.masked_fill(~allowed, -1e30).softmax(-2) * allowed)


@plant("attention-rows", "model.mixer.window=6")
def window_ignored(patch):
    patch.setattr(masks.Window, "allows", lambda self, row, i, j: (i - j).abs() < 1000)


@plant("attention-rows", ENCODER, "model.positions=none", also=("order",))
def encoder_with_a_decoders_mask(patch):
    patch.setattr(classifier, "Everything", masks.Causal)


@plant("finite", PLAIN, also=("attention-rows", "padding", "hard-mask", "kernel"))
def nan_where_nothing_may_be_seen(patch):
    _patch_weights(patch, lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).softmax(-1))


@plant("finite", PLAIN)
def nan_covered_up(patch):
    """The answers are fine; the gradient is not."""

    def weigh(scores, allowed):
        return (scores + torch.where(allowed, 0.0, -torch.inf)).softmax(-1).nan_to_num(0.0)

    _patch_weights(patch, weigh)


# --- padding ---------------------------------------------------------------------------------------------------------


@plant("padding", PLAIN, also=("attention-rows", "hard-mask"))
def padding_attended(patch):
    patch.setattr(masks.Padding, "allows", lambda self, row, i, j: torch.ones_like(self.padding_mask[row, j]))


@plant("padding", ENCODER, PLAIN, also=("attention-rows", "hard-mask"))
def padding_attended_by_an_encoder(patch):
    padding_attended(patch)


@plant("padding", ENCODER)
def padding_averaged_into_the_pool(patch):
    patch.setattr(pooling.Mean, "pool", lambda self, x, padding_mask: x.mean(2))


@plant("padding", ENCODER, "model.pooling=max")
def padding_in_the_maximum(patch):
    patch.setattr(pooling.Max, "pool", lambda self, x, padding_mask: x.amax(2))


@plant("padding", ENCODER, "model.pooling=first")
def the_first_slot_taken_for_the_first_token(patch):
    patch.setattr(pooling.First, "pool", lambda self, x, padding_mask: x[:, :, 0])


@plant("padding", "model.positions=learned")
def positions_shifted_by_left_padding(patch):
    honest = positions.LearnedPositions.embed

    def embed(self, x, at):
        return honest(self, x, at if at.ndim == 1 else torch.arange(x.shape[2]).expand(at.shape))

    patch.setattr(positions.LearnedPositions, "embed", embed)


@plant("padding", ENCODER, "model.norm.kind=layer")
def normalisation_over_padded_time(patch):
    patch.setattr(replicated.LayerNorm, "forward", _norm_over(2))


# --- statistics over the wrong axis ----------------------------------------------------------------------------------


@plant("causality", "model.norm.kind=layer", also=("causal-gradient", "cache", "padding"))
def normalisation_over_time(patch):
    patch.setattr(replicated.LayerNorm, "forward", _norm_over(2))


@plant("batch-invariance", "model.norm.kind=layer", also=("padding", *FUTURE))
def normalisation_over_the_batch(patch):
    patch.setattr(replicated.LayerNorm, "forward", _norm_over(1))


@plant("causality", also=("causal-gradient", "cache", "padding"))
def head_norm_over_the_sequence(patch):
    def forward(self, given, padding_mask=None):
        norms = torch.linalg.vector_norm(given, dim=(-2, -1), keepdim=True)
        return heads.side_by_side(given * norms / norms.mean(2, keepdim=True))

    patch.setattr(heads.Fusion, "forward", forward)


@plant("causality", also=("causal-gradient", "cache", "padding"))
def heads_reshaped_without_transposing(patch):
    patch.setattr(heads, "side_by_side", lambda given: given.reshape(*given.shape[:2], given.shape[3], -1))


# --- kernels, caches, noise, positions -------------------------------------------------------------------------------


@plant("kernel")
def wrong_scale_in_the_fused_kernel(patch):
    patch.setattr(backends.Sdpa, "attend", _sdpa(scale=0.1))


@plant("kernel", "model.positions=alibi", also=("order",))
def bias_forgotten_by_the_fused_kernel(patch):
    patch.setattr(backends.Sdpa, "attend", _sdpa(mask=lambda context: context.allowed))


@plant("cache")
def cache_one_step_late(patch):
    honest = attention.Cache.extended

    def extended(self, *new):
        joined = honest(self, *new)
        return replace(joined, values=joined.values.roll(1, dims=3))

    patch.setattr(attention.Cache, "extended", extended)


@plant("cache", "model.positions=learned")
def positions_that_start_again_with_every_piece(patch):
    honest = positions.LearnedPositions.embed
    patch.setattr(positions.LearnedPositions, "embed", lambda self, x, at: honest(self, x, at - at.min()))


@plant("determinism", "model.dropout=0.2", also=("causal-gradient",))
def dropout_on_in_evaluation(patch):
    honest = replicated.Dropout.forward

    def forward(self, x):
        before, self.training = self.training, True
        try:
            return honest(self, x)
        finally:
            self.training = before

    patch.setattr(replicated.Dropout, "forward", forward)


@plant("order", "model.positions=rotary")
def positions_built_but_not_used(patch):
    patch.setattr(positions.RotaryPositions, "rotate", lambda self, x, at: x)


@plant("order", ENCODER, "model.positions=sinusoidal")
def positions_built_but_not_used_by_an_encoder(patch):
    patch.setattr(positions.SinusoidalPositions, "embed", lambda self, x, at: x)


# --- what is learnt --------------------------------------------------------------------------------------------------


@plant("targets")
def labels_shifted_by_two(patch):
    patch.setattr(CropSampler, "at", _crops(lambda rows: (rows[..., :-2], rows[..., 2:])))


@plant("targets")
def target_fed_as_input(patch):
    patch.setattr(CropSampler, "at", _crops(lambda rows: (rows[..., 1:], rows[..., 1:])))


@plant("loss")
def target_fed_to_the_model_by_its_loss(patch):
    honest = LanguageModel.loss
    patch.setattr(
        LanguageModel, "loss", lambda self, batch, state=None: honest(self, replace(batch, inputs=batch.targets))
    )


@plant("loss")
def labels_of_the_row_before(patch):
    honest = LanguageModel.loss
    shifted = lambda self, batch, state=None: honest(self, replace(batch, targets=batch.targets.roll(1, 1)))  # noqa: E731
    patch.setattr(LanguageModel, "loss", shifted)


@plant("initial-loss", "model.width=64")
def embeddings_that_start_too_large(patch):
    honest = replicated.Embedding.__init__
    large = lambda self, replicas, size, width, std=1.0: honest(self, replicas, size, width, std)  # noqa: E731
    patch.setattr(replicated.Embedding, "__init__", large)


@plant("one-batch")
def steps_uphill(patch):
    honest = optimizers._gradient
    patch.setattr(optimizers, "_gradient", lambda p: -honest(p))


settings("learning_rate_zero", "one-batch", "training.optimizer.learning_rate=0", also=("moved",))
settings(
    "post_norm_without_warmup_at_a_high_rate",
    "one-batch",
    "model.norm.placement=post",
    "model.layers=6",
    "training.schedule.warmup=null",
    "training.optimizer.learning_rate=1e-1",
)


@plant("moved")
def frozen_by_mistake(patch):
    honest = Backbone.__init__

    def built(self, *given):
        honest(self, *given)
        for p in self.layers[0].feedforward.parameters():
            p.register_hook(torch.zeros_like)

    patch.setattr(Backbone, "__init__", built)


@spoil("tied")
def tied_weights_untied_on_load(probe):
    """Training had one matrix; whoever loaded it made two of it, and only one got the weights."""
    model = probe.model
    model.output = replicated.Linear(1, probe.recipe.model.width, model.vocabulary, bias=False)
    torch.nn.init.normal_(model.output.weight, 0, 0.02, generator=torch.Generator().manual_seed(0))


@spoil("tied", "model.tied=false")
def untied_weights_tied_on_load(probe):
    probe.model.output = None


@spoil("finite")
def one_weight_lost(probe):
    with torch.no_grad():
        probe.model.layers[0].feedforward.into.weight[0, 0, 0] = math.nan


# --- leaks that are there at some positions or lengths only ----------------------------------------------------------

LONG = "model.context=48"
LEAKS = ("causal-gradient", "attention-rows", "cache", "hard-mask", "padding", "kernel")


def _causal_but(patch: MonkeyPatch, leaks: Callable) -> None:
    """The causal mask, except where `leaks(i, j, length)` says so."""

    def allows(self, row, i, j):
        length = int(j.max()) + 1
        return (j <= i) | leaks(i, j, length)

    patch.setattr(masks.Causal, "allows", allows)


@plant("causality", PLAIN, LONG, also=LEAKS)
def no_mask_from_position_24_on(patch):
    _causal_but(patch, lambda i, j, length: i >= 24)


@plant("causality", PLAIN, LONG, also=LEAKS)
def no_mask_from_position_40_on(patch):
    _causal_but(patch, lambda i, j, length: i >= 40)


@plant("causality", PLAIN, LONG, also=LEAKS)
def no_mask_in_the_last_three_positions(patch):
    _causal_but(patch, lambda i, j, length: i >= length - 3)


@plant("causality", PLAIN, LONG, also=LEAKS)
def no_mask_in_long_rows(patch):
    _causal_but(patch, lambda i, j, length: torch.full_like(i + j, length > 32, dtype=torch.bool))


@plant("causality", PLAIN, LONG, also=LEAKS)
def the_second_half_sees_itself(patch):
    _causal_but(patch, lambda i, j, length: (i >= length // 2) & (j >= length // 2))


@plant("causality", PLAIN, LONG, also=LEAKS)
def off_by_one_beyond_position_32(patch):
    _causal_but(patch, lambda i, j, length: (i > 32) & (j == i + 1))


@plant("causality", PLAIN, LONG, also=LEAKS)
def one_position_sees_the_next(patch):
    _causal_but(patch, lambda i, j, length: (i == 37) & (j == 38))


@plant("causality", PLAIN, "data.segment=24", "scoring.segment=48", also=LEAKS)
def no_mask_at_the_length_of_scoring(patch):
    _causal_but(patch, lambda i, j, length: torch.full_like(i + j, length > 32, dtype=torch.bool))


@plant("causality", LONG, also=LEAKS)
def mask_forgotten_by_the_fused_kernel_in_long_rows(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        if q.shape[3] <= 32:
            return honest(self, q, k, v, context, drop)
        return _sdpa(mask=lambda context: None)(self, q, k, v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


@plant("causality", LONG, "model.norm.kind=layer", also=("causal-gradient", "cache", "padding"))
def normalisation_over_the_last_of_time(patch):
    honest = replicated.LayerNorm.forward

    def forward(self, x):
        y = honest(self, x)
        return torch.cat((y[:, :, :36], y[:, :, 36:] - y[:, :, 36:].mean(2, keepdim=True)), 2)

    patch.setattr(replicated.LayerNorm, "forward", forward)


@plant("determinism", "model.dropout=0.2")
def noise_from_a_stream_that_runs_on(patch):
    patch.setattr(replicated.Dropout, "forward", lambda self, x: F.dropout(x, 0.2))


@plant("determinism", "model.dropout=0.2")
def noise_of_training_from_a_stream_that_runs_on(patch):
    patch.setattr(replicated.Dropout, "forward", lambda self, x: F.dropout(x, 0.2, self.training))


# --- kernels of training, positions that tell nothing apart, parts that never trained --------------------------------


@plant("kernel")
def wrong_scale_in_training_only(patch):
    honest = backends.Sdpa.attend

    def attend(self, q, k, v, context, drop):
        return honest(self, q / math.sqrt(q.shape[-1]) if drop.training else q, k, v, context, drop)

    patch.setattr(backends.Sdpa, "attend", attend)


@plant("kernel", PLAIN, "model.mixer.dropout=0.2")
def dropped_weights_rescaled_to_one(patch):
    def attend(self, q, k, v, context, drop):
        kept = drop(backends.weights(q, k, context.allowed, context.bias))
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-9) @ v

    patch.setattr(backends.Plain, "attend", attend)


@plant("order", "model.positions=learned")
def all_tokens_at_position_0(patch):
    honest = positions.LearnedPositions.embed
    patch.setattr(positions.LearnedPositions, "embed", lambda self, x, at: honest(self, x, torch.zeros_like(at)))


@plant("order", "model.positions=rotary")
def one_rotary_angle_for_all(patch):
    honest = positions.RotaryPositions.rotate
    patch.setattr(positions.RotaryPositions, "rotate", lambda self, x, at: honest(self, x, torch.ones_like(at)))


@plant("order", "model.positions=t5")
def one_t5_bucket(patch):
    patch.setattr(positions.T5Positions, "bucket", lambda self, distance: torch.zeros_like(distance))


@plant("order", ENCODER, "model.positions=t5-symmetric")
def one_t5_bucket_in_an_encoder(patch):
    patch.setattr(positions.SymmetricT5Positions, "bucket", lambda self, distance: torch.zeros_like(distance))


@plant("order", "model.positions=alibi")
def no_slope_at_all(patch):
    patch.setattr(positions.AlibiPositions, "bias", lambda self, replica, head, i, j: 0.0 * self.slopes[head] * (j - i))


@plant("order", "model.positions=learned", also=("cache",))
def positions_shuffled(patch):
    _ask(patch, lambda at: 31 - at)


@plant("order", "model.positions=rotary", also=("cache", "padding"))
def positions_counted_in_pairs(patch):
    _ask(patch, lambda at: at // 2)


@plant("order", ENCODER, "model.positions=sinusoidal")
def positions_of_an_encoder_end_at_16(patch):
    _ask(patch, lambda at: at.clamp(max=16))


def _frozen(patch: MonkeyPatch, freeze: Callable) -> None:
    honest = Backbone.__init__

    def built(self, *given):
        honest(self, *given)
        freeze(self)

    patch.setattr(Backbone, "__init__", built)


def _without_rows(first: int, last: int) -> Callable:
    """A hook on the gradient [R, rows, …]: none for these shares of a thousand rows."""

    def hook(gradient):
        gradient, rows = gradient.clone(), gradient.shape[1]
        gradient[:, rows * first // 1000 : rows * last // 1000] = 0
        return gradient

    return hook


@plant("moved")
def queries_and_keys_never_trained(patch):
    hook = _without_rows(0, 667)
    _frozen(patch, lambda model: [one.project.together.weight.register_hook(hook) for one in model.mixers])


@plant("moved")
def keys_hardly_trained(patch):
    def hook(gradient):
        return gradient * torch.tensor([1.0, 1e-14, 1.0]).repeat_interleave(gradient.shape[1] // 3)[:, None]

    _frozen(patch, lambda model: [one.project.together.weight.register_hook(hook) for one in model.mixers])


@plant("moved")
def one_head_of_one_layer_never_trained(patch):
    _frozen(patch, lambda model: model.mixers[1].project.together.weight.register_hook(_without_rows(0, 84)))


@plant("moved")
def half_of_the_embeddings_frozen(patch):
    _frozen(patch, lambda model: model.embedding.weight.register_hook(_without_rows(500, 1000)))


@plant("moved", ENCODER)
def half_of_an_encoders_embeddings_frozen(patch):
    _frozen(patch, lambda model: model.embedding.weight.register_hook(_without_rows(0, 500)))


# --- pieces that keep all the rules, and are others than their names say ---------------------------------------------


@plant("definition", PLAIN)
def scores_without_a_scale(patch):
    _patch_scale(patch, lambda d: 1.0)


@plant("definition", PLAIN)
def scores_divided_by_the_width_of_a_head(patch):
    _patch_scale(patch, lambda d: 1 / d)


@plant("definition", ENCODER, PLAIN)
def scores_of_an_encoder_without_a_scale(patch):
    _patch_scale(patch, lambda d: 1.0)


@plant("definition", PLAIN)
def softmax_twice(patch):
    honest = backends.weights

    def weights(queries, keys, allowed=None, bias=None):
        once = honest(queries, keys, allowed, bias)
        again = once.masked_fill(~allowed, -torch.inf).softmax(-1) if allowed is not None else once.softmax(-1)
        return again.nan_to_num(0.0)

    for module in (backends, attention):
        patch.setattr(module, "weights", weights)


@plant("definition", "model.positions=alibi")
def alibi_with_the_wrong_sign(patch):
    honest = positions.AlibiPositions.bias
    patch.setattr(
        positions.AlibiPositions, "bias", lambda self, replica, head, i, j: -honest(self, replica, head, i, j)
    )


@plant("definition", "model.positions=alibi")
def alibi_with_one_slope_for_all_heads(patch):
    patch.setattr(positions, "alibi_slopes", lambda heads: [0.5] * heads)


@plant("definition", ENCODER, "model.positions=alibi-symmetric", "model.mixer.heads=8")
def alibi_with_slopes_of_another_series(patch):
    patch.setattr(positions, "alibi_slopes", lambda heads: [2 ** -(h + 2) for h in range(heads)])


@plant("definition", also=("moved",))
def one_heads_keys_for_all(patch):
    honest = attention.SelfProjection.forward

    def forward(self, x, context, past):
        q, cache = honest(self, x, context, past)
        return q, replace(cache, keys=cache.keys[:, :, :1].expand_as(cache.keys))

    patch.setattr(attention.SelfProjection, "forward", forward)


@plant("definition", "model.positions=rotary")
def rotary_angles_of_another_base(patch):
    honest = positions._frequencies
    patch.setattr(positions, "_frequencies", lambda width, base: honest(width, base / 10))


@plant("definition", "model.positions=rotary", "model.mixer.backend=sdpa")
def rotary_that_turns_keys_the_other_way(patch):
    honest = positions.RotaryPositions.rotate
    patch.setattr(positions.RotaryPositions, "rotate", lambda self, x, at: honest(self, x, -at))


@plant("definition", "model.positions=sinusoidal")
def waves_of_one_length(patch):
    honest = positions._frequencies
    patch.setattr(positions, "_frequencies", lambda width, base: torch.ones_like(honest(width, base)))


@plant("definition", "model.positions=t5")
def t5_buckets_that_end_at_eight(patch):
    honest = positions.T5Positions.bucket
    patch.setattr(positions.T5Positions, "bucket", lambda self, distance: honest(self, distance.clamp(min=-8)))


@plant("definition", "model.positions=learned", also=("cache",))
def learned_positions_that_stop_at_24(patch):
    honest = positions.LearnedPositions.embed
    patch.setattr(positions.LearnedPositions, "embed", lambda self, x, at: honest(self, x, at.clamp(max=24)))


@plant("definition", "model.norm.kind=layer")
def layer_norm_that_does_not_centre(patch):
    def forward(self, x):
        normal = x / x.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return normal * self.weight[:, None, None] + self.bias[:, None, None]

    patch.setattr(replicated.LayerNorm, "forward", forward)


@plant("definition", "model.norm.kind=rms")
def rms_norm_by_the_mean_of_sizes(patch):
    def forward(self, x):
        return x / x.abs().mean(-1, keepdim=True).add(1e-5) * self.weight[:, None, None]

    patch.setattr(replicated.RMSNorm, "forward", forward)


# --- what several plants are made of ---------------------------------------------------------------------------------


def _ask(patch: MonkeyPatch, where: Callable) -> None:
    """The model asks its positions about other places than those where tokens stand."""
    honest = Backbone.hidden

    class Elsewhere(positions.Positions):
        def __init__(self, scheme):
            super().__init__()
            self.scheme, self.has_bias = scheme, scheme.has_bias

        def embed(self, x, at):
            return self.scheme.embed(x, where(at))

        def rotate(self, x, at):
            return self.scheme.rotate(x, where(at))

    def hidden(self, *given, **named):
        scheme, self.positions = self.positions, Elsewhere(self.positions)
        try:
            return honest(self, *given, **named)
        finally:
            self.positions = scheme

    patch.setattr(Backbone, "hidden", hidden)


def _patch_weights(patch: MonkeyPatch, weigh: Callable) -> None:
    def weights(queries, keys, allowed=None, bias=None):
        scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
        scores = scores if bias is None else scores + bias
        return scores.softmax(-1) if allowed is None else weigh(scores, allowed)

    for module in (backends, attention):
        patch.setattr(module, "weights", weights)


def _patch_scale(patch: MonkeyPatch, scale: Callable) -> None:
    """In the kernel as in what is shown of it."""

    def weights(queries, keys, allowed=None, bias=None):
        scores = queries @ keys.mT * scale(queries.shape[-1])
        scores = scores if bias is None else scores + bias
        if allowed is None:
            return scores.softmax(-1)
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1) * allowed

    for module in (backends, attention):
        patch.setattr(module, "weights", weights)


def _sdpa(mask: Callable = lambda context: context.addend, scale: float | None = None) -> Callable:
    def attend(self, q, k, v, context, drop):
        given = mask(context)
        given = None if given is None else backends._fold(given, q.shape, q.dtype)
        folded = (x.flatten(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(*folded, attn_mask=given, scale=scale).unflatten(0, q.shape[:2])

    return attend


def _norm_over(axis: int) -> Callable:
    def forward(self, x):
        centred = x - x.mean(axis, keepdim=True)
        spread = centred.square().mean(axis, keepdim=True).add(1e-5).sqrt()
        return centred / spread * self.weight[:, None, None] + self.bias[:, None, None]

    return forward


def _crops(cut: Callable) -> Callable:
    honest = CropSampler.at

    def at(self, step):
        batch = honest(self, step)
        inputs, targets = cut(torch.cat((batch.inputs, batch.targets[..., -1:]), -1))
        return Batch(inputs, targets, batch.begins)

    return at
