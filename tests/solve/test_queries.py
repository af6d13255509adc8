"""Queries by construction: what is claimed is judged by code that does not know how it was found."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from headway.errors import UserError
from headway.solve import average, find_queries, find_query, select

TRIANGLE = np.array([[1.0, 0], [0, 1], [-1, -1]])
WITH_MIDDLE = np.array([[1.0, 0], [0, 1], [0.5, 0.5], [-1, -1]])

shapes = st.tuples(st.integers(1, 9), st.integers(1, 4))
# Repeats, lines and zeros come of themselves. To a thousandth: very different distances have a test of their own.
small_numbers = st.integers(-3, 3).map(float) | st.floats(-2, 2, width=16).map(lambda x: round(x, 3))
some_keys = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=small_numbers))


@st.composite
def questions(draw):
    keys = draw(some_keys)
    parts = draw(arrays(np.float64, len(keys), elements=st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 0.5, 7.0])))
    assume(parts.any())
    return keys, parts / parts.sum()


# --- every answer is right -------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(questions())
def test_a_query_does_it_or_a_certificate_says_why_not(judge, question):
    judge(find_query(*question))


def test_a_key_beside_three_equal_ones(judge):
    keys = np.zeros((5, 3))
    keys[0, 0], keys[1, 0] = 2.0**-24, 1.0
    answer = find_query(keys, np.array([0.0, 0, 1, 0, 0]))
    judge(answer)
    assert answer.verdict == "impossible" and answer.certificate and answer.certificate.floor == pytest.approx(2 / 3)


@st.composite
def of_many_sizes(draw):
    """Keys whose rows, columns, or distances from one of them are from 1e-12 to 1e12 in one question."""
    keys, wanted = draw(questions())
    n, d = keys.shape
    powers = st.integers(-12, 12)
    shape = draw(st.sampled_from([(n, 1), (1, d), (n, d)]))
    keys = keys * 10.0 ** draw(arrays(np.int64, shape, elements=powers))
    return keys + draw(st.sampled_from([0.0, 1.0, keys[0]])), wanted


@settings(max_examples=300, deadline=None)
@given(of_many_sizes())
def test_keys_of_very_different_sizes(judge, question):
    """None is wrong; where nothing could be decided, that is said."""
    answer = find_query(*question)
    judge(answer)
    assert answer.derivation


@pytest.mark.parametrize("goal", ["select", "average", "uneven"])
def test_hardly_any_question_is_left_undecided(judge, goal):
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


def test_a_query_that_float64_cannot_hold(judge):
    """Scores of 1e12·q and of 1e-12·q are both to be small numbers: the parts of the first have to cancel."""
    keys = [[0, 0], [0.6e12, 0.8e12], [0.8e-12, 0.3e-12]]
    answer = find_query(keys, [0.5, 0.3, 0.2])
    assert answer.verdict == "unrepresentable" and answer.digits and answer.certificate is None
    judge(answer)
    assert "float64 has too few digits" in answer.derivation[1] and answer.digits[0] in answer.derivation[1]
    assert json.loads(json.dumps(answer.as_json(), allow_nan=False))["digits"] == answer.digits


def test_what_a_plane_of_keys_hides_in_its_last_digits():
    """To float64's last digit the middle key is off the line; as numbers people type, it is on it."""
    answer = find_query([[0.1, 0.7], [0.3, 0.2], [0.2, 0.45]], select(2, 3))
    assert answer.verdict == "impossible" and answer.certificate
    assert 0 < answer.certificate.rounding <= 4 * 2.0**-52
    assert answer.certificate.floor == pytest.approx(2 / 3)
    one_side = find_query([[1, 1e-12], [-1, 1e-12], [0, 0]], select(2, 3))  # but this is meant
    assert one_side.verdict == "reached" and one_side.rounding < 1e-6


@settings(max_examples=60, deadline=None)
@given(some_keys, st.integers(0, 10**6))
def test_what_some_query_does_is_found_again(judge, keys, seed):
    query = np.random.default_rng(seed).normal(size=len(keys[0]))
    scores = keys @ query
    answer = find_query(keys, np.exp(scores) / np.exp(scores).sum())
    assert answer.verdict == "reached"
    judge(answer)
    assert answer.norm <= np.linalg.norm(query) * (1 + 1e-9)  # of all that do it exactly, the shortest


@settings(max_examples=150, deadline=None)
@given(some_keys, st.integers(0, 8))
def test_a_key_can_be_selected_if_it_is_outside_the_hull_of_the_others(keys, index):
    """Against a linear programme: is the key a mixture of the others?"""
    n, index = len(keys), index % len(keys)
    others = np.delete(keys, index, 0)
    rows = np.vstack([others.T, np.ones(n - 1)])
    target = np.append(keys[index], 1)
    inside = n > 1 and linprog(np.zeros(n - 1), A_eq=rows, b_eq=target, bounds=(0, None)).status == 0
    assert find_query(keys, select(index, n)).verdict == ("impossible" if inside else "reached")


@settings(max_examples=60, deadline=None)
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
    """Only what float64 cannot hold is."""

    def broken(*given):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr("headway.solve.queries.search", broken)
    with pytest.raises(ValueError, match="broadcast"):
        find_query(TRIANGLE, select(0, 3))


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        # Four units in the last place would make the first two equal; a query this long tells them apart.
        (
            [
                [2.754944370951631, 0.9940681164474702, 0.38888129026869317, 0.7172654967414511],
                [2.75494437095163, 0.9940681164474693, 0.3888812902686932, 0.7172654967414507],
                [2.7549443709516286, 0.9940681164474675, 0.38888129026869167, 0.7172654967414503],
            ],
            "reached",
        ),
        # The first and the third are equal to the last digit, the fifth is not: a half is possible, not a third.
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


# --- what the answers are --------------------------------------------------------------------------------------------


def test_the_mean_is_the_query_zero():
    answer = find_query(np.random.default_rng(0).normal(size=(20, 3)), average(None, 20))
    assert answer.verdict == "reached" and answer.error < 1e-15 and not answer.query.any()


def test_exact_where_the_log_ratios_lie_in_the_row_space():
    answer = find_query(TRIANGLE, [0.7, 0.2, 0.1])
    assert answer.method == "proportions" and answer.error < 1e-15 and answer.margin is None


def test_the_margin_and_the_scale_are_as_they_must_be():
    """Key 0 of the triangle is 6/√20 from the line through the others."""
    answer = find_query(TRIANGLE, select(0, 3), within=1e-6)
    assert answer.margin == pytest.approx(3 / math.sqrt(5))
    assert answer.error == pytest.approx(1e-6, rel=1e-6)  # not smaller: the query is as short as ε allows
    at_least = math.log((1 - 1e-6) / 1e-6) / answer.margin
    assert at_least <= answer.norm <= (at_least + math.log(2) / answer.margin) * (1 + 1e-9)


@pytest.mark.parametrize("within", [0.3, 1e-3, 1e-9, 1e-100])
def test_the_scale_follows_the_tolerance(judge, within):
    answer = find_query(TRIANGLE, select(0, 3), within)
    assert answer.error <= within and answer.error > within * 0.99
    judge(answer)


def test_a_subset_with_uneven_parts():
    answer = find_query(TRIANGLE, [0.7, 0.3, 0], within=1e-8)
    assert answer.weights[0] / answer.weights[1] == pytest.approx(7 / 3)
    assert answer.weights[2] == pytest.approx(1e-8, rel=1e-4)


def test_the_identity_row_by_row(attention):
    answers = find_queries(TRIANGLE)
    Q = np.stack([a.query for a in answers])
    for i, row in enumerate(Q):
        np.testing.assert_allclose(attention(row, TRIANGLE), np.eye(3)[i], atol=1e-6)
    assert [a.verdict for a in find_queries(WITH_MIDDLE)] == ["reached", "reached", "impossible", "reached"]


def test_a_key_between_two_others_gets_a_third_at_most():
    answer = find_query(WITH_MIDDLE, select(2, 4))
    assert answer.verdict == "impossible"
    assert answer.certificate.floor == pytest.approx(2 / 3)
    assert answer.error == pytest.approx(2 / 3, abs=1e-5)  # and as good as that is found
    assert "k2 = 0.5·k0 + 0.5·k1" in answer.derivation[1]


def test_equal_keys_share(judge):
    keys = np.array([[1.0, 2], [1, 2], [0, 0]])
    answer = find_query(keys, select(0, 3))
    judge(answer)
    assert answer.certificate.floor == pytest.approx(0.5)
    assert "k0 = k1" in answer.derivation[1]
    assert find_query(keys, [0.4, 0.6, 0]).verdict == "impossible"
    assert find_query(keys, [0.5, 0.5, 0]).verdict == "reached"


def test_nearly_possible_is_reached_when_the_tolerance_allows():
    """Equal keys get equal weights, which is 0.001 from 0.501 and 0.499, and nothing is nearer."""
    keys = np.array([[1.0, 2], [1, 2]])
    assert find_query(keys, [0.501, 0.499], within=0.00101).verdict == "reached"
    answer = find_query(keys, [0.501, 0.499], within=0.00099)
    assert answer.verdict == "impossible"
    assert answer.certificate.floor == pytest.approx(0.001)


def test_a_tiny_weight_does_not_hide_that_the_others_are_impossible():
    keys = np.array([[1.0, 2], [1, 2], [0, 1]])
    answer = find_query(keys, [0.6, 0.4 - 1e-9, 1e-9])
    assert answer.verdict == "impossible" and answer.certificate.floor == pytest.approx(0.1, rel=1e-3)


def test_others_that_cannot_be_set_apart_but_get_next_to_nothing():
    """On a line, 2/3 on key 0 and 1/3 on key 2 leave key 1 just 2.5e-7."""
    answer = find_query([[0.0], [-2.0], [-0.09375]], [2 / 3, 0, 1 / 3])
    assert answer.verdict == "reached" and answer.method == "proportions" and answer.margin == 0
    assert answer.weights[1] == pytest.approx(2.5e-7, rel=0.1)


def test_between_what_is_proved_and_what_is_found_nothing_is_claimed():
    answer = find_query(WITH_MIDDLE, [0.4, 0.3, 0.2, 0.1], within=0.09)
    assert answer.verdict == "undecided" and answer.certificate.floor < 0.09 < answer.error
    assert "Not reached, and not refuted" in answer.derivation[1]


def test_sizes_of_keys_do_not_matter():
    for size in (1e-300, 1e-150, 1e-3, 1e150, 1e307):
        answer = find_query(size * TRIANGLE, select(1, 3))
        assert answer.norm * size == pytest.approx(find_query(TRIANGLE, select(1, 3)).norm)


def test_scores_divided_by_the_root_of_the_width(attention):
    plain, scaled = find_query(TRIANGLE, select(1, 3)), find_query(TRIANGLE, select(1, 3), scale=2**-0.5)
    np.testing.assert_allclose(scaled.query, plain.query * 2**0.5)
    assert attention(scaled.query, TRIANGLE, 2**-0.5)[1] > 1 - 1.001e-6


def test_far_from_zero_the_rounding_is_said():
    answer = find_query(TRIANGLE + 1e11, [0.5, 0.3, 0.2])
    assert answer.verdict == "reached" and answer.rounding > 1e-6
    assert any("Take their mean off" in line for line in answer.derivation)


@pytest.mark.parametrize(
    "wanted", [select(0, 4), select(2, 4), average(None, 4), average([0, 1], 4), [0.4, 0.3, 0.2, 0.1]]
)
def test_as_json(wanted):
    found = json.loads(json.dumps(find_query(WITH_MIDDLE, wanted).as_json(), allow_nan=False))
    assert set(found) >= {"verdict", "query", "weights", "error", "margin", "norm", "certificate", "derivation"}
    assert (found["certificate"] is None) == (found["verdict"] == "reached")


@pytest.mark.parametrize(
    "keys",
    [
        [[0], [1e-10], [1]],
        [[0, 0], [1, 0], [0, 1], [1e12, 1e12]],
        [[0, 0], [1e-12, 0], [0, 1e-12], [1, 1]],
        [[0, 0], [1e-12, 0], [0, 1e12], [1, 1e-6]],
    ],
)
def test_keys_at_very_different_distances_are_set_apart(attention, keys):
    answer = find_query(keys, select(0, len(keys)))
    assert answer.verdict == "reached"
    assert 1 - attention(answer.query, keys)[0] <= 1e-6 * (1 + 1e-9)
    assert "none by more" not in " ".join(answer.derivation) or answer.method == "margin"


def test_proportions_of_keys_at_very_different_distances(attention):
    keys, wanted = [[0, 0], [1, 0], [0, 1e14]], [0.5, 0.3, 0.2]
    answer = find_query(keys, wanted)
    assert (answer.verdict, answer.method) == ("reached", "proportions")
    np.testing.assert_allclose(attention(answer.query, keys), wanted, atol=1e-12)


@given(st.integers(0, 10**6))
def test_nothing_that_can_be_set_apart_is_refuted(seed):
    """Keys on one side of a plane through the wanted one, at distances from 1e-12 to 1e12."""
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 10), rng.integers(1, 6)
    keys, side = rng.normal(size=(n, d)), rng.normal(size=d)
    keys *= np.sign(keys @ side)[:, None] * 10.0 ** rng.integers(-12, 13, size=(n, 1))
    keys[0] = 0
    answer = find_query(keys, select(0, int(n)))
    assert answer.verdict != "impossible"
    assert answer.derivation


def test_keys_that_differ_by_rounding_only_are_equal():
    answer = find_query([[0.1 + 0.2], [0.3], [1.0]], [1, 0, 0])
    assert answer.verdict == "impossible" and answer.certificate
    assert answer.certificate.floor == pytest.approx(0.5)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "wanted", "settings", "message"),
    [
        ([[1, math.nan], [0, 1]], [1, 0], {}, "key 0 has nan at place 1; keys must be finite numbers"),
        ([[1, 0], [math.inf, 1]], [1, 0], {}, "key 1 has inf at place 0; keys must be finite numbers"),
        ([1, 2, 3], [1, 0, 0], {}, "one key per row, n × d; this is 3 numbers"),
        ([[1, 2], [3]], [1, 0], {}, "keys must be numbers, with as many in every row"),
        ([["a", "b"]], [1], {}, "keys must be numbers"),
        (np.zeros((0, 2)), [], {}, "one key per row, n × d; this is a table of 0 × 2"),
        (TRIANGLE, [0.5, 0.4, 0], {}, "the wanted weights sum to 0.9, not to 1"),
        (TRIANGLE, [0.5, 0.5], {}, "there are 3 keys, but the wanted weights are 2 numbers"),
        (TRIANGLE, [1.5, -0.5, 0], {}, "the wanted weights have -0.5 for key 1; weights are between 0 and 1"),
        (TRIANGLE, [math.nan, 1, 0], {}, "the wanted weights have nan for key 0"),
        (TRIANGLE, [1, 0, 0], {"within": 0}, "within = 0: the allowed distance from the wanted weights is above 0"),
        (TRIANGLE, [1, 0, 0], {"within": -1e-6}, "within = -1e-06"),
        (TRIANGLE, [1, 0, 0], {"within": math.nan}, "within = nan"),
        (TRIANGLE, [1, 0, 0], {"within": 1e-310}, "within = 1e-310: float64 cannot tell weights so near"),
        (TRIANGLE, [0.5, 0.5, 0], {"within": 1e-16}, "weights of more than one key so near to each other; 1e-14 at"),
        (TRIANGLE, [1, 0, 0], {"scale": 0}, "scale = 0; it must be above 0"),
        (1e-320 * TRIANGLE, [1, 0, 0], {}, "float64 cannot hold the query, or the scores; rescale the keys"),
        ([[5e-324], [0]], [1, 0], {"scale": 0.1}, "float64 cannot hold the query"),
        (1.7e308 * TRIANGLE, [1, 0, 0], {}, "float64 cannot hold the query"),
    ],
)
def test_bad_input_is_named(keys, wanted, settings, message):
    with pytest.raises(UserError) as error:
        find_query(keys, wanted, **settings)
    assert message in str(error.value)


def test_bad_goals_are_named():
    with pytest.raises(UserError, match="there is no key 3; the 3 keys are numbered 0 to 2"):
        select(3, 3)
    with pytest.raises(UserError, match="there is no key -1"):
        average([0, -1], 3)
    with pytest.raises(UserError, match="key 1 is named 2 times"):
        average([1, 1], 3)
    with pytest.raises(UserError, match="at least one key"):
        average([], 3)
