"""Rows by split, in the forms that the data audits compare: as they are, normalised, and as bags of words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headway.audit.audit import DoesNotApply
from headway.audit.data.near_copies import Bags, NearCopies, evenly, near_copies

SAMPLE = 1000
"""How many rows of train are compared with the rest, to see how many near copies are usual for this kind of data."""
_WORD = re.compile(r"\w+|[-+*/^%=<>×÷−](?=\s*\d)")
"""A word, or an operator before a number: 3 + 4 and 3 - 4 differ."""


def held_out_of(splits: Mapping[str, Sequence[object]]) -> list[str]:
    """The splits that are compared with train: all others that have rows."""
    found = [split for split in splits if split != "train" and splits[split]]
    if not found or not splits.get("train"):
        raise DoesNotApply("there is no split other than train to compare with")
    return found


@dataclass(frozen=True, eq=False)
class RowSet:
    """Rows by split, train first, and their labels if there are any."""

    rows: Mapping[str, Sequence[str]]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    classes: Sequence[str] = ()
    """The classes there should be, if known; else those that occur."""

    @property
    def held_out(self) -> list[str]:
        return held_out_of(self.rows)

    @cached_property
    def normalised(self) -> dict[str, list[str]]:
        return {split: [normalise(row) for row in rows] for split, rows in self.rows.items()}

    @cached_property
    def exact(self) -> dict[str, np.ndarray]:
        """Per held-out split: which rows are in train exactly as they are."""
        in_train = {row for row in self.rows["train"] if row.strip()}
        return {s: np.array([row in in_train for row in self.rows[s]], np.bool_) for s in self.held_out}

    @cached_property
    def alike(self) -> dict[str, np.ndarray]:
        """Per held-out split: which rows are in train once both are normalised; rows without words do not count."""
        in_train = set(self.normalised["train"]) - {""}
        return {s: np.array([row in in_train for row in self.normalised[s]], np.bool_) for s in self.held_out}

    @cached_property
    def bags(self) -> dict[str, Bags]:
        """The set of words of each normalised row."""
        numbers: dict[str, int] = {}
        return {split: Bags.of_texts(rows, numbers) for split, rows in self.normalised.items()}

    def near(self, split: str, among: str) -> NearCopies:
        """Near copies of the rows of one split in another."""
        return near_copies(self.bags[split], self.bags[among])

    def equal(self, split: str) -> float:
        """The mean number of other rows of the split that equal a row once normalised."""
        times = Counter(text for text in self.normalised[split] if text)
        return sum(count * (count - 1) for count in times.values()) / len(self.normalised[split])

    def resembling(self, split: str, rows: slice) -> float:
        """The mean number of other rows among these that are near copies of a row but not equal; each counts by its
        squared share of overlap."""
        texts, some = (
            self.normalised[split][rows],
            self.bags[split].some(np.arange(*rows.indices(self.bags[split].rows))),
        )
        near = near_copies(some, some, cut=False, skip=lambda row, twin: row == twin)
        other = [texts[row] != texts[twin] for row, twin in zip(near.row, near.twin, strict=True)]
        return float((near.share[np.array(other, np.bool_)] ** 2).sum()) / len(texts)

    @cached_property
    def usual(self) -> float:
        """The share of train rows with a near copy in train that is not the same text: what is usual for this kind of
        data."""
        train, texts = self.bags["train"], self.normalised["train"]
        some = np.array(evenly(train.rows, SAMPLE))
        near = near_copies(train.some(some), train, skip=lambda row, twin: some[row] == twin)
        found = {row for row, twin in zip(near.row, near.twin, strict=True) if texts[some[row]] != texts[twin]}
        return len(found) / len(some)

    def needs_labels(self) -> None:
        if not self.labels.get("train"):
            raise DoesNotApply("the rows have no labels")


def normalise(row: str) -> str:
    """The words and operators before numbers, case-folded, in NFKC, without punctuation, separated by single blanks."""
    return " ".join(words_of(row))


def words_of(text: str) -> list[str]:
    return _WORD.findall((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold())


def shortened(row: str, letters: int = 60) -> str:
    """A row, cut to fit as an example in a sentence."""
    row = " ".join(row.split())
    return f"“{row}”" if len(row) <= letters else f"“{row[: letters - 1].rstrip()}…”"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
