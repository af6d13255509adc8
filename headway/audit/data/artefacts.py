"""Audits of artefacts: features that predict the class of a row without being its content.

A sign that one class has (signs.py), rows cut at another length, a number that counts the rows: a model finds such a
feature quickly, gets an excellent score, and has learnt nothing useful. Each audit measures how well one kind of
feature predicts the class, compared with chance.
"""

import math
import re

import numpy as np

from headway.audit.audit import Audit, Outcome, audit, failed, passed, warned
from headway.audit.data.row_set import RowSet, listed
from headway.audit.data.signs import FEWEST_ROWS, SIGN_AUDITS, Labels, train_of

FEWEST_OF_CLASS = 15

NUMBERS = (
    "the number of letters",
    "the number of words",
    "the letters per word",
    "the share of capitals",
    "the share of punctuation",
    "the share of digits",
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
    """The length of a row, and other surface statistics, do not predict its class.

    The statistics are the numbers of characters and words, characters per word, the shares of capitals, punctuation and
    digits, and the number a row begins or ends with. Each is divided into ten bins. For every class, the bins that are
    more typical of it than of the others are learnt on one half of train and tested on the other. The number is the
    share of a class's rows in these bins minus the share of other rows: chance is 0, certainty 1. Honest data sets have
    up to 0.35 (docstrings of `multiprocessing` are short). By the lower end of its interval, 0.4 is a warning and 0.65
    a failure, unless shuffled labels do nearly as well. Then the rows of a class were cut, cleaned or numbered
    differently. Treat all rows alike.
    """
    rows, labels, classes = train_of(data)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rows))
    values, labels = np.array([numbers_of(rows[k]) for k in order]), labels[order]
    excess = np.array([_excess(column, labels, len(classes)) for column in values.T])
    number, name = np.unravel_index(excess.argmax(), excess.shape)
    share = max(float(excess[number, name]), 0.0)
    column, mine = values[:, number], labels == name
    sentence = f"{NUMBERS[number]} is typical of class '{classes[name]}' in {share:.0%} more of its rows than of others"
    surely = share - 0.82 / math.sqrt(mine.sum())  # 1.64 standard errors of a share near one half
    by_chance = max(_excess(column, rng.permutation(labels), len(classes)).max() for _ in range(10))
    if surely < 0.4 or share < by_chance + 0.1:
        return passed(share, sentence)
    sentence += f" (its median is {np.median(column[mine]):.3g}, that of others {np.median(column[~mine]):.3g})"
    return (failed if surely >= 0.65 else warned)(share, sentence)


def _excess(values: np.ndarray, labels: Labels, classes: int) -> np.ndarray:
    """For each class, the share of its rows minus the share of others whose value is in a bin typical of it."""
    typical = np.zeros((len(labels), classes), np.bool_)
    of_class = np.eye(classes)[labels]
    for half in (0, 1):
        here, there = slice(half, None, 2), slice(1 - half, None, 2)
        edges = np.unique(np.quantile(values[here], np.linspace(0.1, 0.9, 9)))
        bins = np.searchsorted(edges, values, "right")
        counts = np.zeros((len(edges) + 1, classes))
        np.add.at(counts, (bins[here], labels[here]), 1)
        own = (counts + 0.5) / (counts.sum(0) + 0.5 * len(counts))
        others = counts.sum(1, keepdims=True) - counts
        typical[there] = (own > (others + 0.5) / (others.sum(0) + 0.5 * len(counts)))[bins[there]]
    sizes = np.maximum(of_class.sum(0), 1)
    mine, all_ = (typical * of_class).sum(0), typical.sum(0)
    found = mine / sizes - (all_ - mine) / np.maximum(len(labels) - sizes, 1)
    return np.where(of_class.sum(0) >= FEWEST_OF_CLASS, found, 0.0)


@audit("data")
def row_order(data: RowSet) -> Outcome:
    """No long run of rows in an otherwise mixed split has the same class.

    Files that are sorted by class are common and do no harm here, because the rows of train are shuffled in every epoch
    and scores do not depend on order; but taking only the first rows of such a file would leave out classes. The audit
    then passes and says so. But a long run of one class among rows that are mixed was put there: rows that were
    appended, copied, or labelled by mistake. The number is the longest run; it is a warning if chance would make one as
    long in fewer than 1 of 10,000 files. Look at these rows.
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
        if len(ends) - 1 < 0.8 * (1 - (share**2).sum()) * (len(labels) - 1):
            said.append(split)
            continue
        # The expected number of runs this long by chance.
        expected = len(labels) * share[numbers[ends]] ** lengths
        run = int(expected.argmin())
        if expected[run] < 1e-4 and worst is None:
            first, last, name = ends[run] - lengths[run] + 2, ends[run] + 1, labels[ends[run]]
            worst = warned(
                float(lengths[run]),
                f"rows {first:,} to {last:,} of {split} are all of class '{name}', while the other rows are mixed: "
                "look at them",
            )
    if worst is not None:
        return worst
    if said:
        return passed(
            None, f"the rows of {listed(said)} are sorted by class: if you use only some of them, shuffle first"
        )
    return passed(None, "no split is sorted by class")


ARTEFACT_AUDITS: list[Audit] = [*SIGN_AUDITS, told_without_reading, row_order]
