"""Faults of data as people make them, planted into any set: what the audits of data are tried with.

A plant is a pure function of clean data and a seed, with the audit that is meant to see it. The tests plant all of them
into the embedded sets; the same can be done to one's own data, at its own sizes, to see what is seen there.
The last part makes variants of a set that are as clean as the set itself, and must raise no alarm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from headway.audit.row_set import RowSet
from headway.audit.text import TextSet

Random = np.random.Generator


@dataclass(frozen=True)
class Plant:
    name: str
    kind: Literal["rows", "text"]
    caught_by: str
    """The audit that is meant to see it."""
    plant: Callable[[Any, Random], Any]
    """Of a `RowSet` or a `TextSet`."""

    def into(self, clean: Any, seed: int = 0) -> Any:
        return self.plant(clean, np.random.default_rng(seed))


PLANTS: list[Plant] = []


def _add(kind: Literal["rows", "text"], caught_by: str, name: str, plant: Callable[[Any, Random], Any]) -> None:
    PLANTS.append(Plant(name, kind, caught_by, plant))


# --- what is done to a text ----------------------------------------------------------------------------------------

Change = Callable[[str, Random], str]


def words_replaced(every: int) -> Change:
    """By words that are nowhere else."""

    def change(text: str, rng: Random) -> str:
        parts = re.split(r"(\s+)", text)
        first = int(rng.integers(every))
        for place, k in enumerate(range(0, len(parts), 2)):
            if place % every == first % max(len(parts) // 2, 1):
                parts[k] = f"q{rng.integers(10**6)}x" if rng.random() < 0.5 else parts[k][::-1]
        return "".join(parts)

    return change


def typos(every: int) -> Change:
    """One letter in so many is another, or two are exchanged."""

    def change(text: str, rng: Random) -> str:
        letters = list(text)
        for k in np.flatnonzero(rng.random(len(letters)) < 1 / every).tolist():
            if letters[k].isalpha():
                letters[k] = chr(97 + int(rng.integers(26)))
        return "".join(letters)

    return change


def shuffled(text: str, rng: Random) -> str:
    return " ".join(rng.permutation(text.split()).tolist())


def cut(share: float) -> Change:
    return lambda text, rng: " ".join(text.split()[: max(int(len(text.split()) * share), 3)])


def filled(text: str, rng: Random) -> str:
    """A word after every fourth."""
    return re.sub(r"(\S+\s+\S+\s+\S+\s+\S+)\s", r"\1 actually ", text)


def dressed(text: str, rng: Random) -> str:
    return "  " + re.sub(r"\s+", "  ", text.upper()).replace(".", " …")


def _copy(text: str, rng: Random) -> str:
    return text


def _lower(text: str, rng: Random) -> str:
    return text.lower()


def _bare(text: str, rng: Random) -> str:
    return re.sub(r"[^\w\s]", "", text)


def _a_word_a_line(text: str, rng: Random) -> str:
    return "\n".join(text.split())


# --- rows: test is in train --------------------------------------------------------------------------------------


def _long(rows: Any, fewest: int = 8) -> list[int]:
    """Rows that say enough to be recognised."""
    return [k for k, row in enumerate(rows) if len(set(row.split())) >= fewest]


def _chosen(places: Sequence[int], count: int, rng: Random) -> list[int]:
    return [int(place) for place in rng.permutation(np.array(places, np.int64))[:count]]


def into_train(change: Change, share: float) -> Callable[[RowSet, Random], RowSet]:
    """So many of the rows of test go to train as well, changed."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = _chosen(_long(clean.rows["test"]), max(int(len(clean.rows["test"]) * share), 1), rng)
        rows, labels = _lists(clean)
        rows["train"] += [change(clean.rows["test"][k], rng) for k in some]
        labels["train"] += [clean.labels["test"][k] for k in some]
        return _shuffled_train(replace(clean, rows=rows, labels=labels), rng)

    return plant


def _shuffled_train(data: RowSet, rng: Random) -> RowSet:
    order = rng.permutation(len(data.rows["train"])).tolist()
    rows, labels = _lists(data)
    rows["train"], labels["train"] = ([part["train"][k] for k in order] for part in (rows, labels))
    return replace(data, rows=rows, labels=labels)


def _lists(data: RowSet) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    rows, labels = ({split: list(part) for split, part in both.items()} for both in (data.rows, data.labels))
    return rows, labels


for _share in (0.08, 0.3):
    _add("rows", "seen-rows", f"{_share:.0%} of test in train", into_train(_copy, _share))
    _add("rows", "seen-rows-normalised", f"{_share:.0%} of test in train, in capitals", into_train(dressed, _share))
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
    _add("rows", "seen-rows-nearly", f"a half of test in train, {_name}", into_train(_change, 0.5))


# --- rows: held-out splits ---------------------------------------------------------------------------------------


def _test_from_valid(change: Change, share: float) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = _chosen(_long(clean.rows["valid"]), int(len(clean.rows["valid"]) * share), rng)
        rows, labels = _lists(clean)
        rows["test"] += [change(rows["valid"][k], rng) for k in some]
        labels["test"] += [labels["valid"][k] for k in some]
        return replace(clean, rows=rows, labels=labels)

    return plant


def _again(split: str, rows: int, times: int, change: Change = _copy) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        some = _chosen(range(len(clean.rows[split])), rows, rng) * times
        all_rows, labels = _lists(clean)
        all_rows[split] = [change(clean.rows[split][k], rng) for k in some]
        labels[split] = [clean.labels[split][k] for k in some]
        return replace(clean, rows=all_rows, labels=labels)

    return plant


_add("rows", "shared-rows", "a tenth of valid in test", _test_from_valid(_copy, 0.1))
_add("rows", "shared-rows", "a half of valid in test, in capitals", _test_from_valid(dressed, 0.5))
_add("rows", "shared-rows", "a half of valid in test, shuffled words", _test_from_valid(shuffled, 0.5))
_add("rows", "repeated-rows", "fifty rows of test eighteen times", _again("test", 50, 18))
_add("rows", "repeated-rows", "a hundred rows of test twice", _again("test", 100, 2))
_add("rows", "repeated-rows", "fifty rows of test six times, with typing errors", _again("test", 50, 6, typos(40)))
_add("rows", "repeated-rows", "train three times", _again("train", 10**9, 3))


# --- rows: signs of a class --------------------------------------------------------------------------------------


def marked(
    mark: Callable[[str, str, Random], str], share: float = 1.0, every_class: bool = False
) -> Callable[[RowSet, Random], RowSet]:
    """So many of the rows of a class are marked, in all splits; of the commonest class, or of every class."""

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
        _add("rows", "telltale-sign", f"{_name}, in {_share:.0%} of a class", marked(_mark, _share))
for _share in (1.0, 0.4):
    _add(
        "rows", "label-in-text", f"the label anywhere in {_share:.0%} of the rows", marked(_anywhere(""), _share, True)
    )
_ends_with_label = marked(lambda row, label, rng: f"{row} {label}", 0.15, True)
_add("rows", "label-in-text", "the label at the end of 15% of the rows", _ends_with_label)


# --- rows: numbers and order -------------------------------------------------------------------------------------


def _numbered(clean: RowSet, rng: Random) -> RowSet:
    """Rows that were sorted by class carry their number."""
    order = sorted(range(len(clean.rows["train"])), key=lambda k: clean.labels["train"][k])
    place = {k: number for number, k in enumerate(order)}
    rows, labels = _lists(clean)
    rows["train"] = [f"{place[k] + 1}: {row}" for k, row in enumerate(rows["train"])]
    return replace(clean, rows=rows, labels=labels)


def _a_run(length: int) -> Callable[[RowSet, Random], RowSet]:
    """Shuffled rows, among which so many of one class stand together."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        mixed = _shuffled_train(clean, rng)
        rows, labels = _lists(mixed)
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
    _add("rows", "told-without-reading", _name, marked(_five_words, _share))
_twice = marked(lambda row, label, rng: f"{row} " * (1 + sorted(label).count("e") * 6), 1.0, True)
_add("rows", "told-without-reading", "rows as long as their label has e's", _twice)
_add("rows", "told-without-reading", "rows that carry their number in a sorted file", _numbered)
_add("rows", "row-order", "forty rows of one class in the middle of a mixed file", _a_run(40))


# --- rows: labels ------------------------------------------------------------------------------------------------


def flipped(share: float, *splits: str) -> Callable[[RowSet, Random], RowSet]:
    """So many labels of these splits are others."""

    def plant(clean: RowSet, rng: Random) -> RowSet:
        rows, labels = _lists(clean)
        classes = sorted(set(labels["train"]))
        for split in splits or tuple(labels):
            for k in np.flatnonzero(rng.random(len(labels[split])) < share).tolist():
                labels[split][k] = str(rng.choice([name for name in classes if name != labels[split][k]]))
        return replace(clean, rows=rows, labels=labels)

    return plant


def _to_other_rows(split: str) -> Callable[[RowSet, Random], RowSet]:
    def plant(clean: RowSet, rng: Random) -> RowSet:
        rows, labels = _lists(clean)
        labels[split] = rng.permutation(labels[split]).tolist()
        return replace(clean, rows=rows, labels=labels)

    return plant


def _contradicting(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = _lists(clean)
    classes = sorted(set(labels["train"]))
    some = rng.permutation(len(rows["train"]))[: len(rows["train"]) // 20].tolist()
    rows["train"] += [rows["train"][k].upper() for k in some]
    labels["train"] += [classes[classes.index(labels["train"][k]) - 1] for k in some]
    return _shuffled_train(replace(clean, rows=rows, labels=labels), rng)


def _without_a_class(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = _lists(clean)
    kept = [k for k, label in enumerate(labels["train"]) if label != labels["test"][0]]
    rows["train"], labels["train"] = ([part["train"][k] for k in kept] for part in (rows, labels))
    return replace(clean, rows=rows, labels=labels)


def _metadata(clean: RowSet, rng: Random) -> RowSet:
    rows, labels = _lists(clean)
    count = len(rows["train"]) // 20
    rows["train"] += [f"<speaker id={k}>Nobody</speaker>" for k in range(count)]
    labels["train"] += rng.choice(labels["train"], count).tolist()
    return _shuffled_train(replace(clean, rows=rows, labels=labels), rng)


for _share in (0.3, 0.1):
    _add("rows", "doubtful-labels", f"{_share:.0%} of all labels flipped", flipped(_share))
    _add("rows", "doubtful-labels", f"{_share:.0%} of the labels of train flipped", flipped(_share, "train"))
for _share in (0.3, 0.2):  # in a few hundred rows, a tenth cannot be told
    _add("rows", "doubtful-labels", f"{_share:.0%} of the labels of test flipped", flipped(_share, "test"))
_add("rows", "doubtful-labels", "labels of train at other rows", _to_other_rows("train"))
_add("rows", "doubtful-labels", "labels of test at other rows", _to_other_rows("test"))
_add("rows", "conflicting-labels", "every twentieth row again with another label", _contradicting)
_add("rows", "class-balance", "a class of test is not in train", _without_a_class)
_add("rows", "metadata-rows", "tags as rows", _metadata)


# --- running text ------------------------------------------------------------------------------------------------


def held_out_from_train(change: Change, share: float = 1.0) -> Callable[[TextSet, Random], TextSet]:
    """Valid is a slice of train, changed; or only a part of it is."""

    def plant(clean: TextSet, rng: Random) -> TextSet:
        train, valid = clean.texts["train"], clean.texts["valid"]
        size = int(min(len(valid), len(train) // 4) * share)
        first = int(rng.integers(len(train) - size))
        slice_ = change(train[first : first + size], rng)
        return TextSet({**clean.texts, "valid": slice_ + "\n" + valid[int(len(valid) * share) :]})

    return plant


def _into_train(change: Change, share: float) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        part = clean.texts["test"][: int(len(clean.texts["test"]) * share)]
        return TextSet({**clean.texts, "train": clean.texts["train"] + "\n" + change(part, rng)})

    return plant


def _into_valid(change: Change, share: float) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        part = clean.texts["test"][: int(len(clean.texts["test"]) * share)]
        return TextSet({**clean.texts, "valid": clean.texts["valid"] + "\n" + change(part, rng)})

    return plant


def _page_again(split: str, share: float, times: int) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        text = clean.texts[split]
        return TextSet({**clean.texts, split: "\n".join([text[: int(len(text) * share)]] * times)})

    return plant


def _every_line(every: int) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        lines = clean.texts["train"].splitlines()
        rest = "\n".join(line for k, line in enumerate(lines) if k % every)
        return TextSet({"train": rest, "valid": "\n".join(lines[::every])})

    return plant


def _lines_shuffled(text: str, rng: Random) -> str:
    return "\n".join(rng.permutation(text.splitlines()).tolist())


for _name, _change in {
    "as it is": _copy,
    "in small letters": _lower,
    "without punctuation": _bare,
    "with a word a line": _a_word_a_line,
}.items():
    _add("text", "repeated-text", f"valid is a slice of train, {_name}", held_out_from_train(_change))
for _share in (0.5, 0.2):
    _add("text", "repeated-text", f"{_share:.0%} of valid is train", held_out_from_train(_lower, _share))
    _add("text", "repeated-text", f"{_share:.0%} of test is in train", _into_train(_copy, _share))
for _name, _change in {
    "every sixth word replaced": words_replaced(6),
    "every fourth word replaced": words_replaced(4),
    "every third word replaced": words_replaced(3),
    "with a typing error in 20 letters": typos(20),
    "with words put in between": filled,
    "with the words of each line shuffled": lambda text, rng: "\n".join(shuffled(x, rng) for x in text.splitlines()),
}.items():
    _add("text", "nearly-repeated-text", f"valid is a slice of train, {_name}", held_out_from_train(_change))
_add("text", "repeated-text", "valid is lines of a slice of train, shuffled", held_out_from_train(_lines_shuffled))
_add("text", "nearly-repeated-text", "a half of test in train, rewritten", _into_train(words_replaced(5), 0.5))
_add("text", "shared-text", "a third of test in valid", _into_valid(_copy, 0.33))
_add("text", "shared-text", "a half of test in valid, in small letters", _into_valid(_lower, 0.5))
_add("text", "shared-text", "all of test in valid, every sixth word replaced", _into_valid(words_replaced(6), 1.0))
_add("text", "repeated-within", "a tenth of valid ten times", _page_again("valid", 0.1, 10))
_add("text", "repeated-within", "a half of test twice", _page_again("test", 0.5, 2))
_add("text", "repeated-within", "train three times", _page_again("train", 1.0, 3))
_add("text", "split-by-line", "every tenth line held out", _every_line(10))
_add("text", "split-by-line", "every fiftieth line held out", _every_line(50))


# --- clean variants ----------------------------------------------------------------------------------------------


def sums() -> RowSet:
    """Sums in words, by their sign: rows of three words, classes of very different size, one word that tells much."""
    numerals = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    names = numerals.split(" ")
    rows, labels = [], []
    for a, first in enumerate(names):
        for b, second in enumerate(names):
            for sign, result in (("plus", a + b), ("minus", a - b)):
                rows.append(f"{first} {sign} {second}")
                labels.append("zero" if result == 0 else "positive" if result > 0 else "negative")
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    rows, labels = ([part[k] for k in order] for part in (rows, labels))
    cuts = {"train": slice(0, 380), "valid": slice(380, 440), "test": slice(440, None)}
    return RowSet({s: rows[c] for s, c in cuts.items()}, {s: labels[c] for s, c in cuts.items()})


def some_of(
    data: RowSet, sizes: Mapping[str, int], rng: Random, keep: Callable[[str, int], bool] | None = None
) -> RowSet:
    """So many rows of each split, of those that are kept (by their label and number), in their order."""
    rows, labels = {}, {}
    for split, size in sizes.items():
        there = [k for k, label in enumerate(data.labels[split]) if keep is None or keep(label, k)]
        some = sorted(_chosen(there, size, rng))
        rows[split], labels[split] = ([part[split][k] for k in some] for part in (data.rows, data.labels))
    return replace(data, rows=rows, labels=labels)


def clean_rows(data: RowSet, seed: int = 0) -> dict[str, RowSet]:
    """Variants of a set that are as clean as it is."""
    rng = np.random.default_rng(seed)
    whole = {split: len(rows) for split, rows in data.rows.items()}
    classes = sorted(set(data.labels["train"]), key=list(data.labels["train"]).count)
    polite = {split: [*rows, *["Thank you."] * max(len(rows) // 80, 1)] for split, rows in data.rows.items()}
    thanks = {s: [*part, *[classes[-1]] * max(len(part) // 80, 1)] for s, part in data.labels.items()}
    return {
        "as it is": data,
        "shuffled": _shuffled_train(data, rng),
        "600 rows of train": some_of(data, whole | {"train": 600}, rng),
        "300 rows of train": some_of(data, whole | {"train": 300}, rng),
        "100 rows": some_of(data, dict.fromkeys(whole, 100), rng),
        "50 rows": some_of(data, dict.fromkeys(whole, 50), rng),
        "two classes": some_of(data, whole, rng, lambda label, k: label in classes[-2:]),
        "one class with a sixth of its rows": some_of(
            data, whole, rng, lambda label, k: label != classes[-1] or k % 6 == 0
        ),
        "a thanks now and then": replace(data, rows=polite, labels=thanks),
        "small letters": replace(data, rows={s: [row.lower() for row in part] for s, part in data.rows.items()}),
        "first sentences": replace(data, rows={s: [r.split(". ")[0] for r in part] for s, part in data.rows.items()}),
        "no labels": replace(data, labels={}),
        "sums": sums(),
    }


def clean_texts(data: TextSet, seed: int = 0) -> dict[str, TextSet]:
    """Variants of running text that are as clean as it is; with what is naturally said again and again."""
    texts = data.texts
    licence = "Permission is granted, free of charge, to anybody who gets a copy of this text, to use and change it.\n"
    refrain = "\nSo fare you well, my own true love, and when I return, united we will be.\n"

    def with_every(what: str, letters: int) -> dict[str, str]:
        return {s: what.join(t[k : k + letters] for k in range(0, len(t), letters)) for s, t in texts.items()}

    return {
        "as it is": data,
        "a third of train": TextSet({**texts, "train": texts["train"][: len(texts["train"]) // 3]}),
        "a tenth of train": TextSet({**texts, "train": texts["train"][-len(texts["train"]) // 10 :]}),
        "two thirds of each split": TextSet({split: text[: len(text) * 2 // 3] for split, text in texts.items()}),
        "small letters": TextSet({split: text.lower() for split, text in texts.items()}),
        "a licence now and then": TextSet(with_every(licence, 20_000)),
        "a refrain": TextSet(with_every(refrain, 3_000)),
        "valid alone": TextSet({split: texts[split] for split in ("train", "valid")}),
        "little text": TextSet({split: text[:8_000] for split, text in texts.items()}),
    }
