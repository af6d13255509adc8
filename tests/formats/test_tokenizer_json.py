"""Headway's tokenizers and those of the library encode texts to the same ids and decode them to the same texts."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXT
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Bpe, Char, Given, Word
from headway.formats.tokenizer import library_of, read_tokenizer, tokenizer_config

SPECS = [Char(), Word(), Word(size=9, lower=True), Word(punctuation="apart"), Bpe(size=300)]
NAME = repr
HARD = TEXT[:200] + "a  the<unk>fox, <unk> (dog)!\n\n  The\tlazy \n dog"
SMALL = st.text(alphabet="\n\t  TheZoëfox.,<unk>()日😀\x1c", max_size=60)


def learnt(spec) -> Tokenizer:
    return spec.learn(TEXT + "\t()!a<unk>\n日😀\x1c<>")


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
@given(text=SMALL)
@settings(max_examples=40, deadline=None)
def test_the_library_encodes_and_decodes_equally(spec, text):
    ours = LEARNT[repr(spec)]
    ids = ours.encode(text).ids.tolist()
    assert LIBRARIES[repr(spec)].encode(text).ids == ids
    assert LIBRARIES[repr(spec)].decode(ids, skip_special_tokens=False) == ours.decode(ids)


@pytest.mark.parametrize("spec", SPECS, ids=NAME)
def test_auto_tokenizer_encodes_equally_and_its_file_can_be_imported(spec, tmp_path):
    from transformers import AutoTokenizer

    ours = learnt(spec)
    library = library_of(ours)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(library, 1000)))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    auto = AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode(HARD).ids.tolist()
    assert auto(HARD)["input_ids"] == ids
    assert auto.decode(ids) == ours.decode(ids)
    assert len(auto) == ours.size

    again, notes = read_tokenizer(tmp_path / "tokenizer.json", ours.size)
    assert notes == [] and again.kind == spec.kind
    assert again.encode(HARD).ids.tolist() == ids
    assert (again.size, again.unknown, again.line_end) == (ours.size, ours.unknown, ours.line_end)


def test_gpt2s_own_format_is_read_and_bytes_are_counted(gpt2_library, tmp_path):
    old = json.loads(gpt2_library.to_str())
    del old["model"]["type"]  # files as old as GPT-2's do not name the type
    (tmp_path / "tokenizer.json").write_text(json.dumps(old))
    ours, _ = read_tokenizer(tmp_path / "tokenizer.json", gpt2_library.get_vocab_size())
    text = "It's Zoë's fox<|endoftext|>The 23 dogs,  \n\nsaid 日本\x1c!\t"
    tokens = ours.encode(text)
    assert tokens.ids.tolist() == gpt2_library.encode(text).ids
    assert ours.decode(tokens.ids) == text
    assert tokens.bytes.sum() == len(text.encode())
    assert "<|endoftext|>" in ours.pieces(tokens.ids)
    assert ours.line_end is not None and ours.decode([ours.line_end]) == "\n"
    assert tokenizer_config(library_of(ours), 16)["eos_token"] == "<|endoftext|>"


def test_added_tokens_stand_for_themselves(gpt2_library, tmp_path):
    library = tokenizers.Tokenizer.from_str(gpt2_library.to_str())
    library.add_tokens([AddedToken("<é日>", normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    ours, _ = read_tokenizer(tmp_path / "tokenizer.json", library.get_vocab_size())
    tokens = ours.encode("fox <é日> fox")
    assert ours.decode(tokens.ids) == "fox <é日> fox"
    assert tokens.bytes.sum() == len("fox <é日> fox".encode())


def test_truncation_and_padding_are_dropped(gpt2_library, tmp_path):
    library = tokenizers.Tokenizer.from_str(gpt2_library.to_str())
    library.enable_truncation(4)
    library.enable_padding(length=10)
    library.save(str(tmp_path / "tokenizer.json"))
    ours, _ = read_tokenizer(tmp_path / "tokenizer.json", library.get_vocab_size())
    assert ours.decode(ours.encode(TEXT).ids) == TEXT


def test_embeddings_without_a_token_are_named(gpt2_library, tmp_path):
    gpt2_library.save(str(tmp_path / "tokenizer.json"))
    size = gpt2_library.get_vocab_size()
    ours, (note,) = read_tokenizer(tmp_path / "tokenizer.json", size + 4)
    assert ours.size == size + 4
    assert f"4 more embeddings than tokens; they are named <|unused-{size}|>" in note
    assert ours.encode(HARD).ids.tolist() == gpt2_library.encode(HARD).ids


# --- refusals --------------------------------------------------------------------------------------------------------


def prefixed(library):
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def normalised(library):
    library.normalizer = normalizers.Lowercase()


def greedy(library):
    library.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def random_cuts(library):
    library.model.dropout = 0.5


def no_bytes(library):
    library.model = models.BPE({"a": 0, "b": 1}, [])


def gaps(library):
    library.model = models.BPE({"a": 0, "b": 5}, [])


def unigram(library):
    library.model = models.Unigram([("a", 0.0)], 0)


def foreign_words(library):
    library.model = models.WordLevel({"<unk>": 0}, unk_token="<unk>")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (prefixed, "adds a space before every text"),
        (normalised, r"normalises text first \(Lowercase\)"),
        (greedy, "its token '<mask>' absorbs white space"),
        (random_cuts, r"splits words at random \(dropout 0\.5\)"),
        (no_bytes, "lacks 25[0-9] of the 256 single bytes"),
        (gaps, "are not numbered from 0 to"),
        (unigram, "a Unigram vocabulary; expected byte-level BPE"),
        (foreign_words, "a WordLevel vocabulary; expected byte-level BPE, as in GPT-2, or one that Headway wrote"),
    ],
)
def test_unsupported_vocabularies_are_refused(gpt2_library, tmp_path, spoil, words):
    library = tokenizers.Tokenizer.from_str(gpt2_library.to_str())
    spoil(library)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=words):
        read_tokenizer(tmp_path / "tokenizer.json", 10_000)


def test_a_missing_broken_or_too_large_tokenizer_is_refused(gpt2_library, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"is missing, but needed to tokenize text; transformers writes one with Auto"):
        read_tokenizer(path, 300)
    path.write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        read_tokenizer(path, 300)
    gpt2_library.save(str(path))
    with pytest.raises(UserError, match=r"has 300 tokens, but the model only 299 embeddings \(vocab_size\)"):
        read_tokenizer(path, 299)


# --- a given vocabulary in a recipe ----------------------------------------------------------------------------------


def test_a_given_vocabulary_is_adopted_unchanged_and_identified_by_its_content(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(Bpe(size=300).learn(TEXT).to_json(), "utf-8")
    given = Given(path=str(path))
    assert given.learn("other text").to_json() == path.read_text("utf-8")
    before = given.identity()
    path.write_text(Char().learn(TEXT).to_json(), "utf-8")
    assert given.identity() != before
    with pytest.raises(UserError, match=r"data\.tokenizer\.path: .*none\.json cannot be read"):
        Given(path=str(tmp_path / "none.json")).learn("")


LEARNT = {repr(spec): learnt(spec) for spec in SPECS}
LIBRARIES = {name: library_of(tokenizer) for name, tokenizer in LEARNT.items()}
