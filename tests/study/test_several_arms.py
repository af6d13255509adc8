"""Verdicts on more than two arms: which is best, and whether an effect depends on another factor."""

import math

import numpy as np
import pytest
from asked import arm, ask, draw_anew, grid
from scipy import stats

from headway.core.status import State, Status
from headway.study.design.questions import Best, Better, Depends
from headway.study.results.evidence import Circumstances


@pytest.fixture(autouse=True)
def the_same_draws_in_any_order():
    draw_anew()


def test_the_best_arm_and_those_not_distinguishable_from_it():
    table = {"a": arm(0.2), "b": arm(), "c": arm(0.201), "d": arm(-0.1)}
    verdict = ask(Best(), table)
    assert set(verdict.arms) == {"a", "c"} and verdict.outcome == "not distinguishable"
    assert "cannot be told from it with 8 seeds" in verdict.sentence
    assert any("picked as the best of 4" in note for note in verdict.notes)
    del table["c"]
    alone = ask(Best(), table)
    assert alone.arms == ("a",) and alone.outcome == "best"
    assert alone.sentence.startswith("a is best of 3: better than the closest, b, by")


def test_the_intervals_of_selected_pairs_are_wider():
    table = {name: arm(gain) for name, gain in {"a": 0.02, "b": 0.0, "c": -0.1, "d": -0.2}.items()}
    picked, asked = ask(Best(), table), ask(Better(arm="a", than="b"), table)
    assert picked.effect == pytest.approx(asked.effect)
    assert picked.interval[0] < asked.interval[0] and picked.interval[1] > asked.interval[1]
    assert picked.p == pytest.approx(1.5 * asked.p)


def test_three_seeds_are_enough_for_a_large_effect():
    """Six arms, and one twice as good as any other."""
    table = {"a": arm(0.7, n=3), **{name: arm(n=3) for name in "bcdef"}}
    verdict = ask(Best(), table)
    assert verdict.arms == ("a",) and verdict.outcome == "best" and verdict.interval[0] > 0


def test_the_closest_arm_is_the_least_distinguishable_from_the_best():
    """This need not be the second by its mean: b is always slightly behind, c is further behind but varies."""
    table = {"a": {0: 10.0, 1: 10.1, 2: 9.9}, "b": {0: 10.5, 1: 10.6, 2: 10.41}, "c": {0: 9.0, 1: 16.0, 2: 12.0}}
    verdict = ask(Best(), table)
    assert verdict.arms == ("a", "c") and "ahead of c by" in verdict.sentence and verdict.interval[0] < 0


def test_lost_seeds_of_other_arms_do_not_reverse_a_pair():
    """On the seeds that all arms share a is best; on those that a and b share, b is."""
    table = {"a": {0: 1.0, 1: 1.01, 2: 9.0, 3: 9.1}, "b": {0: 1.5, 1: 1.52, 2: 2.0, 3: 2.1}, "c": {0: 3.0, 1: 3.1}}
    verdict = ask(Best(), table, {"c": Circumstances(lost=dict.fromkeys([2, 3], Status(State.FAILED)))})
    assert "b" in verdict.arms and "behind b" in verdict.sentence


def test_effects_without_spread_do_not_divide_by_zero():
    table = {
        name: {seed: gain + seed * 1e-9 * k for seed in range(32)}
        for k, (name, gain) in enumerate({"a": 1.0, "b": 2.0, "c": 3.0}.items())
    }
    assert ask(Best(on="valid.loss"), table).outcome == "best"


def test_arms_that_diverged_see_the_future_or_have_one_seed_are_excluded():
    about = {"seer": Circumstances(failed_audits={"causality": "…"})}
    table = {"a": arm(0.1), "b": arm(), "seer": arm(0.5), "broken": arm(0.9) | {1: math.nan}, "single": arm(0.9, n=1)}
    verdict = ask(Best(), table, about)
    assert verdict.arms == ("a",) and verdict.outcome == "best"
    for words in ("seer (sees the future", "broken (diverged at 1 of 8 seeds)", "single (one seed)"):
        assert words in verdict.sentence


def test_best_of_single_seeds_cannot_say():
    verdict = ask(Best(), {"a": arm(n=1), "b": arm(n=1)})
    assert verdict.outcome == "cannot say" and "with one run there is no spread" in verdict.sentence


DEPENDS = Depends(effect="positions", on_factor="size")


def test_the_same_ratio_at_every_size_is_no_interaction():
    """Although 5 % of 148 and 5 % of 55 are different differences, because perplexities are compared as ratios."""
    verdict = ask(DEPENDS, *grid([[0, 0], [0.05, 0.05]]))
    assert verdict.outcome == "not distinguishable" and "these seeds could detect" in verdict.sentence


@pytest.mark.parametrize("sign", [1, -1])
def test_an_effect_that_depends_is_shown_at_both_places(sign):
    verdict = ask(DEPENDS, *grid([[0, 0], [0.05, 0.05 + sign * 0.08]]))
    assert verdict.outcome == "depends" and verdict.unit == "%"
    assert verdict.effect == pytest.approx(8, abs=2) and verdict.interval[0] > 0
    assert "p0 → p1" in verdict.sentence and "at s0" in verdict.sentence and "at s1" in verdict.sentence


def test_larger_grids_are_judged_by_their_most_significant_difference():
    table, about = grid([[0, 0], [0.05, 0.05], [0.05, 0.2]])
    verdict = ask(DEPENDS, table, about)
    logs = {name: np.array([math.log(values[seed]) for seed in range(8)]) for name, values in table.items()}
    gains = [(logs[f"p{a}-s0"] - logs[f"p{a}-s1"]) - (logs[f"p{b}-s0"] - logs[f"p{b}-s1"]) for a, b in PAIRS]
    assert verdict.p == pytest.approx(3 * min(stats.ttest_1samp(gain, 0).pvalue for gain in gains))
    assert verdict.outcome == "depends" and "p2" in verdict.sentence
    assert "all 3 differences at once" in verdict.method
    assert ask(DEPENDS, *grid([[0, 0], [0.05, 0.05], [0.1, 0.1]])).outcome == "not distinguishable"


PAIRS = [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("levels", [2, 3])
def test_whether_it_depends_agrees_with_the_interval(levels):
    random = np.random.default_rng(levels)
    about = {
        f"{i}{j}": Circumstances(levels={"positions": f"p{i}", "size": f"s{j}"})
        for i in range(levels)
        for j in range(levels)
    }
    outcomes = []
    for _ in range(200):
        table = {name: dict(enumerate(np.exp(4 + 0.03 * random.standard_normal(4)).tolist())) for name in about}
        verdict = ask(DEPENDS, table, about)
        assert (verdict.outcome == "depends") == (verdict.interval[0] > 0)
        outcomes.append(verdict.outcome)
    assert outcomes.count("depends") <= 20


def test_other_factors_are_averaged_over():
    table, about = {}, {}
    for seed in range(2):
        inner, facts = grid([[0, 0], [0.05, 0.15]])
        for name, values in inner.items():
            table[f"{name}-w{seed}"] = values
            about[f"{name}-w{seed}"] = Circumstances(levels={**facts[name].levels, "width": f"w{seed}"})
    assert ask(DEPENDS, table, about).outcome == "depends"


def test_a_grid_with_a_hole_cannot_say():
    table, about = grid([[0, 0], [0.1, 0.2]])
    del table["p1-s1"], about["p1-s1"]
    assert "no arm with positions=p1 and size=s1" in ask(DEPENDS, table, about).sentence
    assert "1 seed" in ask(DEPENDS, *grid([[0, 0], [0.1, 0.2]], n=1)).sentence
