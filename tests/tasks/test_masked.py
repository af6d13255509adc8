"""Masked language models: trained, scored, asked to fill in, looked into."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TEXT, cache_in

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.ensemble import score_together
from headway.experiment.evaluate import fill_text, sample_text, score_file, score_sentence
from headway.experiment.inspect import look_at
from headway.experiment.train import load_model, train
from headway.recipe.recipe import Recipe, from_tree
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


def test_scores_are_means_over_hidden_tokens(runs):
    scores = {score.name: score for score in runs[0].scores()}
    assert scores["valid.pseudo_perplexity"].value == pytest.approx(math.exp(scores["valid.loss"].value))
    assert "hidden at a time" in scores["valid.loss"].label and 0 < scores["valid.masked_accuracy"].value <= 1
    task = tasks.load_for(runs[0])
    model, _ = load_model(runs[0])
    (again,) = guess(model, task.data.split("valid"), task.data.tokenizer, 0.15)
    assert float(again.nats.mean()) == pytest.approx(scores["valid.loss"].value, abs=1e-5)


def test_a_text_is_scored_with_one_token_hidden_at_a_time(runs):
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


def test_maps_show_the_marks(runs):
    maps = look_at(runs[0], "The [MASK] brown fox")
    assert maps.tokens[0] == "[CLS]" and maps.tokens[2] == "[MASK]" and maps.tokens[-1] == "[SEP]"


def test_a_population_is_what_each_is_alone(home, tmp_path, runs):
    (alone,) = train([recipe(home, "seed=1")], ["alone"], tmp_path)
    ours, theirs = ({s.name: s.value for s in run.scores()} for run in (alone, runs[1]))
    assert ours == pytest.approx(theirs, rel=2e-4)


def test_resumed_as_if_never_stopped(home, tmp_path, runs):
    short = recipe(home, "training.checkpoint_every=10 steps")
    (run,) = train([short], ["stopped"], tmp_path)
    run.forget_after(20)
    train([short], ["stopped"], tmp_path, resume=True)
    assert [s.value for s in run.scores()] == pytest.approx([s.value for s in runs[0].scores()], rel=2e-4)
