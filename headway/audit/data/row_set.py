"""Rows by split as the audits of data see them: as they are, normalised, and as bags of words."""

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
"""So many rows of train are compared with the others, to see how much alike honest rows of this kind are."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class RowSet:
    """Rows by split, train first; labels beside them if there are any."""

    rows: Mapping[str, Sequence[str]]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    classes: Sequence[str] = ()
    """The classes there should be, if they are known; else those that occur."""

    @property
    def held_out(self) -> list[str]:
        found = [split for split in self.rows if split != "train" and self.rows[split]]
        if not found or not self.rows.get("train"):
            raise DoesNotApply("there is no split beside train to compare with it")
        return found

    @cached_property
    def normalised(self) -> dict[str, list[str]]:
        return {split: [normalise(row) for row in rows] for split, rows in self.rows.items()}

    @cached_property
    def exact(self) -> dict[str, np.ndarray]:
        """Per held-out split: which rows are in train as they are."""
        in_train = {row for row in self.rows["train"] if row.strip()}
        return {s: np.array([row in in_train for row in self.rows[s]], np.bool_) for s in self.held_out}

    @cached_property
    def alike(self) -> dict[str, np.ndarray]:
        """Per held-out split: which rows are in train once both are normalised; rows without a word are in none."""
        in_train = set(self.normalised["train"]) - {""}
        return {s: np.array([row in in_train for row in self.normalised[s]], np.bool_) for s in self.held_out}

    @cached_property
    def bags(self) -> dict[str, Bags]:
        """The words of each normalised row."""
        numbers: dict[str, int] = {}
        return {split: Bags.of_texts(rows, numbers) for split, rows in self.normalised.items()}

    def near(self, split: str, among: str) -> NearCopies:
        """Near copies of the rows of a split in another."""
        return near_copies(self.bags[split], self.bags[among])

    def equal(self, split: str) -> float:
        """How many other rows of the split a row has, on average, that are equal once normalised."""
        times = Counter(text for text in self.normalised[split] if text)
        return sum(count * (count - 1) for count in times.values()) / len(self.normalised[split])

    def resembling(self, split: str, rows: slice) -> float:
        """How many others of these rows a row has, on average, that are near copies but not equal: each counts as much
        as they share, squared."""
        texts, some = (
            self.normalised[split][rows],
            self.bags[split].some(np.arange(*rows.indices(self.bags[split].rows))),
        )
        near = near_copies(some, some, cut=False, skip=lambda row, twin: row == twin)
        other = [texts[row] != texts[twin] for row, twin in zip(near.row, near.twin, strict=True)]
        return float((near.share[np.array(other, np.bool_)] ** 2).sum()) / len(texts)

    @cached_property
    def usual(self) -> float:
        """The share of train rows that have a near copy in train which is not the same text again: what is usual for
        rows of this kind."""
        train, texts = self.bags["train"], self.normalised["train"]
        some = np.array(evenly(train.rows, SAMPLE))
        near = near_copies(train.some(some), train, skip=lambda row, twin: some[row] == twin)
        found = {row for row, twin in zip(near.row, near.twin, strict=True) if texts[some[row]] != texts[twin]}
        return len(found) / len(some)

    def needs_labels(self) -> None:
        if not self.labels.get("train"):
            raise DoesNotApply("the rows have no labels")


def normalise(row: str) -> str:
    """The words alone: no case, no punctuation, no white space but one blank; ligatures and wide letters as usual."""
    return " ".join(words_of(row))


def words_of(text: str) -> list[str]:
    return _WORD.findall((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold())


def shortened(row: str, letters: int = 60) -> str:
    """A row as an example in a sentence."""
    row = " ".join(row.split())
    return f"“{row}”" if len(row) <= letters else f"“{row[: letters - 1].rstrip()}…”"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
