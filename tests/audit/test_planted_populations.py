"""Faults that only affect runs trained in a population are caught, and populations without faults raise no alarm."""

from collections.abc import Iterator

import pytest
import torch
from scored import CLASSIFIER, Ground
from tiny import cache_in

from headway import tasks
from headway.audit.audit import AUDITS, Report
from headway.audit.plants.library import faults
from headway.audit.plants.planting import Fault, planted
from headway.audit.populations import control_groups, seeds
from headway.audit.populations.populations import POPULATION_AUDITS
from headway.experiment import assembly
from headway.experiment.audit import audit_run, population_report
from headway.experiment.train import train
from headway.models import language_model
from headway.nn.replicated import Noisy
from headway.run.folder import Run
from headway.training.adam import MomentsOptimizer


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Iterator[Ground]:
    home = tmp_path_factory.mktemp("ground")
    with cache_in(home / "cache"):
        yield Ground(home)


@pytest.fixture(scope="module")
def trained(ground: Ground):
    """Populations of three, trained once."""
    known: dict[tuple[str, ...], list[Run]] = {}

    def of(*changes: str) -> list[Run]:
        if changes not in known:
            known[changes] = ground.train(*changes, seeds=3)
        return known[changes]

    return of


def examined(runs: list[Run]) -> Report:
    with torch.no_grad():
        return population_report(runs, tasks.load_for(runs[0]), lambda run: run.checkpoint("auto"), len(runs))


OF_POPULATIONS = [fault for fault in faults() if AUDITS[fault.caught_by].subject == "population"]


@pytest.mark.parametrize("plant", OF_POPULATIONS, ids=lambda plant: plant.name)
def test_planted(plant: Fault, trained):
    runs = trained(*plant.changes)
    with planted(plant):
        report = examined(runs)
    failures = {f.audit: f.sentence for f in report.failures}
    assert plant.caught_by in failures, f"not caught; {report}"
    assert not set(failures) - {plant.caught_by, *plant.also}, failures


CLEAN = [
    (),
    ("model.dropout=0.2", "data.batches=contiguous", "model.positions=alibi"),
    ("model.mixer.backend=plain", "training.optimizer=sgd", "model.norm=rms"),
    ("training.accumulate=2", "model.dropout=0.2", "training.optimizer.learning_rate=0"),
    ("training.optimizer.learning_rate=3", "training.clip=0.01", "training.optimizer=adagrad"),
    (CLASSIFIER,),
    (CLASSIFIER, "model.dropout=0.3", "model.pooling=max", "training.accumulate=2"),
    (CLASSIFIER, "model.dropout=0.3", "training.tuning=frozen"),
]


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: " ".join(case))
def test_clean(case, trained, monkeypatch):
    for max_alone in (3, 1):
        monkeypatch.setattr(control_groups, "MAX_ALONE", max_alone)
        report = examined(trained(*case))
        assert not report.failures and not report.warnings, report
        assert {f.audit for f in report.findings} | report.not_run.keys() == {one.name for one in POPULATION_AUDITS}
        assert set(report.not_run) <= {"causality-beside-others"}


def test_a_member_knows_that_it_was_one(trained):
    """Read from its folder alone, long after training."""
    report = audit_run(trained()[1])
    assert {one.name for one in POPULATION_AUDITS} <= {f.audit for f in report.findings}


def test_a_single_run_is_not_audited_as_a_population(ground: Ground):
    assert examined([ground.copy_of()]) == Report()


def test_replicas_that_all_ran_seed_zero(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    """The model and the sampler are right; training was given the wrong seeds."""
    assemble = assembly.assemble

    def all_zero(recipes, *rest):
        return assemble([recipe.model_copy(update={"seed": 0}) for recipe in recipes], *rest)

    monkeypatch.setattr(assembly, "assemble", all_zero)
    runs = ground.train(seeds=3)
    assert [f.audit for f in examined(runs).failures] == ["seeds-apart"]
    (finding,) = examined(runs[1:2]).failures  # found by auditing one of them alone
    assert finding.audit == "seeds-apart" and "first loss" in finding.sentence


def _start_of_the_fourth(patch):
    honest = language_model.seed
    of = lambda seeds: [*seeds[:4], seeds[3]] if len(seeds) == 5 else seeds  # noqa: E731
    patch.setattr(language_model, "seed", lambda model, seeds, device="cpu": honest(model, of(seeds), device))


def _noise_of_the_fourth(patch):
    honest = language_model.seed

    def seed(model, seeds, device="cpu"):
        honest(model, seeds, device)
        for one in model.modules() if len(seeds) == 5 else ():
            if isinstance(one, Noisy):
                one.keys[4] = one.keys[3]

    patch.setattr(language_model, "seed", seed)


def _after_each_step(patch, change):
    honest = MomentsOptimizer.step

    def step(self, *given):
        norms = honest(self, *given)
        with torch.no_grad():
            change(self)
        return norms

    patch.setattr(MomentsOptimizer, "step", step)


def _memory_of(patch, one, other):
    def change(optimizer):
        for tensor in (tensor for kept in optimizer.memory.values() for tensor in kept if len(tensor) == 5):
            tensor[one] = tensor[other]

    _after_each_step(patch, change)


def _memory_of_the_fourth(patch):
    _memory_of(patch, 4, 3)


def _memory_of_the_first_for_the_second(patch):
    """A fault of neither the first member, nor the middle one, nor the last."""
    _memory_of(patch, 1, 0)


def _weights_of_the_fourth_once(patch):
    """As if two runs continued from one checkpoint."""

    def change(optimizer):
        for p in optimizer.parameters if int(optimizer.steps) == 9 else ():
            if len(p) == 5:
                p[4] = p[3]

    _after_each_step(patch, change)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (_start_of_the_fourth, "replica 5 begins with"),
        (_noise_of_the_fourth, "a first loss of"),
        (_memory_of_the_fourth, "at step 3; repeated"),
        (_memory_of_the_first_for_the_second, "at step 3; repeated"),
        (_weights_of_the_fourth_once, "initial weights of seed 3"),
    ],
)
def test_one_of_five_with_the_seed_of_another(fault, told, ground: Ground):
    """The fault is in training and in the audit's own replay. Control groups and evaluating each member alone find
    it."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        runs = ground.train("model.dropout=0.2", "training.optimizer.learning_rate=0.02", seeds=5)
        found = [examined(runs).failures]
        patch.setattr(control_groups, "MAX_ALONE", 5)
        found += [examined(runs).failures]
    for failures in found:
        assert [f.audit for f in failures] == ["seeds-apart"] and told in failures[0].sentence


def test_members_of_a_group_that_does_not_fit_are_checked_one_by_one(trained, monkeypatch):
    """As on a GPU whose memory training has filled."""
    honest, asked = seeds._next_losses, []

    def next_losses(members, some, *given):
        asked.append(some)
        if len(some) > 1:
            raise torch.OutOfMemoryError("no room")
        return honest(members, some, *given)

    monkeypatch.setattr(control_groups, "MAX_ALONE", 1)
    monkeypatch.setattr(seeds, "_next_losses", next_losses)
    assert not examined(trained()).failures
    assert asked == [[0, 2], [0], [2], [1], [0]]


def test_a_diverged_member_does_not_affect_the_audits_of_the_others(trained):
    runs = trained("training.optimizer=sgd", "training.optimizer.learning_rate=1e9", "training.clip=null")
    assert not examined(runs).failures


def test_every_audit_of_populations_finds_something():
    assert {one.name for one in POPULATION_AUDITS} == {plant.caught_by for plant in OF_POPULATIONS}


@pytest.mark.parametrize("key", ["training.optimizer.learning_rate", "training.optimizer.weight_decay"])
def test_members_with_different_settings_are_trained_by_their_own_recipes(key, ground: Ground, monkeypatch):
    """It is found if training gives all members the settings of the first."""
    recipes = [ground.recipe(f"seed={k}", f"{key}={value}") for k, value in enumerate((0.001, 0.02, 0.01))]
    runs = train(recipes, [f"{key}-{k}" for k in range(3)], ground.home / "runs")
    assert not examined(runs).failures
    assemble = assembly.assemble

    def all_as_the_first(recipes, *rest):
        of_first = recipes[0].training
        return assemble([one.model_copy(update={"training": of_first}) for one in recipes], *rest)

    monkeypatch.setattr(assembly, "assemble", all_as_the_first)
    assert [f.audit for f in examined(runs).failures] == ["steps-beside-others"]
