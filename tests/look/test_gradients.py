"""Gradients, compared with finite differences of the log-probabilities."""

import pytest
import torch
from torch import nn

from headway.core.errors import UserError
from headway.look.gradients import gradients_of, likeliest
from headway.nn.heads import Reweight

SENTENCE = "the lazy fox jumps"


def test_lengths_equal_finite_differences(decoder, words):
    model = decoder(words.size).double()
    found = gradients_of(model, words, SENTENCE)
    ids = torch.tensor(words.encode(SENTENCE).ids, dtype=torch.int64)[None, None]
    vectors, (row, token), step = model.embedding(ids).detach(), (3, 1), 1e-5

    @torch.no_grad()
    def log_p(vectors) -> torch.Tensor:
        hook = model.embedding.register_forward_hook(lambda module, given, out: vectors)
        logits = model(ids)[0][0, 0, row]
        hook.remove()
        return logits.log_softmax(-1).max()

    slopes = []
    for d in range(vectors.shape[-1]):
        shift = torch.zeros_like(vectors)
        shift[0, 0, token, d] = step
        slopes.append((log_p(vectors + shift) - log_p(vectors - shift)) / (2 * step))
    assert float(found.lengths[row, token]) == pytest.approx(float(torch.stack(slopes).norm()), rel=1e-3)
    assert found.explained.sizes[row] == pytest.approx(float(log_p(vectors).exp()), rel=1e-5)


def test_rows_are_shares_and_a_decoder_does_not_depend_on_what_comes_later(decoder, words):
    found = gradients_of(decoder(words.size), words, SENTENCE)
    torch.testing.assert_close(found.shares.sum(-1), torch.ones(4).double())
    assert found.lengths.triu(1).eq(0).all() and found.lengths.tril().ne(0).sum() == 10


def test_a_decoder_that_sees_the_future_has_gradients_there(decoder, words):
    assert gradients_of(decoder(words.size, fusion=Reweight()), words, SENTENCE).lengths.triu(1).gt(0).any()


def test_a_model_without_attention_has_gradients(without_attention, words):
    found = gradients_of(without_attention(words.size), words, SENTENCE)
    assert torch.equal(found.shares, torch.eye(4).double())
    assert [row[0] for row in found.table.rows] == [row[3] for row in found.table.rows] == SENTENCE.split()


def test_a_classifier_has_one_prediction(encoder, words):
    found = gradients_of(
        encoder(words.size), words, SENTENCE, explain=lambda answer: likeliest(answer, lambda best: ["abc"[best[0]]])
    )
    assert found.lengths.shape == (1, 4) and found.rows == (found.explained.predicted[0],)
    assert found.explained.predicted[0] in "abc"
    assert len(found.as_json()["predictions"]) == 1
    assert "<svg" in found._repr_html_()


def test_the_model_is_not_changed(decoder, words):
    model = decoder(words.size)
    gradients_of(model, words, SENTENCE)
    assert not model.embedding._forward_hooks
    assert all(p.grad is None for p in model.parameters())


def test_a_model_without_an_embedding_is_refused(words):
    with pytest.raises(UserError, match="linear has no embedding"):
        gradients_of(nn.Linear(2, 2), words, SENTENCE, "linear")
