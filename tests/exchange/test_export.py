"""Exported runs: transformers loads them and computes the same."""

import json

import pytest
import safetensors.torch
import torch
from tiny import cache_in, snapshot

from headway.core.errors import UserError
from headway.exchange.export import export_run
from headway.exchange.importer import import_folder
from headway.experiment.evaluate import sample_text
from headway.experiment.load import load_model
from headway.formats.gpt2 import why_not
from headway.tasks.abilities import Draw

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
TOKENIZERS = {
    "char": [],
    "word": ["data.tokenizer=word"],
    "bpe": ["data.tokenizer.kind=bpe", "data.tokenizer.size=300"],
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_transformers_writes_the_same_text_from_the_same_logits(train_tiny, tmp_path, kind):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = train_tiny(tmp_path, kind, *TOKENIZERS[kind], "training.optimizer.learning_rate=1e-2")
    folder = export_run(run, "gpt2", tmp_path / "out").folder
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    ours, _ = load_model(run)

    prompt = "The quick"
    ids = tokenizer(prompt, return_tensors="pt")
    assert ids["input_ids"][0].tolist() == run.tokenizer.encode(prompt).ids.tolist()
    with torch.no_grad():
        found = model(**ids).logits
        torch.testing.assert_close(ours(ids["input_ids"][None])[0][0], found, atol=1e-5, rtol=1e-5)
    many = 16 - ids["input_ids"].shape[1]
    drawn = model.generate(**ids, do_sample=False, max_new_tokens=many)
    text, _ = sample_text(run, prompt, Draw(many, temperature=0.0), "auto", lambda piece: None)
    assert tokenizer.decode(drawn[0]) == text


def test_the_folder_documents_its_model(workshop, tmp_path):
    run = workshop.run
    made = export_run(run, "gpt2", tmp_path / "deep" / "out")
    assert sorted(file.name for file in made.folder.iterdir()) == FILES == made.files
    card = (made.folder / "README.md").read_text("utf-8")
    for score in run.scores():
        assert score.name in card and score.label in card
    assert "trained on files, seed 0, step 12 (finished)" in card
    assert run.recipe.hash in card and "A character missing from the training text is an error" in card
    config = json.loads((made.folder / "config.json").read_text())
    assert config["bos_token_id"] is None and config["vocab_size"] == run.tokenizer.size
    assert made.step == 12


def test_scores_of_one_checkpoint_are_not_exported_with_another(workshop, tmp_path):
    made = export_run(workshop.run, "gpt2", tmp_path / "out", "8")
    assert made.step == 8
    assert "This checkpoint was not scored" in (made.folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_importing_an_export_is_bit_identical(train_tiny, tmp_path, kind):
    run = train_tiny(tmp_path, kind, *TOKENIZERS[kind], "model.tied=false", "model.dropout=0.1")
    first = export_run(run, "gpt2", tmp_path / "first").folder
    back = import_folder(first, "back", tmp_path / "runs").run
    second = export_run(back, "gpt2", tmp_path / "second").folder
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    weights = run.checkpoint().weights
    assert all(torch.equal(tensor, weights[name]) for name, tensor in back.checkpoint().weights.items())


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_run_without_a_gpt2_form_is_refused_with_every_reason(train_tiny, tmp_path):
    run = train_tiny(tmp_path, "odd", "training.duration=1 step", "model.positions=alibi", "model.norm={kind: rms}")
    with pytest.raises(
        UserError, match=r"odd cannot be written as GPT-2:\n  model\.positions.*alibi\n  model\.norm\.kind.*rms"
    ) as refused:
        export_run(run, "gpt2", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    *_, last = str(refused.value).splitlines()
    fitting = [word for word in last.split() if "=" in word]
    assert why_not(run.recipe.model) and not why_not(run.recipe.with_changes(fitting).model)
    with pytest.raises(UserError) as refused:  # another kind of model cannot be reached by a change
        export_run(run, "bert", tmp_path / "out")
    assert "=" not in str(refused.value)


def test_an_unknown_format_is_refused(workshop, tmp_path):
    with pytest.raises(UserError, match=r"unknown export format 'gpt-2'; did you mean 'gpt2'\?"):
        export_run(workshop.run, "gpt-2", tmp_path / "out")


def test_existing_folders_are_not_overwritten(workshop, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "file").touch()
    for place in ("out", "file", "."):
        with pytest.raises(UserError, match="exists: remove it, or choose another folder with -o"):
            export_run(workshop.run, "gpt2", tmp_path / place)
    with pytest.raises(UserError, match=r"cannot write .*file/out: Not a directory"):
        export_run(workshop.run, "gpt2", tmp_path / "file" / "out")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_or_interrupted_export_leaves_nothing(workshop, tmp_path, monkeypatch, failure):
    before = snapshot(workshop.run.folder)
    written = []

    def write(path, content):
        written.append(path)
        if len(written) == 3:
            raise failure
        with path.open("wb") as file:
            return file.write(content)

    monkeypatch.setattr("pathlib.Path.write_bytes", write)
    expected = UserError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        export_run(workshop.run, "gpt2", tmp_path / "out")
    assert len(written) == 3 and list(tmp_path.iterdir()) == []
    assert snapshot(workshop.run.folder) == before


def test_the_weights_are_safetensors_and_name_their_layout(workshop, tmp_path):
    folder = export_run(workshop.run, "gpt2", tmp_path / "out").folder
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "transformer.h.0.attn.c_attn.weight" in file.keys() and "lm_head.weight" not in file.keys()  # noqa: SIM118


@pytest.mark.parametrize("parts", [{"pooling": "pooler", "head": "linear"}, {"pooling": "mean"}])
def test_a_classifier_is_exported_as_the_bert_it_was_imported_from(encoder_folder, reviews, tmp_path, workshop, parts):
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    from headway.experiment.load import load_model
    from headway.experiment.train import train
    from headway.recipe.recipe import from_tree

    folder, _ = encoder_folder()
    start = {"kind": "pretrained", "from": str(folder)}
    steps = {"duration": "2 steps", "batch": 4, "evaluate_every": "2 steps"}
    data = {"kind": "labelled", "source": "files", "path": str(reviews)}
    tree = {"model": {"kind": "classifier", "start": start, **parts}, "data": data, "training": steps}
    with cache_in(workshop.cache):
        (run,) = train([from_tree(tree, "recipe")], ["run"], tmp_path / "runs")
    made = export_run(run, None, tmp_path / "out")
    assert "pytorch_model.bin" not in made.files
    texts = ["a good film", "no"]
    given = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    model, _ = load_model(run)
    there = given["attention_mask"].bool()
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(tmp_path / "out").eval()(**given).last_hidden_state
        ours, _ = model.hidden(given["input_ids"][None], padding_mask=there[None])
        assert torch.allclose(ours[0][there], theirs[there], atol=1e-5)
        if parts["pooling"] == "pooler":
            whole = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
            assert torch.allclose(whole(**given).logits, model(given["input_ids"][None], there[None])[0], atol=1e-5)
            assert whole.config.id2label == {0: "bad", 1: "good"}
    again = from_tree({**tree, "model": {**tree["model"], "start": {**start, "from": str(tmp_path / "out")}}}, "again")
    assert (again.model.layers, again.model.norm) == (2, run.recipe.model.norm)


def test_a_classifier_that_is_no_bert_is_refused_with_reasons(workshop, tmp_path):
    from headway.formats.bert_config import why_not
    from headway.models.classifier import ClassifierSpec

    assert {"model.norm.placement", "model.norm.of_embeddings"} <= {misfit.key for misfit in why_not(ClassifierSpec())}
