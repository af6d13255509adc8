"""Faults of learning: targets, losses, steps, weights that never moved, weights that were lost."""

import math
from dataclasses import replace

import torch

from headway.audit.plants.models.parts import frozen, without_rows
from headway.audit.plants.needs import ADAM, ATTENTION, CLASSIFIER, CROPS, LANGUAGE_MODEL, PRE_NORM, TIED, UNTIED
from headway.audit.plants.planting import Bed, Need, Patch
from headway.data.labelled.batches import ShuffledSampler
from headway.data.running.batches import Batch, CropSampler
from headway.models.classifier import Classifier
from headway.models.language_model import LanguageModel
from headway.nn import replicated
from headway.training import adam, optimizers

_bed = Bed("learning")
WIDE = Need("a width of 64", lambda recipe: (getattr(recipe.model, "width", 0) or 0) >= 64, ("model.width=64",))


# --- what is asked ---------------------------------------------------------------------------------------------------


def _crops(patch: Patch, cut) -> None:
    honest = CropSampler.at

    def at(self, step):
        batch = honest(self, step)
        inputs, targets = cut(torch.cat((batch.inputs, batch.targets[..., -1:]), -1))
        return Batch(inputs, targets, batch.begins)

    patch.setattr(CropSampler, "at", at)


@_bed.plant("targets", LANGUAGE_MODEL, CROPS)
def labels_shifted_by_two(patch):
    _crops(patch, lambda rows: (rows[..., :-2], rows[..., 2:]))


@_bed.plant("targets", LANGUAGE_MODEL, CROPS)
def target_fed_as_input(patch):
    _crops(patch, lambda rows: (rows[..., 1:], rows[..., 1:]))


@_bed.plant("loss", LANGUAGE_MODEL)
def target_fed_to_the_model_by_its_loss(patch):
    honest = LanguageModel.loss
    patch.setattr(
        LanguageModel, "loss", lambda self, batch, state=None: honest(self, replace(batch, inputs=batch.targets))
    )


@_bed.plant("loss", LANGUAGE_MODEL)
def labels_of_the_row_before(patch):
    honest = LanguageModel.loss

    def loss(self, batch, state=None):
        return honest(self, replace(batch, targets=batch.targets.roll(1, 1)))

    patch.setattr(LanguageModel, "loss", loss)


@_bed.plant("loss", CLASSIFIER)
def classes_counted_from_one(patch):
    honest = Classifier.loss

    def loss(self, batch, state=None):
        return honest(self, replace(batch, targets=(batch.targets + 1) % self.classes), state)

    patch.setattr(Classifier, "loss", loss)


@_bed.plant("loss", CLASSIFIER)
def loss_without_the_padding_mask(patch):
    honest = Classifier.loss

    def loss(self, batch, state=None):
        return honest(self, replace(batch, padding_mask=torch.ones_like(batch.padding_mask)), state)

    patch.setattr(Classifier, "loss", loss)


@_bed.plant("labels", CLASSIFIER)
def labels_shifted_by_a_row(patch):
    honest = ShuffledSampler.at

    def at(self, step):
        batch = honest(self, step)
        return replace(batch, targets=batch.targets.roll(1, dims=1))

    patch.setattr(ShuffledSampler, "at", at)


# --- how it is learnt ------------------------------------------------------------------------------------------------


@_bed.plant("initial-loss", LANGUAGE_MODEL, TIED, WIDE)
def embeddings_that_start_too_large(patch):
    honest = replicated.Embedding.__init__

    def large(self, replicas, size, width, std=0.02):
        honest(self, replicas, size, width, 1.0)

    patch.setattr(replicated.Embedding, "__init__", large)


@_bed.plant("one-batch", also=("moved", "step"))
def steps_uphill(patch):
    honest = optimizers.gradient_of
    for module in (optimizers, adam):
        patch.setattr(module, "gradient_of", lambda p: -honest(p))


@_bed.plant("loss", LANGUAGE_MODEL)
def loss_of_the_last_token_of_a_row_only(patch):
    def loss(self, batch, state=None):
        logits, _ = self(batch.inputs)
        last = -logits.log_softmax(-1)[:, :, -1].gather(-1, batch.targets[:, :, -1:])
        return last.mean((1, 2)), None

    patch.setattr(LanguageModel, "loss", loss)


_bed.settings("learning_rate_zero", "one-batch", "training.optimizer.learning_rate=0", also=("moved",))
_bed.settings(
    "post_norm_without_warmup_at_a_high_rate",
    "one-batch",
    "model.norm.placement=post",
    "model.layers=6",
    "training.schedule.warmup=null",
    "training.optimizer.learning_rate=1e-1",
    also=("collapsed-answers",),
    needs=(LANGUAGE_MODEL, ADAM),
)


# --- what never moved ------------------------------------------------------------------------------------------------


@_bed.plant("moved", trains=True, also=("gradient",))
def frozen_by_mistake(patch):
    def freeze(model):
        for p in model.layers[0].feedforward.parameters():
            p.register_hook(torch.zeros_like)

    frozen(patch, freeze)


@_bed.plant("moved", ATTENTION, trains=True, also=("gradient",))
def queries_and_keys_never_trained(patch):
    hook = without_rows(0, 667)
    frozen(patch, lambda model: [one.project.together.weight.register_hook(hook) for one in model.mixers])


@_bed.plant("moved", ATTENTION, trains=True, also=("gradient",))
def keys_hardly_trained(patch):
    def hook(gradient):
        return gradient * torch.tensor([1.0, 1e-14, 1.0]).repeat_interleave(gradient.shape[1] // 3)[:, None]

    frozen(patch, lambda model: [one.project.together.weight.register_hook(hook) for one in model.mixers])


@_bed.plant("moved", ATTENTION, trains=True, also=("gradient",))
def one_head_of_one_layer_never_trained(patch):
    """The queries of the first head, in the last layer."""

    def freeze(model):
        rows = 1000 // 3 // model.mixers[-1].project.heads + 1
        model.mixers[-1].project.together.weight.register_hook(without_rows(0, rows))

    frozen(patch, freeze)


@_bed.plant("moved", trains=True, also=("gradient",))
def half_of_the_embeddings_frozen(patch):
    frozen(patch, lambda model: model.embedding.weight.register_hook(without_rows(500, 1000)))


@_bed.plant("moved", CLASSIFIER, trains=True, also=("gradient",))
def half_of_an_encoders_embeddings_frozen(patch):
    frozen(patch, lambda model: model.embedding.weight.register_hook(without_rows(0, 500)))


# --- what was lost ---------------------------------------------------------------------------------------------------


@_bed.spoil("tied", LANGUAGE_MODEL, TIED)
def tied_weights_untied_on_load(model):
    """Training had one matrix; loading made two of it, and only one got the weights."""
    model.output = replicated.Linear(1, model.spec.width, model.vocabulary, bias=False)
    torch.nn.init.normal_(model.output.weight, 0, 0.02, generator=torch.Generator().manual_seed(0))


@_bed.spoil("tied", LANGUAGE_MODEL, UNTIED)
def untied_weights_tied_on_load(model):
    model.output = None


@_bed.spoil("collapsed-answers", PRE_NORM, also=("order", "tied"))
def scale_of_the_last_norm_lost(model):
    """It became zero, and so every position the same vector."""
    with torch.no_grad():
        model.norm.weight.zero_()


@_bed.spoil("finite")
def one_weight_lost(model):
    with torch.no_grad():
        model.layers[0].feedforward.into.weight[0, 0, 0] = math.nan
