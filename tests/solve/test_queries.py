"""Constructed queries: claims are checked by code that does not know how they were found."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from headway.solve import average, find_query, select

TRIANGLE = np.array([[1.0, 0], [0, 1], [-1, -1]])
WITH_MIDDLE = np.array([[1.0, 0], [0, 1], [0.5, 0.5], [-1, -1]])

shapes = st.tuples(st.integers(1, 9), st.integers(1, 4))
# Repeated keys, keys on a line and zeros occur often. Three decimals, because very different distances have their own
# test.
small_numbers = st.integers(-3, 3).map(float) | st.floats(-2, 2, width=16).map(lambda x: round(x, 3))
some_keys = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=small_numbers))


@st.composite
def questions(draw):
    keys = draw(some_keys)
    parts = draw(arrays(np.float64, len(keys), elements=st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 0.5, 7.0])))
    assume(parts.any())
    return keys, parts / parts.sum()


# --- every answer is right -------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(questions())
def test_a_query_reaches_it_or_a_certificate_proves_it_impossible(judge, question):
    judge(find_query(*question))


def test_a_key_beside_three_equal_ones(judge):
    keys = np.zeros((5, 3))
    keys[0, 0], keys[1, 0] = 2.0**-24, 1.0
    answer = find_query(keys, np.array([0.0, 0, 1, 0, 0]))
    judge(answer)
    assert answer.verdict == "impossible" and answer.certificate and answer.certificate.floor == pytest.approx(2 / 3)


@st.composite
def of_many_sizes(draw):
    """Keys whose rows, columns, or distances from one of them range from 1e-12 to 1e12 within one question."""
    keys, wanted = draw(questions())
    n, d = keys.shape
    powers = st.integers(-12, 12)
    shape = draw(st.sampled_from([(n, 1), (1, d), (n, d)]))
    keys = keys * 10.0 ** draw(arrays(np.int64, shape, elements=powers))
    return keys + draw(st.sampled_from([0.0, 1.0, keys[0]])), wanted


@settings(max_examples=60, deadline=None)
@given(of_many_sizes())
def test_keys_of_very_different_sizes(judge, question):
    """No answer is wrong; if nothing could be decided, the answer says so."""
    answer = find_query(*question)
    judge(answer)
    assert answer.derivation


@pytest.mark.parametrize("goal", ["select", "average", "uneven"])
def test_hardly_any_question_stays_undecided(judge, goal):
    rng = np.random.default_rng(len(goal))
    left = 0
    for _ in range(40):
        n, d = rng.integers(2, 25), rng.integers(1, 9)
        keys = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-12, 13, size=(n, 1))
        some = rng.permutation(n)[: 1 if goal == "select" else rng.integers(1, n + 1)].tolist()
        answer = find_query(keys, rng.dirichlet(np.ones(n)) if goal == "uneven" else average(some, int(n)))
        judge(answer)
        left += answer.verdict == "undecided"
    assert left <= 1


def test_a_query_that_float64_cannot_represent(judge):
    """The scores 1e12·q and 1e-12·q must both be small numbers, so the parts of the first have to cancel."""
    keys = [[0, 0], [0.6e12, 0.8e12], [0.8e-12, 0.3e-12]]
    answer = find_query(keys, [0.5, 0.3, 0.2])
    assert answer.verdict == "unrepresentable" and answer.digits and answer.certificate is None
    judge(answer)
    assert "float64 has too few digits" in answer.derivation[1] and answer.digits[0] in answer.derivation[1]
    assert json.loads(json.dumps(answer.as_json(), allow_nan=False))["digits"] == answer.digits


def test_rounding_in_the_last_digits_of_a_plane_of_keys():
    """As float64, the middle key is slightly off the line; as the decimal numbers people type, it is on it."""
    answer = find_query([[0.1, 0.7], [0.3, 0.2], [0.2, 0.45]], select(2, 3))
    assert answer.verdict == "impossible" and answer.certificate
    assert 0 < answer.certificate.rounding <= 4 * 2.0**-52
    assert answer.certificate.floor == pytest.approx(2 / 3)
    one_side = find_query([[1, 1e-12], [-1, 1e-12], [0, 0]], select(2, 3))  # but this difference is meant
    assert one_side.verdict == "reached" and one_side.rounding < 1e-6


@settings(max_examples=40, deadline=None)
@given(some_keys, st.integers(0, 10**6))
def test_weights_of_a_known_query_are_reached(judge, keys, seed):
    query = np.random.default_rng(seed).normal(size=len(keys[0]))
    scores = keys @ query
    answer = find_query(keys, np.exp(scores) / np.exp(scores).sum())
    assert answer.verdict == "reached"
    judge(answer)
    assert answer.norm <= np.linalg.norm(query) * (1 + 1e-9)  # the shortest of all queries that reach it exactly


@settings(max_examples=60, deadline=None)
@given(some_keys, st.integers(0, 8))
def test_a_key_can_be_selected_if_it_is_outside_the_hull_of_the_others(keys, index):
    """Compared with a linear programme: is the key a mixture of the others?"""
    n, index = len(keys), index % len(keys)
    others = np.delete(keys, index, 0)
    rows = np.vstack([others.T, np.ones(n - 1)])
    target = np.append(keys[index], 1)
    inside = n > 1 and linprog(np.zeros(n - 1), A_eq=rows, b_eq=target, bounds=(0, None)).status == 0
    assert find_query(keys, select(index, n)).verdict == ("impossible" if inside else "reached")


@settings(max_examples=40, deadline=None)
@given(questions(), st.integers(0, 10**6))
def test_no_query_beats_the_floor_of_a_certificate(attention, question, seed):
    keys, wanted = question
    answer = find_query(keys, wanted)
    assume(answer.certificate is not None)
    rng = np.random.default_rng(seed)
    for size in (0.001, 0.1, 1, 10, 100):
        for _ in range(5):
            query = answer.query + size * rng.normal(size=len(keys[0]))
            assert np.abs(attention(query, keys) - wanted).sum() / 2 >= answer.certificate.floor - 1e-12


@pytest.mark.parametrize(
    "keys",
    [
        np.zeros((3, 2)),
        np.ones((4, 1)),
        np.repeat(TRIANGLE, 2, 0),
        np.outer([1.0, 2, 3, 4], [1, -1, 2]),
        1e200 * TRIANGLE,
        1e-200 * TRIANGLE,
        TRIANGLE + 1e7,
        np.eye(3, 16),
        np.random.default_rng(0).normal(size=(64, 2)),
        np.random.default_rng(0).normal(size=(2, 16)),
        np.array([[5.0]]),
    ],
)
@pytest.mark.parametrize("goal", ["first", "last", "all", "two", "uneven"])
def test_degenerate_keys(judge, keys, goal):
    n = len(keys)
    wanted = {
        "first": select(0, n),
        "last": select(n - 1, n),
        "all": average(None, n),
        "two": average(sorted({0, n - 1}), n),
        "uneven": np.arange(1, n + 1) / np.arange(1, n + 1).sum(),
    }[goal]
    judge(find_query(keys, wanted))


def test_a_bug_in_the_search_is_not_taken_for_keys_without_an_answer(monkeypatch):
    """Only what float64 cannot represent may be called so."""

    def broken(*given):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr("headway.solve.queries.search", broken)
    with pytest.raises(ValueError, match="broadcast"):
        find_query(TRIANGLE, select(0, 3))


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        # Within four units in the last place the first two are equal, but a query this long distinguishes them.
        (
            [
                [2.754944370951631, 0.9940681164474702, 0.38888129026869317, 0.7172654967414511],
                [2.75494437095163, 0.9940681164474693, 0.3888812902686932, 0.7172654967414507],
                [2.7549443709516286, 0.9940681164474675, 0.38888129026869167, 0.7172654967414503],
            ],
            "reached",
        ),
        # The first and third are equal up to the last digit, and the fifth is not: a half is possible, a third is not.
        (
            [[0.9732394213415702], [0.9732394213415678], [0.9732394213415702], [-1.37], [0.9732394213415695]],
            "impossible",
        ),
    ],
)
def test_no_certificate_is_refuted_by_the_query_beside_it(judge, keys, verdict):
    answer = find_query(keys, select(0, len(keys)))
    judge(answer)
    assert answer.verdict == verdict
    if answer.certificate:
        assert answer.certificate.floor == pytest.approx(0.5) and answer.certificate.rounding == 0
