"""The scores of classifiers computed a second time, by plain definitions: see `scores/recount.py`."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.audit.scores.recount import CLOSE, Asked, Counted, Recount, file_of, spread
from headway.data.labelled import sources as tables
from headway.data.labelled.sources import KNOWN_TABLES
from headway.data.labelled.tables import Row, labelled_rows
from headway.data.marks import BETWEEN
from headway.data.running.sources import known_files
from headway.data.table_formats import ENDINGS
from headway.data.tokenizers import Tokenizer
from headway.scoring.score import Score


@dataclass(frozen=True)
class RowRecount(Recount):
    rows: Sequence[Row]
    """The rows, read again."""
    train: Sequence[str]
    """Texts."""
    used: Any
    """The rows that the scorer uses."""
    classes: tuple[str, ...]
    tokenizer: Tokenizer
    context: int

    @property
    def whole(self) -> np.ndarray:
        return np.arange(len(self.rows))

    @property
    def parts(self) -> list[np.ndarray]:
        """Evenly spaced rows, and the shortest and longest, which show faults of padding."""
        by_length = np.argsort(self.used.lengths[: len(self.rows)], kind="stable")
        everywhere = np.linspace(0, len(self.rows) - 1, 24).astype(int)
        return [np.unique(np.concatenate([everywhere, by_length[:4], by_length[-4:]]))]

    @property
    def many(self) -> np.ndarray:
        return spread(len(self.rows))

    def counts(self, part: np.ndarray, asked: Asked) -> list[Counted]:
        rows = [self.rows[k] for k in part]
        places = {name: k for k, name in enumerate(self.classes)}
        right = [places[row.label] for row in rows]
        known = {" ".join(text.split()) for text in self.train}
        seen = [" ".join(row.text.split()) in known for row in rows]
        return [self._made_of(chances, right, seen) for chances in self._chances(rows, asked)]

    def _made_of(self, chances: list[list[float]], right: list[int], seen: list[bool]) -> Counted:
        chosen = [max(range(len(said)), key=said.__getitem__) for said in chances]
        of_right = [said[k] for said, k in zip(chances, right, strict=True)]
        nats = np.array([-math.log(chance) if chance > 0 else math.inf for chance in of_right])
        hits = [a == b for a, b in zip(chosen, right, strict=True)]
        values = {"loss": float(nats.mean()), "accuracy": sum(hits) / len(hits)}
        if any(seen) and not all(seen):
            values["accuracy_seen"] = _share(hit for hit, was in zip(hits, seen, strict=True) if was)
            values["accuracy_unseen"] = _share(hit for hit, was in zip(hits, seen, strict=True) if not was)
        for k, name in enumerate(self.classes):
            precision = _share(b == k for a, b in zip(chosen, right, strict=True) if a == k)
            recall = _share(a == k for a, b in zip(chosen, right, strict=True) if b == k)
            values |= {f"precision.{name}": precision, f"recall.{name}": recall}
            values[f"f1.{name}"] = _f1(precision, recall)
        return Counted(values, nats, self._loose(chances, chosen, right, values))

    def _loose(
        self, chances: list[list[float]], chosen: list[int], right: list[int], values: dict[str, float]
    ) -> dict[str, float]:
        """How much rows with two close classes may change the scores of these two."""
        ranked = [sorted(range(len(said)), key=said.__getitem__, reverse=True)[:2] for said in chances]
        close = [two for two, said in zip(ranked, chances, strict=True) if len(two) == 2 and _apart(said, two) < CLOSE]
        found = dict.fromkeys((name for name in values if name.startswith("accuracy")), len(close) / len(chances))
        found |= {name: float(len(close) > 0) for name in ("accuracy_seen", "accuracy_unseen")}
        for k, name in enumerate(self.classes):
            touched = sum(k in two for two in close)
            recall, precision = touched / max(right.count(k), 1), touched / max(chosen.count(k) - touched, 1)
            found |= {f"recall.{name}": recall, f"precision.{name}": precision, f"f1.{name}": recall + precision}
        return found

    @torch.no_grad()
    def _chances(self, rows: Sequence[Row], asked: Asked) -> list[list[list[float]]]:
        """Each replica's probabilities for every row. Rows of equal length are computed together, without padding."""
        ids = self._as_rows(rows, self.context)
        found: list[list[list[float]]] = [[[] for _ in rows] for _ in range(asked.members)]
        for length in {len(one) for one in ids}:
            here = [k for k, one in enumerate(ids) if len(one) == length]
            for first in range(0, len(here), 64):
                some = here[first : first + 64]
                table = torch.as_tensor(np.stack([ids[k] for k in some])).long()
                powers = asked.together(table[None]).double().cpu()
                powers = (powers - powers.amax(-1, keepdim=True)).exp()
                for own, said in zip(found, (powers / powers.sum(-1, keepdim=True)).tolist(), strict=True):
                    for k, chances in zip(some, said, strict=True):
                        own[k] = chances
        return found

    def _as_rows(self, rows: Sequence[Row], longest: int) -> list[np.ndarray]:
        """The tokens of each row, cut, with the tokenizer's special tokens around a text, or around two."""
        marks = self.tokenizer.marks
        if marks is None:
            return [ids[:longest] for ids in self.tokenizer.encode_rows([row.text for row in rows])]
        parts = [row.text.split(BETWEEN) for row in rows]
        flat, found = iter(self.tokenizer.encode_rows([text for row in parts for text in row])), []
        for row in parts:
            texts = [next(flat).tolist() for _ in row]
            empty = marks.around([np.zeros(0, np.int32)] * len(row)).tolist()
            while any(texts) and sum(map(len, texts)) + len(empty) > longest:
                max(reversed(texts), key=len).pop()  # the longer text loses its last token; of equal ones the second
            made = empty[: marks.before] + texts[0]
            for text in texts[1:]:
                made += empty[marks.before : len(empty) - marks.behind] + text
            found.append(np.array((made + empty[len(empty) - marks.behind :])[:longest], dtype=np.int32))
        return found

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """An interval shows how many rows it is from. (95 %, Wilson: https://doi.org/10.1080/01621459.1927.10502953)"""
        n, z, score = len(self.rows), 1.959964, scores.get("accuracy")
        if score is None or score.interval is None:
            return None
        p = score.value
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = ((p + z * z / (2 * n) + sign * half) / (1 + z * z / n) for sign in (-1, 1))
        if max(abs(low - score.interval[0]), abs(high - score.interval[1])) <= 1e-4:
            return None
        said, right = (f"{first:.3f} to {last:.3f}" for first, last in (score.interval, (low, high)))
        return f"an accuracy of {p:.3f} has a stored interval of {said}; for {n:,} rows it should be {right}"

    def given(self, part: np.ndarray) -> Any:
        return self.used.only(part)

    def size(self, part: np.ndarray) -> int:
        return len(part) * self.context

    def compare(self) -> str | None:
        theirs = [(text, self.classes[k]) for text, k in zip(self.used.texts, self.used.labels, strict=True)]
        if len(theirs) != len(self.rows):
            return f"{len(theirs):,} rows are scored, but the source has {len(self.rows):,}"
        if off := sum(tuple(row) != one for row, one in zip(self.rows, theirs, strict=True)):
            return f"{off:,} of the {len(theirs):,} scored rows have another text or class in the source"
        lengths = self.used.lengths
        ids = self._as_rows(self.rows, 10**9)
        if [len(one) for one in ids] != lengths.tolist() or not np.array_equal(np.concatenate(ids), self.used.ids):
            return "the scored tokens are not those of the texts"
        return None


def rows_again(source: str, path: str | None, columns: Any, split: str, used: dict[str, list[Row]]) -> list[Row]:
    """The rows of a split, read again from its table. Those held out of train must be exactly the ones train lacks."""
    names: dict[str, str] = {}
    if source in KNOWN_TABLES:
        known = KNOWN_TABLES[source]
        names, read = known.names, lambda file: labelled_rows(file, known.text, known.label, known.header)
        files: dict[str, Path | None] = {**known_files(source, known.files)}
    elif source == tables.FILES and path is not None:
        folder, read = Path(path).expanduser(), columns.read
        files = {one: file_of(folder, one, ENDINGS) for one in used} if folder.is_dir() else {"train": folder}
    else:
        return used[split]

    def of(file: Path) -> list[Row]:
        return [Row(text, names.get(label, label)) for text, label in read(file)]

    of_train, held_out = files["train"], [one for one in ("valid", "test") if one in used and files.get(one) is None]
    if held_out and split in ("train", *held_out) and of_train is not None:
        others, left = Counter(row for one in ("train", *held_out) if one != split for row in used[one]), []
        for row in of(of_train):
            if others[row]:
                others[row] -= 1
            else:
                left.append(row)
        return left
    file = files.get(split)
    return used[split] if file is None else of(file)


def _apart(said: list[float], two: list[int]) -> float:
    return said[two[0]] - said[two[1]]


def _share(hits: Any) -> float:
    hits = list(hits)
    return sum(hits) / len(hits) if hits else math.nan


def _f1(precision: float, recall: float) -> float:
    """0 if only one of the two is undefined; NaN if both are."""
    if math.isnan(precision) and math.isnan(recall):
        return math.nan
    if math.isnan(precision) or math.isnan(recall) or precision + recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)
