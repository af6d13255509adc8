"""Load pictures and captions: read from a source, resized, captions tokenised.

The result is cached between runs (`data/cache.py`), under a hash of the files.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, UInt8

from headway.core.errors import UserError, did_you_mean
from headway.data import cache
from headway.data.images.sources import Splits, read_pictures
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec


@dataclass(frozen=True, eq=False)
class CaptionedPictures:
    """The pairs of one split, each a picture and a caption. Arrays have an element per pair, except those of pictures
    and `ids`, where the tokens of all captions are concatenated."""

    pixels: UInt8[np.ndarray, "P 3 S S"]
    names: list[str]
    """The name of each picture."""
    classes: Int[np.ndarray, " P"] | None
    """The class of each picture, if they have classes instead of captions."""
    picture: Int[np.ndarray, " N"]
    """The index of the picture."""
    captions: list[str]
    caption: Int[np.ndarray, " N"]
    """An id of the caption's text; equal captions have equal ids, also across splits."""
    seen: Bool[np.ndarray, " N"]
    """Whether the same caption is in train."""
    ids: Int[np.ndarray, " T"]
    """int32, without END."""
    ends: Int[np.ndarray, " N"]
    """Where in `ids` each caption ends."""

    def __len__(self) -> int:
        return len(self.picture)

    @property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Number of tokens of each caption, without END."""
        return np.diff(self.ends, prepend=0)

    def only(self, rows: np.ndarray) -> "CaptionedPictures":
        """A subset of the pairs, in this order; the pictures keep their indices."""
        begins = self.ends - self.lengths
        ids = [self.ids[begins[k] : self.ends[k]] for k in rows]
        return replace(
            self,
            picture=self.picture[rows],
            captions=[self.captions[k] for k in rows],
            caption=self.caption[rows],
            seen=self.seen[rows],
            ids=np.concatenate([np.zeros(0, np.int32), *ids]),
            ends=np.cumsum(self.lengths[rows]),
        )

    def padded(self, context: int, end: int) -> tuple[Int[np.ndarray, "N L"], Int[np.ndarray, " N"]]:
        """Captions with END, padded to the longest, and the lengths without padding. Long captions are truncated but
        keep END."""
        begins = self.ends - self.lengths
        return with_end([self.ids[b:e] for b, e in zip(begins, self.ends, strict=True)], context, end)


def with_end(captions: list[np.ndarray], context: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """A padded table of captions, each with at most `context` tokens including END, and the lengths."""
    lengths = np.array([min(len(one), context - 1) + 1 for one in captions], dtype=np.int64)
    table = np.zeros((len(captions), int(lengths.max())), dtype=np.int32)
    for row, one, length in zip(table, captions, lengths, strict=True):
        row[: length - 1] = one[: length - 1]
        row[length - 1] = end
    return table, lengths


@dataclass(frozen=True, eq=False)
class PictureSet:
    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, CaptionedPictures]
    """By name; "train" is always the first."""
    classes: tuple[str, ...] | None
    """The classes, if pictures have classes instead of captions."""
    size: int
    """Height and width in pixels."""
    identity: str
    """A fingerprint of everything that pictures and tokens depend on."""
    held_out: bool
    """Whether `valid` was held out of train because the source has none."""
    notes: tuple[str, ...] = ()

    def split(self, name: str) -> CaptionedPictures:
        if name not in self.splits:
            hint = did_you_mean(name, self.splits)
            if name == "valid":
                hint += "; with data.valid_fraction=0.1 a tenth of train becomes it"
            raise UserError(f"the pictures '{self.name}' have no split '{name}'{hint}")
        return self.splits[name]


def load(
    source: str,
    path: str | None,
    size: int,
    template: str,
    rows: int | None,
    valid_fraction: float,
    tokenizer: TokenizerSpec,
) -> PictureSet:
    """Read pictures and captions, or take them from the cache. The vocabulary is learnt on train only."""
    raw, held_out = read_pictures(source, path, template, valid_fraction, rows)
    name, identity = Path(path).name if path else source, _identity(raw, size, tokenizer)
    names = [f"{split}/{part}" for split in raw for part in ("ids", "ends", "pixels")]
    made, arrays = cache.tokenised(f"pictures-{identity}", names, lambda: _made(raw, size, tokenizer))
    classes = raw["train"].classes
    known = None if classes is None else tuple(sorted(set(classes)))
    numbers: dict[str, int] = {}
    splits = {}
    for split, some in raw.items():
        captions = [caption for _, caption in some.pairs]
        caption = np.array([numbers.setdefault(one, len(numbers)) for one in captions], dtype=np.int64)
        of_train = caption if split == "train" else splits["train"].caption
        splits[split] = CaptionedPictures(
            arrays[f"{split}/pixels"],
            some.names,
            None if known is None else np.array([known.index(one) for one in some.classes or ()], dtype=np.int64),
            np.array([k for k, _ in some.pairs], dtype=np.int64),
            captions,
            caption,
            np.isin(caption, of_train),
            arrays[f"{split}/ids"],
            arrays[f"{split}/ends"],
        )
    notes = tuple(note for some in raw.values() for note in some.notes)
    return PictureSet(name, made, splits, known, size, identity, held_out, notes)


def _made(raw: Splits, size: int, spec: TokenizerSpec) -> tuple[Tokenizer, cache.MakePieces]:
    tokenizer = spec.learn("\n".join(caption for _, caption in raw["train"].pairs))
    arrays = {}
    for split, some in raw.items():
        encoded = tokenizer.encode_rows([caption for _, caption in some.pairs])
        arrays[f"{split}/ids"] = np.concatenate(encoded)
        arrays[f"{split}/ends"] = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
        arrays[f"{split}/pixels"] = some.pixels(size)
    return tokenizer, arrays.items


def _identity(raw: Splits, size: int, spec: TokenizerSpec) -> str:
    """A hash (32 hex digits) of everything that pictures and tokens depend on."""
    digest = cache.fingerprint(spec)
    for split, some in raw.items():
        digest.update(f"{split} {size} {some.digest} {len(some.pairs)}\n".encode())
        for k, caption in some.pairs:
            digest.update(f"{k} ".encode() + hashlib.sha256(caption.encode(errors="surrogatepass")).digest())
        digest.update(hashlib.sha256(repr(some.classes).encode()).digest())
    return digest.hexdigest()[:32]
