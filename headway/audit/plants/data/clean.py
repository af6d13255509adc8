"""Variants of a data set that are as clean as the original, and must raise no alarm."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from headway.audit.data.row_set import RowSet
from headway.audit.data.text_set import TextSet
from headway.audit.plants.data.rows import chosen, shuffled_train
from headway.audit.plants.planting import Random


def sums() -> RowSet:
    """Spelt-out sums, labelled by sign: rows of three words, very unequal classes, one word that says much."""
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
    """So many rows of each split, among those that `keep` accepts by label and index, in their order."""
    rows, labels = {}, {}
    for split, size in sizes.items():
        there = [k for k, label in enumerate(data.labels[split]) if keep is None or keep(label, k)]
        some = sorted(chosen(there, size, rng))
        rows[split], labels[split] = ([part[split][k] for k in some] for part in (data.rows, data.labels))
    return replace(data, rows=rows, labels=labels)


def clean_rows(data: RowSet, seed: int = 0) -> dict[str, RowSet]:
    """Variants of a set of rows that are as clean as it is."""
    rng = np.random.default_rng(seed)
    whole = {split: len(rows) for split, rows in data.rows.items()}
    classes = sorted(set(data.labels["train"]), key=list(data.labels["train"]).count)
    polite = {split: [*rows, *["Thank you."] * max(len(rows) // 80, 1)] for split, rows in data.rows.items()}
    thanks = {s: [*part, *[classes[-1]] * max(len(part) // 80, 1)] for s, part in data.labels.items()}
    return {
        "as it is": data,
        "shuffled": shuffled_train(data, rng),
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
    """Variants of running text that are as clean as it is, some with natural repetition."""
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
