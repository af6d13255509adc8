"""An audit of wrong labels: how many labels does a simple model contradict among the rows it is most confident of?

A model is wrong about many rows because it knows too little, but then it is not confident. A row on which it is
confident and wrong is either an exception or has a wrong label; and if labels were flipped at random, the share of
contradictions does not fall with confidence. That is the idea of confident learning (Northcutt and others 2021,
https://arxiv.org/abs/1911.00068).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.near_copies import evenly
from headway.audit.data.row_set import RowSet, shortened
from headway.audit.data.word_model import WordModel
from headway.scoring.accuracy import wilson

FEWEST_ROWS = 50  # of a held-out split
FEWEST_TO_LEARN_FROM = 200


class Contradicted(NamedTuple):
    """The labels of one split, and the model's answers to compare them with."""

    split: str
    rows: np.ndarray
    """Which rows of the split were used: each text once, and none that is in train."""
    answers: np.ndarray
    labels: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        return self.answers.argmax(1) != self.labels

    @property
    def surest(self) -> np.ndarray:
        """Indices into `rows`, the most confident last: by the margin of the first answer over the second."""
        ordered = np.sort(self.answers, 1)
        return np.argsort(ordered[:, -1] - ordered[:, -2], kind="stable")

    def among(self, share: float) -> tuple[int, int]:
        """Among this share of the most confident rows: how many are contradicted, and how many rows these are."""
        some = self.surest[-max(int(len(self.rows) * share), 1) :]
        return int(self.wrong[some].sum()), len(some)

    def knows(self, errors: float = 3.0) -> bool:
        """Whether the most confident answers beat the commonest class by so many standard errors."""
        commonest = np.bincount(self.labels).max() / len(self.labels)
        wrong, n = self.among(0.2)
        return 1 - wrong / n > commonest + errors * math.sqrt(commonest * (1 - commonest) / n)

    def flipped(self) -> tuple[float, float]:
        """A 95 % confidence interval of the share of flipped labels. If a share r is flipped, the model is contradicted
        at least as often as r, however confident it is. Its accuracy is modelled as a logistic function of the margin
        between the first and the second answer; the slope is fitted, and r by its profile likelihood."""
        ordered, classes = np.sort(self.answers, 1), self.answers.shape[1]
        bins = np.array_split(self.surest, min(40, max(len(self.rows) // 10, 1)))
        lead = ordered[:, -1] - ordered[:, -2]
        leads = np.array([lead[some].mean() for some in bins]) / max(lead.std(), 1e-9)
        wrong, of = (np.array([count(some) for some in bins]) for count in (lambda some: self.wrong[some].sum(), len))
        slopes, shares = np.exp(np.linspace(-3, 4, 60)), np.linspace(0, (classes - 1) / classes - 0.02, 100)
        right = 1 / (1 + (classes - 1) * np.exp(-slopes[:, None, None] * leads))
        agrees = (1 - shares[:, None]) * right + shares[:, None] * (1 - right) / (classes - 1)
        agrees = agrees.clip(1e-9, 1 - 1e-9)
        likelihood = ((of - wrong) * np.log(agrees) + wrong * np.log(1 - agrees)).sum(2).max(0)
        inside = shares[likelihood >= likelihood.max() - 1.92]
        return float(inside[0]), float(inside[-1])


@audit("data")
def doubtful_labels(data: RowSet) -> Outcome:
    """A model of words does not contradict labels that it is confident of.

    Ridge regression on the words of a row predicts its label (rows of train are left out of the fit, one by one). The
    number is the largest share of contradicted labels among the most confident fifth of a split, with its 95 %
    interval; where labels are flipped at random, it is the share of flipped ones and somewhat more. Clean film reviews
    have 7 %, speeches by three presidents 14 %, docstrings 0 to 3 %.

    It is a warning if in train, by the lower end of an interval, more than 9.5 % of the most confident twentieth or
    30 % of the most confident fifth are contradicted, or more than 8 % of the labels are estimated to be flipped,
    because contradictions do not become fewer with confidence: so many labels are wrong, or words do not tell the
    classes. It is also a warning if one split has more than another by more than chance (1 in 10,000) and by 5 points:
    the labels of this split were made in another way. By 15 points, at the lower end of the interval, it is a failure.
    It is also a failure if the words of train tell nothing about its labels, while those of a held-out split do: labels
    of train were assigned to other rows. The audit cannot tell a hard task from one with wrong labels if all splits are
    alike and few rows are confident; look at the rows that are named. If a model of words knows nothing, it contradicts
    nothing, and this audit does not apply.
    """
    data.needs_labels()
    classes = sorted({label for labels in data.labels.values() for label in labels})
    train = _distinct(data, "train", set())
    if len(train) < FEWEST_TO_LEARN_FROM or len(classes) < 2:
        raise DoesNotApply(f"train has fewer than {FEWEST_TO_LEARN_FROM} different rows, or only one class")
    numbers = {split: np.array([classes.index(label) for label in labels]) for split, labels in data.labels.items()}
    model = WordModel.fit(_texts(data, "train", train), numbers["train"][train], len(classes))
    found = [Contradicted("train", train, model.left_out, numbers["train"][train])]
    seen = set(data.normalised["train"])
    for split in [split for split in data.rows if split != "train"]:
        rows = _distinct(data, split, seen)
        if len(rows) >= FEWEST_ROWS:
            found.append(Contradicted(split, rows, model.answers(_texts(data, split, rows)), numbers[split][rows]))
    if not found[0].knows():
        return _if_train_is_unlearnable(data, found[1:], len(classes), len(train))
    wrong = {one.split: one.among(0.2) for one in found}
    worst = max(found, key=lambda one: wrong[one.split][0] / wrong[one.split][1])
    least = min(found, key=lambda one: wrong[one.split][0] / wrong[one.split][1])
    (hits, n), (fewer, of) = wrong[worst.split], wrong[least.split]
    share, (low, high) = hits / n, wilson(hits, n) or (0.0, 1.0)
    sentence = (
        f"{hits:,} of the {n:,} labels of {worst.split} that a model of words is most confident of are contradicted "
        f"({share:.0%}, between {low:.0%} and {high:.0%})"
    )
    row = next((int(worst.rows[k]) for k in worst.surest[::-1] if worst.wrong[k]), None)
    if row is not None:
        answer = classes[int(worst.answers[list(worst.rows).index(row)].argmax())]
        text, label = data.rows[worst.split][row], data.labels[worst.split][row]
        sentence += f", such as row {row + 1:,}, {shortened(text)}: labelled '{label}', but words say '{answer}'"
    if worst is not least and share - fewer / of > 0.05 and _by_chance(hits, n, fewer, of) < 1e-4:
        upper = (wilson(fewer, of) or (0.0, 1.0))[1]
        sentence += f"; of {least.split} it is {fewer / of:.0%}: the labels of one of them were made in another way"
        return (failed if low - upper > 0.15 else warned)(share, sentence)
    flipped = found[0].flipped()
    if flipped[0] > 0.08 or _lower(found[0], 0.05) > 0.095 or _lower(found[0], 0.2) > 0.3:
        sentence += f": between {flipped[0]:.0%} and {flipped[1]:.0%} of the labels of train may be wrong"
        return warned(share, f"{sentence}, or words do not tell the classes")
    return passed(share, sentence)


def _lower(one: Contradicted, part: float) -> float:
    """The lower end of the interval of contradicted labels among the most confident; 0 for fewer than 40 rows."""
    wrong, n = one.among(part)
    return (wilson(wrong, n) or (0.0, 1.0))[0] if n >= 40 else 0.0


def _if_train_is_unlearnable(data: RowSet, held_out: Sequence[Contradicted], classes: int, rows: int) -> Outcome:
    for one in held_out:
        some = evenly(len(one.rows), rows)  # a fair comparison
        alone = one._replace(rows=one.rows[some], labels=one.labels[some])
        model = WordModel.fit(_texts(data, one.split, alone.rows), alone.labels, classes)
        if alone._replace(answers=model.left_out).knows(errors=6):
            said = f"the words of train tell nothing about its labels, while those of {one.split} do"
            return failed(None, f"{said}: labels of train seem to belong to other rows")
    raise DoesNotApply("words tell too little about these labels to contradict them")


def _distinct(data: RowSet, split: str, known: set[str]) -> np.ndarray:
    """The first row of each text that is not empty and not among the known ones."""
    first: dict[str, int] = {}
    for row, text in enumerate(data.normalised[split]):
        if text and text not in known:
            first.setdefault(text, row)
    return np.array(sorted(first.values()), np.int64)


def _texts(data: RowSet, split: str, rows: np.ndarray) -> list[str]:
    return [data.normalised[split][row] for row in rows]


def _by_chance(hits: int, n: int, fewer: int, of: int) -> float:
    """The p-value of the difference between two shares (Fisher's exact test, one-sided)."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(hits - 1, n + of, hits + fewer, n))


NOISE_AUDITS: list[Audit] = [doubtful_labels]
