"""The audit `gradient` where a finite difference is a poor estimate of the derivative."""

from contextlib import nullcontext

import pytest
import torch

from headway import tasks
from headway.audit.models import gradient as audited
from headway.audit.runner import audit_model
from headway.experiment.kept import probe_of_recipe
from headway.recipe.recipe import load

SMALL = ("model.width=16", "model.layers=1", "model.context=16", "model.feedforward=relu", "model.dropout=0")


@pytest.fixture
def at_a_kink(monkeypatch):
    """A model in which the input of one ReLU is near zero for all tokens, as in collapsed models."""
    monkeypatch.setattr(audited, "_away_from_kinks", lambda model: nullcontext())
    recipe = load("demo", SMALL)
    probe = probe_of_recipe(recipe, tasks.load(recipe))
    into = probe.model.layers[0].feedforward.into
    with torch.no_grad():
        into.weight[:, 0] = 0
        into.bias.fill_(1.0)
        into.bias[:, 0] = 1e-8
        probe.model.layers[0].feedforward.output.weight[..., 0] *= 100  # so that this unit counts
    return probe


def test_a_difference_across_a_kink_is_no_wrong_gradient(at_a_kink, monkeypatch):
    assert audit_model(at_a_kink, (audited.gradient,)).findings[0].verdict == "pass"
    monkeypatch.setattr(audited, "STEPS", audited.STEPS[:1])
    assert audit_model(at_a_kink, (audited.gradient,)).findings[0].verdict == "fail"


@pytest.mark.parametrize("name", ["layers.0.feedforward.into.weight", "embedding.weight", "layers.0.mixer.output.bias"])
@pytest.mark.parametrize(("share", "verdict"), [(1.0, "pass"), (1.03, "fail"), (0.97, "fail")])
def test_a_gradient_of_the_wrong_size_is_found(name, share, verdict):
    """However the random directions fall."""
    recipe = load("demo", SMALL[:3])
    probe = probe_of_recipe(recipe, tasks.load(recipe))
    dict(probe.model.named_parameters())[name].register_hook(lambda gradient: share * gradient)
    (finding,) = audit_model(probe, (audited.gradient,)).findings
    assert finding.verdict == verdict, finding.sentence
    assert verdict == "pass" or name in finding.sentence
