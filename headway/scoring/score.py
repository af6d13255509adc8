"""A number that says what it is."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Confusion:
    """How often each class was taken for each."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """A row per right class, a column per class that was chosen."""


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
            found["confusion"] = {"classes": list(self.confusion.classes), "counts": list(self.confusion.counts)}
        return found

    def to_keep(self) -> dict[str, Any]:
        own = {"rows": self.rows, "counts": self.counts, "texts": self.texts}
        return self.as_json() | {name: part for name, part in own.items() if part is not None}

    @classmethod
    def from_json(cls, name: str, stored: dict[str, Any]) -> "Score":
        """What `as_json` or `to_keep` gave; KeyError or TypeError for anything else."""
        value, interval, confusion = stored["value"], stored.get("interval"), stored.get("confusion")
        if confusion is not None:
            confusion = Confusion(tuple(confusion["classes"]), tuple(tuple(row) for row in confusion["counts"]))
        if interval is not None:
            low, high = interval
            interval = (low, high)
        value = math.nan if value is None else value
        counts, texts = stored.get("counts"), stored.get("texts")
        counts = None if counts is None else tuple(tuple(row) for row in counts)
        texts = None if texts is None else tuple(texts)
        return cls(name, value, stored["label"], interval, confusion, stored.get("rows"), counts, texts)
