"""Special tokens: where a row begins, where a text ends, what is masked, what is padding.

A vocabulary that has them makes rows of texts as BERT reads them, and others do not:

    [CLS] a text [SEP]
    [CLS] a text [SEP] and another [SEP]        which of the two a token is of tell the [SEP] before it

They are never found in text: who writes "[SEP]" in a review has written five letters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

BETWEEN = " ␞ "
"""What stands between the two texts of a pair, where they are one string."""
NAMES = (("[CLS]", "[SEP]", "[MASK]", "[PAD]"), ("<s>", "</s>", "<mask>", "<pad>"))
"""BERT's, which new vocabularies get; and RoBERTa's."""


@dataclass(frozen=True)
class Marks:
    """The numbers of these tokens."""

    cls: int
    sep: int
    mask: int
    pad: int

    @property
    def all(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def before(self) -> int:
        """How many of them stand before the first text of a row."""
        return 1

    @property
    def behind(self) -> int:
        """How many stand behind the last."""
        return 1

    def room(self, texts: int = 1) -> int:
        """How many of the tokens of a row are marks."""
        return 1 + texts

    def row(self, texts: Sequence[np.ndarray], longest: int | None = None) -> np.ndarray:
        """A text, or a pair, as a row (int32) of at most so many tokens. What is too long is cut at its end, of a pair
        always the longer of the two; the marks stay."""
        left = [len(text) for text in texts]
        for _ in range(max(0, sum(left) + self.room(len(texts)) - longest) if longest is not None else 0):
            longer = max(range(len(left)), key=lambda k: (left[k], k))
            left[longer] = max(0, left[longer] - 1)
        return self.around([text[:length] for text, length in zip(texts, left, strict=True)]).astype(np.int32)

    def taken_apart(self, row: np.ndarray) -> list[np.ndarray]:
        """The texts of a row that `around` has made of several."""
        nothing = row[:0]
        between = self.room(2) - self.before - self.behind
        mark = self.around([nothing, nothing])[self.before]
        inside, texts = row[self.before : len(row) - self.behind], []
        while len(ends := np.flatnonzero(inside == mark)):
            texts.append(inside[: ends[0]])
            inside = inside[ends[0] + between :]
        return [*texts, inside]

    def around(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """The texts as a row, whole."""
        return np.concatenate([[self.cls], *(np.append(text, self.sep) for text in texts)])


@dataclass(frozen=True)
class Template(Marks):
    """Marks that stand elsewhere, or in other numbers: RoBERTa has two of them between texts."""

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
    """Among the special tokens of a vocabulary; None where it has not all of them."""
    for names in NAMES:
        if all(name in special for name in names):
            return Marks(*(special[name] for name in names))
    return None
