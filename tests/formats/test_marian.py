"""Marian folders: the same logits and tokens, round trips, and what has no counterpart."""

import json
import shutil
import struct

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
from tiny import cache_in
from tokenizers import models, pre_tokenizers, trainers

from headway.core.errors import UserError
from headway.data.sentencepiece import SentencePieceTokenizer, parsed
from headway.exchange.export import export_run
from headway.exchange.importer import import_folder
from headway.experiment.evaluate import score_splits_again, translate_texts
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.formats import marian_config
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import open_run
from headway.scoring.decoding import Beam, Greedy
from headway.scoring.translation import decoded
from headway.tasks.translation import tokenizers_of

TEXT = "the quick brown fox jumps over the lazy dog\nHe said: it's 3 o'clock, and the naive dog sleeps\n"


def _varint(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + _varint(n >> 7)


def _field(number: int, value: int | float | bytes) -> bytes:
    """A field of protocol buffers."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def spm(pieces, trainer: bytes = b"", rules: bytes = b"") -> bytes:
    """A SentencePiece file: name, score and kind of each piece."""
    told = (_field(1, name.encode()) + _field(2, float(score)) + _field(3, kind) for name, score, kind in pieces)
    return b"".join(_field(1, one) for one in told) + _field(2, trainer) + _field(3, rules)


def learnt(text: str, size: int) -> list[tuple[str, float, int]]:
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {"special_tokens": ["<unk>"], "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(vocab_size=size, show_progress=False, **special)
    library.train_from_iterator(text.split("\n"), trainer)
    found = [(name, score, 1) for name, score in json.loads(library.to_str())["model"]["vocab"] if name != "<unk>"]
    return [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *found]


SOURCE, TARGET = learnt(TEXT, 60), learnt(TEXT.upper(), 45)
NAMES = [
    "</s>",
    "<unk>",
    *sorted({name for name, _, kind in SOURCE + TARGET if kind == 1 and name != "z"}),
    ">>xx<<",
    "<pad>",
]
V, PAD = len(NAMES), len(NAMES) - 1
MARIANS = {"kind": "encoder-decoder", "positions": marian_config.SINUSOIDAL, "norm": {"placement": "post"}}
SHAPE = {"layers": 2, "attention_heads": 2, "ffn_dim": 24}


@pytest.fixture
def marian_folder(tmp_path):
    """Saves a random Marian with `save_pretrained`, and returns the folder and the model."""
    from transformers import MarianConfig, MarianMTModel

    def make(name: str = "theirs", pieces: bool = True, **settings):
        given = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SHAPE.items()}
        given |= {"vocab_size": V, "d_model": 16, "max_position_embeddings": 40, "pad_token_id": PAD}
        given |= {"eos_token_id": 0, "decoder_start_token_id": PAD, "scale_embedding": True, **settings}
        torch.manual_seed(1)
        model = MarianMTModel(MarianConfig(**given)).eval()
        # biases start at 0 and norm weights at 1, which would hide mistakes
        for parameter_name, parameter in model.named_parameters():
            if "embed_positions" not in parameter_name:
                torch.nn.init.normal_(parameter, std=0.4)
        model.final_logits_bias.normal_()
        model.generation_config.bad_words_ids = [[model.config.decoder_start_token_id]]
        folder = tmp_path / name
        model.save_pretrained(folder)
        if pieces:
            (folder / "source.spm").write_bytes(spm(SOURCE))
            (folder / "target.spm").write_bytes(spm(TARGET))
            (folder / "vocab.json").write_text(json.dumps({name: k for k, name in enumerate(NAMES)}), "utf-8")
        return folder, model

    return make


def ours_and_theirs(model, numbers, ids, targets):
    """Headway's logits and transformers', in Marian's order of ids, for inputs in that order."""
    orders = [torch.tensor(numbers.order(size)).argsort() for size in (numbers.source, numbers.target)]
    begun = orders[1][targets]
    begun[:, 0] = numbers.target - 1
    with torch.no_grad():
        return model(orders[0][ids][None], begun[None])[0][..., orders[1]]


SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V}
SETTINGS = {
    "swish": {"activation_function": "swish", "encoder_attention_heads": 4},
    "relu, END in the middle, begun with it": {
        "activation_function": "relu",
        "eos_token_id": 7,
        "decoder_start_token_id": 7,
        "pad_token_id": 7,
        "scale_embedding": False,
    },
    "two tables": {**SEPARATE, "encoder_layers": 1},
    "three tables": {**SEPARATE, "tie_word_embeddings": False, "activation_function": "gelu_new"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_imported_marian_has_the_same_logits_and_is_exported_unchanged(marian_folder, tmp_path, settings):
    from transformers import MarianMTModel

    folder, model = marian_folder(**settings)
    run = import_folder(folder, None, tmp_path / "runs").run
    numbers = marian_config.numbering(json.loads((folder / "config.json").read_text()))
    ids, targets = torch.randint(1, PAD, (3, 40)), torch.randint(1, PAD, (3, 39))
    targets[targets == numbers.end] = 1
    targets[:, 0] = model.config.decoder_start_token_id
    with torch.no_grad():
        theirs = model(input_ids=ids, decoder_input_ids=targets).logits
    ours = ours_and_theirs(load_model(run)[0], numbers, ids, targets)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)

    left = export_run(run, None, tmp_path / "out")
    came = safetensors.torch.load_file(folder / "model.safetensors")
    went = safetensors.torch.load_file(left.folder / "model.safetensors")
    assert set(went) == set(came) and all(torch.equal(went[key], came[key]) for key in came)
    for name in ("source.spm", "target.spm"):
        assert (left.folder / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((left.folder / "vocab.json").read_text("utf-8")) == {name: k for k, name in enumerate(NAMES)}
    with torch.no_grad():
        again = MarianMTModel.from_pretrained(left.folder).eval()(input_ids=ids, decoder_input_ids=targets).logits
    torch.testing.assert_close(again, theirs)


def test_greedy_and_beam_search_equal_those_of_transformers(marian_folder, tmp_path):
    folder, model = marian_folder(activation_function="swish")
    run = import_folder(folder, None, tmp_path / "runs").run
    ours, numbers = load_model(run)[0], marian_config.numbering(model.config.to_dict())
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, PAD, n) for n in (3, 9, 5, 7, 12, 4)]
    moved = [np.array([numbers.ours(int(k)) for k in row]) for row in sources]
    for how, beams in ((Greedy(per_source=1e-9, extra=11), 1), (Beam(size=4, nbest=1, per_source=1e-9, extra=11), 4)):
        found = decoded(ours, moved, V - 1, how)[0]
        for row, best in zip(sources, found, strict=True):
            settings = {"num_beams": beams, "max_new_tokens": 13, "do_sample": False, "forced_eos_token_id": 0}
            settings |= {"early_stopping": "never"} if beams > 1 else {}
            (theirs,) = model.generate(input_ids=torch.tensor([[*row, 0]]), **settings).tolist()
            written = theirs[1:][: theirs[1:].index(0)]
            assert [numbers.theirs(k) for k in best[0].tokens] == written
            assert PAD not in written


def test_it_is_a_run_like_any_other(marian_folder, tmp_path, workshop):
    folder, _ = marian_folder()
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"the {a} dog\tTHE {a.upper()} DOG\n" for a in ["quick", "brown", "lazy", "naive", "fox"]))
    changes = ["data.source=files", f"data.path={pairs}", "data.valid_fraction=0.3", "training.batch=2"]
    changes += ["training.duration=3 steps", "training.evaluate_every=3 steps", "scoring.decoding.extra=3"]
    with cache_in(workshop.cache):
        import_folder(folder, "mine", tmp_path / "runs", changes)
        run = open_run("mine", tmp_path / "runs")
        how = Beam(size=2, nbest=2, extra=3)
        (translation,) = translate_texts([run], [" the quick  fox"], how, "auto", lambda n: None)
        assert len(translation.hypotheses) == 2
        (loss, *_) = score_splits_again(run)
        assert loss.name == "valid.loss" and "sentencepiece" in loss.label
        (trained,) = train([run.recipe], ["mine"], tmp_path / "runs", resume=True)
        assert str(trained.status) == "finished" and trained.checkpoint().step == 3
        assert export_run(trained, "marian", tmp_path / "trained").step == 3


def pairs_in(folder):
    words = ["quick", "brown", "lazy", "naive", "reading"]
    (folder / "pairs.tsv").write_text("".join(f"the {a} dog\tTHE {a.upper()} DOG\n" for a in words))
    return [f"data.path={folder / 'pairs.tsv'}", "data.source=files", "data.valid_fraction=0.3", "training.batch=2"]


@pytest.mark.parametrize("tokenizers", ["one", "two"])
def test_a_run_of_marians_shape_can_be_exported_and_imported(tmp_path, workshop, tokenizers):
    from transformers import AutoTokenizer, MarianMTModel

    made = {"one": ["data.tokenizer={kind: bpe, size: 300}", "model.tied=all"]}
    made["two"] = ["data.tokenizer=word", "data.target_tokenizer={kind: bpe, size: 280}", "model.tied=output"]
    changes = ["model.width=16", "training.duration=2 steps", "model.output_bias=true", "scoring.splits=[]"]
    changes.append("scoring.decoding={kind: beam, size: 3, length_penalty: 0.6, no_repeat: 2}")
    tree = {"model": {**MARIANS, "layers": 1}, "data": {"kind": "pairs"}}
    recipe = from_tree(tree, "test", overrides=[*pairs_in(tmp_path), *made[tokenizers], *changes])
    with cache_in(workshop.cache):
        (run,) = train([recipe], ["ours"], tmp_path)
    out = export_run(run, None, tmp_path / "out").folder
    theirs, auto = MarianMTModel.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    model, numbers = load_model(run)[0], marian_config.numbering(theirs.config.to_dict())
    given = auto("reading", return_tensors="pt")
    assert set(given) == {"input_ids", "attention_mask"}
    source, target = tokenizers_of(run)
    ids = source.encode_rows(["reading"])[0]
    assert given["input_ids"][0].tolist() == [*(numbers.theirs(int(k)) for k in ids), numbers.end]
    targets = torch.tensor([[numbers.end, 3, 5, 2]])
    with torch.no_grad():
        expected = theirs(**given, decoder_input_ids=targets).logits
    torch.testing.assert_close(
        ours_and_theirs(model, numbers, given["input_ids"], targets), expected, atol=1e-5, rtol=1e-5
    )
    again = import_folder(out, "again", tmp_path / "runs").run
    assert all(
        torch.equal(tensor, run.checkpoint().weights[name]) for name, tensor in again.checkpoint().weights.items()
    )
    assert tokenizers_of(again)[0].encode_rows(["a dog"])[0].tolist() == source.encode_rows(["a dog"])[0].tolist()
    assert tokenizers_of(again)[1].size == target.size
    ways = [{**one.recipe.scoring.decoding.model_dump(), "per_source": 0, "extra": 0} for one in (again, run)]
    assert ways[0] == ways[1]


# --- text ------------------------------------------------------------------------------------------------------------


def pieces_of(text: str, pieces=SOURCE, names=NAMES, **settings) -> list[str]:
    tokenizer = SentencePieceTokenizer(spm(pieces, **settings), names, 0)
    return [names[k + 1] for k in tokenizer.encode_rows([text])[0]]


def test_text_is_split_into_the_likeliest_pieces():
    pieces = [("<unk>", 0, 2), ("▁", -3, 1), ("▁ab", -1, 1), ("a", -2, 1), ("b", -2, 1), ("▁abc", -9, 1), ("c", -2, 1)]
    names = ["</s>", "<unk>", "▁", "▁ab", "a", "b", "c", ">>xx<<"]
    assert pieces_of("abc  ab ", pieces, names) == ["▁ab", "c", "▁ab"]
    assert pieces_of(">>xx<< abab", pieces, names) == [">>xx<<", "▁ab", "a", "b"]
    assert pieces_of("ab 日本b", pieces, names) == ["▁ab", "▁", "<unk>", "b"]  # an unknown sequence is one token
    cheap = [*pieces[:5], ("▁abc", -0.5, 1), pieces[6]]
    assert pieces_of("abc", cheap, names) == ["<unk>"]  # a piece that has no id
    assert pieces_of("b", pieces, names, rules=_field(3, 0)) == ["b"]  # add_dummy_prefix: false
    assert pieces_of("<unk></s>", pieces, names) == ["▁", "<unk>"]  # names of control pieces are ordinary text


def test_decoding_inverts_encoding():
    tokenizer = SentencePieceTokenizer(spm(SOURCE), NAMES, 0)
    again = SentencePieceTokenizer.restored(json.loads(tokenizer.to_json()))
    for text in ("the  quick dog ", "it's 3 o'clock"):
        ids = again.encode_rows([text])[0]
        assert again.decode(ids) == " ".join(text.split())
        tokens = again.encode(text)
        assert tokens.bytes.sum() == len(text.encode()) and tokens.starts.sum() == len(text.split())
        assert np.array_equal(tokens.ids, ids)
    assert tokenizer.unknown == 0 and tokenizer.size == V - 1


def test_it_splits_as_sentencepiece_does(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "m.spm").write_bytes(spm(SOURCE))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.spm"))
    for text in ("the quick fox", " He  said: 日本 ", "it's", ""):
        told = [piece if piece in NAMES else "<unk>" for piece in theirs.encode(text, out_type=str)]
        assert pieces_of(text) == told


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"no such thing", "not a SentencePiece file"),
        (b"", "contains no pieces"),
        (spm(SOURCE)[:-7], "not a SentencePiece file"),
        (spm(SOURCE, trainer=_field(3, 2)), r"of the kind BPE \(model_type\) is not supported, only unigram"),
        (spm([*SOURCE, ("<x>", 0, 4)]), "user-defined symbols"),
        (spm(SOURCE, rules=_field(5, 0)), "escape_whitespaces"),
    ],
)
def test_an_unsupported_file_is_refused(file, words):
    with pytest.raises(UserError, match=words):
        parsed(file)


# --- what has no counterpart -----------------------------------------------------------------------------------------


def config(**changes):
    def change(folder):
        given = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(given))

    change.__name__ = f"config {changes}"
    return change


def without(name):
    def remove(folder):
        (folder / name).unlink()

    remove.__name__ = f"without {name}"
    return remove


def pickled(folder):
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")


def learnt_positions(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = torch.randn(40, 16)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


SPOILT = {
    config(normalize_before=True): "normalize_before: True",
    config(static_position_embeddings=False): "static_position_embeddings: False",
    config(encoder_ffn_dim=32): "encoder_ffn_dim: 32, but decoder_ffn_dim is 24",
    config(activation_function="swich"): "'swich' is not supported; did you mean 'swish'",
    config(tie_word_embeddings=False): "tie_word_embeddings: False",
    config(eos_token_id=[0, 1]): "eos_token_id: expected one token",
    config(decoder_start_token_id=V): "decoder_start_token_id: expected a token",
    config(decoder_layers=3): r"missing: model\.decoder\.layers\.2",
    config(vocab_size=V + 1): r"model\.shared\.weight is",
    pickled: r"only as pickle .* AutoModelForSeq2SeqLM\.from_pretrained",
    learnt_positions: "embed_positions.weight is not the sinusoidal table",
    without("source.spm"): r"no tokenizer: expected source\.spm, target\.spm and vocab\.json",
    without("target.spm"): r"target\.spm cannot be read",
    without("vocab.json"): r"vocab\.json is missing",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_a_folder_that_is_no_marian_is_refused_and_nothing_is_made(marian_folder, tmp_path, spoil):
    folder, _ = marian_folder()
    spoil(folder)
    with pytest.raises(UserError, match=SPOILT[spoil]):
        import_folder(folder, None, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": "rotary"}, "model.positions"),
        ({"positions": {"kind": "sinusoidal", "size": 1.0}}, "model.positions"),
        ({"norm": {"placement": "pre"}}, "model.norm.placement"),
        ({"norm": {"kind": "rms", "placement": "post"}}, "model.norm.kind"),
        ({"norm": {"placement": "post", "eps": 1e-3}}, "model.norm.eps"),
        ({"norm": {"placement": "post", "of_embeddings": True}}, "model.norm.of_embeddings"),
        ({"feedforward": "swiglu"}, "model.feedforward.kind"),
        ({"mixer": {"window": 4}}, "model.mixer.window"),
        ({"mixer": "lstm"}, "model.mixer"),
        ({"cross": {"kind": "attention", "heads": 2}}, "model.mixer.heads"),
        ({"mixer": {"similarity": "additive"}}, "model.mixer.similarity"),
    ],
)
def test_settings_without_a_counterpart_in_marian_are_named(change, words):
    def recipe(**changes):
        return from_tree({"model": {**MARIANS, **changes}, "data": {"kind": "pairs"}}, "test")

    assert marian_config.why_not(recipe().model) == []
    unlike = recipe(**change)
    (misfit,) = marian_config.why_not(unlike.model)
    assert misfit.key == words
    assert misfit.change is None or marian_config.why_not(unlike.with_changes([misfit.change]).model) == []
    assert "Marian is an encoder-decoder" in marian_config.why_not(Recipe().model)[0].why
