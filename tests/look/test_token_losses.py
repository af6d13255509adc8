"""The loss per token with heads switched off, compared with a model whose weights were set to zero."""

import copy

import pytest
import torch

from headway.core.errors import UserError
from headway.look.token_losses import TokenLosses, each_switched_off, switched_off
from headway.scoring.reading import Reading
from headway.scoring.sentence import score_text

SENTENCE = "the lazy fox jumps"


def losing(model, words):
    def now() -> TokenLosses:
        found = score_text(model, words, SENTENCE, Reading(16, 16, False), "word")
        return TokenLosses(found.pieces, found.nats, "")

    return now


def total(losses: TokenLosses) -> float:
    return sum(nats for nats in losses.nats if nats is not None)


def test_switching_a_head_off_equals_setting_its_output_weights_to_zero(decoder, words):
    model = decoder(words.size)
    without = copy.deepcopy(model)
    mixer = without.layers[0].mixer
    width = mixer.output.weight.shape[-1] // mixer.spec.heads
    with torch.no_grad():
        mixer.output.weight[..., width : 2 * width] = 0.0
    off = switched_off(model, losing(model, words), {"layers.0.attention": [1]})
    assert off.nats == pytest.approx(losing(without, words)().nats, abs=1e-6)
    assert off.nats != losing(model, words)().nats


def test_switching_nothing_off_changes_nothing_and_heads_are_switched_on_again(decoder, words):
    model = decoder(words.size)
    before = losing(model, words)()
    assert switched_off(model, losing(model, words), {}) == before
    switched_off(model, losing(model, words), {"layers.0.attention": [0]})
    assert losing(model, words)() == before


def test_heads_are_switched_off_one_at_a_time(decoder, words):
    model = decoder(words.size)
    found = each_switched_off(model, losing(model, words), {"layers.0.attention": 2})
    alone = switched_off(model, losing(model, words), {"layers.0.attention": [1]})
    assert list(found) == [("layers.0.attention", 0), ("layers.0.attention", 1)]
    assert found["layers.0.attention", 1] == pytest.approx(total(alone) - total(losing(model, words)()))


def test_a_head_that_does_not_exist_is_refused(decoder, words):
    model = decoder(words.size)
    with pytest.raises(UserError, match="no head 7"):
        switched_off(model, losing(model, words), {"layers.0.attention": [7]})
