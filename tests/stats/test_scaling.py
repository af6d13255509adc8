"""Simulated scaling laws are recovered; the batched minimum equals that of L-BFGS from single starts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from headway.stats import scaling
from headway.stats.isoflop import budgets_of, isoflop
from headway.stats.law_minima import CORNER, minimise
from headway.stats.scaling import (
    Cost,
    Law,
    Points,
    fit_law,
    flops_for,
    grid_of_starts,
    left_out,
    optimum,
    optimum_exponents,
)

LAW = Law(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)
FEW = grid_of_starts()[::45]


def ladder(law: Law = LAW, noise: float = 0.0, budgets: int = 5, sizes: int = 7, seeds: int = 2, spread: float = 6.0):
    flops = np.repeat(np.geomspace(1e13, 1e16, budgets), sizes * seeds)
    around = np.tile(np.repeat(np.geomspace(1 / spread, spread, sizes), seeds), budgets)
    n = optimum(law.row, Cost(), flops)[0] * around
    d = flops / (6 * n)
    loss = law.loss(n, d) * np.exp(noise * np.random.default_rng(3).standard_normal(len(n)))
    return Points(n, d, flops, loss)


def test_a_law_without_noise_is_recovered_to_many_digits():
    found = fit_law(ladder(), resamples=10, starts=FEW)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(found.law, name) == pytest.approx(getattr(LAW, name), rel=1e-4)
    assert found.objective < 1e-10
    assert not len(found.outliers)


def huber(row: np.ndarray, points: Points) -> float:
    """The summed Huber loss, by its definition."""
    a, alpha, b, beta, e = row
    n, d, loss = points.logs
    r = np.abs(np.log(np.exp(a - alpha * n) + np.exp(b - beta * d) + np.exp(e)) - loss)
    return float(np.where(r <= CORNER, r**2 / 2, CORNER * (r - CORNER / 2)).sum())


def test_the_batched_minimum_equals_that_of_l_bfgs():
    points = ladder(noise=0.01)
    starts = np.array([[5.0, 0.5, 5.0, 0.5, 0.0], [10.0, 0.5, 5.0, 0.0, 1.0], [0.0, 0.5, 10.0, 0.5, -1.0]])
    of_scipy = [
        optimize.minimize(huber, start, args=(points,), method="L-BFGS-B", options={"maxiter": 5000, "maxfun": 50_000})
        for start in starts
    ]
    lowest = min(of_scipy, key=lambda one: one.fun)
    rows, objectives = minimise(FEW, *points.logs, np.ones((1, len(points))))
    best = rows[objectives.argmin()]
    assert objectives.min() == pytest.approx(huber(best, points), rel=1e-9)
    assert objectives.min() <= lowest.fun * (1 + 1e-9)
    refined = optimize.minimize(huber, best, args=(points,), method="Nelder-Mead")
    assert refined.fun >= objectives.min() * (1 - 1e-6)


def test_starts_and_resamples_are_independent():
    points = ladder(noise=0.01, budgets=3)
    weights = np.random.default_rng(0).exponential(1.0, (7, len(points)))
    together, _ = minimise(FEW[:7], *points.logs, weights)
    alone = np.concatenate([minimise(FEW[k : k + 1], *points.logs, weights[k : k + 1])[0] for k in range(7)])
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-8)


def test_a_few_outliers_hardly_change_the_law_and_are_named():
    points = ladder(noise=0.002, budgets=6)
    loss = points.loss.copy()
    loss[[3, 40]] *= 1.2
    found = fit_law(Points(points.parameters, points.tokens, points.flops, loss), resamples=10, starts=FEW)
    assert {3, 40} <= set(found.outliers) and len(found.outliers) <= 4
    clean = fit_law(points, resamples=10, starts=FEW)
    assert found.law.alpha == pytest.approx(clean.law.alpha, abs=0.01)
    assert found.without(np.array([3, 40])).law.alpha == pytest.approx(clean.law.alpha, abs=0.01)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.3, 3.0), st.floats(2, 15), st.floats(2, 15), st.floats(0.7, 1)
)
def test_the_optimum_minimises_the_loss(alpha, beta, floor, a, b, power):
    row, cost, flops = np.array([a, alpha, b, beta, np.log(floor)]), Cost(7.0, power), 1e15
    n, d, loss = optimum(row, cost, flops)
    assert cost.factor * n**power * d == pytest.approx(flops)
    around = n * np.array([0.9, 1.1])
    assert (Law.of(row).loss(around, cost.tokens(flops, around)) > loss).all()
    of_n, of_d = optimum_exponents(row, cost)
    more, more_d, _ = optimum(row, cost, 10 * flops)
    assert more / n == pytest.approx(10**of_n) and more_d / d == pytest.approx(10**of_d)
    assert flops_for(row[None], cost, float(loss))[0] == pytest.approx(flops, rel=1e-3)
    assert flops_for(row[None], cost, 0.99 * floor)[0] == np.inf


def test_a_budget_left_out_is_predicted_from_the_others():
    points = ladder(noise=0.003)
    found = fit_law(points, resamples=10, starts=FEW)
    errors = left_out(found, budgets_of(points))
    assert len(errors) == 5 and all(len(e) == 14 for e in errors)
    assert max(np.sqrt((e**2).mean()) for e in errors) < 0.02
    bent = Points(points.parameters, points.tokens, points.flops, points.loss * np.where(points.flops > 5e15, 1.1, 1))
    wrong = left_out(fit_law(bent, resamples=10, starts=FEW), budgets_of(bent))
    assert wrong[-1].mean() > 0.05  # worse than for the other budgets


def test_costs_are_6n_unless_they_were_counted_differently():
    points = ladder()
    assert Cost.fitted(points) == Cost(pytest.approx(6.0), 1.0)  # pyright: ignore[reportArgumentType]
    counted = Points(points.parameters, points.tokens, 30 * points.parameters**0.9 * points.tokens, points.loss)
    assert Cost.fitted(counted).power == pytest.approx(0.9)
    assert Cost.fitted(counted).factor == pytest.approx(30)


def test_the_same_points_have_the_same_intervals():
    points = ladder(noise=0.01, budgets=3)
    first, second = (fit_law(points, resamples=50, starts=FEW[:20]) for _ in range(2))
    assert (first.resamples == second.resamples).all()


def test_the_grid_of_starts_is_that_of_the_paper():
    assert grid_of_starts().shape == (4500, 5)
    assert len(np.unique(grid_of_starts(), axis=0)) == 4500


# --- parabolas -------------------------------------------------------------------------------------------------------


def test_minima_of_parabolas_are_where_the_law_has_them():
    points = ladder(noise=0.001, spread=3.0)
    found = isoflop(points, budgets_of(points), 200)
    assert not any(curve.missing for curve in found.curves)
    for curve in found.curves:
        true = optimum(LAW.row, Cost(), curve.budget)[0]
        assert curve.parameters == pytest.approx(true, rel=0.1)
        assert curve.interval[0] < curve.parameters < curve.interval[1]
    of_n, of_d = optimum_exponents(LAW.row, Cost())
    assert found.parameters is not None and found.tokens is not None
    assert found.parameters.exponent == pytest.approx(of_n, abs=0.02)
    assert found.tokens.exponent == pytest.approx(of_d, abs=0.02)
    assert found.parameters.exponent + found.tokens.exponent == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("kept", "missing"), [("large", "smaller"), ("small", "larger")])
def test_a_minimum_at_the_edge_does_not_count(kept, missing):
    points = ladder(sizes=15)
    best = optimum(LAW.row, Cost(), points.flops)[0]
    above = points.parameters > 1.3 * best
    chosen = points.where(above if kept == "large" else points.parameters < best / 1.3)
    found = isoflop(chosen, budgets_of(chosen), 50)
    assert {curve.missing for curve in found.curves} == {missing}
    assert found.parameters is None


def test_few_sizes_give_no_parabola():
    points = ladder(sizes=3)
    assert {curve.missing for curve in isoflop(points, budgets_of(points), 50).curves} == {"few sizes"}


def test_budgets_are_distinguished_and_a_continuous_range_has_none():
    points = ladder()
    shaken = points.flops * np.random.default_rng(0).uniform(0.98, 1.02, len(points))
    moved = Points(points.parameters, points.tokens, shaken, points.loss)
    groups = budgets_of(moved)
    assert [len(group) for group in groups] == [14] * 5
    assert all(moved.flops[a].max() < moved.flops[b].min() for a, b in itertools.pairwise(groups))
    spread = Points(points.parameters, points.tokens, np.geomspace(1e13, 1e14, len(points)), points.loss)
    assert budgets_of(spread) == []


def test_percentiles_leave_out_what_does_not_exist():
    low, high = scaling.percentiles(np.array([np.nan, *np.linspace(0, 1, 101)]))
    assert (low, high) == (pytest.approx(0.025), pytest.approx(0.975))
    assert all(map(np.isnan, scaling.percentiles(np.array([np.nan]))))
    assert scaling.percentiles(np.array([1.0, 2.0, np.inf]))[1] == 2.0
