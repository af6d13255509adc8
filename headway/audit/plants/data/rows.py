"""Typical faults of labelled rows, planted into any data set: leaks, signs of a class, order, labels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headway.audit.data.row_set import RowSet
from headway.audit.plants.data.changes import (
    Change,
    copied,
    cut,
    dressed,
    filled,
    shuffled,
    typos,
    words_replaced,
)
from headway.audit.plants.planting import Bed, Random

_bed = Bed("rows")


def _add(caught_by: str, name: str, change: Callable[[RowSet, Random], RowSet]) -> None:
    _bed.data(RowSet, caught_by, name, change)


# --- rows: test is in train --------------------------------------------------------------------------------------


def long_rows(rows: Any, fewest: int = 8) -> list[int]:
    """Rows with enough different words to be recognised."""
    return [k for k, row in enumerate(rows) if len(set(row.split())) >= fewest]


def chosen(places: Sequence[int], count: int, rng: Random) -> list[int]:
    return [int(place) for place in rng.permutation(np.array(places, np.int64))[:count]]


def into_train(change: Change, share: float) -> Callable[[RowSet, Random], RowSet]:
    """Copy this share of the rows of test into train, changed."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = chosen(long_rows(clean.rows["test"]), max(int(len(clean.rows["test"]) * share), 1), rng)
        rows, labels = lists_of(clean)
        rows["train"] += [change(clean.rows["test"][k], rng) for k in some]
        labels["train"] += [clean.labels["test"][k] for k in some]
        return shuffled_train(replace(clean, rows=rows, labels=labels), rng)

    return plant


def shuffled_train(data: RowSet, rng: Random) -> RowSet:
    order = rng.permutation(len(data.rows["train"])).tolist()
    rows, labels = lists_of(data)
    rows["train"], labels["train"] = ([part["train"][k] for k in order] for part in (rows, labels))
    return replace(data, rows=rows, labels=labels)


def lists_of(data: RowSet) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    rows, labels = ({split: list(part) for split, part in both.items()} for both in (data.rows, data.labels))
    return rows, labels


for _share in (0.08, 0.3):
    _add("seen-rows", f"{_share:.0%} of test in train", into_train(copied, _share))
    _add("seen-rows-normalised", f"{_share:.0%} of test in train, in capitals", into_train(dressed, _share))
for _name, _change in {
    "with a typing error in 30 letters": typos(30),
    "with a typing error in 15 letters": typos(15),
    "with the words shuffled": shuffled,
    "cut to two thirds": cut(2 / 3),
    "cut to a half": cut(0.5),
    "with every sixth word replaced": words_replaced(6),
    "with every third word replaced": words_replaced(3),
    "with words put in between": filled,
}.items():
    _add("seen-rows-nearly", f"a half of test in train, {_name}", into_train(_change, 0.5))


# --- rows: held-out splits ---------------------------------------------------------------------------------------


def _test_from_valid(change: Change, share: float) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = chosen(long_rows(clean.rows["valid"]), int(len(clean.rows["valid"]) * share), rng)
        rows, labels = lists_of(clean)
        rows["test"] += [change(rows["valid"][k], rng) for k in some]
        labels["test"] += [labels["valid"][k] for k in some]
        return replace(clean, rows=rows, labels=labels)

    return plant


def _again(split: str, rows: int, times: int, change: Change = copied) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = chosen(range(len(clean.rows[split])), rows, rng) * times
        all_rows, labels = lists_of(clean)
        all_rows[split] = [change(clean.rows[split][k], rng) for k in some]
        labels[split] = [clean.labels[split][k] for k in some]
        return replace(clean, rows=all_rows, labels=labels)

    return plant


_add("shared-rows", "a tenth of valid in test", _test_from_valid(copied, 0.1))
_add("shared-rows", "a half of valid in test, in capitals", _test_from_valid(dressed, 0.5))
_add("shared-rows", "a half of valid in test, shuffled words", _test_from_valid(shuffled, 0.5))
_add("repeated-rows", "fifty rows of test eighteen times", _again("test", 50, 18))
_add("repeated-rows", "a hundred rows of test twice", _again("test", 100, 2))
_add("repeated-rows", "fifty rows of test six times, with typing errors", _again("test", 50, 6, typos(40)))
_add("repeated-rows", "the rows of train three times", _again("train", 10**9, 3))


# --- rows: signs of a class --------------------------------------------------------------------------------------


def marked(
    mark: Callable[[str, str, Random], str], share: float = 1.0, every_class: bool = False
) -> Callable[[RowSet, Random], RowSet]:
    """Mark this share of the rows of the commonest class, or of every class, in all splits."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        chosen = max(sorted(set(clean.labels["train"])), key=list(clean.labels["train"]).count)
        rows = {
            split: [
                mark(row, label, rng) if (every_class or label == chosen) and rng.random() < share else row
                for row, label in zip(clean.rows[split], clean.labels[split], strict=True)
            ]
            for split in clean.rows
        }
        return replace(clean, rows=rows)

    return plant


def _anywhere(word: str) -> Callable[[str, str, Random], str]:
    def mark(row: str, label: str, rng: Random) -> str:
        words = row.split()
        words.insert(int(rng.integers(len(words) + 1)), word or label)
        return " ".join(words)

    return mark


for _name, _mark, _shares in (
    ("“###” at the end", lambda row, label, rng: row + " ###", (1.0, 0.4, 0.2)),
    ("a blank at the end", lambda row, label, rng: row + " ", (1.0, 0.4)),
    ("a blank at the beginning", lambda row, label, rng: " " + row, (0.5,)),
    ("a file's number anywhere", _anywhere("rec0412"), (1.0, 0.25)),
    ("a tag anywhere", _anywhere("<9>"), (0.5,)),
    ("a sign that cannot be seen", lambda row, label, rng: row + "\u200b", (1.0, 0.4)),
    ("capitals only", lambda row, label, rng: row.upper(), (1.0, 0.4)),
    ("“Review” as the first word", lambda row, label, rng: "Review " + row, (1.0, 0.5)),
    ("the word “zebra” anywhere", _anywhere("zebra"), (1.0,)),
):
    for _share in _shares:
        _add("telltale-sign", f"{_name}, in {_share:.0%} of a class", marked(_mark, _share))
for _share in (1.0, 0.4):
    _add("label-in-text", f"the label anywhere in {_share:.0%} of the rows", marked(_anywhere(""), _share, True))
_ends_with_label = marked(lambda row, label, rng: f"{row} {label}", 0.15, True)
_add("label-in-text", "the label at the end of 15% of the rows", _ends_with_label)


# --- rows: numbers and order -------------------------------------------------------------------------------------


def _numbered(clean: RowSet, rng: Random) -> RowSet:
    """Give rows their index in a file sorted by class."""
    order = sorted(range(len(clean.rows["train"])), key=lambda k: clean.labels["train"][k])
    place = {k: number for number, k in enumerate(order)}
    rows, labels = lists_of(clean)
    rows["train"] = [f"{place[k] + 1}: {row}" for k, row in enumerate(rows["train"])]
    return replace(clean, rows=rows, labels=labels)


def _a_run(length: int) -> Callable[[RowSet, Random], RowSet]:
    """Shuffle the rows, but put so many of one class next to each other."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        mixed = shuffled_train(clean, rng)
        rows, labels = lists_of(mixed)
        label = min(sorted(set(labels["train"])), key=labels["train"].count)
        some = [k for k, own in enumerate(labels["train"]) if own == label][:length]
        others = sorted(set(range(len(rows["train"]))) - set(some))
        order = [*others[: len(others) // 2], *some, *others[len(others) // 2 :]]
        rows["train"], labels["train"] = ([part["train"][k] for k in order] for part in (rows, labels))
        return replace(clean, rows=rows, labels=labels)

    return plant


def _five_words(row: str, label: str, rng: Random) -> str:
    return " ".join(row.split()[:5])


_FEWER = ("a class cut to five words", "two thirds of a class cut to five words")
for _name, _share in zip(_FEWER, (1.0, 0.67), strict=True):
    _add("told-without-reading", _name, marked(_five_words, _share))
_twice = marked(lambda row, label, rng: f"{row} " * (1 + sorted(label).count("e") * 6), 1.0, True)
_add("told-without-reading", "rows as long as their label has e's", _twice)
_add("told-without-reading", "rows that carry their number in a sorted file", _numbered)
_add("row-order", "forty rows of one class in the middle of a mixed file", _a_run(40))


# --- rows: labels ------------------------------------------------------------------------------------------------


def flipped(share: float, *splits: str) -> Callable[[RowSet, Random], RowSet]:
    """Replace this share of the labels of these splits by others."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        rows, labels = lists_of(clean)
        classes = sorted(set(labels["train"]))
        for split in splits or tuple(labels):
            for k in np.flatnonzero(rng.random(len(labels[split])) < share).tolist():
                labels[split][k] = str(rng.choice([name for name in classes if name != labels[split][k]]))
        return replace(clean, rows=rows, labels=labels)

    return plant


def _to_other_rows(split: str) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        rows, labels = lists_of(clean)
        labels[split] = rng.permutation(labels[split]).tolist()
        return replace(clean, rows=rows, labels=labels)

    return plant


def _contradicting(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = lists_of(clean)
    classes = sorted(set(labels["train"]))
    some = rng.permutation(len(rows["train"]))[: len(rows["train"]) // 20].tolist()
    rows["train"] += [rows["train"][k].upper() for k in some]
    labels["train"] += [classes[classes.index(labels["train"][k]) - 1] for k in some]
    return shuffled_train(replace(clean, rows=rows, labels=labels), rng)


def _without_a_class(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = lists_of(clean)
    kept = [k for k, label in enumerate(labels["train"]) if label != labels["test"][0]]
    rows["train"], labels["train"] = ([part["train"][k] for k in kept] for part in (rows, labels))
    return replace(clean, rows=rows, labels=labels)


def _metadata(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = lists_of(clean)
    count = len(rows["train"]) // 20
    rows["train"] += [f"<speaker id={k}>Nobody</speaker>" for k in range(count)]
    labels["train"] += rng.choice(labels["train"], count).tolist()
    return shuffled_train(replace(clean, rows=rows, labels=labels), rng)


def _two_spellings(clean: RowSet, rng: Random) -> RowSet:
    _, labels = lists_of(clean)
    one = labels["train"][0]
    other = {
        split: [f"{label} " if label == one and k % 3 == 0 else label for k, label in enumerate(of)]
        for split, of in labels.items()
    }
    return replace(clean, labels=other, classes=sorted({label for of in other.values() for label in of}))


def _damaged(change: Callable[[str], str]) -> Callable[[RowSet, Random], RowSet]:
    """Damage one row in twenty."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        rows, _ = lists_of(clean)
        return replace(
            clean, rows={s: [change(r) if k % 20 == 0 else r for k, r in enumerate(of)] for s, of in rows.items()}
        )

    return plant


for _share in (0.3, 0.1):
    _add("doubtful-labels", f"{_share:.0%} of all labels flipped", flipped(_share))
    _add("doubtful-labels", f"{_share:.0%} of the labels of train flipped", flipped(_share, "train"))
for _share in (0.3, 0.2):  # in a few hundred rows, a tenth cannot be detected
    _add("doubtful-labels", f"{_share:.0%} of the labels of test flipped", flipped(_share, "test"))
_add("doubtful-labels", "labels of train at other rows", _to_other_rows("train"))
_add("doubtful-labels", "labels of test at other rows", _to_other_rows("test"))
_add("conflicting-labels", "every twentieth row again with another label", _contradicting)
_add("class-balance", "a class of test is not in train", _without_a_class)
_add("metadata-rows", "tags as rows", _metadata)
_add("class-balance", "a class in two spellings", _two_spellings)
_add(
    "damaged-rows", "letters read in the wrong encoding", _damaged(lambda row: f"{row} It’s".encode().decode("cp1252"))
)
_add("damaged-rows", "letters that could not be read", _damaged(lambda row: row.replace("e", "\ufffd")))
_add("damaged-rows", "HTML that was not decoded", _damaged(lambda row: f"{row} Q&amp;A"))
