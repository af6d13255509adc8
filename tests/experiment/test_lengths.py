"""Scores in segments of many lengths: the same tokens, read in three ways, with the losses of early tokens apart."""

import json

import pytest
import torch
from tiny import tiny_recipe

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.lengths import by_length
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.run.folder import open_run
from headway.scoring.length import score_lengths
from headway.scoring.likelihood import losses_going_on, token_losses


@pytest.fixture(scope="module")
def home(workshop, tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    recurrent = ("model.mixer=gru", "model.positions=none", "data.batches=contiguous", "data.segment=8")
    recipes = [tiny_recipe(workshop.text, *recurrent, f"seed={seed}") for seed in (0, 1)]
    train(recipes, ["gru.seed-0", "gru.seed-1"], home)
    return home


def test_the_three_ways_of_reading_equal_their_definitions(home):
    runs = [open_run(f"gru.seed-{seed}", home) for seed in (0, 1)]
    page = by_length(runs, [5, 16, 2], tokens=200)
    (arm,) = page.arms
    assert (arm.name, arm.trained_on, page.tokens) == ("gru", 8, 200)
    assert [score.length for score in arm.seeds[1]] == [2, 5, 16]
    model, _ = load_model(runs[1])
    ids = torch.as_tensor(tasks.load_for(runs[1]).data.split("valid").ids)[:201]
    score = arm.seeds[1][2]
    with torch.no_grad():
        apart, sliding = token_losses(model, ids, 16, 16)[0], token_losses(model, ids, 16, 4)[0]
        carried = losses_going_on(model, ids, 16)[0]
    assert (score.stride, score.segments) == (4, 12)
    assert score.apart == pytest.approx(apart.mean().item(), rel=1e-5)
    assert score.sliding == pytest.approx(sliding.mean().item(), rel=1e-5)
    assert score.carried == pytest.approx(carried.mean().item(), rel=1e-5)
    assert score.by_position == pytest.approx(apart[:192].view(12, 16).mean(0).tolist(), rel=1e-5)
    # A recurrence with a carried state does not depend on the length of the segments.
    assert [one.carried for one in arm.seeds[1]] == pytest.approx([score.carried] * 3, rel=1e-5)


def test_the_chart_and_the_json_answer(home, command_line, tmp_path):
    words = ["score", "gru.seed-0", "gru.seed-1", "--lengths", "4,8", "--tokens", "100", "--runs", str(home)]
    for ending in ("html", "svg"):
        assert command_line(*words, "--out", str(tmp_path / f"lengths.{ending}")).code == 0
    assert "state carried" in (tmp_path / "lengths.html").read_text()
    told = json.loads(command_line(*words, "--json").out)
    assert [len(run["lengths"]) for run in told["arms"][0]["runs"]] == [2, 2]
    assert "early tokens" in command_line(*words).out


def test_impossible_lengths_are_refused(workshop, command_line):
    words = ["score", "tiny", "--runs", str(workshop.runs)]
    for more, said in {
        ("--lengths", "8,32"): "segments of 32 tokens cannot be read: the learned positions end at 16",
        ("--lengths", "0,4"): "lengths of at least 1",
        ("--lengths", "4,4"): "different lengths",
        ("--lengths", "four"): "expected whole numbers such as 10,20,50, not 'four'",
        ("--lengths", "4", "--split", "tset"): "tset",
        ("--lengths", "4", "--stride", "2"): "--lengths can only be combined with --split",
        ("--out", "a.html"): "--out draws the result of --lengths",
        ("--tokens", "50"): "--tokens limits what --lengths reads",
    }.items():
        answer = command_line(*words, *more)
        assert answer.code == 2 and said in answer.err, answer.err
    twice = command_line("score", "tiny", "tiny", "--runs", str(workshop.runs), "--lengths", "4")
    assert twice.code == 2 and "tiny is given twice" in twice.err
    with pytest.raises(UserError, match="segments of 8 tokens are longer than the text, which has 8"):
        score_lengths(load_model(workshop.run)[0], torch.zeros(8, dtype=torch.int64), [8])


def test_runs_with_different_tokens_are_not_drawn_together(home, workshop, tmp_path):
    """Nats per word and nats per character must not share an axis; and a refused request does not count as a look at
    test."""
    (words,) = train([tiny_recipe(workshop.text, "data.tokenizer=word")], ["words"], tmp_path)
    gru = open_run("gru.seed-0", home)
    before = gru.facts.get("test_scored", 0)
    with pytest.raises(UserError, match=r"different data or tokens: data\.tokenizer\.kind is char and word"):
        by_length([gru, words], [4], split="test", tokens=50)
    assert open_run("gru.seed-0", home).facts.get("test_scored", 0) == before
