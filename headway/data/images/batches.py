"""Which pictures and captions a model sees at which step: as for labelled texts, a pure function of the step.

In every epoch every pair once, in an order that each replica draws anew from its own seed. All that a batch holds are
each other's wrong answers, so captions of all lengths are together, and which pairs are the same picture, or have the
same caption, is part of it.
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
    """A number that is the same for the same picture."""
    caption: Int64[Tensor, "R B"]
    """A number that is the same for the same caption."""
    first_row: int = 0

    @property
    def begins(self) -> Bool[Tensor, ""]:
        """No row continues one of the step before."""
        return torch.ones((), dtype=torch.bool, device=self.inputs.device)

    @property
    def targets(self) -> Int64[Tensor, "R B"]:
        """What belongs to each caption."""
        return self.picture

    @property
    def also_right(self) -> Bool[Tensor, "R B B"]:
        """Pairs of another picture and another caption of the batch that belong together all the same: the captions are
        the same, or the pictures."""
        same = (self.caption[:, :, None] == self.caption[:, None]) | (self.picture[:, :, None] == self.picture[:, None])
        return same & ~torch.eye(same.shape[1], dtype=torch.bool, device=same.device)

    def part(self, k: int, n: int) -> "PictureBatch":
        if n > 1:
            reason = "in a contrastive batch every row is a wrong answer of every other, so it is not taken in parts"
            raise UserError(f"{reason}: set training.accumulate=1, and train in one process")
        return self


class PictureSampler(Protocol):
    steps_per_epoch: int

    def at(self, step: Step) -> PictureBatch: ...


class PictureBatchSpec(Variant):
    """Which pictures a step sees, and how they are changed before it sees them."""

    by_seed: ClassVar[bool] = True
    """Whether each seed sees others."""

    @abstractmethod
    def build(
        self, pairs: CaptionedPictures, context: int, end: int, batch: int, seeds: Sequence[int], device: str
    ) -> PictureSampler:
        """Of these pairs; captions of at most so many tokens, with END."""

    @property
    def changes_pictures(self) -> bool:
        return False


class ShuffledPictures(PictureBatchSpec):
    """In every epoch every pair once, in another order."""

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
        rows = torch.arange(len(pairs)).numpy()  # a text's "class" is its place: which pair it is of
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
        """Moved and mirrored, as the numbers of this step say."""
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
