"""Scores of classifiers: accuracy with its interval, per class, and separately on texts seen and unseen in training.

A text that was in train may have been memorised; only the others measure generalisation. So the accuracy is also given
for each of the two kinds, if a split has both.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.data.labelled.dataset import Texts
from headway.models.classifier import Classifier
from headway.scoring.score import Confusion, Score
from headway.stats.intervals import wilson

MAX_ELEMENTS = 2**24  # elements in the largest tensor of a batch: 64 MB in float32


@dataclass(frozen=True, eq=False)
class Predictions:
    """One model's predictions for every text of a split."""

    classes: tuple[str, ...]
    right: Int[np.ndarray, " N"]
    """The true class of each text, as an index into `classes`."""
    chances: Float[np.ndarray, "N C"]
    """The probability the model gives to each class."""
    seen: Bool[np.ndarray, " N"]
    """Whether the text was in train."""
    cut: int
    """How many texts were truncated to the model's context."""
    context: int
    """The model's context in tokens."""

    @property
    def chosen(self) -> Int[np.ndarray, " N"]:
        """The likeliest class of each text."""
        return self.chances.argmax(1)

    @property
    def correct(self) -> Bool[np.ndarray, " N"]:
        return self.chosen == self.right

    @property
    def nats(self) -> float:
        """Mean loss per text."""
        return float(self.nats_by_row.mean())

    @property
    def nats_by_row(self) -> Float[np.ndarray, " N"]:
        """The loss of each text."""
        of_right = self.chances[np.arange(len(self.right)), self.right]
        with np.errstate(divide="ignore"):
            return -np.log(of_right)

    @property
    def confusion(self) -> Confusion:
        return Confusion.counted(self.classes, self.right.tolist(), self.chosen.tolist())

    def scores(self, split: str) -> list[Score]:
        """`split.loss`, `.accuracy`, `.accuracy_seen` and `_unseen`, and `.precision.CLASS`, `.recall.`, `.f1.`."""
        n, cut = len(self.right), f" · {self.cut:,} cut at {self.context} tokens" if self.cut else ""
        how = f"{split} · {_texts(n)} of {len(self.classes)} classes{cut}"
        found = [
            Score(f"{split}.loss", self.nats, f"nats per text · {how}"),
            _accuracy(f"{split}.accuracy", self.correct, "accuracy", how, self.confusion),
        ]
        if 0 < self.seen.sum() < n:
            for name, which, words in (("seen", self.seen, "in train too"), ("unseen", ~self.seen, "not in train")):
                what = f"accuracy on texts that are {words}"
                found.append(_accuracy(f"{split}.accuracy_{name}", self.correct[which], what, how))
        return [*found, *self._by_class(split, how)]

    def _by_class(self, split: str, how: str) -> Iterator[Score]:
        for name, there, chosen, hits in zip(self.classes, *self.confusion.totals, strict=True):
            yield Score(
                f"{split}.precision.{name}",
                hits / chosen if chosen else math.nan,
                f"precision: {hits:,} of the {chosen:,} predicted as '{name}' are right · {how}",
                wilson(hits, chosen),
            )
            yield Score(
                f"{split}.recall.{name}",
                hits / there if there else math.nan,
                f"recall: {hits:,} of the {there:,} texts of '{name}' are found · {how}",
                wilson(hits, there),
            )
            f1 = 2 * hits / (chosen + there) if chosen + there else math.nan
            yield Score(f"{split}.f1.{name}", f1, f"F1 of '{name}', the harmonic mean of precision and recall · {how}")


@torch.no_grad()
def predict(model: Classifier, texts: Texts, classes: tuple[str, ...]) -> list[Predictions]:
    """Class probabilities of every replica for every text. Texts longer than the model's context are cut, as in
    training."""
    model.eval()
    context = model.spec.context
    if model.kept is None:
        table, lengths = texts.padded(context)
        chances = class_chances(model, torch.as_tensor(table), torch.as_tensor(lengths))
    else:
        chances = model.decide(model.kept.of(texts)).double().softmax(-1).cpu()
    cut = int((texts.lengths > context).sum())
    return [Predictions(classes, texts.labels, one.numpy(), texts.seen, cut, context) for one in chances]


@torch.no_grad()
def class_chances(model: Classifier, table: Int[Tensor, "N L"], lengths: Int[Tensor, " N"]) -> Float[Tensor, "R N C"]:
    """The probability of each class for every text, in the given order."""
    chances = torch.empty(model.replicas, len(table), model.classes, dtype=torch.float64)
    for rows, ids, padding_mask in by_length(model, table, lengths):
        chances[:, rows] = model(ids, padding_mask).double().softmax(-1).cpu()
    return chances


def by_length(
    model: Classifier, table: Int[Tensor, "N L"], lengths: Int[Tensor, " N"]
) -> Iterator[tuple[Int[Tensor, " B"], Int[Tensor, "R B T"], Bool[Tensor, "R B T"]]]:
    """Batches of texts of similar length, padded to the longest: row indices, tokens and padding mask."""
    if int(lengths.min()) < 1:
        raise UserError("an empty text cannot be classified: every text needs at least one token")
    device = next(model.parameters()).device
    widest = model.spec.largest(table.shape[1]) * table.shape[1] * model.replicas
    for rows in lengths.argsort(stable=True).split(max(1, MAX_ELEMENTS // widest)):
        width = int(lengths[rows].max())
        ids = table[rows, :width].to(device, torch.int64).expand(model.replicas, -1, -1)
        padding_mask = (torch.arange(width) < lengths[rows][:, None]).to(device).expand(model.replicas, -1, -1)
        yield rows, ids, padding_mask


def spread_out(texts: Texts, at_most: int | None) -> Texts:
    """A fixed random subset of texts with at most so many tokens in total. Random, because a table may be sorted by
    class."""
    if at_most is None or len(texts.ids) <= at_most:
        return texts
    order = torch.randperm(len(texts), generator=random.generator("spread out")).numpy()
    count = max(1, int(np.searchsorted(np.cumsum(texts.lengths[order]), at_most, side="right")))
    return texts.only(np.sort(order[:count]))


def _accuracy(
    name: str, correct: Bool[np.ndarray, " N"], what: str, how: str, confusion: Confusion | None = None
) -> Score:
    hits, n = int(correct.sum()), len(correct)
    interval = wilson(hits, n)
    assert interval is not None
    between = f"95 % interval {interval[0]:.3f} – {interval[1]:.3f} (Wilson)"
    rows = None if confusion is None else "".join("1" if right else "0" for right in correct)  # whole split only
    return Score(name, hits / n, f"{what}: {hits:,} of {n:,} · {between} · {how}", interval, confusion, rows)


def _texts(n: int) -> str:
    return f"{n:,} text{'' if n == 1 else 's'}"
