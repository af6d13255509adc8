"""Ladders of model sizes and budgets: their arms, what is refused, and the points they produce."""

import csv
import math
from typing import Any

import pytest
from tiny import tiny_recipe

from headway.core.errors import UserError
from headway.scaling.analysis import analyse
from headway.stats.scaling import grid_of_starts
from headway.study.design.ladder import Ladder
from headway.study.design.study import Study
from headway.study.execution.ladder_plan import Climb, check_ladder, doubts, lay_out
from headway.study.results.ladder_points import standard_error

RUNGS = [{"flops": 1e9, "widths": [8, 12, 16, 20]}, {"flops": 4e9, "widths": [8, 12, 16, 24]}]
SHAPE = {"width_per_layer": 8, "head_width": 4}


def complaint(ladder, **more) -> str:
    with pytest.raises(UserError) as found:
        from headway.core.validation import validated

        validated(Study, {"title": "t", "base": "demo", "ladder": ladder, **more}, "study", lambda key: "")
    return str(found.value)


def study(**more) -> Study:
    return Study.model_validate({"title": "t", "base": "demo", "ladder": {"rungs": RUNGS, **SHAPE}, "seeds": 2, **more})


def test_every_size_and_budget_is_an_arm_with_its_own_learning_rate():
    found = study()
    widths = {"1e9": (8, 12, 16, 20), "4e9": (8, 12, 16, 24)}
    assert [arm.name for arm in found.arms] == [f"{budget}.{width}" for budget in widths for width in widths[budget]]
    recipe = found.recipes["4e9.24"]
    assert (recipe.model.width, recipe.model.layers, recipe.model.mixers[0].heads) == (24, 3, 6)  # pyright: ignore
    rate = found.base.training.optimizer.learning_rate
    assert recipe.training.optimizer.learning_rate == pytest.approx(rate * (24 / 8) ** -0.5, rel=1e-3)
    assert found.recipes["1e9.8"].training.optimizer.learning_rate == rate


def test_families_have_the_same_sizes_and_budgets():
    families = {"attention": [], "lstm": ["model.mixer=lstm", "model.positions=none"]}
    found = study(ladder={"rungs": RUNGS, **SHAPE, "families": families})
    assert len(found.arms) == 16
    assert found.recipes["lstm.1e9.8"].model.mixers[0].kind == "lstm"
    assert found.arms[0].levels == {"family": "attention", "budget": "1e9", "width": "8"}


def test_a_seed_reads_the_same_batches_at_every_size():
    from headway.study.execution.plan import Sizes

    found, sizes = study(), Sizes()
    samplers = [sizes.task(found.recipes[arm]).sampler([1], "cpu") for arm in ("1e9.8", "4e9.24")]
    batches: list[Any] = [sampler.at(3) for sampler in samplers]
    assert (batches[0].inputs == batches[1].inputs).all()


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        ({"rungs": RUNGS[:1]}, "at least two"),
        ({"rungs": RUNGS[::-1]}, "the smallest first"),
        ({"rungs": [{"flops": 1e9, "widths": [16, 32, 48]}, RUNGS[1]], **SHAPE}, "1e9 FLOPs has 3 widths"),
        ({"rungs": [{"flops": 1e9, "widths": [32, 16, 48, 64]}, RUNGS[1]], **SHAPE}, "the narrowest first"),
        ({"rungs": RUNGS, "head_width": 8}, "a width of 12 is not a multiple of ladder.head_width (8)"),
        ({"rungs": RUNGS, **SHAPE, "families": {"a b": []}}, "cannot be part of a folder name"),
        ({"rungs": [{"flops": -1, "widths": [8]}, RUNGS[1]]}, "flops"),
    ],
)
def test_impossible_ladders(ladder, words):
    assert words in complaint(ladder)


def test_a_study_defines_its_arms_in_one_way_only():
    ladder = {"rungs": RUNGS, **SHAPE}
    assert "both are given" in complaint(ladder, arms={"a": []})
    assert "has its own budgets" in complaint(ladder, equal="flops")


# --- sizes chosen for budgets ----------------------------------------------------------------------------------------


def by_ratio(climb):
    return climb.by_ratio(20)


def test_sizes_are_placed_around_the_expected_optimum():
    from headway.recipe.recipe import load

    base = load("demo", ["model.context=16"])
    found = lay_out(base, [3e10, 1e11], 5, 2, by_ratio, width_per_layer=16, head_width=4)
    assert found.ladder is not None and [rung.flops for rung in found.ladder.rungs] == [3e10, 1e11]
    for rung in check_ladder(found, by_ratio):
        assert rung.sizes[1].parameters < rung.expected < rung.sizes[-2].parameters
        at_best = min(rung.sizes, key=lambda size: abs(math.log(size.parameters / rung.expected)))
        assert 3 < rung.tokens(at_best) / at_best.parameters < 100
    assert any("span only a factor of 3.3" in doubt for doubt in doubts(check_ladder(found, by_ratio)))


def test_budgets_whose_best_size_is_outside_the_range_are_refused():
    from headway.recipe.recipe import load

    base = load("demo", ["model.context=16"])
    with pytest.raises(UserError, match="too few sizes around the best one"):
        lay_out(base, [1e8, 1e9], 5, 2, by_ratio)
    with pytest.raises(UserError, match=r"outside the ladder at 1e\+12 FLOPs"):
        lay_out(base, [3e10, 1e12], 5, 2, by_ratio, widths=[8, 12, 16, 24, 32], width_per_layer=16, head_width=4)


def test_repeated_data_is_counted():
    from headway.recipe.recipe import load

    base = load("demo", ["model.context=16"])
    climb = Climb(
        base, Ladder.model_construct(width_per_layer=8.0, head_width=4, rate_power=0.0, families={}, rungs=[])
    )
    rung = climb.rung(study().ladder.rungs[1].model_copy(update={"flops": 3e12}), lambda flops: 1e4)  # pyright: ignore
    tokens = 3e12 / climb.size(8).flops_per_token
    assert rung.passes[0] == pytest.approx(tokens / climb.training_tokens) and rung.passes[0] > 4
    told = " ".join(doubts([rung, rung]))
    assert "more than once" in told and "more than 4 times" in told


# --- training a ladder -----------------------------------------------------------------------------------------------


def test_the_standard_error_is_computed_from_pieces():
    import numpy as np

    rng = np.random.default_rng(0)
    nats = rng.normal(200, 10, 64)
    assert standard_error([(float(n), 100) for n in nats]) == pytest.approx(nats.std(ddof=1) / 8 / 100)
    assert math.isnan(standard_error(None))


def test_a_ladder_is_trained_as_a_study_and_gives_points(workshop, tmp_path, monkeypatch):
    from headway.study.conclude import conclude
    from headway.study.execution.execute import execute
    from headway.study.execution.in_process import InProcess
    from headway.study.results.ladder_points import tables_of
    from headway.study.results.results import read_results

    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    whole = grid_of_starts()
    monkeypatch.setattr("headway.stats.scaling.grid_of_starts", lambda: whole[::900])
    monkeypatch.setattr("headway.scaling.analysis.grid_of_starts", lambda: whole[::900])
    monkeypatch.setattr("headway.study.results.ladder_points.analyse", lambda table: analyse(table, 4))
    rungs = [{"flops": flops, "widths": [8, 12, 16, 20]} for flops in (5e6, 1.5e7)]
    tree = {"title": "t", "base": tiny_recipe(workshop.text), "ladder": {"rungs": rungs, **SHAPE}, "seeds": 2}
    done = execute(Study.model_validate(tree), tmp_path / "ladder", InProcess())
    assert (done.done, done.interrupted) == (16, False)
    assert conclude(tmp_path / "ladder").report is not None
    rows = list(csv.DictReader((tmp_path / "ladder" / "points.csv").read_text().splitlines()))
    assert len(rows) == 16
    for row in rows:
        assert float(row["flops"]) == pytest.approx(float(row["budget"]), rel=0.3)
        assert float(row["flops_6nd"]) == pytest.approx(6 * float(row["parameters"]) * float(row["tokens"]))
        assert int(row["parameters"]) >= int(row["parameters_matrices"]) > int(row["parameters_without_embeddings"]) / 2
        assert 0 < float(row["loss_error"]) < float(row["loss"])
    found = tables_of(read_results(tmp_path / "ladder"))[""]
    assert len(found.points) == 16
    assert set(found.conventions) == {name for name in rows[0] if name.startswith("parameters_")}
