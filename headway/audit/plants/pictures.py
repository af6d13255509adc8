"""Faults of models that match pictures and captions: of what they see, what they compare and what they learn from."""

from dataclasses import replace

import numpy as np
import torch

from headway.audit.pictures.data import PictureRows
from headway.audit.plants.needs import MATCHER, REPEATS_LEFT_OUT
from headway.audit.plants.planting import Bed
from headway.data.images import batches, dataset
from headway.models import clip
from headway.models.clip import Clip, ContrastiveLoss, PictureEncoder
from headway.scoring.pictures import retrieval

_bed = Bed("pictures", MATCHER)
SCORES = ("scores-again", "kept-checkpoint", "score-and-curve", "says-nothing")
"""Audits that may also fail because the scores of other embeddings differ from those in training."""
SEEN = ("patches", "patch-order", "picture-attention", "pictures-alone", "gradient", "one-batch", "moved", *SCORES)


# --- what is seen and told -------------------------------------------------------------------------------------------


@_bed.plant("picture-matters", also=("pictures-alone", "patch-order", "one-batch", "moved", "batch-order", *SEEN))
def pictures_that_are_ignored(patch):
    honest = Clip.see
    patch.setattr(Clip, "see", lambda self, pictures: honest(self, torch.zeros_like(pictures)))


@_bed.plant(
    "caption-matters",
    also=("order", "padding", "finite", "collapsed-answers", "batch-order", "moved", "one-batch", "loss", *SCORES),
)
def captions_that_are_ignored(patch):
    honest = Clip.forward

    def forward(self, ids, padding_mask=None):
        return honest(self, torch.zeros_like(ids), padding_mask)

    patch.setattr(Clip, "forward", forward)


@_bed.plant("pictures-alone", also=("cosines", "batch-order", *SEEN))
def pictures_normalised_over_the_batch(patch):
    honest = PictureEncoder.forward
    patch.setattr(PictureEncoder, "forward", lambda self, x: (lambda y: y - y.mean(1, keepdim=True))(honest(self, x)))


@_bed.plant("patches", also=("patch-order", *SCORES))
def rows_and_columns_exchanged(patch):
    honest = PictureEncoder.forward
    patch.setattr(PictureEncoder, "forward", lambda self, x: honest(self, x.mT))


@_bed.plant("patches", also=SCORES)
def pixels_that_are_not_centred(patch):
    honest = PictureEncoder.forward
    patch.setattr(PictureEncoder, "forward", lambda self, x: honest(self, (x.float() + 127.5).clamp(max=255)))


@_bed.plant("patch-order", also=("patches", "moved", "gradient", "step", "one-batch", *SCORES))
def patches_without_their_places(patch):
    honest = PictureEncoder.__init__

    def built(self, *given, **more):
        honest(self, *given, **more)
        self.positions.embed = lambda x, at: x

    patch.setattr(PictureEncoder, "__init__", built)


@_bed.plant("cosines", also=("loss", "gradient", "moved", *SCORES))
def vectors_of_any_length(patch):
    def project(linear, pooled):
        return linear(pooled[:, :, None]).squeeze(2) * 1.5

    patch.setattr(clip, "_of_length_one", project)


@_bed.plant("cosines", also=("initial-loss", "collapsed-answers", *SCORES))
def the_temperature_twice(patch):
    patch.setattr(ContrastiveLoss, "forward", lambda self, cosines: cosines * self.scale[:, None, None] ** 2)


# --- what is lowered -------------------------------------------------------------------------------------------------


@_bed.plant("loss", also=("gradient", "repeats", "scores-again", "kept-checkpoint", "score-and-curve"))
def captions_for_pictures_alone(patch):
    """Half of the loss is missing: which picture a caption belongs to."""

    def losses(self, logits, also_right):
        compared = self._compared(logits, also_right, -torch.inf)
        return compared.logsumexp(2) - logits.diagonal(dim1=1, dim2=2)

    patch.setattr(ContrastiveLoss, "losses", losses)


@_bed.plant("loss", also=("batch-order", "gradient", "repeats", "picture-matters", "caption-matters", *SCORES))
def the_caption_of_the_next_row(patch):
    honest = ContrastiveLoss.losses
    patch.setattr(ContrastiveLoss, "losses", lambda self, logits, same: honest(self, logits.roll(1, 2), same))


@_bed.plant("repeats", REPEATS_LEFT_OUT, also=("scores-again", "kept-checkpoint", "score-and-curve", "loss"))
def repeats_that_count_as_wrong(patch):
    patch.setattr(ContrastiveLoss, "_compared", lambda self, logits, also_right, nothing: logits)


# --- what training reads ---------------------------------------------------------------------------------------------


@_bed.plant(
    "picture-captions", also=("batches", "picture-matters", "caption-matters", "collapsed-answers"), trains=True
)
def captions_shifted_by_a_row(patch):
    honest = batches.ShuffledPictureSampler.at

    def at(self, step):
        batch = honest(self, step)
        return replace(batch, inputs=batch.inputs.roll(1, 1), padding_mask=batch.padding_mask.roll(1, 1))

    patch.setattr(batches.ShuffledPictureSampler, "at", at)


@_bed.plant("picture-captions", also=("batches", "scores-again", "kept-checkpoint", "score-and-curve"))
def captions_without_their_end(patch):
    honest = dataset.CaptionedPictures.padded

    def padded(self, context, end):
        table, lengths = honest(self, context, end)
        return table, np.maximum(lengths - 1, 1)

    patch.setattr(dataset.CaptionedPictures, "padded", padded)


@_bed.plant("batches", also=("picture-captions",))
def the_same_pictures_in_every_step(patch):
    honest = batches.ShuffledPictureSampler.at
    patch.setattr(batches.ShuffledPictureSampler, "at", lambda self, step: honest(self, step * 0))


# --- what is scored --------------------------------------------------------------------------------------------------


@_bed.plant("says-nothing")
def ties_that_count_as_found(patch):
    def hits_at(k, said, right):
        best = np.where(right, said, -np.inf).max(1)
        return ((np.where(right, -np.inf, said) > best[:, None]).sum(1) < k).astype(float)

    patch.setattr(retrieval, "hits_at", hits_at)


@_bed.plant("scores-again", also=("says-nothing",))
def found_among_half(patch):
    honest = retrieval.groups
    patch.setattr(retrieval, "groups", lambda pairs, among: honest(pairs, max(2, among // 2)))


@_bed.plant("scores-again")
def only_the_first_groups_scored(patch):
    honest = retrieval.groups
    patch.setattr(retrieval, "groups", lambda pairs, among: list(honest(pairs, among))[:1])


@_bed.plant("scores-again", also=("kept-checkpoint", "score-and-curve"))
def a_loss_among_few(patch):
    honest = retrieval.pair_groups
    patch.setattr(retrieval, "pair_groups", lambda pairs, batch: honest(pairs, max(2, batch // 4)))


@_bed.plant("scores-again", also=("says-nothing", "kept-checkpoint", "score-and-curve"))
def pictures_scored_upside_down(patch):
    honest = retrieval.embedded

    def embedded(model, pairs):
        return honest(model, replace(pairs, pixels=np.ascontiguousarray(pairs.pixels[:, :, ::-1])))

    patch.setattr(retrieval, "embedded", embedded)


# --- pictures --------------------------------------------------------------------------------------------------------


def _pictures(name: str, caught_by: str):
    def keep(change):
        _bed.data(PictureRows, caught_by, name, change)
        return change

    return keep


def _with_train(data: PictureRows, pixels: np.ndarray) -> PictureRows:
    return replace(data, pixels={**data.pixels, "train": np.concatenate((data.pixels["train"], pixels))})


def _some_held_out(data: PictureRows, rng, share: float = 0.2) -> np.ndarray:
    """Copies of a share of the last split."""
    held_out = data.pixels[data.held_out[-1]]
    return held_out[rng.choice(len(held_out), max(1, round(share * len(held_out))), replace=False)].copy()


@_pictures("held_out_pictures_copied_into_train", "pictures-in-train")
def _copied(data: PictureRows, rng) -> PictureRows:
    return _with_train(data, _some_held_out(data, rng))


@_pictures("held_out_pictures_made_lighter_in_train", "pictures-in-train")
def _lighter(data: PictureRows, rng) -> PictureRows:
    some = _some_held_out(data, rng).astype(float)
    return _with_train(data, (some * 0.85 + 30).clip(0, 255).astype(np.uint8))


@_pictures("held_out_pictures_saved_anew_in_train", "pictures-in-train")
def _noisy(data: PictureRows, rng) -> PictureRows:
    some = _some_held_out(data, rng).astype(float)
    return _with_train(data, (some + rng.normal(0, 5, some.shape)).clip(0, 255).astype(np.uint8))


@_pictures("pictures_that_are_blank", "blank-pictures")
def _blank(data: PictureRows, rng) -> PictureRows:
    train = data.pixels["train"].copy()
    train[rng.choice(len(train), max(1, len(train) // 8), replace=False)] = 128
    return replace(data, pixels={**data.pixels, "train": train})


@_pictures("a_placeholder_in_the_place_of_many", "blank-pictures")
def _placeholder(data: PictureRows, rng) -> PictureRows:
    train = data.pixels["train"].copy()
    some = rng.choice(len(train), max(3, len(train) // 8), replace=False)
    train[some] = train[some[0]]
    return replace(data, pixels={**data.pixels, "train": train})


@_pictures("held_out_captions_in_train", "captions-in-train")
def _known_captions(data: PictureRows, rng) -> PictureRows:
    last = data.held_out[-1]
    told = [caption.upper() for caption in data.captions[last]]
    return replace(data, captions={**data.captions, "train": [*data.captions["train"], *told]}, classes=False)
