"""Multiple testing, compared with scipy and with results worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headway.stats.tests import holm, picked_among, shrunk_best

RANDOM = np.random.default_rng(5)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_its_definition(p):
    corrected = holm(p)
    for k, own in enumerate(p):
        # Rejected at level c exactly if every smaller p is, each at c over the number of remaining tests.
        by_hand = max((sum(q >= other for q in p) * other for other in p if other <= own), default=0)
        assert corrected[k] == pytest.approx(min(1.0, by_hand))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("spreads", [[1, 1], [1] * 6, [0.2, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 6]], ids=str)
@pytest.mark.parametrize("seeds", [3, 8, 32])
def test_an_arm_that_is_among_the_best_is_seldom_dropped(spreads, seeds):
    """And among equal arms hardly ever all but one are dropped."""
    random, arms = np.random.default_rng(3), len(spreads)
    values = random.standard_normal((4000, arms, seeds)) * np.array(spreads)[:, None]
    best = values.mean(2).argmax(1)
    lead = values[np.arange(4000), best][:, None] - values
    error = lead.std(2, ddof=1) / seeds**0.5
    t = np.divide(lead.mean(2), error, out=np.zeros_like(error), where=error > 0)
    dropped = picked_among(arms) * 2 * stats.t.sf(t, seeds - 1) < 0.05
    assert dropped.mean(0).max() <= 0.05 + 0.01
    assert (dropped.sum(1) == arms - 1).mean() <= 0.05 + 0.01


def test_picking_the_best_of_two_is_not_corrected_and_of_many_for_all_rivals():
    assert [picked_among(arms) for arms in (2, 3, 6, 21)] == [1, 1, 2.5, 10]


def test_the_best_is_shrunk_as_far_as_chance_explains_the_spread():
    random, flattered, corrected = np.random.default_rng(2), [], []
    for _ in range(500):
        truth = random.normal(size=8)
        values = truth + random.normal(size=(4, 1)) + random.normal(0, 2, size=(4, 8))
        best = values.mean(0).argmin()
        level = values.mean() - truth.mean()  # with these seeds
        flattered.append(values.mean(0)[best] - level - truth[best])
        corrected.append(shrunk_best(values, lower_is_better=True) - level - truth[best])
    assert np.mean(flattered) < -0.6
    assert abs(np.mean(corrected)) < 0.15


def test_equal_arms_are_shrunk_completely():
    assert shrunk_best(np.array([[1.0, 1.0], [2.0, 2.0]]), lower_is_better=True) == pytest.approx(1.5)
