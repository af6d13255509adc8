"""Faults of what training reads: not all of train, always the same, rows that break off."""

from dataclasses import replace

import torch

from headway.audit.plants.needs import CLASSIFIER, CROPS
from headway.audit.plants.planting import Bed, Need
from headway.data.labelled.batches import RowTable, Shuffled, ShuffledSampler
from headway.data.running import batches
from headway.data.running.batches import Contiguous, ContiguousSampler, Crops, CropSampler

_bed = Bed("batches")
READ = "batches"
STREAMS = Need(
    "streams that are read from left to right",
    lambda recipe: isinstance(getattr(recipe.data, "batches", None), Contiguous),
    ("data.batches=contiguous",),
)


@_bed.plant(READ, CROPS)
def the_same_crops_at_every_step(patch):
    honest = CropSampler.at
    patch.setattr(CropSampler, "at", lambda self, step: honest(self, 0))


@_bed.plant(READ, CROPS)
def crops_of_the_first_half_of_the_text(patch):
    honest = Crops.build
    patch.setattr(Crops, "build", lambda self, ids, *rest: honest(self, ids[: len(ids) // 2], *rest))


@_bed.plant(READ, CROPS)
def the_last_target_of_a_row_is_its_last_token(patch):
    honest = CropSampler.at

    def at(self, step):
        batch = honest(self, step)
        return replace(batch, targets=torch.cat((batch.targets[..., :-1], batch.inputs[..., -1:]), -1))

    patch.setattr(CropSampler, "at", at)


@_bed.plant(READ, CROPS)
def targets_shifted_after_the_first_step(patch):
    honest = CropSampler.at

    def at(self, step):
        batch = honest(self, step)
        return batch if int(step) == 0 else replace(batch, targets=batch.targets.roll(-1, -1))

    patch.setattr(CropSampler, "at", at)


@_bed.plant(READ, STREAMS)
def streams_that_are_columns(patch):
    """As if the text had been written into a table row by row."""

    def streams(tokens, segment, batch):
        length = len(tokens) // batch
        return tokens[: batch * length].reshape(length, batch).mT.contiguous()

    patch.setattr(batches, "_streams", streams)


@_bed.plant(READ, STREAMS)
def segments_in_another_order(patch):
    honest = ContiguousSampler.at

    def at(self, step):
        backwards = self.steps_per_epoch - 1 - step % self.steps_per_epoch
        return replace(honest(self, backwards), begins=honest(self, step).begins)

    patch.setattr(ContiguousSampler, "at", at)


@_bed.plant(READ, STREAMS)
def a_state_that_is_never_carried(patch):
    honest = ContiguousSampler.at
    patch.setattr(ContiguousSampler, "at", lambda self, step: replace(honest(self, step), begins=torch.tensor(True)))


@_bed.plant(READ, STREAMS)
def a_state_that_goes_on_from_the_end_of_the_text_to_its_beginning(patch):
    honest = ContiguousSampler.at
    patch.setattr(ContiguousSampler, "at", lambda self, step: replace(honest(self, step), begins=torch.tensor(False)))


@_bed.plant(READ, STREAMS)
def a_state_that_begins_anew_in_the_middle_of_the_text(patch):
    honest = ContiguousSampler.at

    def at(self, step):
        middle = torch.as_tensor(step % self.steps_per_epoch == self.steps_per_epoch // 2)
        batch = honest(self, step)
        return replace(batch, begins=batch.begins | middle)

    patch.setattr(ContiguousSampler, "at", at)


@_bed.plant(READ, STREAMS)
def one_row_that_begins_anew_at_every_step(patch):
    honest = ContiguousSampler.at

    def at(self, step):
        batch = honest(self, step)
        first = torch.arange(batch.inputs.shape[1], device=batch.inputs.device) == 0
        return replace(batch, begins=batch.begins | first.expand(batch.inputs.shape[:2]))

    patch.setattr(ContiguousSampler, "at", at)


@_bed.plant(READ, STREAMS)
def a_token_lost_between_two_segments_late_in_the_text(patch):
    honest = ContiguousSampler.at

    def at(self, step):
        batch, position = honest(self, step), step % self.steps_per_epoch
        if not 4 < position < self.steps_per_epoch - 1:
            return batch
        rows = self._streams.index_select(1, position * self._segment + 1 + self._within).long()
        rows = rows.expand(self._replicas, -1, -1)
        return replace(batch, inputs=rows[..., :-1], targets=rows[..., 1:])

    patch.setattr(ContiguousSampler, "at", at)


@_bed.plant(READ, CLASSIFIER)
def the_same_order_of_rows_in_every_epoch(patch):
    honest = ShuffledSampler._drawn  # pyright: ignore[reportPrivateUsage]
    patch.setattr(ShuffledSampler, "_drawn", lambda self, epoch: honest(self, epoch * 0))


@_bed.plant(READ, CLASSIFIER)
def the_last_quarter_of_the_rows_never_read(patch):
    honest = Shuffled.build

    def build(self, texts, batch, seeds):
        enough = slice(len(texts.labels) * 3 // 4)
        table, labels = (one[enough].cpu().numpy() for one in (texts.table, texts.labels))
        return honest(self, RowTable(table, texts.lengths_on_host[enough], labels, texts.device), batch, seeds)

    patch.setattr(Shuffled, "build", build)
