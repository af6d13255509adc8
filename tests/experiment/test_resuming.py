"""Resumed runs are bit-identical, and broken checkpoints are skipped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from listening import Interrupting, Told
from tiny import cut, flip
from varied import STEPS, equal, losses, same_end, trained

from headway.core.errors import UserError
from headway.core.events import Began
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.recipe.recipe import Recipe
from headway.run.folder import open_run
from headway.training import checkpoint


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("at", [3, 6, 9])
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(variants: list[Recipe], replicas: int, at: int):
    recipes = [r.with_changes(["training.keep_best=true", "training.patience=3"]) for r in variants[1 : 1 + replicas]]
    whole = trained(recipes, "whole")
    stopped = trained(recipes, "broken", listeners=[Interrupting(at)])
    assert [str(run.status) for run in stopped] == [f"interrupted at step {at + 1}"] * replicas
    assert all(run.scores() and len(losses(run)) == at + 1 for run in stopped)
    resumed = trained(recipes, "broken", resume=True)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert same_end(ours, theirs)
        assert equal(ours.checkpoint("best").weights, theirs.checkpoint("best").weights)
        assert str(ours.status) == str(theirs.status)


def test_a_run_interrupted_twice_equals_an_uninterrupted_one(variants: list[Recipe]):
    whole = trained(variants[:2], "whole")
    trained(variants[:2], "broken", listeners=[Interrupting(3)])
    trained(variants[:2], "broken", listeners=[Interrupting(6)], resume=True)
    resumed = trained(variants[:2], "broken", resume=True)
    assert all(same_end(a, b) for a, b in zip(resumed, whole, strict=True))


def killed_after_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From now on, saving anything after this step fails, as if the process had been killed there."""
    save = checkpoint.save

    def dying(folder: Path, made: checkpoint.Checkpoint) -> None:
        if made.step > step:
            raise MemoryError("killed")
        save(folder, made)

    monkeypatch.setattr(checkpoint, "save", dying)


@pytest.mark.parametrize("step", [0, 5, 10])
def test_a_killed_run_is_resumed_from_its_last_checkpoint(variants: list[Recipe], step: int, monkeypatch):
    recipes = variants[:2]
    whole = trained(recipes, "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        killed_after_step(patch, step)
        trained(recipes, "broken")
    assert all(same_end(a, b) for a, b in zip(trained(recipes, "broken", resume=True), whole, strict=True))


def test_members_killed_between_their_checkpoints_are_resumed_from_a_common_one(variants: list[Recipe], monkeypatch):
    """The first member has saved step 10, but the second has not."""
    recipes, save = variants[:2], checkpoint.save

    def dying(folder: Path, made: checkpoint.Checkpoint) -> None:
        if made.step == 10 and "broken-1" in str(folder):
            raise MemoryError("killed")
        save(folder, made)

    whole = trained(recipes, "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(checkpoint, "save", dying)
        trained(recipes, "broken")
    resumed = trained(recipes, "broken", resume=True)
    assert all(same_end(a, b) for a, b in zip(resumed, whole, strict=True))


def test_an_ended_replica_stays_ended_when_the_others_are_resumed(variants: list[Recipe]):
    recipes = [variants[0], variants[1].with_changes(["training.optimizer.learning_rate=1e38"])]
    whole = trained(recipes, "whole")
    trained(recipes, "broken", listeners=[Interrupting(6)])
    told = Told()
    resumed = trained(recipes, "broken", resume=True, listeners=[told])
    assert [(event.step, event.total) for event in told.of_kind(Began)] == [(7, STEPS)]
    assert same_end(resumed[0], whole[0])
    assert str(resumed[1].status) == str(whole[1].status)
    assert resumed[1].metrics() == whole[1].metrics()


def test_resuming_a_finished_run_changes_nothing(base: Recipe):
    (run,) = train([base], ["run"])
    before, metrics = run.checkpoint("last"), run.metrics()
    (again,) = train([base], ["run"], resume=True)
    assert equal(again.checkpoint("last").weights, before.weights) and again.metrics() == metrics
    assert str(again.status) == "finished"


def test_a_run_of_another_recipe_is_not_resumed(base: Recipe):
    train([base], ["run"])
    with pytest.raises(UserError, match=r"made with a different recipe: .*model.dropout.*--name"):
        train([base.with_changes(["model.dropout=0.4"])], ["run"], resume=True)
    with pytest.raises(UserError, match=r"nothing to resume: .*other does not exist"):
        train([base], ["other"], resume=True)


# Broken checkpoints


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.FACTS])
def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(
    base: Recipe, damage: Callable[[Path], None], name: str, capsys
):
    (whole,) = train([base], ["whole"])
    train([base], ["broken"], listeners=[Interrupting(6)])
    run = open_run("broken", Path("runs"))
    broken = run.folder / "checkpoints" / "step-00000007"
    damage(broken / name)
    assert run.checkpoint("last").step == 5
    told = capsys.readouterr().err
    assert "skipping a broken checkpoint" in told and "step-00000007" in told
    assert name in told or name == checkpoint.FACTS
    (resumed,) = train([base], ["broken"], resume=True)
    assert same_end(resumed, whole)


def test_without_a_good_checkpoint_training_starts_again(base: Recipe):
    (whole,) = train([base], ["whole"])
    (run,) = train([base], ["broken"])
    for folder in (run.folder / "checkpoints").iterdir():
        flip(folder / checkpoint.WEIGHTS)
    (again,) = train([base], ["broken"], resume=True)
    assert same_end(again, whole)


def test_a_checkpoint_that_does_not_fit_names_the_tensor(base: Recipe):
    (small,) = train([base], ["small"])
    (large,) = train([base.with_changes(["model.width=16"])], ["large"])
    of_small = small.checkpoint("last")
    for folder in (small.folder / "checkpoints").iterdir():
        step = int(folder.name.removeprefix("step-"))
        checkpoint.save(folder, replace(large.checkpoint("last"), step=step, facts=of_small.facts))
    with pytest.raises(UserError, match=r"embedding.weight is \[\d+, 16\], expected \[\d+, 8\]"):
        load_model(small)
    with pytest.raises(UserError, match=r"embedding.weight is"):
        train([base], ["small"], resume=True)
