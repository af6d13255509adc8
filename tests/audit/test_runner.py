"""Audits of run folders."""

import pytest
import torch
from tiny import tiny_recipe

from headway.audit.audit import Report
from headway.audit.data.batches import LABEL_AUDITS
from headway.audit.data.rows import ROW_AUDITS
from headway.audit.masking.batches import MASKING_AUDITS
from headway.audit.populations.populations import POPULATION_AUDITS
from headway.audit.runner import ALL_AUDITS, MODEL_AUDITS, OF_PICTURES, OF_TRANSLATION
from headway.experiment.audit import audit_recipe, audit_run, audit_runs, one_close_look_each
from headway.experiment.train import train
from headway.recipe.recipe import load as load_recipe
from headway.recipe.sweep import varied
from headway.tasks import load

OF_MODELS = {one.name for one in MODEL_AUDITS}


def failures_of_model(report: Report) -> list[str]:
    return [f.audit for f in report.failures if f.audit in OF_MODELS]


@pytest.fixture
def population(workshop, tmp_path, monkeypatch):
    """Two seeds and two learning rates, one of which is zero."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    base = tiny_recipe(workshop.text)
    names, recipes = varied(base, "tiny", ["seed=0..1", "training.optimizer.learning_rate=0,3e-3"])
    return train(recipes, names, tmp_path)


def test_a_trained_run(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    report = audit_run(workshop.run)
    assert failures_of_model(report) == []
    # It is a poor run: twelve steps, on lines that differ only in a number.
    assert {f.audit for f in report.failures} == {"beats-chance", "did-it-train"}
    assert {"beats-counting", "repeated-text"} <= {f.audit for f in report.warnings}
    said = [f.audit for f in report.findings]
    assert said == [one.name for one in ALL_AUDITS if one.name in said]
    # Too short for more; every audit not run has its reason.
    assert {"plateaued", "still-improving", "underfitted", "overfitted"} < set(report.not_run)
    assert set(said) | set(report.not_run) == {one.name for one in ALL_AUDITS} - {
        one.name
        for one in (*ROW_AUDITS, *LABEL_AUDITS, *MASKING_AUDITS, *POPULATION_AUDITS, *OF_TRANSLATION, *OF_PICTURES)
    }
    assert [b.method for b in report.baselines] == ["unigram", "5-gram"]


def test_a_classifier_is_audited_with_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    rows = [
        f"the {a} {b}\t{'good' if a in 'abc' else 'bad'}" for a in "abcdef" for b in ("cat", "dog", "hen", "cow", "ewe")
    ]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "test.tsv").write_text("\n".join([*rows[::3], "the a bat\tgood", "the f bat\tbad"]) + "\n")
    changes = [f"data.path={tmp_path}", "data.source=files", "data.text=1", "data.label=2", "data.header=false"]
    recipe = load_recipe("python-modules", [*changes, "training.duration=3steps", "model.width=8", "model.layers=1"])
    (run,) = train([recipe], ["rows"], tmp_path / "runs")
    report = audit_run(run)
    assert report.finding("seen-rows").verdict == "fail"
    assert {b.method for b in report.baselines} == {"majority", "one word", "bag of words"}
    assert {"test.accuracy", "test.accuracy_seen"} <= {b.score.name for b in report.baselines}
    assert not {"repeated-text", "split-by-line"} & {f.audit for f in report.findings}


def test_a_recipe_before_training(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    report = audit_recipe(tiny_recipe(workshop.text, "model.mixer.fusion=reweight"))
    assert [f.audit for f in report.failures] == ["causality", "causal-gradient"]
    assert report.not_run["moved"] == "these weights did not come from training by this recipe"


def test_replicas_share_findings_about_their_architecture(population):
    reports = audit_runs(population, load(population[0].recipe))
    for shared in ("causality", "padding", "kernel"):  # the same finding, including its time
        assert len({report.finding(shared) for report in reports}) == 1
    still = [failures_of_model(report) for report in reports]
    assert still == [["one-batch", "moved"], [], ["one-batch", "moved"], []]
    assert ["learning-rate-zero" in {f.audit for f in report.failures} for report in reports] == [True, False] * 2


def test_runs_that_differ_only_in_their_seed_share_audits_of_the_architecture(population):
    still, learning, _, other_seed = population

    def audited(run):
        return audit_runs([run], load(run.recipe))[0]

    with one_close_look_each():
        first, second, other = map(audited, (learning, other_seed, still))
    for shared in ("causality", "kernel", "one-batch"):  # the same finding, including its time
        assert first.finding(shared) is second.finding(shared)
        assert first.finding(shared) is not other.finding(shared)
    assert first.finding("finite") is not second.finding("finite")  # depends on the weights, which are each run's own
    assert failures_of_model(other) == ["one-batch", "moved"] and failures_of_model(second) == []
    assert audited(other_seed).finding("causality") is not second.finding("causality")


def test_weights_that_are_not_finite_are_not_used_for_shared_audits(population):
    learning, other_seed = population[1], population[3]
    lost = learning.checkpoint("last")
    lost.weights["embedding.weight"][0, 0] = torch.nan
    learning.save_checkpoint(lost)
    with one_close_look_each():
        first, second = (audit_runs([run], load(run.recipe))[0] for run in (learning, other_seed))
    assert first.finding("causality") is not second.finding("causality")
    assert failures_of_model(first) == ["finite"] and failures_of_model(second) == []


def test_a_replica_with_weights_that_are_not_finite_does_not_hide_the_others(population):
    lost = population[0].checkpoint("last")
    lost.weights["embedding.weight"][0, 0] = torch.nan
    population[0].save_checkpoint(lost)
    reports = audit_runs(population, load(population[0].recipe))
    assert failures_of_model(reports[0]) == ["finite", "one-batch"]
    assert reports[0].not_run["moved"] == "the weights are not finite numbers"
    assert failures_of_model(reports[1]) == []
    assert reports[1].finding("causality") is not None


def test_if_no_replica_has_finite_weights_the_architecture_is_still_audited(population):
    for run in population:
        lost = run.checkpoint("last")
        lost.weights["embedding.weight"][0, 0] = torch.nan
        run.save_checkpoint(lost)
    for report in audit_runs(population, load(population[0].recipe)):
        assert report.finding("finite").verdict == "fail"
        assert report.finding("causality").verdict == "pass"
