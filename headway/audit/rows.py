"""Audits of data that comes in rows, with or without labels: what is in the test split that should not be there.

A row of the test split that is also in the train split is remembered, not understood. Rows are compared as they are,
then without case, punctuation and white space, then by the pairs of words they share; each audit counts only what the
one before it did not, so the three numbers add up.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned

CONTAINED = 0.7
"""The share of a row's telling pairs of words that one train row must hold to count as nearly the same."""
FEWEST_WORDS = 8
TELLING = 20
"""A pair of words is telling if at most so many train rows have it: "of the" says nothing."""
FEWEST_PAIRS = 5

MOST_SEEN = 0.02
FAR_TOO_MANY = 0.05

_WORD = re.compile(r"\w+")
_SPECIAL = "unk|pad|eos|bos|sos|sep|cls|mask|num|eot|s"
_MARKUP = re.compile(rf"""\s*(?: <(?!/?(?:{_SPECIAL})>)(?:!--|[/!?]?[a-z])[^<>]*>  # a tag, but no word such as <unk>
                            | (?:https?://|www\.)\S+\s*$                         # an address and nothing else
                            | [\[{{]\s*\{{?\s*"[^"]*"\s*:                        # JSON
                            )""", re.VERBOSE | re.IGNORECASE)  # fmt: skip


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


def normalise(row: str) -> str:
    """The words alone: no case, no punctuation, no white space but one blank; ligatures and wide letters as usual."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", row).casefold()))


# --- rows of held-out splits in train ----------------------------------------------------------------------------


@audit("data")
def seen_rows(data: RowSet) -> Outcome:
    """No row of a held-out split is in the train split.

    Rows are compared letter by letter. A row that was seen in training can turn a wrong answer into a right one, so the
    share of such rows is the most by which they can move an accuracy. Up to min(2 %, 1/√n) they pass (1/√n is half of
    the 95 % interval of an accuracy on n rows: less cannot be told from chance; short rows such as "no" occur twice in
    any honest set); above 5 % the score says little about new rows, and it fails. Remove the rows from train, or give
    the accuracy on seen and unseen rows apart, as `score` does.
    """
    return _of_shares(data, data.exact, "in train, letter by letter")


@audit("data")
def seen_rows_normalised(data: RowSet) -> Outcome:
    """No row of a held-out split differs from a train row in case, punctuation, white space or Unicode form alone.

    Rows that are equal as they are count in seen-rows, not here. Both sides are brought to NFKC, case-folded, and cut
    into words; what is between words is dropped. The thresholds are those of seen-rows,
    for a row that was only retyped is remembered as well as a copied one: drop such rows, or score them apart.
    """
    only = {split: alike & ~data.exact[split] for split, alike in data.alike.items()}
    return _of_shares(data, only, "in train but for case, punctuation or white space")


@audit("data")
def seen_rows_nearly(data: RowSet) -> Outcome:
    """No row of a held-out split is nearly a train row.

    A row of at least 8 words is nearly the same as a train row if that one row holds at least 70 % of its telling pairs
    of neighbouring words: those which at most 20 train rows have. (One word changed in 18 leaves 88 %, two leave 76 %.)
    Rows with fewer than 5 telling pairs are not judged: what they share is what everybody says. In five honest sets
    (film reviews, talks, captions, speeches, sums) 0 to 0.1 % of the rows are above 70 %, in documentation 0.5 to 2 %.
    Thresholds as for seen-rows; rows that seen-rows or seen-rows-normalised found do not count again.
    """
    words: dict[str, int] = {}
    train = _pairs(data.normalised["train"], words)
    near: dict[str, np.ndarray] = {}
    twins: dict[str, np.ndarray] = {}
    for split in data.held_out:
        share, twins[split] = containment(train, _pairs(data.normalised[split], words), len(data.rows[split]))
        long = np.array([row.count(" ") + 1 >= FEWEST_WORDS for row in data.normalised[split]], np.bool_)
        near[split] = (share >= CONTAINED) & long & ~data.alike[split] & ~data.exact[split]
    worst = max(near, key=lambda split: near[split].mean())
    twin = data.rows["train"][int(twins[worst][near[worst].argmax()])]
    return _of_shares(data, near, "nearly in train", f" (train has {shortened(twin)})")


def containment(
    train: tuple[np.ndarray, np.ndarray], held: tuple[np.ndarray, np.ndarray], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each held-out row: the largest share of its telling pairs that one train row holds, and which row that is.
    Pairs come as (row, pair), each pair once a row."""
    order = np.argsort(train[1], kind="stable")
    train_rows, train_pairs = train[0][order], train[1][order]
    first, last = (np.searchsorted(train_pairs, held[1], side) for side in ("left", "right"))
    holders = last - first
    telling = holders <= TELLING
    pairs_of_row = np.bincount(held[0][telling], minlength=rows)
    # One entry for each (held-out row, train row that holds one of its pairs).
    used = np.flatnonzero(telling & (holders > 0) & (pairs_of_row[held[0]] >= FEWEST_PAIRS))
    which = np.repeat(used, holders[used])
    place = np.arange(len(which)) - np.repeat(np.cumsum(holders[used]) - holders[used], holders[used]) + first[which]
    both, shared = np.unique(held[0][which] * 2**32 + train_rows[place], return_counts=True)
    row, twin = both >> 32, both & (2**32 - 1)
    share = shared / np.maximum(pairs_of_row[row], 1)
    largest, twins = np.zeros(rows), np.zeros(rows, np.int64)
    ascending = np.argsort(share, kind="stable")  # so that the largest is written last
    largest[row[ascending]], twins[row[ascending]] = share[ascending], twin[ascending]
    return largest, twins


def _pairs(rows: Iterable[str], words: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of neighbouring words of each row: (row, pair), each pair once a row."""
    numbers = [[words.setdefault(word, len(words)) for word in row.split()] for row in rows]
    flat = np.array([number for row in numbers for number in row], np.int64)
    owner = np.repeat(np.arange(len(numbers)), [len(row) for row in numbers])
    within = owner[:-1] == owner[1:]
    found = np.stack([owner[:-1][within], (flat[:-1] * 2**31 + flat[1:])[within]])
    order = np.lexsort((found[1], found[0]))
    found = found[:, order]
    new = np.ones(found.shape[1], np.bool_)
    new[1:] = (found[:, 1:] != found[:, :-1]).any(0)
    return found[0][new], found[1][new]


def _of_shares(data: RowSet, found: dict[str, np.ndarray], what: str, more: str = "") -> Outcome:
    """One outcome for all held-out splits, by the one with the largest share."""
    shares = {split: float(which.mean()) for split, which in found.items()}
    worst = max(shares, key=lambda split: shares[split])
    parts = [f"{int(which.sum()):,} of {len(which):,} rows of {split}" for split, which in found.items() if which.any()]
    if not parts:
        return passed(0.0, f"no row of {_listed(list(found))} is {what}")
    first = int(found[worst].argmax())
    sentence = f"{_listed(parts)} ({shares[worst]:.1%}) are {what}, such as {shortened(data.rows[worst][first])}{more}"
    if shares[worst] > FAR_TOO_MANY:
        return failed(shares[worst], sentence)
    few = any(share > min(MOST_SEEN, 1 / math.sqrt(len(found[split]))) for split, share in shares.items())
    return (warned if few else passed)(shares[worst], sentence)


# --- labels ------------------------------------------------------------------------------------------------------


@audit("data")
def conflicting_labels(data: RowSet) -> Outcome:
    """The same text has the same label everywhere.

    Texts are compared normalised, over all splits. Of rows that say the same and are labelled differently no classifier
    can get all right. A share of 0.5 % or more is a warning and of 5 % a failure: by then labels are wrong, or the
    label depends on something that is not in the text.
    """
    _needs_labels(data)
    of_text: defaultdict[str, Counter[str]] = defaultdict(Counter)
    example: dict[str, str] = {}
    for split, labels in data.labels.items():
        for text, row, label in zip(data.normalised[split], data.rows[split], labels, strict=True):
            if text:
                of_text[text][label] += 1
                example.setdefault(text, row)
    torn = {text: counts for text, counts in of_text.items() if len(counts) > 1}
    rows = sum(map(len, data.labels.values()))
    share = sum(counts.total() for counts in torn.values()) / max(rows, 1)
    if not torn:
        return passed(0.0, f"no text of the {rows:,} rows has two labels")
    text, counts = max(torn.items(), key=lambda item: item[1].total())
    given = _listed([f"'{label}' {times}×" for label, times in counts.most_common(3)])
    number = "1 text has" if len(torn) == 1 else f"{len(torn):,} texts have"
    sentence = f"{number} different labels ({share:.2%} of all rows): {shortened(example[text])} is {given}"
    return (failed if share >= 0.05 else warned if share >= 0.005 else passed)(share, sentence)


@audit("data")
def class_balance(data: RowSet) -> Outcome:
    """Every class has rows to learn from and rows to be tested on, and no class is nearly everything.

    Fails if there is one class only, or if a class has no row in train: it can never be answered. Warns if a class has
    fewer than 10 rows in train or fewer than 5 in a held-out split (its recall is then a matter of one or two rows), if
    the commonest class is more than 80 % of a held-out split (accuracy then says little: look at recall by class), or
    if the classes of a held-out split are differently distributed: more than 10 % of the rows would have to change
    class, and chance alone would make that of fewer than 1 set in 1000. The number is the commonest class's share in
    train.
    """
    _needs_labels(data)
    counts = {split: Counter(labels) for split, labels in data.labels.items() if labels}
    classes = sorted({*data.classes, *(label for count in counts.values() for label in count)})
    train = counts["train"]
    (commonest, times), *_ = train.most_common(1)
    share = times / train.total()
    if len(classes) == 1:
        return failed(share, f"there is one class only, '{classes[0]}': there is nothing to tell apart")
    if missing := [name for name in classes if not train[name]]:
        tested = sum(counts[s][name] for s in counts for name in missing)
        held = f", but {tested:,} rows of other splits" if tested else " in any split"
        return failed(share, f"{_classes(missing)} {_have(missing)} no row in train{held}")
    complaints = []
    for split, count in counts.items():
        fewest = 10 if split == "train" else 5
        if few := [name for name in classes if count[name] < fewest]:
            complaints.append(f"{split} has {_listed([f'{count[n]} of {_classes([n])}' for n in few[:3]])}")
        if split == "train":
            continue
        (most, held), *_ = count.most_common(1)
        if held / count.total() > 0.8:
            complaints.append(f"{held / count.total():.0%} of {split} is {_classes([most])}")
        if (moved := _moved(train, count, classes)) > 0.1:
            complaints.append(f"{split} is distributed differently: {moved:.0%} of its rows would have to change class")
    if complaints:
        return warned(share, "; ".join(complaints))
    return passed(share, f"{len(classes)} classes, the commonest '{commonest}' with {share:.1%} of train")


def _moved(train: Counter[str], held: Counter[str], classes: Sequence[str]) -> float:
    """The share of rows by which two distributions differ; 0 where chance explains it (chi-squared, 1 in 1000)."""
    a, b = (np.array([count[name] for name in classes], float) for count in (train, held))
    together = (a + b) / (a + b).sum()
    statistic = sum(((part - part.sum() * together) ** 2 / (part.sum() * together)).sum() for part in (a, b))
    freedom = len(classes) - 1
    # The 99.9 % point, by Wilson and Hilferty's cube root: within 1 % of the exact one for 2 classes and more.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2) if statistic > limit else 0.0


# --- what rows look like -----------------------------------------------------------------------------------------


@audit("data")
def metadata_rows(data: RowSet) -> Outcome:
    """No row is markup, an address or JSON among rows that are text.

    Such a row begins with a tag (<title>…, but not a word such as <unk>), is an address and nothing else, or begins
    like JSON: what is left of the file the text was taken from. It is a warning from 1 % of a split on, for it is
    learnt like text and never asked for. Where half of the rows or more look like this, it is what the data is, and
    passes.
    """
    found = {split: [row for row in rows if _MARKUP.match(row)] for split, rows in data.rows.items()}
    shares = {split: len(found[split]) / max(len(rows), 1) for split, rows in data.rows.items()}
    worst = max(shares, key=lambda split: shares[split])
    parts = [f"{len(odd):,} of {len(data.rows[s]):,} rows of {s} ({shares[s]:.1%})" for s, odd in found.items() if odd]
    if not parts:
        return passed(0.0, "no row looks like markup, an address or JSON")
    sentence = f"{_listed(parts)} look like markup, an address or JSON, such as {shortened(found[worst][0])}"
    return (warned if 0.01 <= shares[worst] < 0.5 else passed)(shares[worst], sentence)


ROW_AUDITS: list[Audit] = [
    seen_rows,
    seen_rows_normalised,
    seen_rows_nearly,
    conflicting_labels,
    class_balance,
    metadata_rows,
]


def _needs_labels(data: RowSet) -> None:
    if not data.labels.get("train"):
        raise DoesNotApply("the rows have no labels")


def shortened(row: str, letters: int = 60) -> str:
    """A row as an example in a sentence."""
    row = " ".join(row.split())
    return f"“{row}”" if len(row) <= letters else f"“{row[: letters - 1].rstrip()}…”"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _classes(names: Sequence[str]) -> str:
    return f"class{'' if len(names) == 1 else 'es'} {_listed([repr(str(name)) for name in names])}"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
