import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.data.tokens import Tokens
from headway.data.vocabularies import Bpe, Char, Word
from headway.scoring import likelihood
from headway.scoring.likelihood import Surprise, surprise, token_losses, windows

V = 11


@given(tokens=st.integers(2, 400), segment=st.integers(1, 60), data=st.data())
def test_windows_score_every_target_once_with_enough_before_it(tokens, segment, data):
    stride = data.draw(st.integers(1, segment))
    length, found = windows(tokens, segment, stride)
    scored = [w.start + k for w in found for k in range(w.first, length)]
    assert scored == list(range(tokens - 1))  # each once, and in order
    assert length <= segment
    assert all(w.start >= 0 and w.start + length <= tokens - 1 for w in found)  # all of one length, inside the text
    assert all(w.first >= length - stride for w in found[1:])
    assert found[0].first == 0


def test_windows_by_hand():
    assert windows(10, 4, 4) == (4, [(0, 0), (4, 0), (5, 3)])
    assert windows(10, 4, 2) == (4, [(0, 0), (2, 2), (4, 2), (5, 3)])
    assert windows(3, 4, 2) == (2, [(0, 0)])


def ids_of(length: int) -> torch.Tensor:
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(length))


def text_of(length: int) -> Tokens:
    """A text of three bytes per token, in which every second token begins a word."""
    ids = ids_of(length).numpy().astype(np.int32)
    return Tokens(ids, np.full(length, 3, np.int32), np.arange(length) % 2 == 0)


@pytest.mark.parametrize(("segment", "stride"), [(8, 8), (8, 3), (5, 5), (7, 1), (1, 1)])
@pytest.mark.parametrize("length", [2, 8, 9, 30])
def test_token_losses_equal_those_of_one_window_at_a_time(model, monkeypatch, segment, stride, length):
    net, ids = model(seeds=(0, 1)), ids_of(length)
    naive = torch.zeros(2, length - 1)
    for r in range(2):
        size, places = windows(length, segment, stride)
        for start, first in places:
            logits, _ = net(ids[start : start + size].expand(2, 1, -1))
            nats = F.cross_entropy(logits[r, 0], ids[start + 1 : start + size + 1], reduction="none")
            naive[r, start + first : start + size] = nats[first:].detach()
    monkeypatch.setattr(likelihood, "MIN_TOKENS", 1)
    monkeypatch.setitem(
        likelihood.MAX_ELEMENTS, "cpu", 3 * 2 * 8 * 32 * min(segment, length - 1)
    )  # three windows at once
    found = token_losses(net, ids, segment, stride)
    torch.testing.assert_close(found.detach(), naive)


def test_losses_do_not_depend_on_tokens_before_the_window(model):
    """With stride 1, each token but the first few is predicted from exactly `segment` tokens."""
    net, ids = model(), ids_of(20)
    found = token_losses(net, ids, 4, 1)[0]
    logits, _ = net(ids[9:13][None, None])
    expected = F.cross_entropy(logits[0, 0, -1], ids[13])
    torch.testing.assert_close(found[12], expected)


def test_the_perplexity_of_a_uniform_model_is_the_size_of_its_vocabulary(uniform):
    (found,) = surprise(uniform(), text_of(50), 8, 4, "char")
    scores = {s.name: s.value for s in found.scores("valid")}
    assert scores["valid.perplexity"] == pytest.approx(V, rel=1e-6)
    assert scores["valid.loss"] == pytest.approx(math.log(V), rel=1e-6)


def test_every_replica_gets_its_own_surprise(model):
    net = model(seeds=(0, 1))
    alone = [token_losses(net, ids_of(20), 8, 8)[r].double().sum().item() for r in range(2)]
    found = surprise(net, text_of(20), 8, 8, "char")
    assert [s.nats for s in found] == alone
    assert alone[0] != alone[1]


def test_scoring_restores_the_training_mode(model):
    net = model()
    net.train()
    (found,) = surprise(net, text_of(20), 8, 8, "char")
    assert not net.training
    assert found.nats == pytest.approx(token_losses(net, ids_of(20), 8, 8).double().sum().item())


def test_the_first_token_is_not_scored_and_the_end_may_be_truncated(uniform):
    (whole,) = surprise(uniform(), text_of(21), 8, 8, "char")
    assert (whole.tokens, whole.words, whole.bytes) == (20, 10, 60)
    (part,) = surprise(uniform(), text_of(21), 8, 8, "char", at_most=7)
    assert (part.tokens, part.words, part.bytes) == (7, 3, 21)
    (more,) = surprise(uniform(), text_of(21), 8, 8, "char", at_most=99)
    assert more == whole


def test_the_scores_by_hand():
    scores = Surprise(nats=20.0, tokens=10, words=4, bytes=50, segment=8, stride=4, token_kind="bpe").scores("valid")
    values = {s.name: s.value for s in scores}
    assert values == {
        "valid.loss": 2.0,
        "valid.perplexity": pytest.approx(math.exp(2.0)),
        "valid.perplexity_per_word": pytest.approx(math.exp(5.0)),
        "valid.bits_per_byte": pytest.approx(20.0 / math.log(2) / 50),
    }


@pytest.mark.parametrize("spec", [Char(), Word(), Bpe(size=260)], ids=lambda s: s.kind)
def test_words_and_bytes_do_not_depend_on_the_tokens(uniform, spec):
    """Tokens depend on the vocabulary, but words and bytes only on the text."""
    text = "\n" + "".join(f"the café no {k} is open.\n" for k in range(9))
    tokenizer = spec.learn(text)
    (found,) = surprise(uniform(vocabulary=tokenizer.size), tokenizer.encode(text), 8, 8, spec.kind)
    assert found.words == len(text.split())
    assert found.bytes == len(text.encode()) - 1  # the line end before the text, which is not scored
    bits = {s.name: s.value for s in found.scores("x")}["x.bits_per_byte"]
    assert bits == pytest.approx(found.tokens * math.log2(tokenizer.size) / found.bytes, rel=1e-5)


def test_labels_name_the_unit_the_split_and_the_segments():
    labels = [s.label for s in Surprise(20.0, 1234, 400, 5000, 8, 4, "bpe").scores("test-x")]
    for label in labels:
        assert label.endswith("test-x · 1,234 tokens · segment 8, stride 4, no state carried")
    assert [label.split(" · ")[0] for label in labels] == [
        "nats per token (bpe)",
        "perplexity per token (bpe)",
        "perplexity per word (400 words between white space; line ends not counted)",
        "bits per byte (5,000 bytes of UTF-8)",
    ]
    assert "1 token ·" in Surprise(2.0, 1, 1, 1, 8, 4, "char").scores("x")[0].label


@pytest.mark.parametrize(("nats", "kind"), [(math.nan, math.isnan), (1e6, math.isinf), (math.inf, math.isinf)])
def test_a_loss_without_a_finite_perplexity_is_no_error(nats, kind):
    scores = {s.name: s.value for s in Surprise(nats, 10, 0, 0, 8, 8, "char").scores("x")}
    assert kind(scores["x.perplexity"])


def test_texts_that_cannot_be_scored_are_refused_with_a_message(model):
    with pytest.raises(UserError, match="1 token cannot be scored: at least 2 are needed"):
        token_losses(model(), ids_of(1), 8, 8)
    with pytest.raises(UserError, match="a stride of 9 would skip tokens between segments of 8"):
        token_losses(model(), ids_of(20), 8, 9)
    with pytest.raises(UserError, match="9 tokens, but the learned positions end at 8"):
        token_losses(model(), ids_of(20), 9, 9)
