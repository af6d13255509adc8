"""A score: a number that says what it measures."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEPARATOR = " · "
"""Stands between the parts of a label."""
FEW_CLASSES = 32
"""Up to which a confusion is written as a table."""


@dataclass(frozen=True)
class Confusion:
    """How often each class was taken for each: what never happened is not there, for of n classes that is nearly n²."""

    classes: tuple[str, ...]
    cells: tuple[tuple[int, int, int], ...]
    """The right class, the one that was chosen, both by their places among the classes; and how often."""

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
        """A row per right class, a column per class that was chosen."""
        rows = [[0] * len(self.classes) for _ in self.classes]
        for right, chosen, n in self.cells:
            rows[right][chosen] = n
        return tuple(map(tuple, rows))

    @property
    def totals(self) -> tuple[list[int], list[int], list[int]]:
        """Of each class: how many are of it, how many were taken for it, and how many of these rightly."""
        there, taken, hits = ([0] * len(self.classes) for _ in range(3))
        for right, chosen, n in self.cells:
            there[right] += n
            taken[chosen] += n
            hits[right] += n * (right == chosen)
        return there, taken, hits

    def as_json(self) -> dict[str, Any]:
        """Few classes as a table, many as what happened."""
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
            raise ValueError("a class that there is not")
        return cls(tuple(stored["classes"]), cells)


@dataclass(frozen=True)
class Score:
    name: str
    """`split.quantity`, such as `valid.perplexity`; `split.quantity.class` where it is of one class."""
    value: float
    label: str
    """The whole truth: per what, on what, how much of it, how it was cut."""
    interval: tuple[float, float] | None = None
    """Where the value would fall for other rows from the same source, 95 times in 100."""
    confusion: Confusion | None = None
    """Of an accuracy over several classes."""
    rows: str | None = None
    """Of an accuracy: 1 for every row that is right and 0 for the others, in the order of the split. Two models can be
    compared row by row without asking them again. Kept in the run's folder, but not told: it is as long as a split."""
    counts: tuple[tuple[int | float, ...], ...] | None = None
    """Of a score that is made of sums, such as BLEU: what each row adds to them. Kept like `rows`."""
    texts: tuple[str, ...] | None = None
    """Of what is written: the translation of every source. Kept like `rows`."""

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity and no NaN: both are null."""
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
        """What `as_json` or `to_keep` gave; KeyError or TypeError for anything else."""
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
    """One label for several arms, from those of their runs: what all say, then what only some arms do. What the runs
    of one arm say differently, such as how many were right, is true of a run alone, and left out."""
    parts = {arm: [label.split(SEPARATOR) for label in of_runs] for arm, of_runs in labels.items() if of_runs}
    of_arms = {arm: [one for one in runs[0] if all(one in run for run in runs)] for arm, runs in parts.items()}
    common = [one for one in next(iter(of_arms.values()), []) if all(one in own for own in of_arms.values())]
    differing: dict[str, list[str]] = {}
    for arm, own in of_arms.items():
        if only := SEPARATOR.join(one for one in own if one not in common):
            differing.setdefault(only, []).append(arm)
    told = [SEPARATOR.join(common), *(f"{', '.join(arms)}: {only}" for only, arms in differing.items())]
    return "; ".join(one for one in told if one)
