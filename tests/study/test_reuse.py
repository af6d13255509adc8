"""Runs that another study has made are not made again, and only those."""

import json
from pathlib import Path

import pytest
from small import small_study

from headway import packing
from headway.errors import UserError
from headway.experiment import load_model
from headway.run import open_run
from headway.study.conclude import conclude
from headway.study.execute import execute
from headway.study.here import Here
from headway.study.results import read_results

SCORE = "valid.perplexity"


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of runs that are trained, as they are."""
    names: list[str] = []
    train = packing.train

    def told(recipes, called, *rest):
        names.extend(called)
        return train(recipes, called, *rest)

    monkeypatch.setattr(packing, "train", told)
    return names


@pytest.fixture
def first(workshop, tmp_path, monkeypatch, trained) -> Path:
    """A study of two arms with two seeds, carried out."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text, seeds=2), tmp_path / "first", Here())
    trained.clear()
    return tmp_path / "first"


def test_more_seeds_are_trained_and_no_others(workshop, tmp_path, first, trained):
    study, folder = small_study(workshop.text, seeds=3), tmp_path / "second"
    outcome = execute(study, folder, Here(), reuse=[first])
    assert (outcome.done, sorted(trained)) == (6, ["learned.seed-2", "none.seed-2"])
    before, after = read_results(first).table(SCORE), read_results(folder).table(SCORE)
    assert all(before[arm][seed] == after[arm][seed] for arm in before for seed in (0, 1))
    taken = open_run("none.seed-1", folder / "runs")
    assert (taken.facts["name"], taken.facts["taken_from"]) == ("none.seed-1", str(first))
    load_model(taken)
    assert "4 of 6 runs taken over" in (folder / "log.txt").read_text("utf-8")
    conclusion = conclude(folder)
    assert conclusion.report is not None
    assert f"4 of these runs were made by {first}" in conclusion.report.read_text("utf-8")
    trained.clear()
    assert execute(study, folder, Here()).done == 6 and not trained


def test_an_arm_may_have_another_name(workshop, tmp_path, first, trained):
    study = small_study(workshop.text, seeds=2)
    renamed = study.model_dump(mode="json", by_alias=True)
    renamed["arms"] = {f"my {name}": changes for name, changes in renamed["arms"].items()}
    execute(type(study).model_validate({**renamed, "questions": []}), tmp_path / "named", Here(), reuse=[first])
    assert not trained
    assert {path.name for path in (tmp_path / "named" / "runs").iterdir()} >= {"my none.seed-0", "my learned.seed-1"}


@pytest.mark.parametrize("spoilt", ["headway", "recipe_hash", "corpus", "status"])
def test_what_is_not_the_same_is_trained(workshop, tmp_path, first, trained, spoilt: str):
    """Of another version, another recipe, another text; or not to its end."""
    path = first / "runs" / "none.seed-0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), spoilt: "started"}))
    execute(small_study(workshop.text, seeds=2), tmp_path / "second", Here(), reuse=[first])
    assert trained == ["none.seed-0"]


def test_what_was_begun_here_goes_on_here(workshop, tmp_path, first, trained):
    study = small_study(workshop.text, seeds=2)
    execute(study, tmp_path / "second", Here(), reuse=[first])
    path = tmp_path / "second" / "runs" / "none.seed-0"
    (path / "scores.json").unlink()
    execute(study, tmp_path / "second", Here(), reuse=[first])
    assert trained == ["none.seed-0"] and (path / "scores.json").exists()


def test_a_study_cannot_reuse_itself(workshop, first):
    with pytest.raises(UserError, match="cannot reuse itself"):
        execute(small_study(workshop.text, seeds=2), first, Here(), reuse=[first])
