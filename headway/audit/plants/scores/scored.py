"""Faults of what was scored: another split, or other weights, than the score says."""

from dataclasses import replace

import numpy as np
import torch

from headway.audit.plants.needs import CLASSIFIER, KEEPS_BEST, LANGUAGE_MODEL
from headway.audit.plants.planting import Bed
from headway.data.labelled.dataset import LabelledSet
from headway.data.running import corpus
from headway.data.running.corpus import Corpus
from headway.data.tokens import Tokens
from headway.run.folder import Run
from headway.training.loop import Loop
from headway.training.population import Population

_bed = Bed("scores")
AGAIN, SPLIT, KEPT, CURVE = "scores-again", "scored-split", "kept-checkpoint", "score-and-curve"
ALSO = (KEPT, CURVE)
"""Audits that may also fail: evaluations use the same code, so with the fault they differ from those in training."""


# --- which split -----------------------------------------------------------------------------------------------------


@_bed.plant(SPLIT, LANGUAGE_MODEL, also=(AGAIN, *ALSO))
def valid_is_train(patch):
    patch.setattr(Corpus, "split", lambda self, name: self.splits["train"])


@_bed.plant(SPLIT, LANGUAGE_MODEL, also=(AGAIN, *ALSO))
def half_of_valid(patch):
    def split(self, name):
        whole = self.splits[name]
        n = len(whole) // 2
        return Tokens(whole.ids[:n], whole.bytes[:n], whole.starts[:n])

    patch.setattr(Corpus, "split", split)


@_bed.plant(SPLIT, LANGUAGE_MODEL, also=(AGAIN, *ALSO), trains=True)
def valid_read_from_train(patch):
    original = corpus.sources.read_splits

    def read_splits(*given):
        texts = original(*given)
        return texts | {"valid": texts["train"][: len(texts["valid"])]}

    patch.setattr(corpus.sources, "read_splits", read_splits)


@_bed.plant(SPLIT, LANGUAGE_MODEL, also=(AGAIN, *ALSO), trains=True)
def train_that_holds_valid(patch):
    original = corpus.sources.read_splits

    def read_splits(*given):
        texts = original(*given)
        return texts | {"train": texts["train"] + texts["valid"]}

    patch.setattr(corpus.sources, "read_splits", read_splits)


@_bed.plant(SPLIT, CLASSIFIER, also=(AGAIN, *ALSO))
def rows_of_train_scored(patch):
    patch.setattr(LabelledSet, "split", lambda self, name: self.splits["train"])


@_bed.plant(SPLIT, CLASSIFIER, also=(AGAIN, *ALSO))
def rows_without_their_last(patch):
    def split(self, name):
        whole = self.splits[name]
        return whole.only(np.arange(len(whole) - 2)) if name != "train" else whole

    patch.setattr(LabelledSet, "split", split)


# --- which weights ---------------------------------------------------------------------------------------------------


class _Backwards(float):
    """A float with the order inverted."""

    def __lt__(self, other: float) -> bool:
        return float(self) > float(other)


@_bed.plant(KEPT, KEEPS_BEST, trains=True)
def worst_checkpoint_kept(patch):
    original = Loop.__post_init__

    def made(self):
        original(self)
        evaluate = self.evaluate
        self.evaluate = lambda: [{name: _Backwards(value) for name, value in one.items()} for one in evaluate()]

    patch.setattr(Loop, "__post_init__", made)


@_bed.plant(KEPT, KEEPS_BEST, trains=True)
def first_checkpoint_kept(patch):
    original = Run.save_best

    def save_best(self, made):
        if not list(self.home.glob("best-*")):
            original(self, made)

    patch.setattr(Run, "save_best", save_best)


@_bed.plant(KEPT, KEEPS_BEST, also=ALSO, trains=True)
def weights_of_the_best_before(patch):
    """The stored weights are those of the previous evaluation."""
    original, before = Run.save_best, {}

    def save_best(self, made):
        weights = {name: tensor.clone() for name, tensor in made.weights.items()}
        original(self, replace(made, weights=before.get(self.folder, weights)))
        before[self.folder] = weights

    patch.setattr(Run, "save_best", save_best)


@_bed.plant(AGAIN, KEEPS_BEST, also=ALSO, trains=True)
def best_kept_and_others_scored(patch):
    """The best checkpoint is on disk, but other weights are scored."""

    def load_weights(self, r, weights):
        with torch.no_grad():
            for p in self.model.parameters():
                p[r] *= 0.9

    patch.setattr(Population, "load_weights", load_weights)
