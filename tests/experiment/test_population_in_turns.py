"""A population that does not fit into memory is trained in turns, of a size that is measured."""

from pathlib import Path

import pytest
import torch
from listening import Told
from tiny import tiny_recipe

from headway.core.errors import UserError
from headway.experiment import population
from headway.experiment.population import idle_gpus, train_in_turns
from headway.recipe.sweep import varied
from headway.training import capacity
from headway.training.capacity import Capacity, is_out_of_memory, largest_population
from headway.training.loop import Loop


@pytest.fixture
def five(workshop, monkeypatch) -> tuple[list[str], list]:
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    return varied(tiny_recipe(workshop.text), "five", ["seed=0..4"])


def test_runs_trained_in_turns_equal_those_of_one_population(five, tmp_path: Path, monkeypatch):
    names, recipes = five
    at_once = train_in_turns(recipes, names, tmp_path / "at-once")
    monkeypatch.setattr(population, "capacity", lambda recipes, wanted: Capacity(min(2, wanted), "two fit"))
    in_turns = train_in_turns(recipes, names, tmp_path / "in-turns")
    for one, other in zip(at_once, in_turns, strict=True):
        assert [s.value for s in one.scores()] == pytest.approx([s.value for s in other.scores()], rel=1e-4)


def test_a_population_that_does_not_fit_reports_the_size_that_would(five, tmp_path: Path, monkeypatch):
    names, recipes = five
    monkeypatch.setattr(population, "capacity", lambda recipes, wanted: Capacity(2, "because"))
    with pytest.raises(UserError, match=r"4 replicas do not fit on the device.* 2: because"):
        train_in_turns(recipes, names, tmp_path, together=4)
    assert not list(tmp_path.iterdir())


def test_turns_are_resumed_where_they_were_stopped(five, tmp_path: Path):
    names, recipes = five
    train_in_turns(recipes[:2], names[:2], tmp_path, together=2)
    made = train_in_turns(recipes, names, tmp_path, resume=True, together=2)
    assert [str(run.status) for run in made] == ["finished"] * 5


FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: out of memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", FULL, ids=str)
def test_out_of_memory_errors_are_recognised_in_all_forms(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("sizes differ")) and not is_out_of_memory(ValueError("out of memory"))


def test_a_population_that_runs_out_of_memory_continues_in_halves(five, tmp_path: Path, monkeypatch):
    """Five do not fit, nor do three, but two do. Memory runs out after step 5, that is, after the first checkpoint."""
    names, recipes = five
    whole = train_in_turns(recipes, names, tmp_path / "whole")
    take_step, sizes = Loop.take_step, []

    def filling(self):
        sizes.append(len(self.replica_states))
        if sizes[-1] > 2 and self.step >= 5:
            raise FULL[0]
        take_step(self)

    monkeypatch.setattr(Loop, "take_step", filling)
    said = Told()
    made = train_in_turns(recipes, names, tmp_path / "halved", listeners=[said])
    assert [run.name for run in made] == names and {str(run.status) for run in made} == {"finished"}
    words = "out of memory: continuing with {} replicas at a time, from the last checkpoints"
    assert said.warned == [words.format(3), words.format(2)]
    assert sizes.count(2) == 2 * (12 - 4) and sizes.count(1) == 12 - 4  # from step 4, and not from the start
    for one, other in zip(whole, made, strict=True):
        assert [s.value for s in one.scores()] == pytest.approx([s.value for s in other.scores()], rel=1e-4)


def test_a_finished_half_is_not_trained_again(five, tmp_path: Path, monkeypatch):
    """Five did not fit, three were finished, and two were stopped earlier: only those two continue."""
    names, recipes = five
    take_step, steps = Loop.take_step, []

    def filling(self):
        steps.append((len(self.replica_states), self.step))
        if len(self.replica_states) > 3 and self.step >= 5:
            raise MemoryError
        if len(self.replica_states) == 2:
            raise RuntimeError("stopped")
        take_step(self)

    def watched(self):
        steps.append((len(self.replica_states), self.step))
        take_step(self)

    monkeypatch.setattr(Loop, "take_step", filling)
    with pytest.raises(RuntimeError, match="stopped"):
        train_in_turns(recipes, names, tmp_path)
    monkeypatch.setattr(Loop, "take_step", watched)
    steps.clear()
    made = train_in_turns(recipes, names, tmp_path, resume=True)
    assert steps == [(2, step) for step in range(4, 12)]
    assert [run.name for run in made] == names and {str(run.status) for run in made} == {"finished"}


@pytest.mark.parametrize(("error", "tried"), [(MemoryError(), [3, 2, 1]), (RuntimeError("sizes differ"), [3])])
def test_a_single_replica_that_does_not_fit_is_an_error(five, tmp_path: Path, monkeypatch, error, tried):
    names, recipes = five
    found = []

    def fail(recipes, *rest):
        found.append(len(recipes))
        raise error

    monkeypatch.setattr(population, "train", fail)
    with pytest.raises(type(error)):
        train_in_turns(recipes[:3], names[:3], tmp_path)
    assert found == tried


@pytest.mark.parametrize(("free", "fits"), [(1000, 100), (100, 10), (45, 4), (9, 1)])
def test_the_population_that_fits_is_extrapolated_from_one_and_two_replicas(monkeypatch, free: int, fits: int):
    """Five units for all and nine per replica: a simulated device with numbers that can be checked by hand."""
    monkeypatch.setattr(capacity, "USABLE_FRACTION", 1.0)
    monkeypatch.setattr(capacity, "_peak", lambda device, step_with, replicas: 5 + 9 * replicas)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    found = largest_population(torch.device("cuda"), 100, lambda replicas: None)
    assert found.replicas == fits
    assert ("at a time" in found.reason) == (fits < 100)


def test_on_a_cpu_all_replicas_train_at_once():
    assert largest_population(torch.device("cpu"), 7, lambda replicas: None).replicas == 7


@pytest.mark.parametrize(("each", "is_tried"), [(49, False), (51, True), (None, True)])
def test_a_population_far_below_the_limit_is_not_measured(monkeypatch, each: int | None, is_tried: bool):
    tried = []
    monkeypatch.setattr(capacity, "_peak", lambda device, step_with, replicas: tried.append(replicas) or 5 + replicas)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    assert largest_population(torch.device("cuda"), 10, lambda replicas: None, each).replicas == 10
    assert tried == ([1, 2] if is_tried else [])


@pytest.mark.parametrize(
    ("asked", "replicas", "gpus", "is_told"),
    [("auto", 8, 4, True), ("cuda", 2, 2, True), ("auto", 8, 1, False), ("auto", 1, 4, False), ("cuda:1", 8, 4, False)],
)
def test_idle_gpus_are_reported_with_the_command_that_uses_them(asked, replicas, gpus, is_told):
    told = idle_gpus(asked, replicas, gpus)
    assert (told is not None) == is_told
    assert told is None or (f"one of {gpus} GPUs" in told and "headway study run" in told)
