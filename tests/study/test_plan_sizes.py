"""The sizes in a plan, which are counted without building models, equal those of the built models."""

import pytest

from headway.recipe.recipe import load
from headway.study.execution.plan import Sizes

LM = ["training.duration=4 steps", "model.width=16", "model.context=16", "model.layers=2"]
SHAPES = [
    ["model.mixer=lstm", "model.positions=none"],
    ["model.positions=learned", "model.feedforward=swiglu", "model.tied=false"],
    ["model.positions=t5", "model.norm=rms", "model.mixer.window=4", "model.dropout=0.1"],
]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_counted_sizes_equal_those_of_the_built_model(changes, monkeypatch):
    recipe = load("demo", [*LM, *changes])
    monkeypatch.setattr("headway.nn.seeding.random.generator", None)  # building it must draw no random numbers
    found = Sizes().of(recipe)
    monkeypatch.undo()
    model = Sizes().task(recipe).build([0], "cpu")
    assert found.parameters == sum(p.numel() for p in model.parameters())
