"""Imported GPT-2 models: they compute the same logits, and are runs like any other."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from tiny import cache_in, snapshot

from headway.core.errors import UserError
from headway.exchange.export import export_run
from headway.exchange.importer import import_folder
from headway.experiment.evaluate import sample_text, score_file, score_sentence, score_splits_again
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.models.language_model import LanguageModelSpec
from headway.nn.penalty import PenaltySpec
from headway.run.folder import open_run
from headway.run.record import all_runs
from headway.tasks.abilities import Draw

INDEX = "model.safetensors.index.json"


def logits(run, ids):
    with torch.no_grad():
        return load_model(run)[0](ids[None])[0][0]


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        ({}, {}),
        ({"tie_word_embeddings": False, "n_inner": 20}, {"max_shard_size": "4KB"}),
        ({"activation_function": "relu", "attn_pdrop": 0.0}, {}),
    ],
)
def test_an_imported_model_has_the_same_logits_and_is_exported_unchanged(gpt2_folder, tmp_path, settings, saved):
    folder, model = gpt2_folder(saved=saved, **settings)
    assert (folder / INDEX).exists() == bool(saved)
    run = import_folder(folder, None, tmp_path / "runs").run
    assert run.name == "theirs" and str(run.status) == "imported" and run.checkpoint().step == 0
    ids = torch.randint(300, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(logits(run, ids), model(ids).logits, atol=1e-5, rtol=1e-5)

    left = safetensors.torch.load_file(export_run(run, "gpt2", tmp_path / "out").folder / "model.safetensors")
    came = {key: t for file in folder.glob("*.safetensors") for key, t in safetensors.torch.load_file(file).items()}
    assert set(left) == set(came) and all(torch.equal(left[key], came[key]) for key in came)
    assert "imported from theirs, not trained here" in (tmp_path / "out" / "README.md").read_text("utf-8")
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folder))
    assert {key: theirs[key] for key in ours} == ours


def test_transformers_reads_the_export_with_its_end_of_text_token(gpt2_folder, tmp_path, gpt2_library):
    from transformers import AutoTokenizer

    run = import_folder(gpt2_folder()[0], None, tmp_path / "runs").run
    auto = AutoTokenizer.from_pretrained(export_run(run, "gpt2", tmp_path / "out").folder)
    text = "The fox<|endoftext|>It's Zoë"
    assert auto(text)["input_ids"] == gpt2_library.encode(text).ids
    assert auto.eos_token_id == run.tokenizer.encode("<|endoftext|>").ids.tolist()[0]
    assert auto.decode(auto(text)["input_ids"]) == text


def test_variants_that_headway_lacks_are_run_by_transformers_and_reported(gpt2_folder, tmp_path):
    folder, model = gpt2_folder(scale_attn_by_inverse_layer_idx=True)
    made = import_folder(folder, None, tmp_path / "runs")
    assert "needs what Headway's models do not support:\n  scale_attn_by_inverse_layer_idx" in made.notes[0]
    assert "a 'gpt2' runs in transformers" in made.notes[1]
    ids = torch.randint(300, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(logits(made.run, ids), model(ids).logits, atol=1e-5, rtol=1e-5)
        for block in model.transformer.h:
            block.attn.scaling = block.attn.head_dim**-0.5
        assert not torch.allclose(logits(made.run, ids), model(ids).logits, atol=1e-5)  # the setting is not ignored


def test_weights_without_the_prefix_and_in_half_precision(gpt2_folder, tmp_path):
    folder, model = gpt2_folder()
    old = {name: tensor.bfloat16() for name, tensor in model.transformer.state_dict().items()}
    safetensors.torch.save_file(old, folder / "model.safetensors", {"format": "pt"})
    made = import_folder(folder, "old", tmp_path / "runs")
    assert any("the weights were bfloat16 and are float32 now" in note for note in made.notes)
    assert all(w.dtype == torch.float32 for w in made.run.checkpoint().weights.values())


@pytest.fixture
def imported(gpt2_folder, workshop, tmp_path):
    """An imported run, with the workshop's text to score it on."""
    with cache_in(workshop.cache):
        changes = ["data.source=files", f"data.path={workshop.text}", "training.duration=4 steps", "training.batch=2"]
        yield import_folder(gpt2_folder()[0], "mine", tmp_path / "runs", changes)


def test_it_can_be_scored_and_sampled(imported, workshop):
    run = open_run("mine", imported.run.folder.parent)
    (split, *_) = score_splits_again(run)
    assert split.name == "valid.loss" and run.scores()[0] == split
    (file, *_) = score_file(run, workshop.text)
    assert "nats per token (bpe)" in file.label
    scored, scores = score_sentence(run, "Zoë said")
    assert "".join(scored.pieces) == "Zoë␣said" and "(bpe)" in scores[0].label
    assert sample_text(run, "The", Draw(4, temperature=0.0), "auto", lambda piece: None)[0].startswith("The")
    assert [r.name for r in all_runs(run.folder.parent)] == ["mine"]


def test_a_moved_run_folder_keeps_its_vocabulary(imported):
    moved = imported.run.folder.parent.parent / "elsewhere"
    shutil.move(imported.run.folder, moved)
    assert score_splits_again(open_run(str(moved), moved.parent))


def test_it_can_be_trained_further(imported):
    run = imported.run
    before = score_splits_again(run)[0].value
    (run,) = train([run.recipe], ["mine"], run.folder.parent, resume=True)
    assert str(run.status) == "finished" and run.facts["step"] == 4
    assert run.metrics()[0]["step"] <= 1
    assert run.scores()[0].value < before
    card = (export_run(run, "gpt2", run.folder.parent / "out").folder / "README.md").read_text("utf-8")
    assert "imported from theirs, trained on files, seed 0, step 4 (finished)" in card


def test_it_reports_what_is_unknown(gpt2_folder, tmp_path):
    made = import_folder(gpt2_folder()[0], None, tmp_path / "runs")
    assert made.notes[0].startswith(
        "data.source=python-docs, since the folder does not say what the model was trained on"
    )
    assert made.run.recipe.data.tokenizer.kind == "given"
    assert made.as_json()["vocabulary"] == 300 and made.as_json()["parameters"] == made.parameters
    assert open_run("theirs", tmp_path / "runs").recipe == made.run.recipe


# --- refusals --------------------------------------------------------------------------------------------------------


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def half_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def lost_shard(folder):
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text('{"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}')


def index_that_leads_away(folder):
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text('{"weight_map": {"transformer.wte.weight": "../other/model.safetensors"}}')


def index_of_nothing(folder):
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text("{}")


def unknown_key(folder):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({**tensors, "score.weight": torch.ones(2, 12)}, path)


def config(**changes):
    def spoil(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def no_config(folder):
    (folder / "config.json").unlink()


def list_for_a_config(folder):
    (folder / "config.json").write_text("[]")


def half_a_config(folder):
    (folder / "config.json").write_text("{")


def no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


SPOILT = {
    only_pickle: r"weights only as pickle \(pytorch_model\.bin\), .* AutoModelForCausalLM\.from_pre",
    no_weights: r"theirs has no model\.safetensors",
    half_weights: r"model\.safetensors cannot be read",
    lost_shard: r"model-00001-of-00002\.safetensors is missing, but model\.safetensors\.index\.json names it",
    index_that_leads_away: r"index\.json names no files of this folder",
    index_of_nothing: r"index\.json names no files of this folder",
    unknown_key: r"do not belong to a GPT-2 of 2 layers: transformer\.score\.weight",
    config(n_layer=3): r"these weights are missing: transformer\.h\.2\.ln_1\.weight, .* and 7 more",
    config(n_layer=1): r"do not belong to a GPT-2 of 1 layers: transformer\.h\.1",
    config(n_embd=15): r"these weights do not fit config\.json: transformer\.wte\.weight is \[300, 12\], .*\[300, 15\]",
    config(n_positions=17): r"wpe\.weight is \[16, 12\], config\.json says \[17, 12\]",
    config(n_head=5): r"width 12 is not divisible by 5 heads",
    config(n_layer="two"): r"config\.json: one thing is wrong\n  model\.layers: expected .* not 'two'",
    config(vocab_size=None): r"vocab_size: expected a whole number of tokens, not None",
    config(vocab_size=301): r"wte\.weight is \[300, 12\], config\.json says \[301, 12\]",
    config(tie_word_embeddings=False): r"these weights are missing: lm_head\.weight",
    config(model_type="opt"): r"config\.json describes [\d,]+ parameters, but the weights have 7,584",
    config(model_type="t5"): r"a 't5' model \(model_type of config\.json\) is not a causal language model",
    config(model_type="gpt_2"): r"'gpt_2' model \(model_type\), which transformers \S+ does not know; .* 'gpt2'\?",
    no_config: r"config\.json is missing: is this the folder of a model\?",
    list_for_a_config: r"config\.json: expected keys and values",
    half_a_config: r"config\.json cannot be read",
    no_tokenizer: r"tokenizer\.json is missing",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: f"{spoil.__name__}: {SPOILT[spoil]}")
def test_a_folder_that_is_no_gpt2_is_refused_and_nothing_is_made(gpt2_folder, tmp_path, spoil):
    folder, _ = gpt2_folder()
    spoil(folder)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=SPOILT[spoil]):
        import_folder(folder, None, tmp_path / "runs")
    assert snapshot(tmp_path) == before and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("a/b", [], "'a/b' cannot be the name of a run"),
        ("new", ["model.width=24"], "model.width is determined by config.json and the weights"),
        ("new", ["model.positions=alibi"], "model.positions is determined"),
        ("new", ["data.tokenizer=char"], "data.tokenizer is determined by the folder's tokenizer.json"),
        ("new", ["data.tokenizer.path=x"], "data.tokenizer.path is determined"),
        ("new", ["data.suorce=files"], "data.suorce: unknown key; did you mean 'source'"),
        ("new", ["training"], "'training' is not a change"),
        ("there", [], "there exists but is not a run"),
    ],
)
def test_impossible_options_are_refused(gpt2_folder, tmp_path, name, changes, words):
    (tmp_path / "runs" / "there").mkdir(parents=True)
    with pytest.raises(UserError, match=words):
        import_folder(gpt2_folder()[0], name, tmp_path / "runs", changes)
    assert [run.name for run in (tmp_path / "runs").iterdir()] == ["there"]


def test_settings_independent_of_the_weights_may_be_changed(gpt2_folder, tmp_path):
    changes = ["model.dropout=0", "model.mixer.dropout=0", "model.mixer.backend=plain", "seed=3"]
    changes += ["model.penalty.size=2"]
    recipe = import_folder(gpt2_folder()[0], None, tmp_path / "runs", changes).run.recipe
    assert (recipe.model.dropout, recipe.model.mixer.backend, recipe.seed) == (0, "plain", 3)
    assert isinstance(recipe.model, LanguageModelSpec) and recipe.model.penalty == PenaltySpec(size=2)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder '.*none'; expected a folder with config\.json"):
        import_folder(tmp_path / "none", None, tmp_path / "runs")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_import_leaves_nothing(gpt2_folder, tmp_path, monkeypatch, failure):
    def fail(self, checkpoint):
        raise failure

    monkeypatch.setattr("headway.run.folder.Run.save_checkpoint", fail)
    with pytest.raises(type(failure)):
        import_folder(gpt2_folder()[0], None, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_imported_classifier_computes_the_same_and_its_maps_can_be_shown(encoder_folder, tmp_path):
    from transformers import AutoTokenizer

    from headway.experiment.evaluate import classify_text
    from headway.experiment.inspect import look_at

    folder, theirs = encoder_folder(head="AutoModelForSequenceClassification", id2label={0: "bad", 1: "good", 2: "so"})
    run = import_folder(folder, None, tmp_path / "runs").run
    with torch.no_grad():
        expected = theirs(**AutoTokenizer.from_pretrained(folder)("a good film", return_tensors="pt")).logits.softmax(
            -1
        )
    found = classify_text(run, "a good film", "auto").chances
    assert [found[name] for name in ("bad", "good", "so")] == pytest.approx(expected[0].tolist(), abs=1e-5)
    shown = look_at(run, "a good film")
    assert shown.tokens == ("[CLS]", "a", "good", "film", "[SEP]") and shown.largest_difference < 1e-5


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_maps_of_an_encoder_without_classes_can_be_shown(encoder_folder, tmp_path, family):
    from headway.experiment.inspect import look_at

    folder, _ = encoder_folder(family)
    made = import_folder(folder, None, tmp_path / "runs")
    assert "no classification head" in " ".join(made.notes)
    assert set(look_at(made.run, "a good film").layers) == {0, 1}
