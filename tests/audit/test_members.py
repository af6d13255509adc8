"""A fault of one member of a population is found in that member, although all are audited in one batch."""

from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from scored import CLASSIFIER, Ground
from tiny import tiny_recipe

from headway import tasks
from headway.audit.pictures.matching import caption_matters, picture_matters
from headway.audit.populations import control_groups
from headway.audit.populations.members import Member, excerpts
from headway.audit.runner import audit_model, audit_models
from headway.audit.translation.sources import source_matters
from headway.core import plugins
from headway.experiment import audit
from headway.experiment.audit import audit_run, audit_runs
from headway.experiment.kept import KeptMembers, probe_of_recipe
from headway.experiment.train import train
from headway.models.language_model import LanguageModel
from headway.recipe.recipe import load
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
def test_a_fault_of_one_member_is_found_in_that_member_only(runs, change, audit):
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


def test_frozen_weights_are_checked_in_each_member(workshop, tmp_path, monkeypatch):
    """`tuning` is only run in full on one member."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    runs = Ground(tmp_path).train(CLASSIFIER, "training.tuning=lora", seeds=3)

    def decayed(weights, start):
        name = next(
            name for name, p in weights.items() if name.startswith("layers.0.") and "adapter" not in name and p.any()
        )
        weights[name].mul_(0.999)

    spoil(runs[SPOILT], decayed)
    found = [report.finding("moved") for report in audit_runs(runs, tasks.load(runs[0].recipe))]
    assert [finding.verdict for finding in found] == ["pass", "pass", "fail"]
    assert "should be frozen" in found[SPOILT].sentence


def too_large(weights, start):
    weights["embedding.weight"].mul_(1e20)


@pytest.mark.parametrize("change", [lost, too_large])
def test_members_are_audited_even_if_the_first_has_no_finite_outputs(runs, change):
    """Finite weights that are too large for finite outputs say nothing about an architecture either."""
    runs = runs[:3]

    def verdicts():
        reports = audit_runs(runs, tasks.load(runs[0].recipe))
        return [{finding.audit: finding.verdict for finding in report.findings} for report in reports]

    clean = verdicts()
    spoil(runs[0], change)
    found = verdicts()
    assert found[0]["finite"] == "fail" and found[1:] == clean[1:]


def test_members_are_probed_with_the_same_data_as_alone(runs):
    """Sequences, and the excerpts used to audit embeddings and gradients."""
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


def test_findings_do_not_depend_on_how_many_members_fit_into_a_batch(runs, monkeypatch):
    """Where not all members fit into one batch: two, two, and one by itself."""
    spoil(runs[SPOILT], as_it_began)
    at_once = audit_runs(runs, tasks.load(runs[0].recipe))
    monkeypatch.setattr(audit, "WEIGHTS_AT_ONCE", 2 * runs[0].facts["parameters"])
    in_turns = audit_runs(runs, tasks.load(runs[0].recipe))
    for one, other in zip(at_once, in_turns, strict=True):
        assert {f.audit: f.verdict for f in one.findings} == {f.audit: f.verdict for f in other.findings}
        assert one.not_run == other.not_run


def honest(found):
    return found


def of_the_neighbour(found):
    return found.roll(1, 0)


def of_all_mixed(found):
    return 0.9 * found + 0.1 * found.mean(0, keepdim=True)


def of_the_first_beside_others(found):
    return torch.cat([found[:1], found[:1], found[2:]]) if len(found) > 1 else found


@pytest.mark.parametrize("fault", [honest, of_the_neighbour, of_all_mixed, of_the_first_beside_others])
def test_outputs_in_control_groups_equal_those_of_each_alone(runs, fault, monkeypatch):
    """A member is evaluated alone if its outputs in its control group differ."""
    original, asked = LanguageModel.forward, []

    def forward(self, *given, **named):
        found, after = original(self, *given, **named)
        asked.append(self.replicas)
        return fault(found), after

    monkeypatch.setattr(LanguageModel, "forward", forward)
    kept = KeptMembers(runs, [run.checkpoint("auto") for run in runs], tasks.load(runs[0].recipe))
    in_groups = kept.controls()
    assert {1, 2, 3} <= {*asked}
    asked.clear()
    monkeypatch.setattr(control_groups, "MAX_ALONE", 5)
    alone = kept.controls()
    assert set(asked) == {1}
    assert all(one.agrees_with(other) for one, other in zip(in_groups, alone, strict=True))
    assert not any(one.agrees_with(other) for one, other in zip(in_groups, alone[1:], strict=False))


def test_members_have_the_noise_of_their_own_seeds_in_control_groups(workshop, tmp_path, monkeypatch):
    """The order of shuffled heads is drawn from the seed, not stored with the weights."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    recipe = tiny_recipe(workshop.text, "model.mixer.heads=4", "model.mixer.fusion=shuffle")
    names, recipes = varied(recipe, "tiny", ["seed=0..5"])
    runs, asked, original = train(recipes, names, tmp_path), [], LanguageModel.forward

    def forward(self, *given, **named):
        asked.append(self.replicas)
        return original(self, *given, **named)

    monkeypatch.setattr(LanguageModel, "forward", forward)
    kept = KeptMembers(runs, [run.checkpoint("auto") for run in runs], tasks.load(runs[0].recipe))
    in_groups = kept.controls()
    assert asked.count(1) == asked.count(3) > 0  # of each group one is evaluated alone, and no other needed it
    monkeypatch.setattr(control_groups, "MAX_ALONE", 6)
    assert all(one.agrees_with(other) for one, other in zip(in_groups, kept.controls(), strict=True))


def test_no_member_has_the_same_place_or_neighbours_in_its_control_group():
    for members in range(control_groups.MAX_ALONE + 1, 70):
        groups = control_groups.control_groups(range(members))
        assert sorted(chain(*groups)) == [*range(members)]
        assert [r for group in groups for place, r in enumerate(group) if place == r] == [0]
        assert not any(right - left == 1 for group in groups for left, right in pairwise(group))
        told = control_groups.also_alone(groups)
        assert told[0] == 0 and [len({*told} & {*group}) for group in groups] == [1] * len(groups)


OF_SOMEBODY_ELSE = '''from typing import Literal

import torch

from headway.audit.audit import audit, passed
from headway.nn.positions import Positions, PositionSpec
from headway.nn.replicated import parameter


class Remembering(PositionSpec):
    """A slope for each head, of which what follows is kept as long as nobody trains."""

    kind: Literal["remembering"] = "remembering"

    def build(self, replicas, width, heads, context):
        return RememberingPositions(replicas, heads)


class RememberingPositions(Positions):
    has_bias = True

    def __init__(self, replicas, heads):
        super().__init__()
        self.slopes, self.kept = parameter(replicas, heads, std=1.0, decays=False), None

    def train(self, mode=True):
        self.kept = None
        return super().train(mode)

    def bias(self, replica, head, i, j):
        if self.training or torch.is_grad_enabled() or self.kept is None:
            slopes = self.slopes.exp()
            assert slopes.isfinite().all(), "a layer that takes no NaN"
            if self.training or torch.is_grad_enabled():
                return -slopes[replica, head] * (i - j)
            self.kept = slopes
        return -self.kept[replica, head] * (i - j)


@audit("model", rests_on=("moved",))
def somebodys(probe):
    """Rests on what another has found."""
    return passed(0, "it rests on moved, and ran")
'''


@pytest.fixture
def theirs(workshop, tmp_path, monkeypatch):
    """Runs with a layer and an audit from a user's plugin."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    (tmp_path / "theirs.py").write_text(OF_SOMEBODY_ELSE)
    plugins.load_plugin(tmp_path / "theirs.py")
    changes = "model.mixer.heads=2", "model.positions=remembering"
    names, recipes = varied(tiny_recipe(workshop.text, *changes), "tiny", ["seed=0..4"])
    yield train(recipes, names, tmp_path)
    for plugin in plugins.loaded():
        plugins.forget(plugin)


@pytest.mark.audited
def test_state_kept_by_a_users_layer_does_not_reach_other_members(theirs):
    for report in audit_runs(theirs, tasks.load(theirs[0].recipe)):
        assert report.finding("scores-again").verdict == "pass"


def test_a_member_without_finite_outputs_does_not_affect_the_others(theirs):
    def nowhere(weights, start):
        weights["positions.slopes"].fill_(torch.nan)

    spoil(theirs[4], nowhere)
    *others, own = audit_runs(theirs, tasks.load(theirs[0].recipe))
    assert own.finding("finite").verdict == "fail"
    assert all(report.finding(name).verdict == "pass" for report in others for name in ("finite", "moved"))


def test_in_a_batch_an_audit_is_not_run_where_one_it_rests_on_failed(theirs):
    spoil(theirs[0], as_it_began)
    found, *others = audit_runs(theirs, tasks.load(theirs[0].recipe))
    assert found.finding("moved").verdict == "fail"
    assert found.finding("somebodys") is None and "somebodys" in found.not_run
    assert all(report.finding("somebodys").verdict == "pass" for report in others)  # the audit is run on each member


@pytest.mark.parametrize(
    ("recipe", "asked"), [("pig-latin", [source_matters]), ("scenes", [picture_matters, caption_matters])]
)
def test_whether_trained_pairs_matter_is_audited_for_each_member(recipe, asked):
    """The models are untrained but probed as trained ones, so each seed depends on the source by a different amount."""
    members = []
    for seed in (0, 1):
        own = load(recipe, [f"seed={seed}", "model.width=16", "model.layers=1", "training.batch=8"])
        probe = replace(probe_of_recipe(own, tasks.load(own)), trained=True)
        members.append(Member(probe, 0, own, lambda probe=probe: probe))
    found = audit_models(members)
    for one in asked:
        values = [report.finding(one.name).value for report in found]
        alone = [audit_model(member.alone(), [one]).finding(one.name).value for member in members]
        assert values == alone and values[0] != values[1]


def test_members_with_different_dropout_are_judged_by_their_own_recipe(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    recipe = tiny_recipe(workshop.text, "model.mixer.heads=2")
    names, recipes = varied(recipe, "tiny", ["seed=0..1", "model.dropout=0.0,0.3"])
    runs = train(recipes, names, tmp_path)
    for report in audit_runs(runs, tasks.load(runs[0].recipe)):
        assert "dropout" not in {finding.audit for finding in report.failures}


def test_a_member_most_of_whose_weights_never_moved_is_found(runs):
    def most_still(weights, start):
        weights.update({name: value for name, value in start.items() if name != "embedding.weight"})

    spoil(runs[SPOILT], most_still)
    found = audit_runs(runs, tasks.load(runs[0].recipe))
    assert [report.finding("moved").verdict for report in found].count("fail") == 1
    assert found[SPOILT].finding("moved").verdict == "fail"
