"""A classifier from its recipe to its scores: trained alone and in a population, resumed, scored again and used."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from listening import Interrupting, Told
from tiny import reseal

from headway.core.errors import UserError
from headway.experiment.classify import (
    ClassifiedFile,
    classify_rows,
    text_from_pipe,
    texts_of_file,
    texts_of_lines,
)
from headway.experiment.evaluate import (
    classify_text,
    predictions,
    sample_text,
    score_file,
    score_sentence,
    score_splits_again,
)
from headway.experiment.inspect import gradients_at
from headway.experiment.load import load_model
from headway.experiment.population import train_in_turns
from headway.experiment.train import train
from headway.models.classifier import Classifier
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import Run, open_run
from headway.tasks.abilities import Draw, GivenFile, ReadingWindow
from headway.tasks.classification import Classification

SUBJECTS = {"sea": ["ship", "wave", "salt", "sail"], "sky": ["cloud", "bird", "wing", "star"], "soil": ["root", "mud"]}
STEPS = 14


def table(count: int, offset: int = 0) -> str:
    """Sentences of several lengths that contain one word of their class."""
    lines = ["text\tlabel"]
    for k in range(offset, offset + count):
        subject = list(SUBJECTS)[k % 3]
        words = ["the", "old", "one", "here", f"no{k % 7}", "again"][: 2 + k % 5]
        words.insert(k % (len(words) + 1), SUBJECTS[subject][k // 3 % len(SUBJECTS[subject])])
        lines.append(f"{' '.join(words)} x{k}\t{subject}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("classification")
    (home / "set").mkdir()
    (home / "set" / "train.tsv").write_text(table(150))
    # Some test rows are in train.
    (home / "set" / "test.tsv").write_text(table(30, 1000) + table(9).partition("\n")[2])
    return home


@pytest.fixture(autouse=True)
def _cache(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(home / "cache"))


def recipe(home: Path, *changes: str) -> Recipe:
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(home / "set")},
        "model": {
            "kind": "classifier",
            "layers": 1,
            "width": 16,
            "context": 6,
            "mixer": {"heads": 2},
            "dropout": 0.1,
        },
        "training": {
            "duration": f"{STEPS} steps",
            "batch": 4,
            "optimizer": {"learning_rate": 1e-2},
            "schedule": "constant",
            "evaluate_every": "5 steps",
            "checkpoint_every": "4 steps",
            "device": "cpu",
        },
    }
    return from_tree(tree, "test", overrides=changes)


@pytest.fixture(scope="module")
def trained(home: Path) -> Run:
    os.environ["HEADWAY_CACHE"] = str(home / "cache")
    seldom = ["training.duration=20 epochs", "training.evaluate_every=10 epochs", "training.checkpoint_every=1k steps"]
    (run,) = train([recipe(home, *seldom, "training.batch=16")], ["good"], home / "runs")
    return run


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if "loss" in line]


def test_it_learns_and_its_scores_are_labelled(trained: Run):
    scores = {score.name: score for score in trained.scores()}
    assert scores["test.accuracy"].value > 0.8 and scores["valid.accuracy"].value > 0.8
    assert " of 39 · 95 % interval " in scores["test.accuracy"].label
    assert scores["test.accuracy_unseen"].label.startswith("accuracy on texts that are not in train: ")
    assert scores["test.accuracy"].confusion.classes == ("sea", "sky", "soil")
    assert {"test.precision.sea", "test.recall.sky", "test.f1.soil"} <= set(scores)
    assert {name.split(".")[1] for name in scores} <= {metric.name for metric in Classification.metrics}
    evaluated = [line["scores"] for line in trained.metrics() if "scores" in line]
    assert all(set(scores) == {"valid.loss", "valid.accuracy"} for scores in evaluated)
    assert trained.facts["classes"] == ["sea", "sky", "soil"]


def test_the_title_describes_the_data_truncation_and_held_out_rows(home: Path, tmp_path: Path):
    told = Told()
    train([recipe(home, "training.duration=1 step")], ["told"], tmp_path, listeners=[told])
    assert told.title[1].startswith("set: 135 texts of 3 classes to train on, ")
    assert told.title[2].endswith("of them are cut to 6 tokens (model.context)")
    assert told.title[3].startswith("15 texts for valid held out of 150, stratified by class")


def test_replicas_together_equal_replicas_alone(home: Path, tmp_path: Path):
    varied = [
        ["seed=3", "model.dropout=0.0"],
        ["seed=1", "training.optimizer.learning_rate=0.003", "model.dropout=0.3"],
        ["seed=4", "training.optimizer.weight_decay=0.0"],
    ]
    recipes = [recipe(home, *changes) for changes in varied]
    together = train(recipes, ["a", "b", "c"], tmp_path / "together")
    for run, one in zip(together, recipes, strict=True):
        (alone,) = train([one], [run.name], tmp_path / "alone")
        assert losses(run) == pytest.approx(losses(alone), abs=1e-5) and len(losses(run)) == STEPS
        for ours, theirs in zip(run.scores(), alone.scores(), strict=True):
            assert ours.label == theirs.label and ours.value == pytest.approx(theirs.value, rel=1e-4, nan_ok=True)


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(home: Path, tmp_path: Path):
    (whole,) = train([recipe(home)], ["run"], tmp_path / "whole")
    (stopped,) = train([recipe(home)], ["run"], tmp_path / "stopped", listeners=[Interrupting()])
    assert str(stopped.status).startswith("interrupted at step 6")
    (resumed,) = train([recipe(home)], ["run"], tmp_path / "stopped", resume=True)
    assert resumed.metrics() == whole.metrics()
    ours, theirs = resumed.checkpoint("last"), whole.checkpoint("last")
    assert all(torch.equal(ours.weights[name], weight) for name, weight in theirs.weights.items())
    assert [s.as_json() for s in resumed.scores()] == [s.as_json() for s in whole.scores()]


def test_accumulated_parts_equal_the_whole_batch(home: Path, tmp_path: Path):
    (whole,) = train([recipe(home)], ["whole"], tmp_path)
    (parts,) = train([recipe(home, "training.accumulate=2")], ["parts"], tmp_path)
    assert losses(parts) == pytest.approx(losses(whole), abs=1e-5)


def test_a_population_in_turns_and_the_best_checkpoint(home: Path, tmp_path: Path):
    recipes = [recipe(home, f"seed={k}", "training.keep_best=true") for k in range(3)]
    runs = train_in_turns(recipes, ["a", "b", "c"], tmp_path, together=2)
    assert [str(run.status) for run in runs] == ["finished"] * 3
    for run in runs:
        evaluated = {line["step"]: line["scores"]["valid.loss"] for line in run.metrics() if "scores" in line}
        assert run.checkpoint("best").step == min(evaluated, key=evaluated.__getitem__)


# --- use -------------------------------------------------------------------------------------------------------------


def test_scoring_again_gives_the_scores_of_training(trained: Run, tmp_path: Path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    run = open_run("copy", tmp_path)
    before = [s.as_json() for s in run.scores()]
    (run.folder / "scores.json").unlink()
    assert [s.as_json() for s in score_splits_again(run)] == before
    assert [s.as_json() for s in run.scores()] == before
    (train_loss, train_accuracy, *_) = score_splits_again(run, ["train"])
    assert train_accuracy.name == "train.accuracy" and train_accuracy.value > 0.9 and train_loss.value < 0.5


def test_a_model_is_loaded_from_its_folder(trained: Run):
    model, saved = load_model(trained)
    assert isinstance(model, Classifier) and model.classes == 3 and not model.training and saved.step > 0


def test_predictions_row_by_row(trained: Run):
    found = predictions(trained, "test")
    assert len(found.right) == 39 and found.seen.sum() >= 8
    accuracy = next(s.value for s in trained.scores() if s.name == "test.accuracy")
    assert found.correct.mean() == pytest.approx(accuracy)
    with pytest.raises(UserError, match="has no split 'tset'; did you mean 'test'"):
        predictions(trained, "tset")


def test_a_typed_text_gets_the_probability_of_every_class(trained: Run):
    found = classify_text(trained, "the old ship here", "auto")
    assert next(iter(found.chances)) == "sea" and sum(found.chances.values()) == pytest.approx(1)
    assert set(found.chances) == {"sea", "sky", "soil"}
    assert (found.tokens, found.unknown, found.notes) == (4, 0, [])
    json.dumps(found.as_json(), allow_nan=False)


def test_gradients_are_of_the_named_class(trained: Run):
    gradients = gradients_at(trained, "ship wave salt")
    assert gradients.explained.predicted == ["sea"] == list(gradients.rows)
    assert list(gradients.lengths.shape) == [1, 3]


def test_unknown_words_are_counted(trained: Run):
    assert classify_text(trained, "the zebra", "auto").notes == ["1 of 2 tokens are unknown words"]
    (note,) = classify_text(trained, "zebra quagga", "auto").notes
    assert note == "all 2 tokens are unknown words: the answer would be the same for any such text"


def test_a_text_longer_than_the_learned_positions_is_refused(trained: Run):
    with pytest.raises(UserError, match=r"7 tokens, but the learned positions end at 6 \(model.context\)"):
        classify_text(trained, "the old one here again ship the", "auto")


def test_unlimited_positions_read_longer_texts_with_a_note(home: Path, tmp_path: Path):
    (run,) = train([recipe(home, "model.positions=rotary", "training.duration=1 step")], ["far"], tmp_path)
    (note,) = classify_text(run, "the old one here again ship the", "auto").notes
    assert note == "the text has 7 tokens, more than the model was trained on (6)"


def test_an_empty_text_has_no_class(trained: Run):
    with pytest.raises(UserError, match="the text is empty: there is nothing to classify"):
        classify_text(trained, "  \t", "auto")


def test_commands_for_language_models_are_refused_with_a_message(trained: Run):
    for ask in (
        lambda: sample_text(trained, "the", Draw(3), "auto", print),
        lambda: score_sentence(trained, "the"),
        lambda: score_splits_again(trained, None, ReadingWindow(4)),
    ):
        with pytest.raises(UserError, match=r"possible with language models.* but good is a classifier; try"):
            ask()


def test_a_users_table_is_scored(trained: Run, tmp_path: Path):
    shutil.copy(Path(trained.recipe.data.path) / "test.tsv", tmp_path / "mine.tsv")
    found = {score.name: score.value for score in score_file(trained, tmp_path / "mine.tsv")}
    again = {score.name: score.value for score in score_splits_again(trained, ["test"])}
    assert found["mine.tsv.accuracy"] == again["test.accuracy"] and found["mine.tsv.loss"] == again["test.loss"]
    (tmp_path / "other.csv").write_text("body,what\nthe old ship,sea\nthe ship,see\n", "utf-8")
    with pytest.raises(UserError, match=r"--column text: 'other.csv' has no column of that name"):
        score_file(trained, tmp_path / "other.csv")
    with pytest.raises(UserError, match=r"1 of the 2 rows .* not trained on, such as 'see'; did you mean 'sea'"):
        score_file(trained, GivenFile(tmp_path / "other.csv", columns=("body",), label="what"))
    with pytest.raises(UserError, match="segment, stride and state do not apply"):
        score_file(trained, tmp_path / "mine.tsv", ReadingWindow(4))


def test_a_whole_file_is_classified_like_its_texts(trained: Run, tmp_path: Path):
    texts = ["the old ship", "", "the zebra", "here a ship again the old one"] * 200
    path = tmp_path / "in.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([str(k), text] for k, text in enumerate(texts))])
    brought, said = texts_of_file(trained, GivenFile(path)), []
    answers = ClassifiedFile(brought, tmp_path / "out.csv")
    for places, told in classify_rows(trained, brought, told=lambda done, of: said.append((done, of))):
        answers.add(places, told)
    assert said == [(512, 600), (600, 600)]
    rows = list(csv.DictReader(io.StringIO(answers.as_text())))
    alone = classify_text(trained, "the old ship", "auto").chances
    assert list(rows[0])[:4] == ["id", "text", "predicted", "probability"] and len(rows) == 800
    assert rows[0]["predicted"] == next(iter(alone)) and rows[1]["predicted"] == rows[1]["probability"] == ""
    for name, chance in alone.items():
        assert float(rows[0][f"p({name})"]) == pytest.approx(chance, abs=2e-6)
    assert {
        "200 of 800 rows have no text and get no class",
        "200 of 800 texts are longer than the model's context and were cut",
    } <= {*answers.notes}
    answers.path = tmp_path / "out.jsonl"
    objects = [json.loads(line) for line in answers.as_text().splitlines()]
    assert objects[1]["predicted"] is None and objects[0]["classes"] == pytest.approx(alone, abs=2e-6)


def test_the_label_names_the_checkpoint_and_how_it_was_chosen(home: Path, tmp_path: Path):
    kept = ("training.keep_best=true", "training.evaluate_every=2 steps", "training.duration=8 steps")
    for changes, chosen in (
        ((*kept, "training.best_by=accuracy"), "the best by valid.accuracy"),
        (kept[2:], "the last"),
    ):
        (run,) = train([recipe(home, *changes)], [chosen.replace(" ", "-")], tmp_path)
        lines = {line["step"]: line["scores"] for line in run.metrics() if "scores" in line}
        weights = run.facts["weights"]
        assert weights["chosen"] == chosen and weights["of"] == 8 and weights == run.weights()
        best = max(lines, key=lambda step: (lines[step]["valid.accuracy"], -step)) if "best" in chosen else 8
        assert weights["step"] == best == run.checkpoint().step
    assert run.weights("8") == {"step": 8, "of": 8, "chosen": "as asked for"}


def test_piped_lines_are_texts(trained: Run):
    brought = texts_of_lines(trained, text_from_pipe("the ship\r\n\r\nold\r\n".encode("utf-16"), None))
    assert brought.texts == ["the ship", None, "old"]
    with pytest.raises(UserError, match="--encoding cp1252"):
        text_from_pipe("naïve".encode("cp1252"), None)


def test_impossible_columns_of_a_file(trained: Run, tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,predicted\nthe ship,x\n", "utf-8")
    with pytest.raises(UserError, match="already has a column 'predicted'"):
        texts_of_file(trained, GivenFile(tmp_path / "a.csv"))
    with pytest.raises(UserError, match=r"--column body: 'a.csv' has no column of that name"):
        texts_of_file(trained, GivenFile(tmp_path / "a.csv", columns=("body",)))


def test_a_data_set_that_has_changed_is_not_scored(home: Path, tmp_path: Path):
    shutil.copytree(home / "set", tmp_path / "set")
    (run,) = train([recipe(tmp_path, "training.duration=1 step")], ["run"], tmp_path)
    with (tmp_path / "set" / "test.tsv").open("a") as file:
        file.write("one more ship\tsea\n")
    with pytest.raises(UserError, match="'set' has changed since run was trained on it"):
        score_splits_again(run)


def test_a_run_without_its_classes_is_refused(trained: Run, tmp_path: Path):
    shutil.copytree(trained.folder, tmp_path / "copy")
    run = open_run("copy", tmp_path)
    facts = json.loads((run.folder / "run.json").read_text())
    del facts["classes"]
    (run.folder / "run.json").write_text(json.dumps(facts))
    reseal(run.folder)
    with pytest.raises(UserError, match=r"run.json does not list the model's classes"):
        load_model(run)


# --- recipes ---------------------------------------------------------------------------------------------------------


BAD = {
    "text for a classifier": (
        ["data={source: python-docs}"],
        "model.kind, data.kind: a classifier learns from labelled data, not from text data; set data.kind=labelled",
    ),
    "labels for a language model": (
        ["model=language-model"],
        "a language-model learns from text data, not from labelled data; set data.kind=text",
    ),
    "segments": (["scoring.segment=4"], "labelled texts are scored whole: segment, stride and state do not apply"),
    "a setting of the other kind": (
        ["model.tied=true"],
        "model.tied: classifier has no such setting; ",
    ),
    "positions that look back": (["model.positions=alibi"], "use alibi-symmetric"),
    "a misspelt kind": (["model.kind=clasifier"], "unknown kind 'clasifier'; did you mean 'classifier'?"),
    "a misspelt pooling": (["model.pooling=men"], "unknown kind 'men'; did you mean 'mean'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_combinations_are_refused(home: Path, case):
    changes, words = BAD[case]
    with pytest.raises(UserError) as caught:
        recipe(home, *changes)
    assert words in str(caught.value)


def test_reweighted_heads_are_no_leak_without_a_causal_mask(home: Path):
    assert recipe(home, "model.mixer.fusion=reweight", "training.schedule.warmup=2 steps").warnings() == []
