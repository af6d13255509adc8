"""The two convex problems, compared with general solvers."""

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from headway.solve.geometry import (
    entropy,
    max_entropy,
    softmax,
    total_variation,
    total_variation_at_most,
    widest_margin,
)


@pytest.mark.parametrize("seed", range(20))
def test_the_widest_margin_equals_that_of_a_general_solver(seed):
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(rng.integers(1, 12), rng.integers(1, 5))) + rng.normal(size=1)
    n, d = D.shape
    possible = linprog(np.zeros(d), A_ub=-D, b_ub=-np.ones(n), bounds=(None, None)).status == 0
    found = widest_margin(D, np.linalg.norm(D, axis=1))
    u = found.direction
    assert (u is not None) == possible
    if u is None:
        np.testing.assert_allclose(found.mixture @ D, 0, atol=1e-12 * found.mixture.max())
    else:
        assert found.widest
        assert (D @ u).min() == pytest.approx(1)
        constraint = {"type": "ineq", "fun": lambda v: D @ v - 1}
        general = minimize(lambda v: v @ v, 2 * u, jac=lambda v: 2 * v, constraints=constraint, method="SLSQP")
        assert u @ u == pytest.approx(general.fun, rel=1e-6)


def test_no_margin():
    level = np.array([[1.0, 1e-12], [-1, 1e-12]])
    for D, flat in ((np.array([[1.0, 0], [-1, 0]]), 1e-13), (level, 1e-9)):
        found = widest_margin(D, np.linalg.norm(D, axis=1), flat)
        assert found.direction is None
        np.testing.assert_allclose(found.mixture / found.mixture.max(), [1, 1])
    assert widest_margin(level, np.ones(2), 1e-13).direction is not None


def test_rows_of_very_different_lengths_are_separated():
    D = np.array([[1e-12, 0], [0, 1e-12], [1e12, -1e11]])
    u = widest_margin(D, np.linalg.norm(D, axis=1)).direction
    assert u is not None and (D @ u >= 1 - 1e-9).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_most_even_mixture_has_the_mean_and_maximal_entropy(seed):
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 12), rng.integers(1, 4)
    points, wanted = rng.normal(size=(n, d)), rng.dirichlet(np.full(n, 0.3))
    even = max_entropy(points, wanted)
    np.testing.assert_allclose(even.mixture @ points, wanted @ points, atol=1e-12)
    np.testing.assert_allclose(softmax(points @ even.path[-1]), even.mixture, atol=1e-9)
    kernel = np.linalg.svd(np.vstack([points.T, np.ones(n)]))[2][min(n, d + 1) :]
    for direction in kernel:
        for size in (1e-4, -1e-4):
            other = even.mixture + size * direction
            assert other.min() < 0 or entropy(other) <= entropy(even.mixture) + 1e-12


def test_a_mean_on_the_border_of_the_hull():
    """Between two corners of a square, the most even mixture excludes the others."""
    square = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0]])
    even = max_entropy(square, np.array([0.5, 0.5, 0, 0, 0]))
    np.testing.assert_allclose(even.mixture, [1 / 3, 1 / 3, 0, 0, 1 / 3], atol=1e-14)


def test_total_variation_keeps_small_differences():
    assert total_variation(np.array([1.0, 1e-30]), np.array([1.0, 0])) == 1e-30
    assert total_variation(np.array([0.2, 0.8]), np.array([0.5, 0.5])) == pytest.approx(0.3)


def test_the_rounding_of_weights_is_accounted_for():
    """Compared with fifty digits: the computed weights are no further from the exact ones than stated."""
    mpmath = pytest.importorskip("mpmath")
    rng, closer = np.random.default_rng(0), 0
    with mpmath.workdps(50):
        for _ in range(50):
            scores = rng.normal(size=rng.integers(2, 9)) * rng.choice([1, 30])
            wanted = softmax(scores)
            e = [mpmath.exp(mpmath.mpf(s)) for s in scores]
            true = sum(max(x / sum(e) - mpmath.mpf(w), 0) for x, w in zip(e, wanted, strict=True))
            closer += total_variation(wanted, wanted) < true
            assert true <= total_variation_at_most(wanted, wanted) <= 1e-14
    assert closer  # computed plainly it would be 0
    assert total_variation_at_most(np.array([1.0, 1e-100]), np.array([1.0, 0])) == pytest.approx(1e-100, rel=1e-12)
