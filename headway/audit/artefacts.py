"""Audits of artefacts: what tells the class of a row without being what the row says.

A sign that one class has (signs.py), rows cut at another length, a number that counts the rows: a model finds it in an
hour, gets a splendid score, and has learnt nothing. Each audit asks what one such thing predicts, beside chance.
"""

import re

import numpy as np

from headway.audit.audit import Audit, Outcome, audit, failed, passed, warned
from headway.audit.row_set import RowSet, listed
from headway.audit.signs import FEWEST_ROWS, SIGN_AUDITS, Labels, train_of

NUMBERS = (
    "letters",
    "words",
    "letters per word",
    "capitals",
    "punctuation",
    "digits",
    "the number it begins with",
    "the number it ends with",
)


def numbers_of(row: str) -> list[float]:
    words, letters = row.split(), max(len(row), 1)
    first, last = re.match(r"\W*(\d+)", row), re.search(r"(\d+)\W*$", row[-40:])
    return [
        float(len(row)),
        float(len(words)),
        sum(map(len, words)) / max(len(words), 1),
        sum(map(str.isupper, row)) / letters,
        sum(not letter.isalnum() and not letter.isspace() for letter in row) / letters,
        sum(map(str.isdigit, row)) / letters,
        float(first[1][:15]) if first else -1.0,
        float(last[1][:15]) if last else -1.0,
    ]


@audit("data")
def told_without_reading(data: RowSet) -> Outcome:
    """How long a row is, and other numbers that need no reading, do not tell its class.

    Such numbers are the letters and words of a row, letters per word, the shares of capitals, punctuation and digits,
    and the number it begins or ends with. Each is cut into ten bins, and the class answered for which a bin is most
    typical, learnt on one half of train and tried on the other. The number is the mean of the recalls of all classes,
    scaled so that chance is 0 and certainty 1. Honest sets have up to 0.14 (sums, by their letters). 0.2 is a
    warning, 0.5 a failure, unless labels that are dealt anew do nearly as well: rows of the classes were cut, cleaned
    or numbered in different ways. Treat all of them alike.
    """
    rows, labels, classes = train_of(data)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rows))
    values, labels = np.array([numbers_of(rows[k]) for k in order]), labels[order]
    skill = [_skill(column, labels, len(classes)) for column in values.T]
    best = int(np.argmax(skill))
    by_chance = max(_skill(values[:, best], rng.permutation(labels), len(classes)) for _ in range(20))
    share = max(skill[best], 0.0)
    what = f"{NUMBERS[best]} alone" if best < 2 else f"the share of {NUMBERS[best]}" if best < 6 else NUMBERS[best]
    what = "letters per word alone" if best == 2 else what
    recall = 1 / len(classes) + share * (1 - 1 / len(classes))
    middle = [float(np.median(values[labels == k, best])) for k in range(len(classes))]
    low, high = int(np.argmin(middle)), int(np.argmax(middle))
    sentence = f"by {what}, {recall:.0%} of the rows of a class are told, where chance is {1 / len(classes):.0%}"
    if share < 0.2 or share < by_chance + 0.1:
        return passed(share, sentence)
    sentence += f" (half of '{classes[low]}' have {middle[low]:.3g} or less"
    sentence += f", half of '{classes[high]}' {middle[high]:.3g} or more)"
    return (failed if share >= 0.5 else warned)(share, sentence)


def _skill(values: np.ndarray, labels: Labels, classes: int) -> float:
    """The mean recall of answering by one number, scaled: chance 0, certainty 1."""
    right = np.zeros(len(labels), np.bool_)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - (half.start or 0), None, 2)
        edges = np.unique(np.quantile(values[half], np.linspace(0.1, 0.9, 9)))
        counts = np.zeros((len(edges) + 1, classes))
        np.add.at(counts, (np.searchsorted(edges, values[half], "right"), labels[half]), 1)
        typical = ((counts + 0.5) / (counts.sum(0) + 0.5 * len(counts))).argmax(1)
        right[other] = typical[np.searchsorted(edges, values[other], "right")] == labels[other]
    recall = np.mean([right[labels == k].mean() for k in range(classes) if (labels == k).any()])
    return float((recall - 1 / classes) / (1 - 1 / classes))


@audit("data")
def row_order(data: RowSet) -> Outcome:
    """No stretch of an otherwise mixed split is of one class.

    Files that are sorted by class are common and do no harm here, because the rows of train are shuffled anew in every
    epoch and scores do not know of order; where rows are taken from the beginning of such a file, only some classes are
    left. This is said, and passes. But a long run of one class among rows that are mixed was put there: rows that were
    appended, copied, or labelled by mistake. The number is the longest run; it is a warning where chance would make one
    as long in fewer than 1 of 10,000 files. Look at these rows.
    """
    data.needs_labels()
    worst: Outcome | None = None
    said = []
    for split, labels in data.labels.items():
        if len(labels) < FEWEST_ROWS or len(set(labels)) < 2:
            continue
        numbers = np.unique(np.array(labels), return_inverse=True)[1]
        share = np.bincount(numbers) / len(numbers)
        ends = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
        lengths = np.diff(ends, prepend=-1)
        if len(ends) - 1 < 0.5 * (1 - (share**2).sum()) * (len(labels) - 1):
            said.append(split)
            continue
        # How many runs as long as this chance would make.
        expected = len(labels) * share[numbers[ends]] ** lengths
        run = int(expected.argmin())
        if expected[run] < 1e-4 and worst is None:
            first, last, name = ends[run] - lengths[run] + 2, ends[run] + 1, labels[ends[run]]
            worst = warned(
                float(lengths[run]),
                f"rows {first:,} to {last:,} of {split} are all of class '{name}', where the others are mixed: "
                "were they put there?",
            )
    if worst is not None:
        return worst
    if said:
        return passed(
            None, f"the rows of {listed(said)} are sorted by class: take none from the beginning, but shuffled"
        )
    return passed(None, "no split is sorted by class")


ARTEFACT_AUDITS: list[Audit] = [*SIGN_AUDITS, told_without_reading, row_order]
