"""Audits of labels: are there enough rows of every class, and are the labels consistent?"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from headway.audit.audit import Audit, Outcome, audit, failed, passed, warned
from headway.audit.data.row_set import RowSet, listed, shortened


@audit("data")
def conflicting_labels(data: RowSet) -> Outcome:
    """The same text has the same label everywhere.

    Texts are compared normalised, over all splits. No classifier can get all rows right that have the same text and
    different labels. A share of 0.5 % of such rows is a warning and 5 % a failure: then labels are wrong, or the label
    depends on something that is not in the text.
    """
    data.needs_labels()
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
    given = listed([f"'{label}' {times}×" for label, times in counts.most_common(3)])
    number = "1 text has" if len(torn) == 1 else f"{len(torn):,} texts have"
    sentence = f"{number} different labels ({share:.2%} of all rows): {shortened(example[text])} is {given}"
    return (failed if share >= 0.05 else warned if share >= 0.005 else passed)(share, sentence)


@audit("data")
def class_balance(data: RowSet) -> Outcome:
    """Every class has enough rows in train and in held-out splits, and no class is nearly everything.

    Fails if there is only one class, if a class has no row in train (so it cannot be learnt), or if two class names
    differ in white space alone. Warns if two names differ in case alone (one class in two spellings?), if a class has
    fewer than 10 rows in train or fewer than 5 in a held-out split (its recall then depends on one or two rows), if the
    commonest class is more than 80 % of a held-out split (accuracy then says little: look at recall by class), or if
    the class distribution of a held-out split differs: more than 10 % of the rows would have to change class, with
    probability below 1 in 1000 by chance. The number is the commonest class's share in train.
    """
    data.needs_labels()
    counts = {split: Counter(labels) for split, labels in data.labels.items() if labels}
    classes = sorted({*data.classes, *(label for count in counts.values() for label in count)})
    train = counts["train"]
    (commonest, times), *_ = train.most_common(1)
    share = times / train.total()
    if len(classes) == 1:
        return failed(share, f"there is only one class, '{classes[0]}', so there is nothing to classify")
    if missing := [name for name in classes if not train[name]]:
        tested = sum(counts[s][name] for s in counts for name in missing)
        held = f", but {tested:,} rows in other splits" if tested else " or in any other split"
        return failed(share, f"{_classes(missing)} {_have(missing)} no row in train{held}")
    spellings: defaultdict[str, list[str]] = defaultdict(list)
    for name in classes:
        spellings[" ".join(name.casefold().split())].append(name)
    if twice := next((names for names in spellings.values() if len(names) > 1), None):
        is_case = len({" ".join(name.split()) for name in twice}) == len(twice)  # 'a' and 'A' may be meant
        sentence = f"{listed([repr(name) for name in twice])} are counted as different classes"
        return (warned if is_case else failed)(share, f"{sentence}: are they meant to be?")
    complaints = []
    for split, count in counts.items():
        fewest = 10 if split == "train" else 5
        if few := [name for name in classes if count[name] < fewest]:
            complaints.append(f"{split} has {listed([f'{count[n]} of {_classes([n])}' for n in few[:3]])}")
        if split == "train":
            continue
        (most, held), *_ = count.most_common(1)
        if held / count.total() > 0.8:
            complaints.append(f"{held / count.total():.0%} of {split} is {_classes([most])}")
        if (moved := _moved(train, count, classes)) > 0.1:
            complaints.append(
                f"{split} has another class distribution: {moved:.0%} of its rows would have to change class"
            )
    if complaints:
        return warned(share, "; ".join(complaints))
    return passed(share, f"{len(classes)} classes, the commonest '{commonest}' with {share:.1%} of train")


def _moved(train: Counter[str], held: Counter[str], classes: Sequence[str]) -> float:
    """The share of rows by which two distributions differ; 0 where chance explains it (chi-squared, 1 in 1000)."""
    a, b = (np.array([count[name] for name in classes], float) for count in (train, held))
    together = (a + b) / (a + b).sum()
    statistic = sum(((part - part.sum() * together) ** 2 / (part.sum() * together)).sum() for part in (a, b))
    freedom = len(classes) - 1
    # The 99.9 % quantile by the Wilson–Hilferty approximation: within 1 % of the exact one for 2 classes and more.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3
    return float(np.abs(a / a.sum() - b / b.sum()).sum() / 2) if statistic > limit else 0.0


CLASS_AUDITS: list[Audit] = [conflicting_labels, class_balance]


def _classes(names: Sequence[str]) -> str:
    return f"class{'' if len(names) == 1 else 'es'} {listed([repr(str(name)) for name in names])}"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
