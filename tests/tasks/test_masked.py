"""Masked language models: trained, scored, filling in masks, maps."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TEXT, cache_in

from headway import tasks
from headway.core.errors import UserError
from headway.exchange.export import export_run
from headway.experiment.ensemble import score_together
from headway.experiment.evaluate import fill_text, sample_text, score_file, score_sentence
from headway.experiment.inspect import look_at
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.recipe.recipe import Recipe, from_tree
from headway.recipe.text import annotated
from headway.run.folder import Run
from headway.scoring.masked import guess
from headway.tasks.abilities import Draw


def recipe(home: Path, *changes: str) -> Recipe:
    tree = {
        "data": {"source": "files", "path": str(home / "text.txt"), "tokenizer": "word", "batches": "lines"},
        "model": {"kind": "masked-language-model", "layers": 1, "width": 16, "context": 16, "mixer": {"heads": 2}},
        "training": {"batch": 16, "duration": "40 steps", "optimizer": {"learning_rate": 2e-2}},
    }
    return from_tree(tree, "hidden", overrides=changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("hidden")
    (home / "text.txt").write_text(TEXT, "utf-8")
    with cache_in(home / "cache"):
        yield home


@pytest.fixture(scope="module")
def runs(home) -> list[Run]:
    return train([recipe(home), recipe(home, "seed=1")], ["one", "two"], home / "runs")


def test_it_learns_to_fill_in(runs):
    filled = fill_text(runs[0], "The quick [MASK] fox no 7 jumps [MASK] the lazy dog,", 3, "auto")
    assert filled.filled.startswith("The quick brown fox no 7 jumps over the lazy dog")
    assert [place[0][0] for place in filled.guesses] == ["brown", "over"] and len(filled.guesses[0]) == 3
    assert all(place[0][1] >= place[1][1] for place in filled.guesses)
    with pytest.raises(UserError, match=r"write \[MASK\]"):
        fill_text(runs[0], "The quick brown fox", 3, "auto")
    with pytest.raises(UserError, match="learned positions end at 16"):
        fill_text(runs[0], "[MASK] " * 20, 3, "auto")


def test_layers_that_cannot_see_later_tokens_get_a_warning(home):
    def warned(mixer: str) -> bool:
        said = recipe(home, f"model.mixer={mixer}", "model.positions=none").warnings()
        return any("left to right" in one for one in said)

    assert warned("gru") and not warned("{kind: gru, bidirectional: true}") and not warned("{heads: 2}")


def test_the_loss_of_each_token_except_masked_ones(runs):
    """A typed [MASK] is one token, as in `fill` and in maps, and has no loss because the right token is unknown."""
    model, _ = load_model(runs[0])
    told = tasks.of(runs[0].recipe).losing(runs[0], model, "The quick [MASK] fox no 7")()
    assert told.pieces == ["The", "quick", "[MASK]", "fox", "no", "7"]
    assert [k for k, nats in enumerate(told.nats) if nats is None] == [2]
    whole = tasks.of(runs[0].recipe).losing(runs[0], model, "The quick brown fox no 7")()
    assert whole.nats == pytest.approx(score_sentence(runs[0], "The quick brown fox no 7")[0].nats, abs=1e-5)


def test_a_text_far_beyond_what_it_was_trained_on_is_refused(runs, monkeypatch):
    monkeypatch.setattr("headway.tasks.masked.MAX_LENGTH_FACTOR", 0.5)  # these positions end where training does
    with pytest.raises(UserError, match="was trained on 16: its predictions"):
        fill_text(runs[0], "The quick [MASK] fox no 7 jumps [MASK] the lazy dog,", 3, "auto")


def test_scores_are_means_over_masked_tokens(runs):
    scores = {score.name: score for score in runs[0].scores()}
    assert scores["valid.pseudo_perplexity"].value == pytest.approx(math.exp(scores["valid.loss"].value))
    assert "masked at once" in scores["valid.loss"].label and 0 < scores["valid.masked_accuracy"].value <= 1
    task = tasks.load_for(runs[0])
    model, _ = load_model(runs[0])
    (again,) = guess(model, task.data.split("valid"), task.data.tokenizer, 0.15)
    assert float(again.nats.mean()) == pytest.approx(scores["valid.loss"].value, abs=1e-5)


def test_a_text_is_scored_with_one_token_masked_at_a_time(runs):
    shown, scores = score_sentence(runs[0], "The quick brown fox")
    assert len(shown.nats) == 4 and scores[0].value == pytest.approx(np.mean([n for n in shown.nats if n is not None]))
    model, tokenizer = load_model(runs[0])[0], runs[0].tokenizer
    row = tokenizer.marks.row([tokenizer.encode("The quick brown fox").ids])
    hidden = torch.tensor(row)[None, None].long()
    hidden[0, 0, 3] = tokenizer.marks.mask
    with torch.no_grad():
        sure = model(hidden)[0, 0, 3].log_softmax(-1)
    assert shown.nats[2] == pytest.approx(-float(sure[row[3]]), abs=1e-5)


def test_files_ensembles_and_what_such_models_cannot_do(runs, home):
    (home / "other.txt").write_text(TEXT[:600], "utf-8")
    assert {score.name for score in score_file(runs[0], home / "other.txt")} >= {"other.txt.loss"}
    together = score_together(runs, ["valid"])
    assert {score.name for score in together.scores} == {"valid.loss", "valid.pseudo_perplexity"}
    with pytest.raises(UserError, match="headway fill one"):
        sample_text(runs[0], "The", Draw(), "auto", print)


def test_maps_show_special_tokens(runs):
    maps = look_at(runs[0], "The [MASK] brown fox")
    assert maps.tokens[0] == "[CLS]" and maps.tokens[2] == "[MASK]" and maps.tokens[-1] == "[SEP]"


def test_a_population_equals_its_members_alone(home, tmp_path, runs):
    (alone,) = train([recipe(home, "seed=1")], ["alone"], tmp_path)
    ours, theirs = ({s.name: s.value for s in run.scores()} for run in (alone, runs[1]))
    assert ours == pytest.approx(theirs, rel=2e-4)


def test_a_resumed_run_equals_an_uninterrupted_one(home, tmp_path, runs):
    short = recipe(home, "training.checkpoint_every=10 steps")
    (run,) = train([short], ["stopped"], tmp_path)
    run.forget_after(20)
    train([short], ["stopped"], tmp_path, resume=True)
    assert [s.value for s in run.scores()] == pytest.approx([s.value for s in runs[0].scores()], rel=2e-4)


BERT = ("model.norm={kind: layer, placement: post, of_embeddings: true}", "model.segments=separated")


@pytest.mark.parametrize("tokens", ["word", "{kind: bpe, size: 300}", "char"])
def test_it_is_exported_as_a_bert_for_transformers_and_as_initial_weights(tokens, home, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    short = recipe(home, *BERT, f"data.tokenizer={tokens}", "model.context=80", "training.duration=4 steps")
    (run,) = train([short], ["bert"], tmp_path)
    folder = export_run(run, None, tmp_path / "folder").folder
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    cut = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The quick [MASK] fox no 7 jumps"
    ours, model = run.tokenizer.encode_row(text).ids, load_model(run)[0]
    given = cut(text, return_tensors="pt")
    assert given["input_ids"][0].tolist() == ours.tolist() and type(theirs).__name__ == "BertForMaskedLM"
    with torch.no_grad():
        torch.testing.assert_close(theirs(**given).logits[0], model(torch.tensor(ours)[None, None].long())[0, 0])
    # Loaded again from the folder and from the run: as a masked model, and as a classifier.
    for origin in (folder, run.folder):
        again = recipe(home, f"data.tokenizer={{kind: pretrained, from: {origin}}}", "model.context=80")
        tree = again.model_dump(mode="json")
        tree["model"] = {"kind": "masked-language-model", "start": {"kind": "pretrained", "from": str(origin)}}
        started = tasks.load(from_tree(tree, "again")).build([0], "cpu").eval()
        with torch.no_grad():
            same = started(torch.tensor(ours)[None, None].long())[0, 0]
        torch.testing.assert_close(same, model(torch.tensor(ours)[None, None].long())[0, 0], atol=1e-5, rtol=1e-4)


def test_a_classifier_starts_from_a_run_or_from_a_recipe_that_is_trained_first(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.tsv").write_text("".join(f"the {a} {b}\t{a}\n" for a in ("fox", "dog") for b in range(30)))
    data = {"kind": "labelled", "source": "files", "path": str(tmp_path / "rows.tsv"), "text": 1, "label": 2}
    first = recipe(home, "training.duration=4 steps", "data.tokenizer={kind: bpe, size: 300}")
    (run,) = train([first], ["first"], tmp_path / "runs")
    named = tmp_path / "first.yaml"
    named.write_text(annotated(first), "utf-8")
    starts = [{"kind": "pretrained", "from": str(run.folder)}, {"kind": "trained", "recipe": str(named)}]
    training = {"duration": "2 steps", "batch": 4, "optimizer": {"learning_rate": 0.0, "weight_decay": 0.0}}
    made = []
    for k, start in enumerate(starts):
        tree = {"data": data, "model": {"kind": "classifier", "start": start}, "training": training}
        begun = from_tree(tree, "rows")
        assert begun.model.width == 16 and begun.model.layers == 1  # before anything is trained
        (one,) = train([begun], [f"rows-{k}"], tmp_path / "runs")
        assert one.tokenizer.marks is not None and "start" in one.facts
        made.append(one.checkpoint().weights)
        kept = run.checkpoint().weights
        assert all(torch.equal(made[-1][name], kept[name]) for name in kept if name.startswith("layers."))
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    with pytest.raises(UserError, match="its weights are for 16, not for 32"):
        from_tree({"data": data, "model": {"kind": "classifier", "width": 32, "start": starts[1]}}, "rows")
    with pytest.raises(UserError, match="expected a masked-language-model"):
        from_tree(
            {"data": data, "model": {"kind": "classifier", "start": {"kind": "trained", "recipe": "demo"}}}, "rows"
        )


def test_no_run_starts_from_one_whose_heads_are_in_an_order_of_its_own(home, tmp_path, monkeypatch):
    """The order is drawn from the seed and not stored with the weights."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    rows = {"kind": "labelled", "source": "python-modules"}
    for fusion, is_refused in (("shuffle", True), ("{kind: shuffle, drawn: every-step}", False), ("shift", False)):
        first = recipe(home, "training.duration=2 steps", "model.mixer.heads=2", f"model.mixer.fusion={fusion}")
        (run,) = train([first], [fusion[:9].strip("{: ")], tmp_path / "runs")
        (named := run.folder.with_suffix(".yaml")).write_text(annotated(first), "utf-8")
        for start in ({"kind": "pretrained", "from": str(run.folder)}, {"kind": "trained", "recipe": str(named)}):
            tree = {"data": rows, "model": {"kind": "classifier", "start": start}}
            with pytest.raises(UserError, match=r"model\.mixer\.fusion") if is_refused else nullcontext():
                from_tree(tree, "rows")
