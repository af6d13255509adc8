"""Special tokens: they are added around texts, and no text a user writes is encoded as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.data.marks import Marks
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Bpe, Char, Word

TEXT = "the cat sat on the mat, and the dog sat on the cat, and an [SEP]arate [MASK]ed dog sat\n" * 8
SPECS = (Char(), Word(), Bpe(size=280))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_special_tokens_have_the_last_ids_and_change_no_others(spec):
    plain = spec.learn(TEXT)
    marked = plain.with_marks()
    assert plain.marks is None and marked.marks is not None
    assert sorted(marked.marks.all) == list(range(plain.size, plain.size + 4)) and marked.size == plain.size + 4
    # the "[SEP]" in it is encoded as characters
    assert marked.encode(TEXT).ids.tolist() == plain.encode(TEXT).ids.tolist()
    assert marked.words.tolist() == list(range(plain.size))
    again = Tokenizer.from_json(marked.to_json())
    assert again.marks == marked.marks and again.encode(TEXT).ids.tolist() == plain.encode(TEXT).ids.tolist()
    assert marked.with_marks() is marked


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_typed_text_may_contain_masks(spec):
    tokenizer = spec.learn(TEXT).with_marks()
    mask = tokenizer.marks.mask
    for text, hidden in (("the [MASK] sat", 1), ("[MASK]", 1), ("[MASK][MASK] on [MASK]", 3), ("the cat", 0)):
        tokens = tokenizer.encode_with_masks(text)
        assert (tokens.ids == mask).sum() == hidden
        assert tokens.bytes.sum() == len(text) or tokenizer.kind == "word"
    hiding = tokenizer.encode_with_masks("the [MASK] sat").ids.tolist()
    whole = tokenizer.encode("the c sat" if tokenizer.kind == "char" else "the cat sat").ids.tolist()
    assert hiding == [mask if k == hiding.index(mask) else token for k, token in enumerate(whole)]


def test_a_text_that_contains_names_of_special_tokens():
    tokenizer = Word().learn(TEXT + "the [SEP] is a word\n").with_marks()
    assert tokenizer.pieces(tokenizer.marks.all) == ["<s>", "</s>", "<mask>", "<pad>"]
    with pytest.raises(UserError, match="cannot add special tokens"):
        Word().learn("[CLS] and <s>").with_marks()


@given(st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(0, 9), max_size=12), st.integers(3, 30))
def test_a_row_of_two_texts(first, second, longest):
    marks = Marks(10, 11, 12, 13)
    row = marks.row([np.array(first, dtype=np.int32), np.array(second, dtype=np.int32)], longest).tolist()
    assert len(row) == min(longest, len(first) + len(second) + 3)
    assert row[0] == 10 and row[-1] == 11 and row.count(11) == 2
    between = row.index(11)
    one, other = row[1:between], row[between + 1 : -1]
    assert one == first[: len(one)] and other == second[: len(other)]
    if len(one) < len(first):
        assert len(one) >= len(other) - 1
    if len(other) < len(second):
        assert len(other) >= len(one) - 1


def test_vocabularies_of_translators_get_no_special_tokens():
    from headway.data.sentencepiece import SentencePieceTokenizer

    with pytest.raises(UserError, match=r"\[MASK\]"):
        SentencePieceTokenizer.with_marks(object.__new__(SentencePieceTokenizer))
