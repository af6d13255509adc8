"""Faults of scores: the number that is reported is not what it is called, or not of what was said."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headway.audit.plants.planting import Bed, Patch
from headway.data.labelled.dataset import LabelledSet, Texts
from headway.data.running import corpus
from headway.data.running.corpus import Corpus
from headway.models.language_model import LanguageModel
from headway.run.folder import Run
from headway.scoring import accuracy, likelihood
from headway.scoring.accuracy import Predictions
from headway.scoring.likelihood import Surprise
from headway.training.loop import Loop
from headway.training.population import Population

_bed = Bed()
PLANTS = _bed.plants
AGAIN, SPLIT, KEPT, CURVE = "scores-again", "scored-split", "kept-checkpoint", "score-and-curve"
ALSO = (KEPT, CURVE)
"""Evaluations go the way of scores: with a fault that came after training they are not what they were, either."""
LM: dict[str, Any] = {"models": "language-model"}
CLS: dict[str, Any] = {"models": "classifier"}


# --- language models: the loss of a token ----------------------------------------------------------------------------


def _of_logits(patch: Patch, nats: Any) -> None:
    """Another loss, of log-chances [R, B, T, V] and targets."""

    def losses(self: Any, inputs: Any, targets: Any) -> Any:
        logits, _ = self(inputs)
        return nats(logits, targets)

    patch.setattr(LanguageModel, "losses", losses)


def _nats(logits: Any, targets: Any) -> Any:
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


@_bed.plant(AGAIN, also=ALSO, **LM)
def label_smoothing_in_the_score(patch):
    _of_logits(patch, lambda x, t: 0.9 * _nats(x, t) - 0.1 * x.log_softmax(-1).mean(-1))


@_bed.plant(AGAIN, also=ALSO, **LM)
def temperature_in_the_score(patch):
    _of_logits(patch, lambda x, t: _nats(x / 0.9, t))


@_bed.plant(AGAIN, also=ALSO, **LM)
def clipped_nats(patch):
    """Hopeless tokens count as ten nats at most, or here, as four."""
    _of_logits(patch, lambda x, t: _nats(x, t).clamp(max=4.0))


@_bed.plant(AGAIN, also=ALSO, **LM)
def best_of_two_targets(patch):
    """The token itself, or the one before it: whatever is likelier."""
    _of_logits(patch, lambda x, t: torch.minimum(_nats(x, t), _nats(x, t.roll(1, -1))))


@_bed.plant(AGAIN, also=ALSO, **LM)
def bits_called_nats(patch):
    _of_logits(patch, lambda x, t: _nats(x, t) / math.log(2))


# --- language models: which tokens count -----------------------------------------------------------------------------


def _of_tokens(patch: Patch, change: Any) -> None:
    """Something else than the nats [R, N - 1] of all tokens."""
    original = likelihood.token_losses

    def token_losses(model: Any, ids: Any, segment: int, stride: int) -> Any:
        return change(original, model, ids, segment, stride)

    patch.setattr(likelihood, "token_losses", token_losses)


@_bed.plant(AGAIN, also=ALSO, **LM)
def first_tokens_of_windows_left_out(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        found[:, ::segment] = found.mean(1, keepdim=True)
        return found

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO, **LM)
def last_window_left_out(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        found[:, (found.shape[1] - 1) // segment * segment :] = 0
        return found

    _of_tokens(patch, change)


@_bed.plant(AGAIN, "scoring.segment=12", "scoring.stride=5", also=ALSO, **LM)
def stride_off_by_one(patch):
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, stride + 1))


@_bed.plant(AGAIN, "scoring.segment=12", "scoring.stride=5", also=ALSO, **LM)
def stride_that_is_not_used(patch):
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, segment))


@_bed.plant(AGAIN, also=ALSO, **LM)
def more_context_than_is_said(patch):
    """Every token with a whole window before it, reported as plain segments."""
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, 1))


@_bed.plant(AGAIN, "model.dropout=0.2", also=ALSO, **LM)
def scored_in_training_mode(patch):
    def change(original, model, ids, segment, stride):
        return original(model.train(), ids, segment, stride)

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO, **LM)
def scored_from_left_to_right_and_back(patch):
    def change(original, model, ids, segment, stride):
        return original(model, ids.flip(0), segment, stride)

    _of_tokens(patch, change)


# --- language models: from nats to scores ----------------------------------------------------------------------------


def _of_scores(patch: Patch, name: str, change: Any) -> None:
    original = Surprise.scores

    def scores(self: Surprise, split: str) -> Any:
        said = original(self, split)
        return [replace(one, value=change(self, one.value)) if one.name.endswith(name) else one for one in said]

    patch.setattr(Surprise, "scores", scores)


@_bed.plant(AGAIN, **LM)
def bits_per_byte_in_nats(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: value * math.log(2))


@_bed.plant(AGAIN, **LM)
def bits_per_byte_in_base_ten(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: value * math.log(2) / math.log(10))


@_bed.plant(AGAIN, **LM)
def bits_per_token_called_per_byte(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: self.nats / math.log(2) / self.tokens)


@_bed.plant(AGAIN, **LM)
def perplexity_in_base_two(patch):
    _of_scores(patch, ".perplexity", lambda self, value: 2.0 ** (self.nats / self.tokens))


@_bed.plant(AGAIN, **LM)
def perplexity_per_word_that_is_per_token(patch):
    _of_scores(patch, ".perplexity_per_word", lambda self, value: math.exp(self.nats / self.tokens))


@_bed.plant(AGAIN, **LM)
def words_counted_with_line_ends(patch):
    _of_scores(patch, ".perplexity_per_word", lambda self, value: math.exp(self.nats / (self.words * 1.08)))


@_bed.plant(AGAIN, also=ALSO, **LM)
def mean_of_perplexities(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        return found.exp().mean(1, keepdim=True).log().expand_as(found)

    _of_tokens(patch, change)


# --- which split -----------------------------------------------------------------------------------------------------


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), **LM)
def valid_is_train(patch):
    patch.setattr(Corpus, "split", lambda self, name: self.splits["train"])


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), **LM)
def half_of_valid(patch):
    def split(self, name):
        whole = self.splits[name]
        n = len(whole) // 2
        return type(whole)(whole.ids[:n], whole.bytes[:n], whole.starts[:n])

    patch.setattr(Corpus, "split", split)


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), trains=True, **LM)
def valid_read_from_train(patch):
    original = corpus.sources.read_splits

    def read_splits(*given):
        texts = original(*given)
        return texts | {"valid": texts["train"][: len(texts["valid"])]}

    patch.setattr(corpus.sources, "read_splits", read_splits)


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), trains=True, **LM)
def train_that_holds_valid(patch):
    original = corpus.sources.read_splits

    def read_splits(*given):
        texts = original(*given)
        return texts | {"train": texts["train"] + texts["valid"]}

    patch.setattr(corpus.sources, "read_splits", read_splits)


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), **CLS)
def rows_of_train_scored(patch):
    patch.setattr(LabelledSet, "split", lambda self, name: self.splits["train"])


@_bed.plant(SPLIT, also=(AGAIN, *ALSO), **CLS)
def rows_without_their_last(patch):
    def split(self, name):
        whole = self.splits[name]
        return whole.only(np.arange(len(whole) - 2)) if name != "train" else whole

    patch.setattr(LabelledSet, "split", split)


# --- classifiers -----------------------------------------------------------------------------------------------------


@_bed.plant(AGAIN, **CLS)
def right_if_among_the_likeliest_two(patch):
    def chosen(self):
        second = np.argsort(-self.chances, axis=1)[:, 1]
        return np.where(second == self.right, second, self.chances.argmax(1))

    patch.setattr(Predictions, "chosen", property(chosen))


def _predicted(patch: Patch, change: Any) -> None:
    """Scores of something else than what the model said."""
    original = Predictions.scores
    patch.setattr(Predictions, "scores", lambda self, split: original(change(self), split))


def _only(one: Predictions, rows: Any) -> Predictions:
    return replace(one, right=one.right[rows], chances=one.chances[rows], seen=one.seen[rows])


@_bed.plant(AGAIN, also=ALSO, **CLS)
def doubtful_rows_left_out(patch):
    def change(one):
        sure = one.chances.max(1)
        return _only(one, sure >= np.quantile(sure, 0.3))

    _predicted(patch, change)


@_bed.plant(AGAIN, also=ALSO, **CLS)
def rows_without_a_known_word_left_out(patch):
    _predicted(patch, lambda one: _only(one, one.right != 0))


@_bed.plant(AGAIN, also=ALSO, **CLS)
def sharpened_chances(patch):
    def change(one):
        powers = one.chances**2
        return replace(one, chances=powers / powers.sum(1, keepdims=True))

    _predicted(patch, change)


@_bed.plant(AGAIN, also=ALSO, **CLS)
def padding_that_is_read(patch):
    original = accuracy.class_chances

    def class_chances(model, table, lengths):
        return original(model, table, torch.full_like(lengths, table.shape[1]))

    patch.setattr(accuracy, "class_chances", class_chances)


@_bed.plant(AGAIN, "model.dropout=0.3", also=ALSO, **CLS)
def classified_in_training_mode(patch):
    original = accuracy.class_chances
    patch.setattr(accuracy, "class_chances", lambda model, *rest: original(model.train(), *rest))


@_bed.plant(AGAIN, also=ALSO, **CLS)
def texts_cut_short(patch):
    original = Texts.padded
    patch.setattr(Texts, "padded", lambda self, context: original(self, 3))


@_bed.plant(AGAIN, **CLS)
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


@_bed.plant(AGAIN, **CLS)
def recall_called_precision(patch):
    _exchanged(patch, ".precision.", ".recall.")


@_bed.plant(AGAIN, **CLS)
def recall_called_f1(patch):
    _exchanged(patch, ".f1.", ".recall.")


# --- which weights ---------------------------------------------------------------------------------------------------

BEST = ("training.keep_best=true",)


class _Backwards(float):
    """More is less."""

    def __lt__(self, other: float) -> bool:
        return float(self) > float(other)


@_bed.plant(KEPT, *BEST, trains=True)
def worst_checkpoint_kept(patch):
    original = Loop.__post_init__

    def made(self):
        original(self)
        evaluate = self.evaluate
        self.evaluate = lambda: [{name: _Backwards(value) for name, value in one.items()} for one in evaluate()]

    patch.setattr(Loop, "__post_init__", made)


@_bed.plant(KEPT, *BEST, trains=True)
def first_checkpoint_kept(patch):
    original = Run.save_best

    def save_best(self, made):
        if not list(self.home.glob("best-*")):
            original(self, made)

    patch.setattr(Run, "save_best", save_best)


@_bed.plant(KEPT, *BEST, also=ALSO, trains=True)
def weights_of_the_best_before(patch):
    """Kept are those of the evaluation before."""
    original, before = Run.save_best, {}

    def save_best(self, made):
        weights = {name: tensor.clone() for name, tensor in made.weights.items()}
        original(self, replace(made, weights=before.get(self.folder, weights)))
        before[self.folder] = weights

    patch.setattr(Run, "save_best", save_best)


@_bed.plant(AGAIN, *BEST, "training.duration=13 steps", also=ALSO, trains=True)
def best_kept_and_others_scored(patch):
    """The best is on the disk, and what was at hand is scored."""

    def load_weights(self, r, weights):
        with torch.no_grad():
            for p in self.model.parameters():
                p[r] *= 0.9

    patch.setattr(Population, "load_weights", load_weights)
