"""Arithmetic without rounding, compared with fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headway.solve.exact import Basis, ExactKeys, fixed_point, product, shortest_solution

numbers = st.floats(-1e12, 1e12) | st.sampled_from([0.0, 5e-324, -1e-300, 0.1, 1e300])
whole = st.integers(-3, 3)


@given(arrays(np.float64, st.integers(1, 6), elements=numbers))
def test_a_float_is_an_integer_times_a_power_of_two(values):
    integers, exponent = fixed_point(values)
    assert [int(i) * Fraction(2) ** exponent for i in integers] == [Fraction(v) for v in values]
    assert product(values, values) == sum(Fraction(v) ** 2 for v in values)


@given(arrays(np.int64, st.tuples(st.integers(1, 7), st.integers(1, 4)), elements=whole), st.integers(0, 100))
def test_all_rows_are_combinations_of_a_basis(X, seed):
    first = np.random.default_rng(seed).random(len(X)) < 0.5
    basis = Basis(X.astype(object))
    basis.extend(np.flatnonzero(first))
    rank = len(basis.rows)
    basis.extend(np.flatnonzero(~first))
    assert rank == (np.linalg.matrix_rank(X[first]) if first.any() else 0) and first[basis.rows[:rank]].all()
    assert len(basis.rows) == np.linalg.matrix_rank(X)
    assert (basis.table @ X[basis.rows] == basis.divisor * X).all()
    # nearly the basis of the largest volume
    assert (np.abs(basis.table[~first][:, rank:]) <= 2 * abs(basis.divisor)).all()
    q = shortest_solution(X[basis.rows].astype(object), values := np.arange(len(basis.rows)) / 4)
    assert [sum(Fraction(int(a)) * b for a, b in zip(X[r], q, strict=True)) for r in basis.rows] == list(values)
    expected = np.linalg.lstsq(X[basis.rows], values, rcond=None)[0] if basis.rows else np.zeros(X.shape[1])
    np.testing.assert_allclose([float(part) for part in q], expected, atol=1e-9)


def test_scores_that_plain_arithmetic_rounds_away():
    keys = np.array([[1e16, 1.0], [1e16, 0.0]])
    assert ExactKeys(keys, 0, 1.0).weights(np.array([1.0, 1.0]))[0] == pytest.approx(np.e / (1 + np.e))
    assert np.ptp(keys @ [1.0, 1.0]) == 0
