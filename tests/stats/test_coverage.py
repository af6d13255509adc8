"""The coverage and error rates of verdicts, on simulated studies. `python -m benchmarks.coverage` prints the whole
table."""

import numpy as np
import pytest

from benchmarks import coverage_by_question as kinds
from benchmarks.coverage import best_is_named, covered, covered_by_verdicts, false_alarms
from headway.study.design.questions import Better
from headway.study.results.evidence import Measured
from headway.study.verdicts.analyse import analyse


@pytest.mark.parametrize("shape", ["normal", "skewed (gamma, skewness 0.7)", "skewed (gamma, skewness 1)"])
@pytest.mark.parametrize("seeds", [3, 8, 32])
def test_the_interval_covers_the_truth_95_times_in_100(shape, seeds):
    assert 0.93 <= covered(shape, seeds, 2000)["t"] <= 0.97


@pytest.mark.parametrize("seeds", [8, 32])
def test_the_bootstrap_covers_as_well_with_enough_seeds(seeds):
    assert 0.93 <= covered("skewed (gamma, skewness 1)", seeds, 2000)["bootstrap"] <= 0.97


def test_with_three_seeds_the_bootstrap_is_too_short_which_is_why_none_is_shown():
    assert covered("normal", 3, 2000)["bootstrap"] < 0.9


def test_whole_verdicts_on_perplexities_cover_the_ratio_and_the_difference():
    found = covered_by_verdicts(8, 2000)
    assert 0.93 <= found["ratio"] <= 0.97 and 0.93 <= found["units"] <= 0.97


@pytest.mark.parametrize("seeds", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_study_without_effects_finds_one_in_at_most_five_of_100(seeds):
    assert false_alarms("normal", seeds, 1000) <= 0.05 + 0.01  # plus the uncertainty of a thousand studies


@pytest.mark.parametrize("seeds", [3, 32])
def test_the_best_arm_is_among_those_named_as_best(seeds):
    share, named = best_is_named(seeds, 500)
    assert share >= 0.95 and named < 4


# --- kinds of questions, all studies in one batch
# ----------------------------------------------------------------------


def test_the_batched_computation_equals_that_of_verdicts():
    random = np.random.default_rng(0)
    a, b = random.normal(2, 1, (2, 5, 6))
    at_once, unpaired = kinds.paired(b - a), kinds.welch(b, a)
    question = Better(arm="a", than="b", on="valid.loss")
    for k in range(5):
        for interval, first in ((at_once, 0), (unpaired, 10)):
            table = {"a": dict(enumerate(a[k].tolist())), "b": dict(enumerate(b[k].tolist(), first))}
            (verdict,) = analyse([question], Measured({"valid.loss": table}))
            assert verdict.interval == pytest.approx((interval[0][k], interval[1][k]))


@pytest.mark.parametrize("seeds", [3, 8])
def test_intervals_of_every_kind_of_question_cover_the_truth(seeds):
    random = np.random.default_rng(seeds)
    better = kinds.better(random, 4000, seeds)
    assert 0.938 <= better["paired"] <= 0.962 and 0.935 <= better["unpaired, spreads 1 and 3"] <= 0.962
    ordered = kinds.ordered(random, 4000, seeds)
    assert 0.938 <= ordered["one step"] <= 0.962 and ordered["equal scores said to be in order"] < 0.05
    depends = kinds.depends(random, 4000, seeds)
    assert all(0.938 <= share <= 0.97 for share in depends.values())
    best = kinds.best(random, 4000, seeds)
    assert best["lead over the closest of 4"] > 0.938 and best["one of two equal arms called best"] < 0.05
    within = kinds.within(random, 4000, seeds)
    assert within["within 1, truth 0.6: does not hold"] < 0.02


def test_optional_stopping_keeps_the_error_rate():
    found = kinds.peeking(np.random.default_rng(1), 4000)
    assert found["t"] > 0.2 and found["confidence sequence"] < 0.05
    assert found["t at 8 seeds, then the sequence after every seed to 20"] < 0.065
