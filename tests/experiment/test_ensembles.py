"""Ensembles: probabilities are averaged, correctly for every kind of member; members that cannot be averaged are
refused."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from tiny import reseal, tiny_recipe

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.ensemble import score_together
from headway.experiment.lengths import by_length
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.recipe.recipe import from_tree
from headway.run.folder import Run, open_run
from headway.tasks.abilities import ReadingWindow


@pytest.fixture(scope="module")
def home(workshop, tmp_path_factory):
    """Two seeds trained as one population, a model of another shape, and one with another vocabulary."""
    home = tmp_path_factory.mktemp("runs")
    seeds = [tiny_recipe(workshop.text, f"seed={seed}") for seed in (0, 1)]
    train(seeds, ["a", "b"], home)
    recurrent = ("model.mixer=gru", "model.positions=none", "data.batches=contiguous", "data.segment=8")
    train([tiny_recipe(workshop.text, *recurrent)], ["c"], home)
    train([tiny_recipe(workshop.text, "data.tokenizer=word")], ["words"], home)
    return home


def runs(home, *names: str) -> list[Run]:
    return [open_run(name, home) for name in names]


def chances(run: Run, segment: int) -> torch.Tensor:
    """The probability of every token of valid but the first, in separate segments without carried context."""
    model, _ = load_model(run)
    ids = torch.as_tensor(tasks.load_for(run).data.split("valid").ids).long()
    found = []
    with torch.no_grad():
        for k in range(0, len(ids) - 1, segment):
            begin = max(0, min(k, len(ids) - 1 - segment))
            part = ids[begin : begin + segment + 1]
            said = model(part[None, None, :-1])[0][0, 0].double().softmax(-1)
            found.append(said.gather(1, part[1:, None])[k - begin :, 0])
    return torch.cat(found)


def test_the_probabilities_are_averaged_not_the_logits_nor_the_losses(home):
    a, b = runs(home, "a", "b")
    found = score_together([a, b])
    expected = -((chances(a, 16) + chances(b, 16)) / 2).log().mean().item()
    by_name = {score.name: score for score in found.scores}
    assert by_name["valid.loss"].value == pytest.approx(expected, rel=1e-6)
    assert by_name["valid.perplexity"].value == pytest.approx(math.exp(expected), rel=1e-6)
    assert by_name["valid.loss"].label.startswith("ensemble of 2 runs, mean of their probabilities: nats per token")
    (gain,) = found.gains
    alone = [{s.name: s.value for s in run.scores()}["valid.loss"] for run in (a, b)]
    assert gain.members == pytest.approx(alone, rel=1e-6)
    assert gain.value == pytest.approx(sum(alone) / 2 - expected, rel=1e-5) and gain.value > 0
    assert gain.interval[0] < gain.value < gain.interval[1]


def test_members_of_different_shapes_each_read_in_their_own_way(home):
    found = score_together(runs(home, "a", "c", "b"))
    label = found.scores[0].label
    assert "read differently by each member: segment 16, stride 16, no state carried; segment 8, state carried" in label
    assert [scores[0].value for scores in found.members] == pytest.approx(
        [run.scores()[0].value for run in runs(home, "a", "c", "b")], rel=1e-6
    )
    same = score_together(runs(home, "a", "c"), window=ReadingWindow(segment=8, state="fresh"))
    assert "read differently" not in same.scores[0].label and "segment 8, stride 8" in same.scores[0].label


def test_what_cannot_be_averaged_is_refused(home, workshop, tmp_path):
    def refused(*names: str, match: str):
        with pytest.raises(UserError, match=match):
            score_together(runs(home, *names))

    refused("a", match="at least two runs")
    refused("a", "a", match="a is given twice")
    refused("a", "words", match="a and words were trained on different data.*: data.tokenizer.kind is char and word$")
    shutil.copytree(home / "words", home / "claims")  # it claims to have the same text
    facts = json.loads((home / "claims" / "run.json").read_text())
    (home / "claims" / "run.json").write_text(json.dumps({**facts, "corpus": runs(home, "a")[0].facts["corpus"]}))
    reseal(home / "claims")
    refused("a", "claims", match="a and claims have different vocabularies")


def test_classifiers_vote_by_the_mean_of_their_probabilities(tmp_path):
    rows = "".join(f"{'good fine' if k % 2 else 'bad poor'} {k % 7} {k % 5}\t{k % 2}\n" for k in range(120))
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    tree = ["model.kind=classifier", "data.kind=labelled", f"data.path={tmp_path / 'rows.tsv'}", "data.source=files"]
    changes = [*tree, "data.tokenizer=word", "training.duration=3 steps", "model.width=8", "model.layers=1"]
    recipes = [from_tree({"model": {"kind": "classifier"}}, "r", overrides=[*changes, f"seed={s}"]) for s in (0, 1, 2)]
    made = train(recipes, ["a", "b", "c"], tmp_path / "runs")
    found, task = score_together(made), tasks.load_for(made[0])
    by_name = {score.name: score.value for score in found.scores}
    for split in ("valid", "test"):  # both are held out of a single table
        said = np.mean([task.predict(load_model(run)[0], split).chances for run in made], axis=0)
        right = task.data.split(split).labels
        assert by_name[f"{split}.accuracy"] == pytest.approx((said.argmax(1) == right).mean())
        assert by_name[f"{split}.loss"] == pytest.approx(-np.log(said[np.arange(len(right)), right]).mean())
    gains = {gain.name: gain.value for gain in found.gains}
    assert list(gains) == ["valid.accuracy", "valid.loss", "test.accuracy", "test.loss"]
    assert gains["valid.loss"] >= 0 and gains["test.loss"] >= 0
    with pytest.raises(UserError, match="choosing segments and strides is only possible with language models"):
        score_together(made, window=ReadingWindow(segment=4))


def test_members_with_other_adapters_are_read_with_their_own(tmp_path):
    """A scale that is not part of the weights, another rank, and none."""
    rows = "".join(f"{'good fine' if k % 2 else 'bad poor'} {k % 7}\t{k % 2}\n" for k in range(80))
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    made = []
    for k, tuning in enumerate(("{kind: lora, rank: 2, alpha: 1}", "{kind: lora, rank: 2, alpha: 64}", "full")):
        changes = [f"data.path={tmp_path / 'rows.tsv'}", "data.source=files", f"training.tuning={tuning}"]
        rate = ["training.duration=9 steps", "training.optimizer.learning_rate=0.05", "model.width=8", "model.layers=1"]
        tree = {"model": {"kind": "classifier"}, "data": {"kind": "labelled"}}
        made += train([from_tree(tree, "r", overrides=[*changes, *rate])], [f"r{k}"], tmp_path / "runs")
    for order in ((0, 1, 2), (2, 1, 0)):
        ensemble = score_together([made[k] for k in order])
        for k, own in zip(order, ensemble.members, strict=True):
            names = ("valid.loss", "valid.accuracy", "test.loss")
            alone, beside = ({score.name: score.value for score in found} for found in (made[k].scores(), own))
            assert [beside[name] for name in names] == pytest.approx([alone[name] for name in names], rel=1e-5)


def test_the_verb(home, command_line):
    answer = command_line("score", "a", "b", "--ensemble", "--runs", str(home))
    assert answer.code == 0 and "gain over the mean" in answer.out and "ensemble of 2 runs" in answer.out
    told = json.loads(command_line("score", "a", "b", "--ensemble", "--runs", str(home), "--json").out)
    assert told.keys() == {"scores", "members", "gains"} and len(told["members"]) == 2
    assert told["gains"]["valid.loss"]["gain"] > 0
    for words, said in {
        ("a", "b"): "add --ensemble to average them",
        ("a", "b", "--ensemble", "--text", "x"): "not on a file or a text",
        ("a", "words", "--ensemble"): "different data",
    }.items():
        answer = command_line("score", *words, "--runs", str(home))
        assert answer.code == 2 and said in answer.err


def test_a_refused_member_is_named(home):
    with pytest.raises(UserError, match=r"^a: no layer of this model carries a state"):
        score_together(runs(home, "c", "a"), ["valid"], ReadingWindow(state="carried"))
    with pytest.raises(UserError, match=r"^a: segments of 17 tokens cannot be read"):
        by_length(runs(home, "c", "a"), [17], tokens=50)


def test_a_diverged_run_is_refused(home, tmp_path):
    shutil.copytree(home / "b", tmp_path / "b")
    (broken,) = runs(tmp_path, "b")
    broken.note(status="diverged", step=2, reason="the loss is no longer a finite number")
    reseal(broken.folder)
    with pytest.raises(UserError, match=r"b diverged at step 2: .* its weights cannot be used"):
        score_together([*runs(home, "a"), *runs(tmp_path, "b")], ["valid"])
    with pytest.raises(UserError, match="b diverged at step 2"):
        by_length(runs(tmp_path, "b"), [4], tokens=50)
