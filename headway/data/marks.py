"""Special tokens: beginning of a row, end of a text, mask, padding.

With them, texts become rows as in BERT:

    [CLS] a text [SEP]
    [CLS] a text [SEP] and another [SEP]        a [SEP] before a token means that it is of the second text

Text never contains them: "[SEP]" in a review is read as five characters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

BETWEEN = " ␞ "
"""Separates the texts of a pair in one string."""
NAMES = (("[CLS]", "[SEP]", "[MASK]", "[PAD]"), ("<s>", "</s>", "<mask>", "<pad>"))
"""BERT's names, which new vocabularies get, and RoBERTa's."""


@dataclass(frozen=True)
class Marks:
    """The ids of the special tokens."""

    cls: int
    sep: int
    mask: int
    pad: int

    @property
    def all(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def before(self) -> int:
        """How many special tokens precede the first text of a row."""
        return 1

    @property
    def behind(self) -> int:
        """How many follow the last text."""
        return 1

    def room(self, texts: int = 1) -> int:
        """How many tokens of a row are special tokens."""
        return 1 + texts

    def row(self, texts: Sequence[np.ndarray], longest: int | None = None) -> np.ndarray:
        """A text or a pair as a row (int32) of at most `longest` tokens. Texts are truncated at the end, of a pair
        always the longer one; special tokens are kept."""
        left = [len(text) for text in texts]
        for _ in range(max(0, sum(left) + self.room(len(texts)) - longest) if longest is not None else 0):
            longer = max(range(len(left)), key=lambda k: (left[k], k))
            left[longer] = max(0, left[longer] - 1)
        return self.around([text[:length] for text, length in zip(texts, left, strict=True)]).astype(np.int32)

    def taken_apart(self, row: np.ndarray) -> list[np.ndarray]:
        """Split a row made by `around` into its texts."""
        nothing = row[:0]
        between = self.room(2) - self.before - self.behind
        mark = self.around([nothing, nothing])[self.before]
        inside, texts = row[self.before : len(row) - self.behind], []
        while len(ends := np.flatnonzero(inside == mark)):
            texts.append(inside[: ends[0]])
            inside = inside[ends[0] + between :]
        return [*texts, inside]

    def around(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """The texts as a row with special tokens, without truncation."""
        return np.concatenate([[self.cls], *(np.append(text, self.sep) for text in texts)])


@dataclass(frozen=True)
class Template(Marks):
    """Special tokens in other places or numbers: RoBERTa has two of them between texts."""

    first: tuple[int, ...]
    between: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        known = (self.cls, self.sep, self.mask, self.pad, *self.first, *self.between, *self.last)
        return tuple(dict.fromkeys(mark for mark in known if mark >= 0))

    @property
    def before(self) -> int:
        return len(self.first)

    @property
    def behind(self) -> int:
        return len(self.last)

    def room(self, texts: int = 1) -> int:
        return len(self.first) + (texts - 1) * len(self.between) + len(self.last)

    def around(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        parts: list[Any] = [self.first]
        for k, text in enumerate(texts):
            parts += [text, self.last if k == len(texts) - 1 else self.between]
        return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])


def found_in(special: Mapping[str, int]) -> Marks | None:
    """The special tokens of a vocabulary; None if some are missing."""
    for names in NAMES:
        if all(name in special for name in names):
            return Marks(*(special[name] for name in names))
    return None
