"""Audits compare only some weights of a large model. Here every model counts as large, and all faults are still
caught."""

import pytest
import torch
from examined import OF_WEIGHTS, examine, fresh, small_recipe
from test_planted_bugs import OF_MODELS

from headway.audit.audit import find_audit
from headway.audit.models import gradient, steps
from headway.audit.plants.planting import planted
from headway.audit.runner import MODEL_AUDITS, audit_model
from headway.nn.seeding import drawn_anew, drawn_once

FAULTS = [fault for fault in OF_MODELS if fault.caught_by in ("step", "gradient")]


@pytest.fixture
def every_model_is_large(monkeypatch):
    monkeypatch.setattr(steps, "MOST_COMPARED", 64)
    monkeypatch.setattr(gradient, "MOST_DRAWN", 67)


@pytest.mark.parametrize(
    "fault", [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if k % 6 else []) for k, one in enumerate(FAULTS)]
)
def test_planted(fault, every_model_is_large):
    with planted(fault):
        probe = examine(*fault.changes, *fault.recipe, steps=3)
        fault.spoil(probe.model)
        report = audit_model(probe, OF_WEIGHTS)
    assert fault.caught_by in {finding.audit for finding in report.failures}, report


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "adagrad"])
def test_clean(optimizer, every_model_is_large):
    probe = examine(f"training.optimizer.kind={optimizer}", steps=3)
    audits = [find_audit(name, MODEL_AUDITS) for name in ("step", "gradient")]
    report = audit_model(probe, audits)
    assert [finding.verdict for finding in report.findings] == ["pass", "pass"], report


def test_compared_weights_are_spread_evenly_and_include_those_with_gradients():
    g = torch.zeros(1, 1000, 500)
    g[0, 777] = 1 + torch.arange(500)
    found = steps._compared(g, "adamw")
    assert found is not None and len(found) <= steps.MOST_COMPARED
    assert set(range(777 * 500, 778 * 500)) <= set(found.tolist())
    assert found.diff().max() <= -(-2 * g.numel() // steps.MOST_COMPARED)
    assert steps._compared(g[:, :10], "adamw") is None and steps._compared(g, "somebody's own") is None


def test_reused_initial_weights_equal_new_ones_and_are_not_shared():
    recipe = small_recipe()
    weights = [p.detach().clone() for p in fresh(recipe).parameters()]
    with drawn_once():
        first = fresh(recipe)
        for p in first.parameters():
            p.data.fill_(7.0)
        second = fresh(recipe)
        with drawn_anew():
            third = fresh(recipe)
    for model in (second, third):
        assert all(torch.equal(p, was) for p, was in zip(model.parameters(), weights, strict=True))
