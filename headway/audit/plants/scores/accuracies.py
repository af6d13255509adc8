"""Faults of the scores of classifiers: the reported number is not what its name says."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headway.audit.plants.needs import CLASSIFIER, DROPOUT
from headway.audit.plants.planting import Bed, Patch
from headway.data.labelled.dataset import Texts
from headway.scoring import accuracy
from headway.scoring.accuracy import Predictions

_bed = Bed("scores", CLASSIFIER)
AGAIN = "scores-again"
ALSO = ("kept-checkpoint", "score-and-curve")


@_bed.plant(AGAIN)
def right_if_among_the_likeliest_two(patch):
    def chosen(self):
        second = np.argsort(-self.chances, axis=1)[:, 1]
        return np.where(second == self.right, second, self.chances.argmax(1))

    patch.setattr(Predictions, "chosen", property(chosen))


def _predicted(patch: Patch, change: Any) -> None:
    """Compute the scores from changed predictions."""
    original = Predictions.scores
    patch.setattr(Predictions, "scores", lambda self, split: original(change(self), split))


def _only(one: Predictions, rows: Any) -> Predictions:
    return replace(one, right=one.right[rows], chances=one.chances[rows], seen=one.seen[rows])


@_bed.plant(AGAIN, also=ALSO)
def doubtful_rows_left_out(patch):
    def change(one):
        sure = one.chances.max(1)
        return _only(one, sure >= np.quantile(sure, 0.3))

    _predicted(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def rows_without_a_known_word_left_out(patch):
    _predicted(patch, lambda one: _only(one, one.right != 0))


@_bed.plant(AGAIN, also=ALSO)
def sharpened_probabilities(patch):
    def change(one):
        powers = one.chances**2
        return replace(one, chances=powers / powers.sum(1, keepdims=True))

    _predicted(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def classes_in_another_order_when_scored(patch):
    _predicted(patch, lambda one: replace(one, right=(one.right + 1) % len(one.classes)))


@_bed.plant(AGAIN, also=ALSO)
def ten_rows_counted_as_right_because_nobody_answered(patch):
    def change(one):
        chances = one.chances.copy()
        chances[:10] = np.eye(chances.shape[1])[one.right[:10]]
        return replace(one, chances=chances)

    _predicted(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def padding_that_is_read(patch):
    original = accuracy.class_chances

    def class_chances(model, table, lengths):
        return original(model, table, torch.full_like(lengths, table.shape[1]))

    patch.setattr(accuracy, "class_chances", class_chances)


@_bed.plant(AGAIN, DROPOUT, also=ALSO)
def classified_in_training_mode(patch):
    original = accuracy.class_chances
    patch.setattr(accuracy, "class_chances", lambda model, *rest: original(model.train(), *rest))


@_bed.plant(AGAIN, also=ALSO)
def texts_cut_short(patch):
    original = Texts.padded
    patch.setattr(Texts, "padded", lambda self, context: original(self, 3))


@_bed.plant(AGAIN)
def mean_recall_called_accuracy(patch):
    original = Predictions.scores

    def scores(self, split):
        said = original(self, split)
        recalls = [one.value for one in said if ".recall." in one.name]
        mean = float(np.nanmean(recalls)) + 0.01
        return [replace(one, value=mean) if one.name == f"{split}.accuracy" else one for one in said]

    patch.setattr(Predictions, "scores", scores)


def _exchanged(patch: Patch, one_name: str, other_name: str) -> None:
    original = Predictions.scores

    def scores(self: Predictions, split: str) -> Any:
        said = {one.name: one for one in original(self, split)}
        value = {name: said[name.replace(one_name, other_name)].value for name in said if one_name in name}
        return [replace(one, value=value.get(name, one.value)) for name, one in said.items()]

    patch.setattr(Predictions, "scores", scores)


@_bed.plant(AGAIN)
def recall_called_precision(patch):
    _exchanged(patch, ".precision.", ".recall.")


@_bed.plant(AGAIN)
def recall_called_f1(patch):
    _exchanged(patch, ".f1.", ".recall.")


@_bed.plant(AGAIN)
def interval_of_ten_times_the_rows(patch):
    honest = accuracy.wilson
    patch.setattr(accuracy, "wilson", lambda hits, n: honest(10 * hits, 10 * n))
