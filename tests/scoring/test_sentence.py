import math

import pytest
import torch

from headway.core.errors import UserError
from headway.data.vocabularies import Bpe, Char, Word
from headway.scoring.likelihood import token_losses
from headway.scoring.reading import Reading
from headway.scoring.sentence import score_text


def test_a_text_is_scored_as_the_beginning_of_a_line(model):
    tokenizer = Char().learn("abc \n")
    net = model(vocabulary=tokenizer.size)
    found = score_text(net, tokenizer, "ab ca", Reading(8, 8), "char")
    after_a_line_end = token_losses(net, torch.tensor(tokenizer.encode("\nab ca").ids), 8, 8)[0].tolist()
    assert found.begins_a_line
    assert found.pieces == ["a", "b", "␣", "c", "a"]
    assert found.nats == pytest.approx(after_a_line_end)
    assert (found.surprise.tokens, found.surprise.words, found.surprise.bytes) == (5, 2, 5)
    assert found.surprise.nats == pytest.approx(sum(after_a_line_end))


def test_without_line_ends_the_first_token_is_not_scored(model):
    tokenizer = Char().learn("abc ")
    net = model(vocabulary=tokenizer.size)
    found = score_text(net, tokenizer, "ab ca", Reading(8, 8), "char")
    assert not found.begins_a_line
    assert found.nats[0] is None
    assert found.nats[1:] == pytest.approx(
        token_losses(net, torch.tensor(tokenizer.encode("ab ca").ids), 8, 8)[0].tolist()
    )
    assert (found.surprise.tokens, found.surprise.words, found.surprise.bytes) == (4, 1, 4)


def test_a_text_longer_than_a_segment_is_scored_completely(model):
    tokenizer = Char().learn("abc \n")
    found = score_text(model(vocabulary=tokenizer.size), tokenizer, "abc " * 20, Reading(8, 4), "char")
    assert len(found.nats) == 80 and all(n is not None and math.isfinite(n) for n in found.nats)
    assert "segment 8, stride 4" in found.surprise.scores("text")[0].label


def test_unknown_words_are_counted(model):
    tokenizer = Word().learn("the cat sat\n")
    found = score_text(model(vocabulary=tokenizer.size), tokenizer, "the dog sat down", Reading(8, 8), "word")
    assert found.unknown == 2
    assert found.pieces == ["the", "<unk>", "sat", "<unk>"]
    assert found.surprise.bytes == len("the dog sat down")


def test_bytes_of_unseen_letters_have_pieces_too(model):
    tokenizer = Bpe(size=256).learn("abc\n")
    found = score_text(model(vocabulary=tokenizer.size), tokenizer, "☃", Reading(8, 8), "bpe")
    assert found.pieces == ["\\xe2", "\\x98", "\\x83"]
    assert (found.unknown, found.surprise.bytes, found.surprise.words) == (0, 3, 1)


def test_a_single_token_needs_a_line_end_before_it(model):
    with_line_ends, without = Char().learn("ab\n"), Char().learn("ab")
    assert len(score_text(model(vocabulary=3), with_line_ends, "a", Reading(8, 8), "char").nats) == 1
    with pytest.raises(UserError, match="the text is a single token, and this vocabulary has no line end"):
        score_text(model(vocabulary=2), without, "a", Reading(8, 8), "char")


def test_an_empty_text_is_refused(model):
    with pytest.raises(UserError, match="the text is empty"):
        score_text(model(vocabulary=3), Char().learn("ab\n"), "", Reading(8, 8), "char")
