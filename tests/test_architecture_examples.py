"""The examples of docs/architecture.md: each works as a separate file, and does what the page says."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tiny import tiny_recipe

from headway.audit.audit import Report
from headway.core import plugins
from headway.core.yaml import read_tree
from headway.experiment.audit import audit_recipe
from headway.experiment.train import train
from headway.recipe.recipe import Recipe
from headway.recipe.text import annotated
from headway.study.conclude import conclude
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")
EXAMPLES = {
    found["name"]: found["text"]
    for found in re.finditer(r"^```(?:python|yaml)\n(?P<text># (?P<name>\S+)\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
}
MODEL_AUDITS = ("finite", "causality", "causal-gradient", "padding", "batch-invariance", "determinism", "one-batch")


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Loads an example as `--with` does; what it registers is removed afterwards."""
    before = plugins.loaded()

    def read(name: str) -> ModuleType:
        (tmp_path / name).write_text(EXAMPLES[name], "utf-8")
        return sys.modules[plugins.load_plugin(tmp_path / name).module]

    yield read
    for plugin in plugins.loaded():
        if plugin not in before:
            plugins.forget(plugin)


@pytest.fixture(autouse=True)
def cache(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))


def verdicts(report: Report) -> dict[str, str]:
    return {finding.audit: finding.verdict for finding in report.findings if finding.audit in MODEL_AUDITS}


def sound(recipe: Recipe) -> bool:
    return set(verdicts(audit_recipe(recipe)).values()) == {"pass"}


def small(workshop, recipe: Recipe, **given) -> Study:
    base = recipe.with_changes(["training.duration=4 steps", "training.schedule.warmup=1 step"])
    arms = {"none": ["model.positions=none"], "learned": []}
    return Study.model_validate(
        {"title": "Small", "base": base.model_dump(mode="json"), "arms": arms, "seeds": 2, **given}
    )


def test_every_kind_of_thing_has_an_example():
    assert len(EXAMPLES) == PAGE.partition("## To add something")[2].count("\n### ")


def test_a_position_scheme(example, workshop):
    example("square.py")
    recipe = tiny_recipe(workshop.text, "model.positions={kind: square, strength: 0.1}", "model.mixer.backend=sdpa")
    assert "How steep" in annotated(recipe)
    assert sound(recipe)


def test_a_head_fusion(example, workshop, tmp_path):
    example("loudest.py")
    recipe = tiny_recipe(workshop.text, "model.mixer.fusion=loudest")
    assert sound(recipe)
    runs = train([recipe, recipe.with_changes(["seed=1"])], ["a", "b"], tmp_path / "runs")
    assert [run.status.state.value for run in runs] == ["finished"] * 2


def test_a_mixer(example, workshop):
    example("means.py")
    assert sound(tiny_recipe(workshop.text, "model.mixer=means"))
    assert sound(tiny_recipe(workshop.text, "model.layers=2", "model.mixer=[means, attention]"))


def test_a_metric_and_a_measure(example, workshop, tmp_path):
    example("guessed.py")
    question = {"kind": "better", "arm": "learned", "than": "none", "on": "guesses.guessed"}
    study = small(workshop, tiny_recipe(workshop.text), measures=[{"kind": "guesses"}], questions=[question])
    execute(study, tmp_path / "study", InProcess())
    (verdict,) = conclude(tmp_path / "study").verdicts
    assert "tokens guessed" in verdict.unit or verdict.outcome == "cannot say"


def test_an_audit(example, workshop):
    example("never_certain.py")
    found = audit_recipe(tiny_recipe(workshop.text)).finding("never-certain")
    assert found is not None and found.verdict == "pass" and 0 < found.value < 0.5


def test_a_question(example, workshop, tmp_path):
    example("reaches.py")
    question = {"kind": "reaches", "arm": "learned", "value": 1.01}
    study = small(workshop, tiny_recipe(workshop.text), questions=[question])
    execute(study, tmp_path / "study", InProcess())
    (verdict,) = conclude(tmp_path / "study").verdicts
    assert verdict.effect < 0 and "short of it" in verdict.sentence and verdict.seeds == 2


def test_a_task(example, workshop, tmp_path):
    example("backwards.py")
    recipe = tiny_recipe(workshop.text, "model.kind=backwards", "data.tokenizer=char")
    assert sound(recipe)
    (run,) = train([recipe], ["back"], tmp_path / "runs")
    assert {"valid.loss", "valid.perplexity"} <= {score.name for score in run.scores()}


def test_a_case():
    study = Study.model_validate(read_tree(EXAMPLES["mine.yaml"], "mine.yaml")[0])
    assert [claim.audit for claim in study.claims] == [None, "causality"] and len(study.runs()) == 10
