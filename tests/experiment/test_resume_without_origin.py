"""A run can be resumed from its folder alone; the weights it started from may be gone."""

import shutil

import pytest
import torch
from folders_of_others import encoder_folder, reviews  # noqa: F401 (fixtures)
from tiny import cache_in

from headway.core.errors import UserError
from headway.experiment.train import train
from headway.recipe.recipe import from_tree, load

STEPS = ("training.batch=4", "training.evaluate_every=2 steps", "training.checkpoint_every=2 steps")


@pytest.mark.parametrize(("family", "tuning"), [("bert", "frozen"), ("mpnet", "full")])
def test_a_run_is_resumed_without_its_initial_weights(encoder_folder, reviews, tmp_path, workshop, family, tuning):  # noqa: F811
    folder, _ = encoder_folder(family)
    start = {"kind": "pretrained", "from": str(folder)}
    tree = {"model": {"kind": "classifier", "start": start}, "data": {"kind": "labelled"}}
    changes = [*STEPS, "data.source=files", f"data.path={reviews}", "model.context=8", f"training.tuning={tuning}"]
    recipe = from_tree(tree, "", None, [*changes, "training.duration=6 steps", "scoring.splits=[valid]"])
    runs = tmp_path / "runs"
    with cache_in(workshop.cache):
        (whole,) = train([recipe], ["whole"], runs)
    shutil.copytree(runs / "whole", runs / "stopped")
    newest = max((runs / "stopped" / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)  # as if it had been killed two steps before the end
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="there is no model"):
        from_tree(tree, "", None, changes)
    with cache_in(tmp_path / "another-cache"):
        (run,) = train([load(str(runs / "stopped"))], ["stopped"], runs, resume=True)
    ended = [one.checkpoint("last").weights for one in (whole, run)]
    assert ended[0].keys() == ended[1].keys() and all(torch.equal(ended[0][k], ended[1][k]) for k in ended[0])
    assert run.scores()[0].value == whole.scores()[0].value
