"""Batches of pictures and captions: as for labelled texts, a pure function of the step.

Every pair once per epoch, in an order that each replica draws anew from its own seed. The rows of a batch are negatives
for each other, so captions of all lengths are mixed, and the batch also tells which pairs share a picture or a caption.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.data.images.dataset import CaptionedPictures
from headway.data.labelled.batches import RowTable, ShuffledSampler
from headway.data.running.batches import Step, on_device


@dataclass(frozen=True)
class PictureBatch:
    inputs: Int64[Tensor, "R B T"]
    """Captions, with END."""
    padding_mask: Bool[Tensor, "R B T"]
    pictures: UInt8[Tensor, "R B 3 S S"]
    picture: Int64[Tensor, "R B"]
    """An id of the picture."""
    caption: Int64[Tensor, "R B"]
    """An id of the caption; equal captions have equal ids."""
    first_row: int = 0

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """Always true: no row continues one of the previous step."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    @property
    def targets(self) -> Int64[Tensor, "R B"]:
        """The picture of each caption."""
        return self.picture

    @property
    def also_right(self) -> Bool[Tensor, "R B B"]:
        """False negatives: pictures and captions from different rows that belong together, because the two rows share
        the caption or the picture."""
        same = (self.caption[:, :, None] == self.caption[:, None]) | (self.picture[:, :, None] == self.picture[:, None])
        return same & ~torch.eye(same.shape[1], dtype=torch.bool, device=same.device)

    def part(self, k: int, n: int) -> "PictureBatch":
        if n > 1:
            reason = "a contrastive batch cannot be split, because every row is a negative for every other"
            raise UserError(f"{reason}: set training.accumulate=1, and train in one process")
        return self


class PictureSampler(Protocol):
    steps_per_epoch: int

    def at(self, step: Step) -> PictureBatch: ...


class PictureBatchSpec(Variant):
    """How batches of pictures are formed and augmented."""

    by_seed: ClassVar[bool] = True
    """Whether the batches depend on the seed."""

    @abstractmethod
    def build(
        self, pairs: CaptionedPictures, context: int, end: int, batch: int, seeds: Sequence[int], device: str
    ) -> PictureSampler:
        """A sampler of these pairs, with captions of at most `context` tokens including END."""

    @property
    def changes_pictures(self) -> bool:
        return False


class ShuffledPictures(PictureBatchSpec):
    """Every pair once per epoch, in a new random order."""

    kind: Literal["shuffled"] = "shuffled"
    flip: bool = False
    """Random horizontal flips: half of the pictures are mirrored. Not where captions say left and right."""
    shift: int = Field(default=0, ge=0)
    """Random translation: every picture is moved by up to this many pixels in each direction, and its border
    repeated."""

    @property
    def changes_pictures(self) -> bool:
        return self.flip or self.shift > 0

    def build(
        self, pairs: CaptionedPictures, context: int, end: int, batch: int, seeds: Sequence[int], device: str
    ) -> "ShuffledPictureSampler":
        return ShuffledPictureSampler(self, pairs, context, end, batch, seeds, device)


class ShuffledPictureSampler:
    def __init__(
        self,
        spec: ShuffledPictures,
        pairs: CaptionedPictures,
        context: int,
        end: int,
        batch: int,
        seeds: Sequence[int],
        device: str,
    ):
        table, lengths = pairs.padded(context, end)
        rows = torch.arange(len(pairs)).numpy()  # the index of the pair takes the place of the label
        self._texts = ShuffledSampler(RowTable(table, lengths, rows, device), batch, [table.shape[1]], seeds)
        self.steps_per_epoch, self.spec = self._texts.steps_per_epoch, spec
        self._pixels, self._picture, self._caption = (
            torch.as_tensor(one).to(device) for one in (pairs.pixels, pairs.picture, pairs.caption)
        )
        self._keys = {what: random.stream_keys(seeds, what).to(device) for what in ("flip", "down", "right")}

    def at(self, step: Step) -> PictureBatch:
        texts = self._texts.at(step)
        picture = self._picture[texts.targets]
        shown = self._changed(self._pixels[picture], on_device(step, self._keys["flip"]))
        return PictureBatch(texts.inputs, texts.padding_mask, shown, picture, self._caption[texts.targets])

    def _changed(self, pictures: UInt8[Tensor, "R B 3 S S"], step: Int[Tensor, ""]) -> UInt8[Tensor, "R B 3 S S"]:
        """Shift and flip the pictures at random, by the step's random numbers."""
        if not self.spec.changes_pictures:
            return pictures
        B, S, most = pictures.shape[1], pictures.shape[-1], self.spec.shift
        at = torch.arange(S, device=pictures.device)

        def moved(what: str) -> Int[Tensor, "R B S"]:
            by = random.integers(self._keys[what], step, 2 * most + 1, B) - most
            return (at + by[..., None]).clamp(0, S - 1)

        down, right = moved("down"), moved("right")
        if self.spec.flip:
            mirrored = random.integers(self._keys["flip"], step, 2, B)[..., None] == 1
            right = torch.where(mirrored, S - 1 - right, right)
        pictures = pictures.gather(3, down[:, :, None, :, None].expand_as(pictures))
        return pictures.gather(4, right[:, :, None, None, :].expand_as(pictures))
