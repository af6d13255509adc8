"""Faults of translators: of what they read, and of what they write."""

from dataclasses import replace

import torch

from headway.audit.plants.needs import ADDITIVE_CROSSING, FIRST_STATE, LONG_SOURCES, ONE_STACK, ONE_TABLE, TRANSLATOR
from headway.audit.plants.planting import Bed
from headway.audit.plants.training.steps import PARTS
from headway.data.pairs import batches
from headway.models import decoder_only
from headway.models.encoder_decoder import EncoderDecoder, FirstStates
from headway.models.state import ModelState
from headway.models.translator import Translator
from headway.nn import attention, backends
from headway.nn.block import CrossBlock
from headway.nn.masks import Causal, Everything
from headway.nn.replicated import Embedding, Linear
from headway.nn.residual import whole
from headway.nn.similarity import AdditiveSimilarity, scaled_dot
from headway.scoring import decoding

_bed = Bed("translators", TRANSLATOR)
_of_one_stack = Bed("translators", ONE_STACK)
WRITES = ("scores-again", "decoded-alone", "repetition-loops", "length-ratio", "copied-sources", "searched")
"""Audits that may also fail because decoding gives other translations."""
SCORES = ("kept-checkpoint", "score-and-curve")
"""Audits that may also fail because weights that are used differently than in training have other losses."""
OF_READING = ("batches", "every-pair")
"""Audits that may also fail because regrouped rows are no pairs of train."""


# --- what is read ----------------------------------------------------------------------------------------------------


@_bed.plant(
    "source-padding",
    also=("cross-attention-rows", "crossing", "loss", "decoded-alone", "scores-again", "kept-checkpoint", "searched"),
)
def padding_of_sources_is_read(patch):
    honest = EncoderDecoder.read

    def read(self, sources, source_mask=None):
        return honest(self, sources, None)

    patch.setattr(EncoderDecoder, "read", read)


@_bed.plant(
    "source-padding",
    also=("cross-attention-rows", "crossing", "loss", "first-state", "one-batch", "step", *SCORES, *WRITES),
)
def padding_of_the_source_of_another_row(patch):
    honest = EncoderDecoder.read

    def read(self, sources, source_mask=None):
        read = honest(self, sources, source_mask)
        if source_mask is None or read.memory is None:
            return read
        return replace(read, memory=replace(read.memory, padding_mask=source_mask.roll(1, 1)))

    patch.setattr(EncoderDecoder, "read", read)


@_bed.plant("source-reaches-all", LONG_SOURCES, also=("source-matters", "source-padding", *SCORES, *WRITES))
def sources_cut_where_they_are_long(patch):
    honest = EncoderDecoder.read

    def read(self, sources, source_mask=None):
        return honest(self, sources[..., :14], None if source_mask is None else source_mask[..., :14])

    patch.setattr(EncoderDecoder, "read", read)


@_bed.plant("source-order", also=("source-matters", "one-batch", "gradient", *SCORES, *WRITES))
def sources_whose_tokens_all_stand_at_the_first_place(patch):
    honest = EncoderDecoder.__init__

    def build(self, *given):
        honest(self, *given)
        embed = self.encoder.positions.embed
        self.encoder.positions.embed = lambda x, at: embed(x, torch.zeros_like(at))

    patch.setattr(EncoderDecoder, "__init__", build)


@_bed.plant("source-reaches-all", also=("source-matters", "cross-attention-rows", "one-batch", *SCORES, *WRITES))
def cross_attention_that_adds_nothing(patch):
    honest = CrossBlock.forward

    def forward(self, x, context, state=None):
        self.around_cross.forward = lambda x, sublayer: (x, sublayer(whole(x))[1])
        return honest(self, x, context, state)

    patch.setattr(CrossBlock, "forward", forward)


@_bed.plant("source-ahead", trains=True)
def encoder_that_looks_back_alone(patch):
    """It trains as well as any other, but sees only half of the source."""
    honest = EncoderDecoder.__init__

    def build(self, *given):
        honest(self, *given)
        self.encoder.mask = Causal()

    patch.setattr(EncoderDecoder, "__init__", build)


@_of_one_stack.plant("source-ahead", trains=True)
def prefix_that_is_read_from_left_to_right(patch):
    patch.setattr(decoder_only, "Everything", Causal)
    patch.setattr(decoder_only, "Prefix", lambda length: Causal())


@_bed.plant("batch-pairs", also=("source-matters",))
def targets_that_begin_with_another_token(patch):
    honest = batches._OneShape.at

    def at(self, step):
        batch = honest(self, step)
        return replace(batch, inputs=torch.cat((torch.zeros_like(batch.inputs[..., :1]), batch.inputs[..., 1:]), 2))

    patch.setattr(batches._OneShape, "at", at)


@_bed.plant("batch-pairs", also=("source-matters", "source-reaches-all", *OF_READING, *WRITES), trains=True)
def sources_shifted_by_a_row(patch):
    honest = batches._OneShape.at

    def at(self, step):
        batch = honest(self, step)
        return replace(batch, sources=batch.sources.roll(1, 1), source_mask=batch.source_mask.roll(1, 1))

    patch.setattr(batches._OneShape, "at", at)


@_bed.plant("every-pair")
def pairs_that_just_fit_left_out(patch):
    honest = batches.Buckets.build

    def build(self, pairs, longest, *rest):
        return honest(self, pairs, min(longest, int(pairs.longer.max())) - 1, *rest)

    patch.setattr(batches.Buckets, "build", build)


@_bed.plant("batches")
def the_same_batches_in_every_epoch(patch):
    honest = batches._OneShape.at
    patch.setattr(batches._OneShape, "at", lambda self, step: honest(self, step % self.steps_per_epoch))


# --- what passes from the encoder to the decoder ---------------------------------------------------------------------


@_bed.plant("first-state", FIRST_STATE, also=("source-padding", "loss", *SCORES, *WRITES))
def state_taken_after_the_padding(patch):
    honest = EncoderDecoder.read

    def read(self, sources, source_mask=None):
        return replace(honest(self, sources, source_mask), layers=honest(self, sources, None).layers)

    patch.setattr(EncoderDecoder, "read", read)


@_bed.plant("first-state", FIRST_STATE, also=("loss", "step", "source-padding", *SCORES, *WRITES))
def state_of_another_row(patch):
    _first(patch, lambda left: left.roll(1, 1))


@_bed.plant("first-state", FIRST_STATE, also=("loss", "source-matters", *SCORES, *WRITES))
def state_of_one_direction_only(patch):
    _first(patch, lambda left: torch.cat((left[..., : left.shape[-1] // 2], 0 * left[..., left.shape[-1] // 2 :]), -1))


@_bed.plant("moved", FIRST_STATE, also=("first-state", "gradient"), trains=True)
def state_of_the_encoder_without_a_gradient(patch):
    honest = FirstStates.forward

    def forward(self, left):
        return [{name: part.detach() + 0 * part for name, part in state.items()} for state in honest(self, left)]

    patch.setattr(FirstStates, "forward", forward)


def _first(patch, change):
    honest = FirstStates.forward
    patch.setattr(FirstStates, "forward", lambda self, left: honest(self, change(left)))


OF_LOOKING = ("source-padding", "source-reaches-all", "source-matters", "loss", "one-batch", *SCORES, *WRITES)
"""Audits that may also fail if cross-attention does not do what the recipe says."""


@_bed.plant("cross-attention-rows", ADDITIVE_CROSSING, also=("crossing", *OF_LOOKING))
def additive_attention_that_forgets_padding(patch):
    honest = backends.weights

    def weights(queries, keys, allowed=None, bias=None, similarity=scaled_dot):
        forgets = isinstance(similarity, AdditiveSimilarity)
        return honest(queries, keys, None if forgets else allowed, bias, similarity)

    for module in (backends, attention):
        patch.setattr(module, "weights", weights)


@_bed.plant("crossing", ADDITIVE_CROSSING, also=OF_LOOKING)
def additive_attention_without_its_tanh(patch):
    """Then the query has no influence: it adds the same to all scores."""

    def flat(self, q, k):
        return ((q[:, :, :, :, None] + k[:, :, :, None]) * self.vector[:, None, :, None, None]).sum(-1)

    patch.setattr(AdditiveSimilarity, "forward", flat)


@_bed.plant("crossing", ADDITIVE_CROSSING, also=("moved", *OF_LOOKING))
def additive_attention_by_products(patch):
    patch.setattr(AdditiveSimilarity, "forward", lambda self, q, k: scaled_dot(q, k))


@_bed.plant("tied-tables", trains=True)
def output_matrix_that_is_not_the_embedding(patch):
    honest = EncoderDecoder.__init__

    def build(self, spec, *given):
        honest(self, spec, *given)
        self.output = Linear(self.replicas, spec.width, self.vocabulary, bias=False, gain=0.2)

    patch.setattr(EncoderDecoder, "__init__", build)


@_bed.plant("tied-tables", ONE_TABLE, trains=True)
def source_embedding_of_its_own(patch):
    honest = EncoderDecoder.__init__

    def build(self, spec, *given):
        honest(self, spec, *given)
        self.encoder.embedding = Embedding(self.replicas, self.source_vocabulary, spec.width)

    patch.setattr(EncoderDecoder, "__init__", build)


# --- the target ------------------------------------------------------------------------------------------------------


@_bed.plant(
    "causality", also=("causal-gradient", "attention-rows", "cache", "hard-mask", "definition", *SCORES, *WRITES)
)
def decoder_that_sees_its_target(patch):
    honest = Translator.written

    def written(self, ids, state, padding_mask=None):
        self.mask = Everything()
        return honest(self, ids, state, padding_mask)

    patch.setattr(Translator, "written", written)


@_bed.plant("loss", also=("step", "kept-checkpoint", "score-and-curve", "scores-again"))
def padding_in_the_loss(patch):
    from headway.models import translator

    honest = translator.mean_cross_entropy

    def of_all(x, weight, targets, bias, counted, *rest):
        return honest(x, weight, targets, bias, None, *rest)

    patch.setattr(translator, "mean_cross_entropy", of_all)


@_bed.plant("step", PARTS)
def mean_of_the_means_of_parts(patch):
    """Although one part has more tokens than another."""
    patch.setattr(Translator, "counted", lambda self, batch: None)


@_bed.plant("targets", also=("loss", "initial-loss", "source-matters", "batch-pairs", *OF_READING))
def targets_that_are_the_inputs(patch):
    honest = batches._OneShape.at
    patch.setattr(
        batches._OneShape, "at", lambda self, step: (lambda b: replace(b, targets=b.inputs))(honest(self, step))
    )


# --- what is written -------------------------------------------------------------------------------------------------


@_bed.plant("decoded-alone", also=WRITES)
def rows_mixed_up_in_the_cache(patch):
    """When rows leave the batch, or hypotheses are reordered, the wrong ones are kept."""
    honest = ModelState.of_rows

    def of_rows(self, rows, same_sources=False):
        return honest(self, rows.flip(1), same_sources)

    patch.setattr(ModelState, "of_rows", of_rows)


@_bed.plant("scores-again", also=WRITES)
def second_likeliest_token(patch):
    def search(self, text, end, limits, numbers):
        return decoding.one_by_one(text, end, limits, lambda logits, rows: logits.topk(2).indices[..., 1])

    patch.setattr(decoding.Greedy, "search", search)


@_bed.plant("repetition-loops", also=WRITES)
def end_that_is_never_generated(patch):
    def search(self, text, end, limits, numbers):
        def choose(logits, rows):
            return logits.index_fill(-1, torch.tensor([end], device=logits.device), -torch.inf).argmax(-1)

        return decoding.one_by_one(text, end, limits, choose)

    patch.setattr(decoding.Greedy, "search", search)
