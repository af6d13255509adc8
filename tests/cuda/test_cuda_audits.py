"""Audits of runs trained on a GPU."""

import pytest
import torch

from headway.audit.audit import NOT_CARRIED_OUT, read_report
from headway.experiment.train import train
from headway.recipe.recipe import load

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TRAINED = [
    ("demo", "model.layers=2", "model.positions=alibi"),
    ("demo", "model.mixer=lstm", "model.positions=none", "data.batches=contiguous"),
    ("demo", "model.mixer=gru", "model.positions=none", "model.norm=none", "model.feedforward=none"),
    ("python-modules", "model.layers=1"),
    ("pig-latin", "model.layers=1"),
    ("pig-latin-gru",),
    ("pig-latin", "model.layers=1", "model.kind=decoder-only"),
]


@pytest.mark.parametrize("changed", TRAINED, ids=" ".join)
def test_audits_of_runs_trained_on_a_gpu_are_carried_out(changed, tmp_path):
    recipe, *changes = changed
    short = ["training.duration=40 steps", "training.compile=off", "training.evaluate_every=20 steps"]
    recipes = [load(recipe, [*changes, *short, f"seed={seed}"]) for seed in (0, 1)]
    for run in train(recipes, ["a", "b"], tmp_path):
        report = read_report(run.folder)
        assert report is not None
        assert not [f for f in report.failures if f.sentence.startswith(NOT_CARRIED_OUT) or f.audit == "beside-others"]
