"""Audits of run folders."""

import pytest
import torch
from tiny import tiny_recipe

from headway.audit.report import ALL_AUDITS, audit_recipe, audit_run, audit_runs
from headway.experiment import train
from headway.tasks import load
from headway.variation import varied


@pytest.fixture
def population(workshop, tmp_path, monkeypatch):
    """Two seeds and two learning rates, one of them zero."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    base = tiny_recipe(workshop.text)
    names, recipes = varied(base, "tiny", ["seed=0..1", "training.optimizer.learning_rate=0,3e-3"])
    return train(recipes, names, tmp_path)


def test_a_trained_run(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    report = audit_run(workshop.run)
    assert report.failures == report.warnings == []
    assert [f.audit for f in report.findings] == [one.name for one in ALL_AUDITS]


def test_a_recipe_before_training(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    report = audit_recipe(tiny_recipe(workshop.text, "model.mixer.fusion=reweight"))
    assert [f.audit for f in report.failures] == ["causality", "causal-gradient"]
    assert report.not_run["moved"] == "these weights did not come from training by this recipe"


def test_replicas_share_what_they_have_in_common(population):
    reports = audit_runs(population, load(population[0].recipe))
    for shared in ("causality", "padding", "kernel"):  # the very same finding, with its time
        assert len({report.finding(shared) for report in reports}) == 1
    still = [[f.audit for f in report.failures] for report in reports]
    assert still == [["one-batch", "moved"], [], ["one-batch", "moved"], []]
    order = [one.name for one in ALL_AUDITS]
    for report in reports:
        assert [f.audit for f in report.findings] == order


def test_a_replica_that_was_lost_does_not_hide_the_others(population):
    lost = population[0].checkpoint("last")
    lost.weights["embedding.weight"][0, 0] = torch.nan
    population[0].save_checkpoint(lost)
    reports = audit_runs(population, load(population[0].recipe))
    assert [f.audit for f in reports[0].failures] == ["finite", "one-batch"]
    assert reports[0].not_run["moved"] == "the weights are not finite numbers"
    assert reports[1].failures == []
    assert reports[1].finding("causality") is not None


def test_where_every_replica_was_lost_the_architecture_is_still_judged(population):
    for run in population:
        lost = run.checkpoint("last")
        lost.weights["embedding.weight"][0, 0] = torch.nan
        run.save_checkpoint(lost)
    for report in audit_runs(population, load(population[0].recipe)):
        assert report.finding("finite").verdict == "fail"
        assert report.finding("causality").verdict == "pass"
