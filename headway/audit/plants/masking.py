"""Faults of masked language models: of what is masked, of the loss, and of the scores."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headway.audit.plants.needs import DROPOUT, LINES, MASKED, part
from headway.audit.plants.planting import Bed, Need, Patch
from headway.data.running.masking import Hiding, MaskedBatch, MaskedSampler
from headway.models.masked_language_model import MaskedLanguageModel
from headway.scoring import masked
from headway.scoring.masked import Guesses

_bed = Bed("masking", MASKED)
DEEP = Need(
    "two layers of width 32",
    lambda recipe: part(recipe, "model.width") >= 32 and part(recipe, "model.layers") >= 2,
    ("model.width=32", "model.layers=2", "model.positions=rotary"),
)
UNLIKE = Need(
    "lines of different lengths in one batch",
    lambda recipe: part(recipe, "data.batches.buckets") == 1,
    ("data.batches={kind: lines, buckets: 1}",),
)


# --- what is hidden --------------------------------------------------------------------------------------------------


def _in_batches(patch: Patch, change: Callable[[Any, MaskedBatch], MaskedBatch]) -> None:
    """Change the batches of training."""
    honest = MaskedSampler.at

    def at(self: Any, step: Any) -> MaskedBatch:
        return change(self.hide, honest(self, step))

    patch.setattr(MaskedSampler, "at", at)


def _put(batch: MaskedBatch, put: Any) -> MaskedBatch:
    """Put other tokens [R, B, K] at the masked places."""
    return replace(batch, inputs=batch.inputs.scatter(2, batch.places, put))


@_bed.plant("hidden-tokens", also=("masking",))
def nothing_is_hidden(patch):
    _in_batches(patch, lambda hide, batch: replace(batch, inputs=batch.restored))


@_bed.plant("hidden-tokens", also=("masking",))
def some_hidden_tokens_show(patch):
    """Every fifth row is used unmasked."""

    def change(hide, batch):
        inputs = batch.inputs.clone()
        inputs[:, ::5] = batch.restored[:, ::5]
        return replace(batch, inputs=inputs)

    _in_batches(patch, change)


@_bed.plant("hidden-tokens", also=("masking",))
def tokens_replaced_by_the_next_in_the_vocabulary(patch):
    """The token in the place of a masked one reveals it."""

    def change(hide, batch):
        put = batch.inputs.gather(2, batch.places)
        drawn = (put != hide.marks.mask) & (put != batch.targets)
        nearest = (torch.searchsorted(hide.words, batch.targets) + 1) % len(hide.words)
        return _put(batch, torch.where(drawn, hide.words[nearest], put))

    _in_batches(patch, change)


@_bed.plant("hidden-tokens", also=("masking",))
def the_most_frequent_tokens_are_chosen(patch):
    """In vocabularies where frequent tokens have smaller ids."""
    honest = Hiding.__call__

    def call(self, rows, padding_mask, step, first=0):
        found = honest(self, rows, padding_mask, step, first)
        text = ~torch.isin(rows, torch.tensor(self.marks.all))
        text = text if padding_mask is None else text & padding_mask
        places = rows.masked_fill(~text, 2**30).argsort(dim=2, stable=True)[..., : found.places.shape[2]]
        shown = found.restored
        fewer = replace(found, inputs=shown, places=places, targets=shown.gather(2, places))
        return _put(fewer, torch.full_like(places, self.marks.mask))

    patch.setattr(Hiding, "__call__", call)


@_bed.plant("hidden-tokens", also=("batches", "masking"))
def targets_taken_after_hiding(patch):
    _in_batches(patch, lambda hide, batch: replace(batch, targets=batch.inputs.gather(2, batch.places)))


def _other_spec(patch: Patch, **changes: float) -> None:
    honest = Hiding.__init__

    def init(self: Any, spec: Any, *given: Any) -> None:
        honest(self, spec.model_copy(update=changes) if given[-1] != masked.SCORED else spec, *given)

    patch.setattr(Hiding, "__init__", init)


@_bed.plant("masking")
def twice_as_many_masked(patch):
    _other_spec(patch, share=0.3)


@_bed.plant("masking", also=("hidden-tokens",))
def all_chosen_tokens_masked(patch):
    _other_spec(patch, masked=1.0, random=0.0)


@_bed.plant("masking")
def more_replaced_than_asked_for(patch):
    _other_spec(patch, masked=0.7, random=0.2)


@_bed.plant("masking")
def hidden_at_the_same_places_at_every_step(patch):
    honest = Hiding.__call__

    def call(self, rows, padding_mask, step, first=0):
        return honest(self, rows, padding_mask, 0, first)

    patch.setattr(Hiding, "__call__", call)


@_bed.plant("masking", also=("hidden-tokens",))
def only_beginnings_of_rows_are_hidden(patch):
    def change(hide, batch):
        put, shown = batch.inputs.gather(2, batch.places), batch.restored
        places = torch.arange(batch.places.shape[2], device=put.device) + hide.marks.before
        places = places.expand_as(batch.places)
        return _put(replace(batch, inputs=shown, places=places, targets=shown.gather(2, places)), put)

    _in_batches(patch, change)


@_bed.plant("masking", also=("hidden-tokens",))
def special_tokens_to_be_predicted(patch):
    def change(hide, batch):
        places = batch.places.clone()
        places[..., 0] = 0
        shown = batch.restored
        moved = replace(batch, inputs=shown, places=places, targets=shown.gather(2, places))
        return _put(moved, batch.inputs.gather(2, batch.places))

    _in_batches(patch, change)


@_bed.plant("masking")
def tokens_replaced_by_special_tokens(patch):
    def change(hide, batch):
        put = batch.inputs.gather(2, batch.places)
        drawn = (put != hide.marks.mask) & (put != batch.targets)
        return _put(batch, torch.where(drawn, hide.marks.sep, put))

    _in_batches(patch, change)


@_bed.plant("batches", also=("hidden-tokens", "masking"))
def targets_of_the_place_before(patch):
    _in_batches(patch, lambda hide, batch: replace(batch, targets=batch.restored.gather(2, batch.places - 1)))


# --- what is asked ---------------------------------------------------------------------------------------------------


@_bed.plant("loss", DEEP, also=("gradient",))
def hidden_tokens_given_to_the_model_by_its_loss(patch):
    honest = MaskedLanguageModel.loss
    patch.setattr(
        MaskedLanguageModel,
        "loss",
        lambda self, batch, state=None: honest(self, replace(batch, inputs=batch.restored), state),
    )


@_bed.plant("loss")
def loss_of_all_tokens(patch):
    """Unmasked tokens count as well."""

    def loss(self, batch, state=None):
        sure = self(batch.inputs, batch.padding_mask).log_softmax(-1)
        return -sure.gather(-1, batch.restored[..., None]).mean((1, 2, 3)), None

    patch.setattr(MaskedLanguageModel, "loss", loss)


@_bed.plant("loss", LINES, UNLIKE)
def loss_of_places_that_do_not_count(patch):
    """Short rows have fewer masked tokens than long ones."""
    honest = MaskedLanguageModel.loss
    patch.setattr(
        MaskedLanguageModel, "loss", lambda self, batch, state=None: honest(self, replace(batch, asked=None), state)
    )


# --- how it is scored ------------------------------------------------------------------------------------------------


AGAIN, ALSO = "scores-again", ("kept-checkpoint", "score-and-curve", "too-good-to-be-true")


def _in_scores(patch: Patch, change: Callable[[MaskedBatch], MaskedBatch]) -> None:
    honest = masked.hide
    patch.setattr(masked, "hide", lambda rows, tokenizer, share: change(honest(rows, tokenizer, share)))


@_bed.plant(AGAIN, also=ALSO, kind="scores")
def scored_with_nothing_hidden(patch):
    _in_scores(patch, lambda batch: replace(batch, inputs=batch.restored))


@_bed.plant(AGAIN, also=ALSO, kind="scores")
def scored_with_a_tenth_shown(patch):
    """As training does it, but the score does not say so."""

    def change(batch):
        every_tenth = torch.arange(batch.places.numel()).view(batch.places.shape) % 10 == 0
        put = batch.inputs.gather(2, batch.places)
        return _put(batch, torch.where(every_tenth, batch.targets, put))

    _in_scores(patch, change)


@_bed.plant(AGAIN, also=ALSO, kind="scores")
def other_tokens_hidden_than_always(patch):
    honest = Hiding.__init__

    def init(self, spec, marks, words, seeds, longest, what):
        honest(self, spec, marks, words, [7] if what == masked.SCORED else seeds, longest, what)

    patch.setattr(Hiding, "__init__", init)


def _of_guesses(patch: Patch, change: Callable[[Guesses, Any], Any]) -> None:
    honest = Guesses.scores
    patch.setattr(Guesses, "scores", lambda self, split: [change(self, one) for one in honest(self, split)])


@_bed.plant(AGAIN, kind="scores")
def pseudo_perplexity_in_base_two(patch):
    def change(self, one):
        is_it = one.name.endswith(".pseudo_perplexity")
        return replace(one, value=2.0 ** float(self.nats.mean())) if is_it else one

    _of_guesses(patch, change)


@_bed.plant(AGAIN, kind="scores")
def accuracy_of_all_tokens(patch):
    """Unmasked tokens count as right."""

    def change(self, one):
        right = self.tokens - len(self.right) + int(self.right.sum())
        return replace(one, value=right / self.tokens) if one.name.endswith(".masked_accuracy") else one

    _of_guesses(patch, change)


@_bed.plant(AGAIN, DROPOUT, also=ALSO, kind="scores")
def guesses_scored_in_training_mode(patch):
    honest = MaskedLanguageModel.guesses
    patch.setattr(MaskedLanguageModel, "guesses", lambda self, *given: honest(self.train(), *given))
