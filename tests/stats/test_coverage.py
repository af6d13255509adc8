"""Verdicts hold what they promise, on simulated studies. `python -m benchmarks.coverage` has the whole table."""

import pytest

from benchmarks.coverage import best_is_named, covered, covered_by_verdicts, false_alarms


@pytest.mark.parametrize("shape", ["normal", "skewed (gamma, skewness 0.7)", "skewed (gamma, skewness 1)"])
@pytest.mark.parametrize("seeds", [3, 8, 32])
def test_the_interval_covers_the_truth_95_times_in_100(shape, seeds):
    assert 0.93 <= covered(shape, seeds, 2000)["t"] <= 0.97


@pytest.mark.parametrize("seeds", [8, 32])
def test_the_bootstrap_beside_it_covers_as_well_where_there_is_enough_to_resample(seeds):
    assert 0.93 <= covered("skewed (gamma, skewness 1)", seeds, 2000)["bootstrap"] <= 0.97


def test_with_three_seeds_the_bootstrap_is_too_short_which_is_why_none_is_shown():
    assert covered("normal", 3, 2000)["bootstrap"] < 0.9


def test_whole_verdicts_on_perplexities_cover_the_ratio_and_the_difference():
    found = covered_by_verdicts(8, 2000)
    assert 0.93 <= found["ratio"] <= 0.97 and 0.93 <= found["units"] <= 0.97


@pytest.mark.parametrize("seeds", [3, 8])
def test_a_study_without_effects_finds_one_in_at_most_five_of_100(seeds):
    assert false_alarms("normal", seeds, 1000) <= 0.05 + 0.01  # and what a thousand studies leave open


@pytest.mark.parametrize("seeds", [3, 32])
def test_the_best_arm_is_among_those_named(seeds):
    share, named = best_is_named(seeds, 500)
    assert share >= 0.95 and named < 4
