"""What is wrong with one member of many is found in that member, though all are asked at once."""

import pytest
import torch
from tiny import tiny_recipe

from headway import tasks
from headway.audit.members import excerpts
from headway.experiment import audit
from headway.experiment.audit import audit_run, audit_runs
from headway.experiment.kept import KeptMembers
from headway.experiment.train import train
from headway.recipe.sweep import varied

OF_EACH = ("finite", "moved", "collapsed-answers", "collapsed-heads")
SPOILT = 2


@pytest.fixture
def runs(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    names, recipes = varied(tiny_recipe(workshop.text, "model.mixer.heads=2"), "tiny", ["seed=0..4"])
    return train(recipes, names, tmp_path)


def spoil(run, change) -> None:
    kept, task = run.checkpoint("last"), tasks.load(run.recipe)
    start = {name: p[0].detach() for name, p in task.build([run.recipe.seed], "cpu").named_parameters()}
    change(kept.weights, start)
    run.save_checkpoint(kept)


def as_it_began(weights, start):
    weights.update(start)


def one_still(weights, start):
    weights["embedding.weight"] = start["embedding.weight"]


def deaf(weights, start):
    weights["embedding.weight"].mul_(0).add_(1)


def lost(weights, start):
    weights["embedding.weight"][0, 0] = torch.nan


def looking_everywhere(weights, start):
    for name, weight in weights.items():
        if "attention" in name or "mixer" in name:
            weight.mul_(0)


def found_by(report) -> dict[str, str]:
    return {name: finding.verdict for name in OF_EACH if (finding := report.finding(name)) is not None}


@pytest.mark.parametrize(
    ("change", "audit"),
    [
        (as_it_began, "moved"),
        (one_still, "moved"),
        (deaf, "collapsed-answers"),
        (lost, "finite"),
        (looking_everywhere, "collapsed-heads"),
    ],
)
def test_a_fault_of_one_is_that_ones(runs, change, audit):
    clean = [found_by(report) for report in audit_runs(runs, tasks.load(runs[0].recipe))]
    spoil(runs[SPOILT], change)
    found = audit_runs(runs, tasks.load(runs[0].recipe))
    assert found[SPOILT].finding(audit).verdict == "fail"
    for place, report in enumerate(found):
        if place != SPOILT:
            assert found_by(report) == clean[place]
    alone = audit_run(runs[SPOILT])
    for name in OF_EACH:
        ours, own = found[SPOILT].finding(name), alone.finding(name)
        assert (ours is None) == (own is None)
        if ours is not None:
            assert ours.verdict == own.verdict and ours.sentence == own.sentence
            assert ours.value == pytest.approx(own.value, rel=1e-4, abs=1e-6)


def test_members_read_what_each_would_read_alone(runs):
    """Sentences, and the rows by which embeddings and gradients are judged."""
    task = tasks.load(runs[0].recipe)
    kept = KeptMembers(runs, [run.checkpoint("auto") for run in runs], task)
    everyone = kept.members[0].everyone
    assert everyone.model.replicas == len(runs) == len(everyone.are_whole)
    some = excerpts(everyone, 3, 5)
    for place, member in enumerate(kept.members):
        alone = member.alone()
        assert member.everyone is everyone and member.place == place
        assert torch.equal(everyone.sentences[place], alone.sentences[0])
        assert torch.equal(some.inputs[place], alone.excerpt(3, 5).inputs[0])
        for random in (False, True):
            ours, own = everyone.padded(random), alone.padded(random)
            assert torch.equal(ours.ids[place], own.ids[0])
            assert torch.equal(ours.padding_mask[place], own.padding_mask[0])
        torch.testing.assert_close(everyone.answers[place], alone.answers[0])


def test_some_at_a_time_are_told_the_same(runs, monkeypatch):
    """Where not all fit side by side: two, two, and one by itself."""
    spoil(runs[SPOILT], as_it_began)
    at_once = audit_runs(runs, tasks.load(runs[0].recipe))
    monkeypatch.setattr(audit, "WEIGHTS_AT_ONCE", 2 * runs[0].facts["parameters"])
    in_turns = audit_runs(runs, tasks.load(runs[0].recipe))
    for one, other in zip(at_once, in_turns, strict=True):
        assert {f.audit: f.verdict for f in one.findings} == {f.audit: f.verdict for f in other.findings}
        assert one.not_run == other.not_run
