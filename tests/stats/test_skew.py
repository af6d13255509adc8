"""Skewness is detected where possible, and tests without a normality assumption have their stated error rates."""

import numpy as np
import pytest
from scipy import stats

from headway.stats.skew import is_skewed, permutation_p, sign_flip_p, skewness


def test_skewness_of_one_arm_equals_that_of_the_moments():
    values = np.random.default_rng(0).gamma(2, size=30)
    assert skewness([values]) == pytest.approx(stats.skew(values))
    assert skewness([values * 5 + 1, 3 - values]) == pytest.approx(0, abs=1e-9)
    assert skewness([np.ones(8), np.array([1.0, 2.0])]) == 0 and not is_skewed([np.ones(8)])


def test_bell_shaped_scores_are_seldom_called_skewed_and_strongly_skewed_ones_often():
    random = np.random.default_rng(1)
    normal, skewed = (
        np.mean([is_skewed(list(draw((4, 8)))) for _ in range(500)])
        for draw in (random.standard_normal, lambda shape: np.exp(random.standard_normal(shape)))
    )
    assert normal < 0.03 and skewed > 0.6


def test_the_sign_flip_test_equals_scipys():
    d = np.random.default_rng(2).normal(0.5, size=9)
    found = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(d) == pytest.approx(found.pvalue)
    assert sign_flip_p(np.array([1.0, 2.0, 4.0])) == 0.25


def test_the_permutation_test_equals_scipys():
    random = np.random.default_rng(3)
    first, second = random.normal(size=5), random.normal(0.8, 3, size=6)

    def welch(x, y, axis):
        return abs(stats.ttest_ind(x, y, axis=axis, equal_var=False).statistic)

    found = stats.permutation_test((first, second), welch, alternative="greater", n_resamples=np.inf, vectorized=True)
    assert permutation_p(first, second) == pytest.approx(found.pvalue)


@pytest.mark.parametrize("test", [lambda x: sign_flip_p(x[:7] - x[7:14]), lambda x: permutation_p(x[:4], x[4:])])
def test_equal_arms_of_any_shape_are_found_different_one_time_in_twenty(test):
    random = np.random.default_rng(4)
    found = np.mean([test(np.exp(1.5 * random.standard_normal(14))) < 0.05 for _ in range(400)])
    assert 0.02 < found < 0.08
