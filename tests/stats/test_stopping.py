"""Optional stopping after repeated looks: its cost with a t-test, and that the confidence sequence accounts for it."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from headway.stats.intervals import contrast
from headway.stats.stopping import ANY_TIME, FIXED_SEEDS


@pytest.mark.parametrize("stopping", [FIXED_SEEDS, ANY_TIME])
@pytest.mark.parametrize("freedom", [3, 7, 7.5, 31])
@pytest.mark.parametrize("level", [0.05, 0.05 / 9])
def test_p_is_the_level_at_which_the_interval_ends_at_zero(stopping, freedom, level):
    assert stopping.p(freedom, stopping.reach(freedom, level)) == pytest.approx(level)
    assert stopping.p(freedom, -1.01 * stopping.reach(freedom, level)) < level


@pytest.mark.parametrize(("seeds", "t"), [(3, 5.0), (8, 4.0), (20, -3.5)])
def test_the_evidence_is_the_likelihood_averaged_over_the_prior(seeds, t):
    spread = ANY_TIME.prior**0.5

    def likelihood(effect: float) -> float:
        return stats.norm.pdf(effect, scale=spread) * stats.nct.pdf(t, seeds - 1, effect * seeds**0.5)

    with_effect = integrate.quad(likelihood, -20, 20, points=[0, t / seeds**0.5], limit=200)[0]
    assert ANY_TIME.p(seeds - 1, t) == pytest.approx(min(1, stats.t.pdf(t, seeds - 1) / with_effect), rel=1e-3)


def test_with_two_seeds_no_effect_is_large_enough():
    assert math.isinf(ANY_TIME.reach(1, 0.05)) and ANY_TIME.p(1, 1e6) > 0.05


def fooled(stopping, looks: range, studies: int = 4000) -> float:
    """How often an effect is found at any of these numbers of seeds, although there is none."""
    values = np.random.default_rng(5).standard_normal((studies, max(looks)))
    alarmed = np.zeros(studies, dtype=bool)
    for n in looks:
        t = values[:, :n].mean(1) / (values[:, :n].std(1, ddof=1) / n**0.5)
        alarmed |= np.abs(t) > stopping.reach(n - 1, 0.05)
    return float(alarmed.mean())


def test_looking_after_every_seed_inflates_errors_of_t_and_not_of_a_confidence_sequence():
    assert fooled(FIXED_SEEDS, range(3, 21)) > 0.15
    assert fooled(ANY_TIME, range(3, 21)) <= 0.05
    assert fooled(ANY_TIME, range(3, 201), studies=2000) <= 0.05


def test_with_optional_stopping_intervals_are_longer_and_have_no_bootstrap():
    columns = [{seed: float(seed % 3) for seed in range(8)}, dict.fromkeys(range(8), 0.4)]
    planned, added = (contrast(columns, [1, -1], stopping) for stopping in (FIXED_SEEDS, ANY_TIME))
    assert planned.bootstrap is not None and added.bootstrap is None
    assert added.reach(0.05) > 1.5 * planned.reach(0.05)
    assert added.smallest_visible().effect > planned.smallest_visible().effect
