"""A score: a number together with a label that says what it measures."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEPARATOR = " · "
"""Separates the parts of a label."""
FEW_CLASSES = 32
"""Confusion matrices of up to so many classes are stored as a full table, larger ones as a list of non-zero cells."""


@dataclass(frozen=True)
class Confusion:
    """A sparse confusion matrix: only non-zero cells are kept, because with n classes most of the n² cells are zero."""

    classes: tuple[str, ...]
    cells: tuple[tuple[int, int, int], ...]
    """(index of the true class, index of the predicted class, count)."""

    @classmethod
    def counted(cls, classes: Sequence[str], right: Iterable[int], chosen: Iterable[int]) -> "Confusion":
        pairs = Counter(zip(right, chosen, strict=True))
        return cls(tuple(classes), tuple((a, b, n) for (a, b), n in sorted(pairs.items())))

    @classmethod
    def of_rows(cls, classes: Sequence[str], counts: Sequence[Sequence[int]]) -> "Confusion":
        cells = ((a, b, int(n)) for a, row in enumerate(counts) for b, n in enumerate(row) if n)
        return cls(tuple(classes), tuple(cells))

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """The dense matrix: a row per true class, a column per predicted class."""
        rows = [[0] * len(self.classes) for _ in self.classes]
        for right, chosen, n in self.cells:
            rows[right][chosen] = n
        return tuple(map(tuple, rows))

    @property
    def totals(self) -> tuple[list[int], list[int], list[int]]:
        """For each class: the number of examples, the number of predictions, and the number of correct predictions."""
        there, taken, hits = ([0] * len(self.classes) for _ in range(3))
        for right, chosen, n in self.cells:
            there[right] += n
            taken[chosen] += n
            hits[right] += n * (right == chosen)
        return there, taken, hits

    def as_json(self) -> dict[str, Any]:
        """A dense table if there are few classes, else the non-zero cells."""
        if len(self.classes) <= FEW_CLASSES:
            return {"classes": list(self.classes), "counts": list(self.counts)}
        return {"classes": list(self.classes), "cells": [list(cell) for cell in self.cells]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Confusion":
        if "counts" in stored:
            return cls.of_rows(stored["classes"], stored["counts"])
        n = len(stored["classes"])
        cells = tuple((int(a), int(b), int(count)) for a, b, count in stored["cells"])
        if any(not (0 <= a < n and 0 <= b < n) for a, b, _ in cells):
            raise ValueError("a confusion cell names a class that does not exist")
        return cls(tuple(stored["classes"]), cells)


@dataclass(frozen=True)
class Score:
    name: str
    """`split.quantity`, such as `valid.perplexity`; `split.quantity.class` for a single class."""
    value: float
    label: str
    """What was measured: the unit, the split, the amount of data, and how it was truncated."""
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval, over other rows from the same source."""
    confusion: Confusion | None = None
    """For an accuracy over several classes: its confusion matrix."""
    rows: str | None = None
    """For an accuracy: a 1 for every correct row and a 0 for the others, in the order of the split. With these, two
    models can be compared row by row without running them again. Stored in the run folder but not printed, because it
    is as long as the split."""
    counts: tuple[tuple[int | float, ...], ...] | None = None
    """For a score computed from sums, such as BLEU: each row's contribution to the sums. Stored like `rows`."""
    texts: tuple[str, ...] | None = None
    """For translations: the output for every source. Stored like `rows`."""

    def as_json(self) -> dict[str, Any]:
        """JSON has neither infinity nor NaN, so both become null."""
        found: dict[str, Any] = {"value": self.value if math.isfinite(self.value) else None, "label": self.label}
        if self.interval is not None:
            found["interval"] = list(self.interval)
        if self.confusion is not None:
            found["confusion"] = self.confusion.as_json()
        return found

    def to_keep(self) -> dict[str, Any]:
        own = {"rows": self.rows, "counts": self.counts, "texts": self.texts}
        return self.as_json() | {name: part for name, part in own.items() if part is not None}

    @classmethod
    def from_json(cls, name: str, stored: dict[str, Any]) -> "Score":
        """Read what `as_json` or `to_keep` wrote; raises KeyError or TypeError for anything else."""
        value, interval, confusion = stored["value"], stored.get("interval"), stored.get("confusion")
        if confusion is not None:
            confusion = Confusion.from_json(confusion)
        if interval is not None:
            low, high = interval
            interval = (low, high)
        value = math.nan if value is None else value
        counts, texts = stored.get("counts"), stored.get("texts")
        counts = None if counts is None else tuple(tuple(row) for row in counts)
        texts = None if texts is None else tuple(texts)
        return cls(name, value, stored["label"], interval, confusion, stored.get("rows"), counts, texts)


def label_of_all(labels: Mapping[str, Sequence[str]]) -> str:
    """Merge the labels of several arms into one: the parts that all arms share, then the parts that only some have.
    Parts that differ between the runs of one arm, such as the number of correct rows, are left out."""
    parts = {arm: [label.split(SEPARATOR) for label in of_runs] for arm, of_runs in labels.items() if of_runs}
    of_arms = {arm: [one for one in runs[0] if all(one in run for run in runs)] for arm, runs in parts.items()}
    common = [one for one in next(iter(of_arms.values()), []) if all(one in own for own in of_arms.values())]
    differing: dict[str, list[str]] = {}
    for arm, own in of_arms.items():
        if only := SEPARATOR.join(one for one in own if one not in common):
            differing.setdefault(only, []).append(arm)
    told = [SEPARATOR.join(common), *(f"{', '.join(arms)}: {only}" for only, arms in differing.items())]
    return "; ".join(one for one in told if one)
