"""Faults of the scores of language models: the reported number is not what its name says."""

import math
from dataclasses import replace
from typing import Any

import torch

from headway.audit.plants.needs import DROPOUT, LANGUAGE_MODEL, LONG_TOKENS, STRIDE
from headway.audit.plants.planting import Bed, Patch
from headway.models.language_model import LanguageModel
from headway.scoring import likelihood
from headway.scoring.likelihood import Surprise

_bed = Bed("scores", LANGUAGE_MODEL)
AGAIN = "scores-again"
ALSO = ("kept-checkpoint", "score-and-curve")
"""Audits that may also fail: evaluations use the same code, so with the fault they differ from those in training."""


# --- the loss of a token ---------------------------------------------------------------------------------------------


def _of_logits(patch: Patch, nats: Any) -> None:
    """Use another loss of logits [R, B, T, V] and targets."""

    def losses(self: Any, inputs: Any, targets: Any) -> Any:
        logits, _ = self(inputs)
        return nats(logits, targets)

    patch.setattr(LanguageModel, "losses", losses)


def _nats(logits: Any, targets: Any) -> Any:
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


@_bed.plant(AGAIN, also=ALSO)
def label_smoothing_in_the_score(patch):
    _of_logits(patch, lambda x, t: 0.9 * _nats(x, t) - 0.1 * x.log_softmax(-1).mean(-1))


@_bed.plant(AGAIN, also=ALSO)
def temperature_in_the_score(patch):
    _of_logits(patch, lambda x, t: _nats(x / 0.9, t))


@_bed.plant(AGAIN, also=ALSO)
def clipped_nats(patch):
    """The loss of a token is capped: in practice at ten nats, say; here at four."""
    _of_logits(patch, lambda x, t: _nats(x, t).clamp(max=4.0))


@_bed.plant(AGAIN, also=ALSO)
def best_of_two_targets(patch):
    """The token itself or the one before it, whichever is likelier."""
    _of_logits(patch, lambda x, t: torch.minimum(_nats(x, t), _nats(x, t.roll(1, -1))))


@_bed.plant(AGAIN, also=ALSO)
def bits_called_nats(patch):
    _of_logits(patch, lambda x, t: _nats(x, t) / math.log(2))


# --- which tokens count ----------------------------------------------------------------------------------------------


def _of_tokens(patch: Patch, change: Any) -> None:
    """Change the nats [R, N - 1] of all tokens."""
    original = likelihood.token_losses

    def token_losses(model: Any, ids: Any, segment: int, stride: int) -> Any:
        return change(original, model, ids, segment, stride)

    patch.setattr(likelihood, "token_losses", token_losses)


@_bed.plant(AGAIN, also=ALSO)
def first_tokens_of_windows_left_out(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        found[:, ::segment] = found.mean(1, keepdim=True)
        return found

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def last_window_left_out(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        found[:, (found.shape[1] - 1) // segment * segment :] = 0
        return found

    _of_tokens(patch, change)


@_bed.plant(AGAIN, STRIDE, also=ALSO)
def stride_off_by_one(patch):
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, stride + 1))


@_bed.plant(AGAIN, STRIDE, also=ALSO)
def stride_that_is_not_used(patch):
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, segment))


@_bed.plant(AGAIN, also=ALSO)
def more_context_than_reported(patch):
    """Every token has a full window of context, but the score is reported as of plain segments."""
    _of_tokens(patch, lambda original, model, ids, segment, stride: original(model, ids, segment, 1))


@_bed.plant(AGAIN, DROPOUT, also=ALSO)
def scored_in_training_mode(patch):
    def change(original, model, ids, segment, stride):
        return original(model.train(), ids, segment, stride)

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def scored_from_left_to_right_and_back(patch):
    def change(original, model, ids, segment, stride):
        return original(model, ids.flip(0), segment, stride)

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def only_the_beginning_is_scored(patch):
    """The mean of the beginning stands for all."""

    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        return found[:, : max(1, found.shape[1] // 4)].mean(1, keepdim=True).expand_as(found)

    _of_tokens(patch, change)


@_bed.plant(AGAIN, also=ALSO)
def frequent_tokens_only(patch):
    """The rarest tenth of the tokens, which is the hardest, does not count."""

    def change(original, model, ids, segment, stride):
        found, often = original(model, ids, segment, stride), torch.bincount(ids)[ids[1:].long()]
        counts = often >= often.float().quantile(0.1)
        return torch.where(counts, found, found[:, counts].mean(1, keepdim=True))

    _of_tokens(patch, change)


# --- from nats to scores ---------------------------------------------------------------------------------------------


def _of_scores(patch: Patch, name: str, change: Any) -> None:
    original = Surprise.scores

    def scores(self: Surprise, split: str) -> Any:
        said = original(self, split)
        return [replace(one, value=change(self, one.value)) if one.name.endswith(name) else one for one in said]

    patch.setattr(Surprise, "scores", scores)


@_bed.plant(AGAIN)
def bits_per_byte_in_nats(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: value * math.log(2))


@_bed.plant(AGAIN)
def bits_per_byte_in_base_ten(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: value * math.log(2) / math.log(10))


@_bed.plant(AGAIN, LONG_TOKENS)
def bits_per_token_called_per_byte(patch):
    _of_scores(patch, ".bits_per_byte", lambda self, value: self.nats / math.log(2) / self.tokens)


@_bed.plant(AGAIN)
def perplexity_in_base_two(patch):
    _of_scores(patch, ".perplexity", lambda self, value: 2.0 ** (self.nats / self.tokens))


@_bed.plant(AGAIN)
def perplexity_per_word_that_is_per_token(patch):
    _of_scores(patch, ".perplexity_per_word", lambda self, value: math.exp(self.nats / self.tokens))


@_bed.plant(AGAIN)
def words_counted_with_line_ends(patch):
    _of_scores(patch, ".perplexity_per_word", lambda self, value: math.exp(self.nats / (self.words * 1.08)))


@_bed.plant(AGAIN, also=ALSO)
def mean_of_perplexities(patch):
    def change(original, model, ids, segment, stride):
        found = original(model, ids, segment, stride)
        return found.exp().mean(1, keepdim=True).log().expand_as(found)

    _of_tokens(patch, change)
