"""Audits of pictures and captions: held-out ones that are in train, blank pictures, and what training reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.batches import Place
from headway.audit.data.row_set import normalise

SMALL = 8
"""Side in pixels to which pictures are reduced for a rough comparison."""
NEAR = 0.05
"""Share of the usual distance between two pictures of train: copies that were compressed again or made a little lighter
are below it."""
FEW, MANY = 0.01, 0.05
"""Shares of a split: a warning from the first on, a failure from the second."""
LOOKED_UP = 16
"""Number of pairs of a batch that are looked up."""
SAMPLED = 24
"""Number of pixels that are compared first."""


@dataclass(frozen=True, eq=False)
class PictureRows:
    """Pictures and captions by split, train first."""

    pixels: Mapping[str, np.ndarray]
    """[P, 3, S, S] of each split."""
    captions: Mapping[str, Sequence[str]]
    classes: bool = False
    """Whether captions are made from class names, so that all of them are in train."""

    @property
    def held_out(self) -> list[str]:
        found = [split for split in self.pixels if split != "train" and len(self.pixels[split])]
        if not found:
            raise DoesNotApply("there is no split other than train to compare with")
        return found

    @cached_property
    def exact(self) -> dict[str, np.ndarray]:
        """For each held-out split: which pictures are in train, pixel by pixel."""
        known = {one.tobytes() for one in self.pixels["train"]}
        return {split: np.array([one.tobytes() in known for one in self.pixels[split]]) for split in self.held_out}

    @cached_property
    def rough(self) -> dict[str, np.ndarray]:
        """[P, 64·3]: each picture reduced and standardised, so that brightness and contrast do not matter."""
        found = {}
        for split, pixels in self.pixels.items():
            side = pixels.shape[-1]
            edges = np.linspace(0, side, min(SMALL, side) + 1).round().astype(int)
            # Blocks of nearly equal size; exact interpolation would cost more than it is worth.
            sums = np.add.reduceat(np.add.reduceat(pixels.astype(np.float32), edges[:-1], 2), edges[:-1], 3)
            sizes = np.diff(edges)
            small = (sums / (sizes[:, None] * sizes)).reshape(len(pixels), -1)
            small -= small.mean(1, keepdims=True)
            found[split] = small / np.maximum(small.std(1, keepdims=True), 4.0)
        return found

    @cached_property
    def nearest(self) -> dict[str, np.ndarray]:
        """For each held-out picture, the distance to the nearest one in train, relative to what is usual there."""
        train = self.rough["train"]
        some = train[np.linspace(0, len(train) - 1, min(200, len(train))).astype(int)]
        usual = float(np.median(_distances(some, some)[~np.eye(len(some), dtype=bool)])) if len(some) > 1 else 1.0
        return {
            split: np.concatenate([_distances(part, train).min(1) for part in _parts(self.rough[split])])
            / max(usual, 1e-6)
            for split in self.held_out
        }


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
    return squares.clip(min=0) / one.shape[1]


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, max(1, len(rows) // 256))


@audit("data")
def pictures_in_train(data: PictureRows) -> Outcome:
    """No held-out picture is in train, not even compressed again, lighter, darker or with a little noise.

    Every held-out picture is searched for in train, pixel by pixel; and, reduced to 8 × 8 and standardised, for a
    squared distance below a twentieth of what is usual between two pictures of train. One in a hundred is a warning,
    one in twenty a failure. A model knows such pictures by heart: split the data again, by source.
    """
    worst = (0.0, "")
    for split in data.held_out:
        same, near = data.exact[split], data.nearest[split] < NEAR
        share = float((same | near).mean())
        nearly = int((near & ~same).sum())
        said = f"{int(same.sum()):,} of {len(same):,} pictures of {split} are in train, and {nearly:,} nearly"
        worst = max(worst, (share, said))
    share, said = worst
    if share >= MANY:
        return failed(share, said, "pictures in train")
    if share >= FEW:
        return warned(share, said)
    return passed(share, said or "no held-out picture is in train")


@audit("data")
def captions_in_train(data: PictureRows) -> Outcome:
    """Few held-out captions are in train.

    Captions are compared ignoring case, punctuation and white space. If captions repeat, train tells which words go
    together, and finding the right one says less about new pictures: 1 % is a warning, half of them a failure. Does not
    apply to pictures with classes, whose captions are all in train.
    """
    if data.classes:
        raise DoesNotApply("captions are made from class names, which are in train as well")
    known = {normalise(caption) for caption in data.captions["train"]}
    worst = (0.0, "no held-out caption is in train")
    for split in data.held_out:
        seen = sum(normalise(caption) in known for caption in data.captions[split])
        share = seen / max(1, len(data.captions[split]))
        if share > worst[0]:
            worst = share, f"{seen:,} of {len(data.captions[split]):,} captions of {split} are in train as well"
    share, said = worst
    return (failed if share >= 0.5 else warned if share >= FEW else passed)(share, said)


@audit("data")
def blank_pictures(data: PictureRows) -> Outcome:
    """Every picture shows something: it is not one colour, and not the same as many others.

    A picture whose pixels differ by less than 4 of 255 is blank; copies of the commonest picture are counted as well.
    One in a hundred is a warning, one in twenty a failure. Look for files that could not be decoded, for placeholders
    ("no image available"), and for pictures that were made too small.
    """
    worst = (0.0, "")
    for split, pixels in data.pixels.items():
        flat = pixels.reshape(len(pixels), 3, -1)
        blank = float(((flat.max(2).astype(int) - flat.min(2)).max(1) < 4).mean())
        counts: dict[bytes, int] = {}
        for one in pixels:
            counts[one.tobytes()] = counts.get(one.tobytes(), 0) + 1
        most = max(counts.values())
        alike = most / len(pixels) if most > 2 else 0.0
        for share, said in (
            (blank, f"{blank:.1%} of the pictures of {split} are blank"),
            (alike, f"{most:,} of {len(pixels):,} pictures of {split} are one and the same"),
        ):
            worst = max(worst, (share, said))
    share, said = worst
    if share >= MANY:
        return failed(share, said)
    return warned(share, said) if share >= FEW else passed(share, "all pictures show something, and differ")


PICTURE_AUDITS: list[Audit] = [pictures_in_train, captions_in_train, blank_pictures]


# --- what training reads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PicturesRead:
    """The batches that training reads, and the pairs they should contain."""

    sampler: Any
    pairs: Any
    """`CaptionedPictures`: train."""
    context: int
    end: int
    flip: bool
    shift: int
    left_out: bool
    """Whether other right answers in a batch are left out of the wrong ones."""

    @cached_property
    def batches(self) -> list[Any]:
        steps = sorted({0, 1, 2, self.sampler.steps_per_epoch - 1, self.sampler.steps_per_epoch})
        return [self.sampler.at(step) for step in steps if step >= 0]

    @cached_property
    def rows_of(self) -> dict[tuple[int, ...], list[int]]:
        """Indices of pairs by the tokens of their caption, as training should read them."""
        begins = self.pairs.ends - self.pairs.lengths
        found: dict[tuple[int, ...], list[int]] = {}
        for k in range(len(self.pairs)):
            ids = self.pairs.ids[begins[k] : self.pairs.ends[k]].tolist()
            found.setdefault((*ids[: self.context - 1], self.end), []).append(k)
        return found

    def __call__(self, batch: Any) -> list[Place | None]:
        """Where in train the pairs of a batch are: caption, and picture with the allowed shifts and flips."""
        rows = zip(batch.inputs[0].tolist(), batch.padding_mask[0].tolist(), batch.pictures[0].numpy(), strict=True)
        found: list[Place | None] = []
        for ids, is_real, picture in list(rows)[:LOOKED_UP]:
            tokens = tuple(token for token, real in zip(ids, is_real, strict=True) if real)
            same = self._those_with(picture, np.array(self.rows_of.get(tokens, ()), dtype=int))
            found.append(Place(min(same), max(same)) if same else None)
        return found

    @cached_property
    def _sampled(self) -> tuple[np.ndarray, np.ndarray]:
        """Random pixel positions that are compared first."""
        side = self.pairs.pixels.shape[-1]
        generator = np.random.default_rng(0)
        return generator.integers(side, size=SAMPLED), generator.integers(side, size=SAMPLED)

    def _those_with(self, picture: np.ndarray, rows: np.ndarray) -> list[int]:
        """The pairs among these that have this picture. Some pixels are compared first, then, where they agree, all."""
        side, (y, x), at = picture.shape[-1], self._sampled, np.arange(picture.shape[-1])
        moves, found = range(-self.shift, self.shift + 1), []
        originals = self.pairs.pixels[self.pairs.picture[rows]] if len(rows) else np.zeros((0, *picture.shape))
        for mirrored in (False, True) if self.flip else (False,):
            for down in moves:
                for right in moves:
                    columns = (at + right).clip(0, side - 1)
                    columns = side - 1 - columns if mirrored else columns
                    lines = (at + down).clip(0, side - 1)
                    alike = (originals[:, :, lines[y], columns[x]] == picture[:, y, x]).all((1, 2))
                    found += [
                        int(rows[k])
                        for k in np.flatnonzero(alike)
                        if np.array_equal(originals[k][:, lines][:, :, columns], picture)
                    ]
        return found


@audit("data")
def picture_captions(read: PicturesRead) -> Outcome:
    """In a batch every picture has a caption of its own, complete and with END.

    Pairs of some batches are looked up in train: the tokens of the caption, at most as many as the model reads and the
    last of them END, and the picture, shifted and flipped as far as data.batches allows. One that is not found is a
    failure. If captions are shifted by a row, or cut without END, training raises no error, but ends at a loss that is
    too high.
    """
    found = [place for batch in read.batches[:3] for place in read(batch)]
    strange = sum(place is None for place in found)
    if strange:
        said = (
            f"{strange} of {len(found)} pairs in batches are none of train: picture and caption do not belong together"
        )
        return failed(strange / len(found), said)
    return passed(0, f"all {len(found)} pairs looked up in batches are pairs of train")


@audit("data")
def false_negatives(read: PicturesRead) -> Outcome:
    """Few right answers count as wrong ones: other pictures of a batch with the very same caption.

    In some batches, wrong answers that are in fact right are counted: the caption is the same, or the picture. If the
    recipe leaves them out (model.contrast.repeats: left-out) the audit only reports the share. If they count as wrong,
    10 % of pairs with such a neighbour is a warning, 50 % a failure: the model must then separate what is the same.
    """
    shares, each = [], []
    for batch in read.batches:
        captions, pictures = batch.caption[0].numpy(), batch.picture[0].numpy()
        same = (captions[:, None] == captions) | (pictures[:, None] == pictures)
        others = same.sum(1) - 1
        shares.append(float((others > 0).mean()))
        each.append(float(others.mean()))
    share, mean = float(np.mean(shares)), float(np.mean(each))
    said = f"{share:.0%} of the pairs of a batch have another with the same caption or picture ({mean:.2g} on average)"
    if read.left_out:
        return passed(share, f"{said}; these are left out of the wrong answers")
    if share >= 0.1:
        said += "; all of them count as wrong: set model.contrast.repeats=left-out"
        return (failed if share >= 0.5 else warned)(share, said)
    return passed(share, said)


PICTURE_BATCH_AUDITS: list[Audit] = [picture_captions, false_negatives]
