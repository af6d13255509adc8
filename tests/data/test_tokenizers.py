import os
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tokenizers import models, normalizers, pre_tokenizers, trainers

from headway.core.errors import UserError
from headway.data import tokenizers as text_module
from headway.data.running.sources import read_splits
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Bpe, Char, Given, TokenizerSpec, Word

SAMPLE = "It was the best of times, it was the worst of times.\n\n  It wasn't <unk> — naïve 日本 😀!\n" * 3
SPECS = [
    Char(),
    Word(),
    Word(punctuation="apart"),
    Word(lower=True, size=8),
    Bpe(size=256),
    Bpe(size=400),
    Bpe(size=400, lower=True),
]
LOSSLESS = [Char(), Bpe(size=256), Bpe(size=400)]
NAME = repr

# Any Unicode text, but with frequent white space of all kinds, and words of few letters so that they repeat.
SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
TEXTS = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=SPACES + "\n  abcé日😀.,'’<>-_0İ", max_size=200),
    st.lists(st.sampled_from(["the", "cat's", "<unk>", "\n", " ", "  ", "\t", "!?", "naïve"]), max_size=60).map(
        "".join
    ),
)


@pytest.mark.parametrize("spec", LOSSLESS, ids=NAME)
@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_decode_undoes_encode(spec: TokenizerSpec, text: str):
    tokenizer = spec.learn(text) if spec.kind == "char" else LEARNT[repr(spec)]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_bytes_and_words_are_all_accounted_for(spec: TokenizerSpec, text: str):
    tokenizer = spec.learn(text) if spec.kind == "char" else LEARNT[repr(spec)]
    tokens = tokenizer.encode(text)
    if len(tokens):
        assert tokens.bytes.sum() == len(text.encode())
    assert tokens.starts.sum() == len(text.split())
    assert len(tokens.ids) == len(tokens.bytes) == len(tokens.starts) == len(tokens)
    assert (tokens.ids.dtype, tokens.bytes.dtype, tokens.starts.dtype) == (np.int32, np.int32, np.bool_)


@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_words_keep_words_and_line_ends(text: str):
    tokenizer = Word().learn(text)
    decoded = tokenizer.decode(tokenizer.encode(text).ids)
    assert [line.split() for line in decoded.split("\n")] == [line.split() for line in text.split("\n")]


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
@given(text=TEXTS)
@example(text="00İ 0 Aẞ İ")  # letters whose lower case has another number of bytes
@settings(max_examples=30, deadline=None)
def test_tokens_do_not_depend_on_how_text_is_split_into_pieces(spec: TokenizerSpec, text: str):
    tokenizer = spec.learn(text) if spec.kind == "char" else LEARNT[repr(spec)]
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "CHUNK", 3)
        patch.setattr(text_module, "_CHUNKS_AT_ONCE", 2)
        in_pieces = tokenizer.encode(text)
    for name in ("ids", "bytes", "starts"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(in_pieces, name))


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
def test_json_round_trips(spec: TokenizerSpec):
    learnt = LEARNT[repr(spec)]
    read_back = Tokenizer.from_json(learnt.to_json())
    tokens = learnt.encode(SAMPLE)
    np.testing.assert_array_equal(tokens.ids, read_back.encode(SAMPLE).ids)
    assert read_back.decode(tokens.ids) == learnt.decode(tokens.ids)
    assert (read_back.size, read_back.line_end, read_back.unknown) == (learnt.size, learnt.line_end, learnt.unknown)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"headway_tokenizer": 2}', '{"headway_tokenizer": 1, "kind": "word"}']
)
def test_other_json_is_refused(text: str):
    with pytest.raises(UserError, match="not a tokenizer that Headway wrote"):
        Tokenizer.from_json(text)


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
def test_learning_twice_gives_the_same(spec: TokenizerSpec):
    assert spec.learn(SAMPLE).to_json() == spec.learn(SAMPLE).to_json()


def test_line_end_and_unknown():
    assert (LEARNT[repr(Char())].unknown, LEARNT[repr(Bpe(size=400))].unknown) == (None, None)
    for tokenizer in LEARNT.values():
        assert tokenizer.line_end is not None
        assert tokenizer.decode([tokenizer.line_end]) == "\n"
        assert tokenizer.encode("\n").ids.tolist() == [tokenizer.line_end]
    assert Char().learn("no line ends").line_end is None


# Characters


def test_strange_characters_are_named_and_placed():
    tokenizer = Char().learn("abc\n")
    with pytest.raises(UserError, match=r"lacks 'é' \(U\+00E9\); the first is 'é' in line 2, column 3"):
        tokenizer.encode("abc\nabé")
    with pytest.raises(UserError, match=r"lacks 'd' .*, 'e' .*, 'f' .*, 'g' .*, 'h' \(U\+0068\) and 2 more; .*'j'"):
        tokenizer.encode("jihgfed")


@pytest.mark.parametrize("tokenizer_kind", ["char", "word", "bpe"])
def test_half_a_surrogate_pair_is_refused(tokenizer_kind: str):
    tokenizer = TypeAdapter(TokenizerSpec).validate_python(tokenizer_kind).learn(SAMPLE)
    with pytest.raises(UserError, match="not valid Unicode: half a surrogate pair in line 1, column 2"):
        tokenizer.encode("a\ud800b")


# Byte pairs


def test_byte_pairs_without_capitals():
    tokenizer = Bpe(size=300, lower=True).learn("Ein Mann und ein Hund\n")
    assert tokenizer.decode(tokenizer.encode("Ein HUND, ÄRGER\n").ids) == "ein hund, ärger\n"
    assert tokenizer.encode("EIN Mann").ids.tolist() == tokenizer.encode("ein mann").ids.tolist()
    # the identity that runs have which were made before `lower` existed
    assert Bpe().identity() == '{"kind":"bpe","size":4096}'


# Words


def test_words_and_line_ends():
    tokenizer = Word().learn("the cat\nthe dog\n")
    tokens = tokenizer.encode("  the bird\n\nthe dog ")
    assert tokenizer.pieces(tokens.ids) == ["the", "<unk>", "↵", "↵", "the", "dog"]
    assert tokenizer.decode(tokens.ids) == "the <unk>\n\nthe dog"
    # white space belongs to the next token, and at the end to the last
    assert tokens.bytes.tolist() == [5, 5, 1, 1, 3, 5]
    assert tokens.starts.tolist() == [True, True, False, False, True, True]


def test_the_most_frequent_words_are_kept():
    tokenizer = Word(size=4).learn("b b b a a c c d")
    assert tokenizer.size == 4
    assert tokenizer.pieces(range(4)) == ["<unk>", "↵", "b", "a"]
    assert tokenizer.unknown == 0


def test_a_literal_unk_is_the_unknown_word():
    for spec in (Word(), Word(punctuation="apart")):
        tokenizer = spec.learn("a <unk> b")
        assert tokenizer.size == 4
        assert tokenizer.encode("<unk>").ids.tolist() == [tokenizer.unknown]


def test_punctuation_as_separate_tokens():
    tokenizer = Word(punctuation="apart").learn("(Don't stop), well-known! \n")
    tokens = tokenizer.encode("(Don't stop), well-known! \n")
    assert tokenizer.pieces(tokens.ids) == ["(", "Don't", "stop", ")", ",", "well", "-", "known", "!", "↵"]
    assert tokens.starts.tolist() == [True, False, True, False, False, True, False, False, False, False]


def test_lower_case():
    tokenizer = Word(lower=True).learn("The the THE İ")
    assert tokenizer.size == 4
    assert tokenizer.encode("tHe İ").bytes.tolist() == [3, 3]


# Byte pairs


def test_byte_pairs_encode_any_text_and_show_it():
    tokenizer = LEARNT[repr(Bpe(size=400))]
    ids = tokenizer.encode(" times of\n\tтень").ids
    shown = tokenizer.pieces(ids)
    assert shown[:4] == ["␣times", "␣of", "↵", "⇥"]
    assert shown[4:6] == [r"\xd1", r"\x82"]
    assert tokenizer.decode(ids[:5]) == " times of\n\t�"
    assert tokenizer.size <= 400


def test_a_word_longer_than_sixteen_bits_is_counted_whole():
    assert Word().learn("a").encode("x" * 70_000).bytes.tolist() == [70_000]


# Specs


def test_specs_by_name_and_with_settings():
    spec = TypeAdapter(TokenizerSpec)
    assert spec.validate_python("char") == Char()
    assert spec.validate_python({"kind": "word", "size": 10}) == Word(size=10)
    for wrong in ("letters", {"kind": "bpe", "size": 255}, {"kind": "word", "size": 2}, {"kind": "char", "size": 9}):
        with pytest.raises(ValidationError):
            spec.validate_python(wrong)


# Real text


@pytest.mark.data
def test_wikitext_has_its_published_counts():
    if not os.environ.get("HEADWAY_DATA"):
        pytest.skip("HEADWAY_DATA is not set")
    texts = read_splits("wikitext-2", None, 0.1)
    began = time.process_time()
    tokenizer = Word().learn(texts["train"])
    tokens = {split: tokenizer.encode(text) for split, text in texts.items()}
    assert time.process_time() - began < 20
    assert tokenizer.size == 33_278
    assert {split: len(part) for split, part in tokens.items()} == {
        "train": 2_088_628,
        "valid": 217_646,
        "test": 245_569,
    }
    assert int((tokens["test"].ids == tokenizer.unknown).sum()) == 15_218


def test_a_million_characters_take_less_than_three_seconds():
    text = SAMPLE * (1_100_000 // len(SAMPLE))
    tokenizer = LEARNT[repr(Char())]
    began = time.process_time()
    assert len(tokenizer.encode(text)) == len(text)
    assert time.process_time() - began < 3


LEARNT = {repr(spec): spec.learn(SAMPLE) for spec in SPECS}


def test_a_vocabulary_saved_by_the_library_is_adopted_unchanged(tmp_path):
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(["a dog, a dog"], trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet))
    library.save(str(tmp_path / "theirs.json"))
    ours = Given(path=str(tmp_path / "theirs.json")).learn("")
    assert ours.kind == "bpe" and ours.size == library.get_vocab_size()
    assert ours.encode_rows(["a dog é"])[0].tolist() == library.encode("a dog é").ids
    library.normalizer = normalizers.Lowercase()
    library.save(str(tmp_path / "lower.json"))
    (tmp_path / "broken.json").write_text('{"model": 3}')
    for name, words in (("lower", "normalises text first"), ("broken", "cannot be read")):
        with pytest.raises(UserError, match=words):
            Given(path=str(tmp_path / f"{name}.json")).learn("")
