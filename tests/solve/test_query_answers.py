"""The answers for keys whose geometry is known, and invalid questions."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.solve import average, find_queries, find_query, select

TRIANGLE = np.array([[1.0, 0], [0, 1], [-1, -1]])
WITH_MIDDLE = np.array([[1.0, 0], [0, 1], [0.5, 0.5], [-1, -1]])


def test_the_mean_is_the_query_zero():
    answer = find_query(np.random.default_rng(0).normal(size=(20, 3)), average(None, 20))
    assert answer.verdict == "reached" and answer.error < 1e-15 and not answer.query.any()


def test_exact_if_the_log_ratios_are_in_the_row_space():
    answer = find_query(TRIANGLE, [0.7, 0.2, 0.1])
    assert answer.method == "proportions" and answer.error < 1e-15 and answer.margin is None


def test_the_margin_and_the_scale_are_right():
    """Key 0 of the triangle is 6/√20 from the line through the others."""
    answer = find_query(TRIANGLE, select(0, 3), within=1e-6)
    assert answer.margin == pytest.approx(3 / math.sqrt(5))
    assert answer.error == pytest.approx(1e-6, rel=1e-6)  # and not smaller: the query is as short as ε allows
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
    assert answer.error == pytest.approx(2 / 3, abs=1e-5)  # and a query that reaches it is found
    assert "k2 = 0.5·k0 + 0.5·k1" in answer.derivation[1]


def test_equal_keys_share_their_weight(judge):
    keys = np.array([[1.0, 2], [1, 2], [0, 0]])
    answer = find_query(keys, select(0, 3))
    judge(answer)
    assert answer.certificate.floor == pytest.approx(0.5)
    assert "k0 = k1" in answer.derivation[1]
    assert find_query(keys, [0.4, 0.6, 0]).verdict == "impossible"
    assert find_query(keys, [0.5, 0.5, 0]).verdict == "reached"


def test_nearly_possible_is_reached_when_the_tolerance_allows():
    """Equal keys get equal weights, at a distance of 0.001 from 0.501 and 0.499, and nothing is closer."""
    keys = np.array([[1.0, 2], [1, 2]])
    assert find_query(keys, [0.501, 0.499], within=0.00101).verdict == "reached"
    answer = find_query(keys, [0.501, 0.499], within=0.00099)
    assert answer.verdict == "impossible"
    assert answer.certificate.floor == pytest.approx(0.001)


def test_a_tiny_weight_does_not_hide_that_the_others_are_impossible():
    keys = np.array([[1.0, 2], [1, 2], [0, 1]])
    answer = find_query(keys, [0.6, 0.4 - 1e-9, 1e-9])
    assert answer.verdict == "impossible" and answer.certificate.floor == pytest.approx(0.1, rel=1e-3)


def test_other_keys_that_cannot_be_separated_but_get_almost_no_weight():
    """On a line, 2/3 on key 0 and 1/3 on key 2 leave only 2.5e-7 for key 1."""
    answer = find_query([[0.0], [-2.0], [-0.09375]], [2 / 3, 0, 1 / 3])
    assert answer.verdict == "reached" and answer.method == "proportions" and answer.margin == 0
    assert answer.weights[1] == pytest.approx(2.5e-7, rel=0.1)


def test_between_the_proved_and_the_found_bound_nothing_is_claimed():
    answer = find_query(WITH_MIDDLE, [0.4, 0.3, 0.2, 0.1], within=0.09)
    assert answer.verdict == "undecided" and answer.certificate.floor < 0.09 < answer.error
    assert "Neither reached nor proved impossible" in answer.derivation[1]


def test_sizes_of_keys_do_not_matter():
    for size in (1e-300, 1e-150, 1e-3, 1e150, 1e307):
        answer = find_query(size * TRIANGLE, select(1, 3))
        assert answer.norm * size == pytest.approx(find_query(TRIANGLE, select(1, 3)).norm)


def test_scores_divided_by_the_root_of_the_width(attention):
    plain, scaled = find_query(TRIANGLE, select(1, 3)), find_query(TRIANGLE, select(1, 3), scale=2**-0.5)
    np.testing.assert_allclose(scaled.query, plain.query * 2**0.5)
    assert attention(scaled.query, TRIANGLE, 2**-0.5)[1] > 1 - 1.001e-6


def test_far_from_zero_the_rounding_error_is_reported():
    answer = find_query(TRIANGLE + 1e11, [0.5, 0.3, 0.2])
    assert answer.verdict == "reached" and answer.rounding > 1e-6
    assert any("Subtract their mean" in line for line in answer.derivation)


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
def test_keys_at_very_different_distances_are_separated(attention, keys):
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
def test_separable_keys_are_never_refuted(seed):
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
        ([[1, math.nan], [0, 1]], [1, 0], {}, "key 0 has nan at index 1; keys must be finite numbers"),
        ([[1, 0], [math.inf, 1]], [1, 0], {}, "key 1 has inf at index 0; keys must be finite numbers"),
        ([1, 2, 3], [1, 0, 0], {}, "one key per row, n × d; this is 3 numbers"),
        ([[1, 2], [3]], [1, 0], {}, "keys must be numbers, with the same count in every row"),
        ([["a", "b"]], [1], {}, "keys must be numbers"),
        (np.zeros((0, 2)), [], {}, "one key per row, n × d; this is a table of 0 × 2"),
        (TRIANGLE, [0.5, 0.4, 0], {}, "the wanted weights sum to 0.9, not to 1"),
        (TRIANGLE, [0.5, 0.5], {}, "there are 3 keys, but the wanted weights are 2 numbers"),
        (TRIANGLE, [1.5, -0.5, 0], {}, "the wanted weights have -0.5 for key 1; weights must be between 0 and 1"),
        (TRIANGLE, [math.nan, 1, 0], {}, "the wanted weights have nan for key 0"),
        (TRIANGLE, [1, 0, 0], {"within": 0}, "within = 0: the allowed distance must be above 0"),
        (TRIANGLE, [1, 0, 0], {"within": -1e-6}, "within = -1e-06"),
        (TRIANGLE, [1, 0, 0], {"within": math.nan}, "within = nan"),
        (
            TRIANGLE,
            [1, 0, 0],
            {"within": 1e-310},
            "within = 1e-310: float64 cannot resolve such small differences of weights",
        ),
        (
            TRIANGLE,
            [0.5, 0.5, 0],
            {"within": 1e-16},
            "differences of weights of more than one key; give at least 1e-14",
        ),
        (TRIANGLE, [1, 0, 0], {"scale": 0}, "scale = 0; it must be above 0"),
        (1e-320 * TRIANGLE, [1, 0, 0], {}, "float64 cannot represent the query or the scores; rescale the keys"),
        ([[5e-324], [0]], [1, 0], {"scale": 0.1}, "float64 cannot represent the query"),
        (1.7e308 * TRIANGLE, [1, 0, 0], {}, "float64 cannot represent the query"),
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
    with pytest.raises(UserError, match="key 1 is listed 2 times"):
        average([1, 1], 3)
    with pytest.raises(UserError, match="at least one key"):
        average([], 3)
