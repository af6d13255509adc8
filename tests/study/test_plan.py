"""The cost of a study, and the budgets that make its arms comparable."""

import pytest
import torch
from small import small_study

from headway.core.errors import UserError
from headway.study.execution import plan as planning
from headway.study.execution.executor import Workforce
from headway.study.execution.plan import Sizes, Speed, budgets, plan
from headway.study.execution.populations import by_progress, by_shape


@pytest.fixture(autouse=True)
def cache(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setattr(planning, "MEASURED_SECONDS", 0.01)


SIZES = {"small": [], "wide": ["model.width=32"], "long": ["model.context=8", "training.batch=16"]}


def test_a_plan_counts_runs_populations_and_costs(workshop):
    rates = {"slow": ["training.optimizer.learning_rate=1e-4"], "fast": [], "wide": ["model.width=32"]}
    found = plan(small_study(workshop.text, arms=rates, questions=[], seeds=3), Workforce(2))
    assert len(found.runs) == 9
    assert [(p.arms, p.runs) for p in found.populations] == [(["slow", "fast"], 6), (["wide"], 3)]
    assert list(found.arms) == ["slow", "fast", "wide"]
    fast, wide = found.arms["fast"], found.arms["wide"]
    assert fast == found.arms["slow"]
    assert wide.parameters > fast.parameters and wide.flops > 2 * fast.flops
    assert fast.steps == wide.steps == 4 and fast.tokens == 4 * 4 * 16
    assert found.seconds > 0 and found.memory > 2**24
    assert found.as_json()["runs"][0] == "slow.seed-0"


def test_durations_in_epochs_and_tokens_become_steps(workshop):
    study = small_study(workshop.text, arms={"a": []}, questions=[], changes=["training.duration=1k tokens"])
    assert plan(study, Workforce(1)).arms["a"].steps == 16


def total(study, what: str) -> dict[str, float]:
    sizes = Sizes()
    steps = budgets(study, sizes)
    return {arm: steps[arm] * getattr(sizes.of(recipe), what) for arm, recipe in study.recipes.items()}


@pytest.mark.parametrize(("equal", "what"), [("tokens", "tokens_per_step"), ("flops", "flops_per_step")])
def test_arms_get_the_budget_of_the_first_one(workshop, equal, what):
    changes = ["training.duration=500 steps"]
    study = small_study(workshop.text, arms=SIZES, questions=[], equal=equal, changes=changes)
    spent = total(study, what)
    assert spent["wide"] == pytest.approx(spent["small"], rel=0.01)
    assert spent["long"] == pytest.approx(spent["small"], rel=0.01)
    steps = budgets(study, Sizes())
    assert steps["small"] == 500 and len(set(steps.values())) > 1


def test_arms_get_equal_steps_where_epochs_differ(workshop):
    arms = {"small": [], "large": ["training.batch=8"]}
    study = small_study(workshop.text, arms=arms, questions=[], equal="steps", changes=["training.duration=1 epoch"])
    steps = budgets(study, Sizes())
    assert steps["small"] == steps["large"] == Sizes().of(study.recipes["small"]).steps
    assert budgets(study.model_copy(update={"equal": None}), Sizes()) == {}


def test_equal_seconds_are_measured(workshop, monkeypatch):
    seconds = {16: 0.1, 32: 0.4}
    monkeypatch.setattr(planning, "speed", lambda recipe, sizes: Speed(1, seconds[recipe.model.width], 0, 0.0))
    arms = {"small": [], "wide": ["model.width=32"]}
    study = small_study(workshop.text, arms=arms, questions=[], equal="seconds")
    assert budgets(study, Sizes()) == {"small": 4, "wide": 1}


def test_fixed_budgets_are_kept(workshop):
    study = small_study(workshop.text, equal="seconds")
    assert plan(study, Workforce(1), {"none": 7, "learned": 9}).arms["learned"].steps == 9


def test_a_question_on_a_split_that_is_not_scored_is_refused_before_training(workshop):
    asked = [{"kind": "best", "on": "vald.perplexity"}]
    with pytest.raises(UserError, match=r"the runs do not score 'vald' \(scoring.splits\); did you mean 'valid'\?"):
        plan(small_study(workshop.text, questions=asked), Workforce(1))


def test_training_that_ends_in_the_warm_up_is_warned_about(workshop):
    study = small_study(workshop.text, changes=["training.duration=2 steps"])
    assert any("in the warm-up of 2 steps" in warning for warning in plan(study, Workforce(1)).warnings)


def test_the_number_of_threads_is_restored(workshop):
    before = torch.get_num_threads()
    plan(small_study(workshop.text), Workforce(1))
    assert torch.get_num_threads() == before


def test_runs_of_one_shape_can_form_a_population(workshop):
    from headway.experiment.assembly import check_population

    arms = {"a": [], "b": ["model.dropout=0.2"], "c": ["model.layers=2"], "d": ["training.optimizer.weight_decay=0.2"]}
    groups = by_shape(small_study(workshop.text, arms=arms, questions=[]).runs())
    assert [sorted({run.arm for run in group}) for group in groups] == [["a", "b", "d"], ["c"]]
    for group in groups:
        check_population([run.recipe for run in group])


def test_runs_at_the_same_step_are_resumed_together(workshop, tmp_path):
    runs = small_study(workshop.text, arms={"a": []}, questions=[], seeds=6).runs()
    saved = {0: [2, 4], 1: [2, 4], 2: [4, 6], 3: [3], 4: []}
    for seed, steps in saved.items():
        (tmp_path / f"a.seed-{seed}").mkdir()
        for step in steps:
            (tmp_path / f"a.seed-{seed}" / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    groups = [[run.seed for run in group] for group in by_progress(runs, tmp_path)]
    assert groups == [[0, 1, 2], [3], [4, 5]]
