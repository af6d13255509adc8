"""More replicas than fit go in turns, and the reason is measured."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

from headway import packing
from headway.errors import UserError
from headway.packing import train_in_turns
from headway.training import capacity
from headway.training.capacity import Capacity, largest_population
from headway.variation import varied


@pytest.fixture
def five(workshop, monkeypatch) -> tuple[list[str], list]:
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    return varied(tiny_recipe(workshop.text), "five", ["seed=0..4"])


def test_turns_make_the_same_runs_as_one_population(five, tmp_path: Path, monkeypatch):
    names, recipes = five
    at_once = train_in_turns(recipes, names, tmp_path / "at-once")
    monkeypatch.setattr(packing, "capacity", lambda recipes, wanted: Capacity(min(2, wanted), "two fit"))
    in_turns = train_in_turns(recipes, names, tmp_path / "in-turns")
    for one, other in zip(at_once, in_turns, strict=True):
        assert [s.value for s in one.scores()] == pytest.approx([s.value for s in other.scores()], rel=1e-4)


def test_a_population_that_does_not_fit_says_which_would(five, tmp_path: Path, monkeypatch):
    names, recipes = five
    monkeypatch.setattr(packing, "capacity", lambda recipes, wanted: Capacity(2, "because"))
    with pytest.raises(UserError, match=r"4 replicas do not fit on the device.* 2: because"):
        train_in_turns(recipes, names, tmp_path, together=4)
    assert not list(tmp_path.iterdir())


def test_turns_go_on_where_they_were_stopped(five, tmp_path: Path):
    names, recipes = five
    train_in_turns(recipes[:2], names[:2], tmp_path, together=2)
    made = train_in_turns(recipes, names, tmp_path, resume=True, together=2)
    assert [run.facts["status"] for run in made] == ["finished"] * 5


@pytest.mark.parametrize(("free", "fits"), [(1000, 100), (100, 10), (45, 4), (9, 1)])
def test_what_fits_is_measured_on_one_and_two_replicas(monkeypatch, free: int, fits: int):
    """Five for all, nine for each: a device that is not there, with numbers that can be checked by hand."""
    monkeypatch.setattr(capacity, "SPARE", 1.0)
    monkeypatch.setattr(capacity, "_peak", lambda device, step_with, replicas: 5 + 9 * replicas)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    found = largest_population(torch.device("cuda"), 100, lambda replicas: None)
    assert found.replicas == fits
    assert ("at a time" in found.reason) == (fits < 100)


def test_on_a_cpu_all_go_at_once():
    assert largest_population(torch.device("cpu"), 7, lambda replicas: None).replicas == 7
