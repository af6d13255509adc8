"""Contrasts and their intervals, compared with scipy and with results worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from headway.stats.intervals import bootstrap_interval, contrast, noncentrality

RANDOM = np.random.default_rng(5)


def columns(*arrays, first=0):
    return [dict(enumerate(map(float, a), first)) for a in arrays]


@pytest.mark.parametrize("n", [2, 3, 8, 32])
def test_a_paired_contrast_equals_scipys_paired_t_test(n):
    a, b = RANDOM.normal(size=n), RANDOM.normal(0.5, size=n)
    found, reference = contrast(columns(a, b), [1, -1]), stats.ttest_rel(a, b)
    assert found.paired and found.seeds == tuple(range(n))
    assert found.p == pytest.approx(reference.pvalue) and found.t == pytest.approx(reference.statistic)
    interval = reference.confidence_interval()
    assert found.interval() == pytest.approx((interval.low, interval.high))


def test_arms_with_different_seeds_are_compared_by_welchs_test():
    a, b = RANDOM.normal(size=5), RANDOM.normal(1, 3, size=9)
    found = contrast([*columns(a), *columns(b, first=100)], [1, -1])
    reference = stats.ttest_ind(a, b, equal_var=False)
    assert not found.paired and found.bootstrap is None
    assert (found.p, found.degrees_of_freedom) == pytest.approx((reference.pvalue, reference.df))
    interval = reference.confidence_interval()
    assert found.interval() == pytest.approx((interval.low, interval.high))


def test_pairs_are_used_if_half_of_the_seeds_are_shared():
    a, b = RANDOM.normal(size=8), RANDOM.normal(size=8)
    four_shared = contrast([*columns(a), *columns(b, first=4)], [1, -1])
    assert four_shared.paired and four_shared.seeds == (4, 5, 6, 7)
    assert four_shared.estimate == pytest.approx((a[4:] - b[:4]).mean())
    assert not contrast([*columns(a), *columns(b, first=5)], [1, -1]).paired


def test_one_seed_gives_no_interval():
    assert contrast(columns([1.0], [2.0]), [1, -1]) is None
    assert contrast(columns([1.0, 2.0, 3.0], [2.0]), [1, -1]) is None
    assert contrast([{}, {}], [1, -1]) is None


def test_rounding_errors_are_no_spread():
    assert not contrast(columns([0.1 + 0.2, 0.3], [0.3, 0.3]), [1, -1]).has_spread
    assert not contrast(columns([1e9 + 1, 1e9 + 2], [1e9, 1e9 + 1]), [1, -1]).has_spread
    assert contrast(columns([1e-9, 2e-9], [3e-9, 1e-9]), [1, -1]).has_spread


@pytest.mark.parametrize(
    ("degrees_of_freedom", "level", "power"), [(7, 0.05, 0.8), (2, 0.05, 0.8), (31, 0.01, 0.9), (4, 0.008, 0.8)]
)
def test_the_smallest_detectable_effect_has_the_stated_power(degrees_of_freedom, level, power):
    critical = stats.t.ppf(1 - level / 2, degrees_of_freedom)
    effect = noncentrality(degrees_of_freedom, critical, power)
    assert stats.nct.sf(critical, degrees_of_freedom, effect) + stats.nct.cdf(
        -critical, degrees_of_freedom, effect
    ) == pytest.approx(power, abs=1e-3)


@pytest.mark.parametrize("seeds", [4, 8])
def test_the_interval_of_the_smallest_detectable_effect_covers_it_95_times_in_100(seeds):
    truth = noncentrality(seeds - 1, stats.t.ppf(0.975, seeds - 1), 0.8) / seeds**0.5
    found = [
        contrast(columns(d, d * 0), [1, -1]).smallest_visible()
        for d in np.random.default_rng(seeds).normal(size=(2000, seeds))
    ]
    covered = np.mean([one.interval[0] <= truth <= one.interval[1] for one in found])
    assert 0.935 <= covered <= 0.965


def test_fewer_than_four_seeds_give_no_interval_of_their_spread():
    assert contrast(columns([1.0, 2.0, 4.0], [0.0, 0.0, 0.0]), [1, -1]).smallest_visible() is None


def test_with_two_seeds_only_huge_effects_are_detectable():
    spread = np.abs(
        np.random.default_rng(0).standard_normal(200_000)
    )  # one degree of freedom, where scipy is inaccurate
    effect = noncentrality(1, stats.t.ppf(1 - 0.05 / 12, 1), 0.8)
    t = (np.random.default_rng(1).standard_normal(200_000) + effect) / spread
    assert (t > stats.t.ppf(1 - 0.05 / 12, 1)).mean() == pytest.approx(0.8, abs=0.005)


def test_the_bootstrap_equals_a_plain_loop():
    values = RANDOM.gamma(2, size=9)
    random, t = np.random.default_rng(0), []
    for _ in range(20_000):
        drawn = values[random.integers(9, size=9)]
        if drawn.std() > 0:
            t.append((drawn.mean() - values.mean()) / drawn.std(ddof=1))
    low, high = np.quantile(t, [0.025, 0.975])
    expected = values.mean() - high * values.std(ddof=1), values.mean() - low * values.std(ddof=1)
    found = bootstrap_interval(values, resamples=20_000)
    assert found == pytest.approx(expected, abs=0.03 * (expected[1] - expected[0]))
    assert np.array_equal(bootstrap_interval(values), bootstrap_interval(values))


def test_a_stack_of_studies_is_resampled_like_each_alone():
    values = RANDOM.normal(size=(4, 6))
    assert bootstrap_interval(values)[:, 2] == pytest.approx(bootstrap_interval(values[2]))
