"""Load labelled texts: rows from a source, a vocabulary learnt on train, and every split as tokens.

Tokens are cached between runs (`data/cache.py`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.errors import UserError, did_you_mean
from headway.data import cache
from headway.data.labelled.held_out import HeldOut, normalised
from headway.data.labelled.sources import FILES, Columns, Splits, read_rows
from headway.data.marks import BETWEEN, Marks
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of one split. Arrays have an element per text, except `ids`, where the tokens of all texts are
    concatenated."""

    texts: list[str]
    labels: np.ndarray
    """int64: the class index of each text."""
    seen: np.ndarray
    """bool: whether the same text, ignoring white space, is in train."""
    ids: np.ndarray
    """int32"""
    ends: np.ndarray
    """int64: where in `ids` each text ends."""
    closing: int = 0
    """How many special tokens end every text; they are kept when a text is truncated."""
    pairs: Marks | None = None
    """The special tokens, if rows hold two texts; then the longer text is truncated."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text."""
        return np.diff(self.ends, prepend=0)

    def only(self, rows: np.ndarray) -> "Texts":
        """A subset of the texts, in this order."""
        begins, lengths = self.ends - self.lengths, self.lengths[rows]
        ids = [self.ids[begins[k] : self.ends[k]] for k in rows]
        some = [self.texts[k] for k in rows]
        return Texts(
            some, self.labels[rows], self.seen[rows], np.concatenate(ids), np.cumsum(lengths), self.closing, self.pairs
        )

    def padded(self, context: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `context` tokens of each text, padded to the longest, and the lengths without padding. Truncated
        texts keep their closing special tokens."""
        lengths = np.minimum(self.lengths, context)
        table = np.zeros((len(self), int(lengths.max())), dtype=np.int32)
        padding_mask = np.arange(table.shape[1]) < lengths[:, None]
        begins = self.ends - self.lengths
        table[padding_mask] = self.ids[(begins[:, None] + np.arange(table.shape[1]))[padding_mask]]
        if self.pairs is not None:
            for k in np.flatnonzero(self.lengths > context):
                texts = self.pairs.taken_apart(self.ids[begins[k] : self.ends[k]])
                table[k, :context] = self.pairs.row(texts, context)[:context]
        elif self.closing and len(cut := np.flatnonzero(self.lengths > context)):
            kept = min(self.closing, context)
            table[cut, context - kept : context] = self.ids[self.ends[cut][:, None] - np.arange(kept, 0, -1)]
        return table, lengths


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Tokenised texts by split, with their vocabulary and classes."""

    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, Texts]
    """By name; "train" is always the first."""
    classes: tuple[str, ...]
    identity: str
    """A fingerprint of everything the tokens and labels depend on."""
    held_out: str
    """A note on what was held out of train because the source has no such split."""

    def split(self, name: str) -> Texts:
        if name not in self.splits:
            hint = did_you_mean(name, self.splits)
            if name == "valid":
                hint += "; with data.valid_fraction=0.1 a tenth of train becomes it"
            raise UserError(f"labelled set '{self.name}' has no split '{name}'{hint}")
        return self.splits[name]


def load(
    source: str,
    path: str | None,
    columns: Columns,
    held_out: HeldOut,
    tokenizer: TokenizerSpec,
    known_as: str | None = None,
) -> LabelledSet:
    """Read the rows and tokenise them, or take the tokens from the cache. The vocabulary is learnt on train only.
    `known_as` is the identity recorded by a run; it identifies older runs, from when tables had no held-out test
    split."""
    rows, told = read_rows(source, path, columns, held_out)
    if known_as is not None and source == FILES and _identity(rows, tokenizer) != known_as:
        before, told_before = read_rows(source, path, columns, HeldOut(held_out.valid, seed=None))
        if _identity(before, tokenizer) == known_as:
            rows, told = before, told_before
    name = Path(path).name if path else source
    identity = _identity(rows, tokenizer)
    classes = tuple(sorted({row.label for row in rows["train"]}, key=_in_order))
    names = [f"{split}/{part}" for split in rows for part in ("ids", "ends")]
    made, arrays = cache.tokenised(f"labelled-{identity}", names, lambda: _tokenise(name, rows, tokenizer))
    in_train = {normalised(row.text) for row in rows["train"]}
    place = {label: k for k, label in enumerate(classes)}
    splits = {
        split: Texts(
            [row.text for row in some],
            np.array([place[row.label] for row in some], dtype=np.int64),
            np.array([normalised(row.text) in in_train for row in some]),
            arrays[f"{split}/ids"],
            arrays[f"{split}/ends"],
            0 if made.marks is None else made.marks.behind,
            made.marks if any(BETWEEN in row.text for row in rows["train"]) else None,
        )
        for split, some in rows.items()
    }
    return LabelledSet(name, made, splits, classes, identity, told)


def _in_order(label: str) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then words."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def _tokenise(name: str, rows: Splits, spec: TokenizerSpec) -> tuple[Tokenizer, cache.MakePieces]:
    tokenizer = spec.learn("\n".join(part for row in rows["train"] for part in row.text.split(BETWEEN)))
    if any(BETWEEN in row.text for row in rows["train"]):
        tokenizer = tokenizer.with_marks()  # a separator must show where one text ends
    arrays = {}
    for split, some in rows.items():
        try:
            encoded = tokenizer.rows_of([row.text for row in some])
        except UserError as problem:
            raise UserError(f"labelled set '{name}', split '{split}', {problem}") from None
        arrays[f"{split}/ids"] = np.concatenate(encoded)
        arrays[f"{split}/ends"] = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    return tokenizer, arrays.items


def _identity(rows: Splits, spec: TokenizerSpec) -> str:
    """A hash (32 hex digits) of everything the tokens and labels depend on."""
    digest = cache.fingerprint(spec)
    for split, some in rows.items():
        digest.update(hashlib.sha256(split.encode()).digest())
        for row in some:
            # Digests have a fixed length, so moving characters between a text, its label or the next row changes the
            # hash.
            for part in row:
                digest.update(hashlib.sha256(part.encode(errors="surrogatepass")).digest())
    return digest.hexdigest()[:32]
