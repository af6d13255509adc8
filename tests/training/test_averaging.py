"""Averaged weights are scored and saved as set; training continues from the plain weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXT, tiny_recipe
from torch import nn

from headway.experiment.evaluate import score_splits_again
from headway.experiment.train import train
from headway.training.averaging import Averages, Moving, Tail


def averages_of(spec, total: int, walk: torch.Tensor) -> list[float]:
    """The averages of one weight with these values, after each step."""
    weight = nn.Parameter(torch.zeros(1, 1))
    averages, found = Averages(spec, {"w": weight}, total), []
    for step in range(total):
        weight.data.fill_(walk[step])
        averages.update(torch.tensor(step, dtype=torch.int32), torch.ones(1, dtype=torch.bool))
        found.append(averages.tensors["w"].item())
    return found


def test_the_tail_has_as_many_steps_as_its_fraction():
    """0.29 · 100 is 28.999999999999996."""
    walk = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert averages_of(Tail(last=0.29), 100, walk)[-1] == pytest.approx(walk[-29:].mean().item(), abs=1e-6)


@given(total=st.integers(1, 60), last=st.floats(0.02, 1.0), every=st.integers(1, 7))
def test_the_tail_is_the_mean_of_every_nth_of_the_last_weights(total, last, every):
    walk = torch.randn(total, generator=torch.Generator().manual_seed(total))
    taken = [walk[step].item() for step in range(total - 1, -1, -every)][: max(1, int(last * total / every + 1e-6))]
    expected = sum(taken) / len(taken)
    assert averages_of(Tail(last=last, every=every), total, walk)[-1] == pytest.approx(expected, abs=1e-5)


def test_before_the_tail_the_average_equals_the_weights():
    walk = torch.arange(20.0)
    assert averages_of(Tail(last=0.25), 20, walk)[:16] == walk[:16].tolist()


def test_a_moving_average_has_no_initial_bias():
    walk = torch.cat((torch.ones(3), torch.full((400,), 5.0)))
    found = averages_of(Moving(decay=0.9), len(walk), walk)
    assert found[0] == 1.0 and found[2] == 1.0 and found[-1] == pytest.approx(5.0, abs=1e-4)
    assert found[-1] != found[20]


def test_the_average_of_a_replica_that_has_ended_is_frozen():
    weight = nn.Parameter(torch.zeros(2, 3))
    averages = Averages(Moving(decay=0.5), {"w": weight}, 10)
    weight.data.fill_(1.0)
    averages.update(torch.tensor(4), torch.tensor([True, False]))
    assert averages.tensors["w"][0, 0] > 0 and averages.tensors["w"][1].eq(0).all()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("averaging") / "tiny.txt"
    path.write_text(TEXT, "utf-8")
    return path


CHANGES = ["training.averaging.kind=tail", "training.averaging.last=0.5"]


def test_training_is_unchanged_and_scores_are_those_of_the_average(text, tmp_path):
    plain, averaged = tiny_recipe(text), tiny_recipe(text, *CHANGES)
    (a,), (b,) = train([plain], ["a"], tmp_path), train([averaged], ["b"], tmp_path)
    last_a, last_b = a.checkpoint("auto"), b.checkpoint("auto")
    for name, weights in last_a.weights.items():
        assert torch.equal(last_b.optimizer[f"trained/{name}"], weights)
        assert not torch.equal(last_b.weights[name], weights)
    losses = [[line["loss"] for line in run.metrics() if "loss" in line] for run in (a, b)]
    assert losses[0] == losses[1]
    again = {score.name: score.value for score in score_splits_again(b)}
    kept = {score.name: score.value for score in b.scores()}
    assert again == kept != {score.name: score.value for score in a.scores()}


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_averages_of_a_resumed_run_are_bit_identical(text, tmp_path, seeds, monkeypatch):
    recipes = [tiny_recipe(text, *CHANGES, f"seed={seed}") for seed in seeds]
    names = [f"run-{seed}" for seed in seeds]
    whole = train(recipes, names, tmp_path / "whole")
    from headway.training.loop import Loop

    step = Loop.take_step

    def killed_at_nine(self):
        if self.step == 9:
            raise SystemExit
        step(self)

    monkeypatch.setattr(Loop, "take_step", killed_at_nine)
    with pytest.raises(SystemExit):
        train(recipes, names, tmp_path / "torn")
    monkeypatch.undo()
    torn = train(recipes, names, tmp_path / "torn", resume=True)
    for a, b in zip(whole, torn, strict=True):
        one, other = a.checkpoint("auto"), b.checkpoint("auto")
        assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
        assert all(torch.equal(one.optimizer[name], other.optimizer[name]) for name in one.optimizer)
