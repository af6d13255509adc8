"""Constructed keys: the best key is compared with the result of a brute-force search."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.solve import average, find_key, select

QUERY = np.array([2.0, 1.0])
KEYS = np.array([[1.0, 0], [0, 1], [-1, -1]])


def error(attention, answer, key) -> float:
    keys = answer.keys.copy()
    keys[answer.replaced] = key
    return np.abs(attention(answer.query, keys, answer.scale) - answer.wanted).sum() / 2


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 6),
    d=st.integers(1, 4),
    size=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    norm=st.none() | st.floats(0.01, 20),
    goal=st.sampled_from(["select", "average", "any", "possible"]),
    within=st.sampled_from([0.2, 1e-3, 1e-8]),
)
def test_no_key_is_better(attention, seed, n, d, size, norm, goal, within):
    rng = np.random.default_rng(seed)
    keys, query, place = rng.normal(size=(n, d)), size * rng.normal(size=d), int(rng.integers(n))
    wanted = {
        "select": select(place, n),
        "average": average(rng.permutation(n)[: rng.integers(1, n + 1)].tolist(), n),
        "any": rng.dirichlet(np.ones(n)),
        "possible": attention(query, np.vstack([keys[:place], rng.normal(size=(1, d)), keys[place + 1 :]])),
    }[goal]
    answer = find_key(query, keys, place, wanted, norm, within)
    assert error(attention, answer, answer.key) == pytest.approx(answer.error, abs=1e-12)
    assert answer.error >= answer.least_error - 1e-12
    assert answer.verdict == ("reached" if answer.error <= within else "impossible")
    if norm is not None:
        assert np.linalg.norm(answer.key) == pytest.approx(norm)
    for _ in range(20):
        key = rng.normal(size=d) * rng.choice([0.1, 1, 10])
        other = error(attention, answer, key if norm is None else key * norm / np.linalg.norm(key))
        assert other >= answer.least_error - 1e-12
        if error(attention, answer, key) <= within:  # if it is possible, its norm was among those called possible
            assert answer.norms is not None
            assert answer.norms[0] - 1e-9 <= np.linalg.norm(key) <= answer.norms[1] + 1e-9


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), norm=st.none() | st.floats(1e-12, 1e12), goal=st.sampled_from(["select", "any"]))
def test_keys_of_very_different_sizes(exactly, seed, norm, goal):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    keys = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-12, 13, size=(n, 1))
    wanted = select(0, n) if goal == "select" else rng.dirichlet(np.ones(n))
    answer = find_key(rng.normal(size=d), keys, 0, wanted, norm)
    error = np.maximum(exactly(answer.query, answer.keys) - wanted, 0).sum()
    assert error == pytest.approx(answer.error, abs=1e-12)
    assert (error <= 1e-6) == (answer.verdict == "reached")
    assert answer.verdict != "unrepresentable" or answer.least_error <= 1e-6
    assert norm is None or np.linalg.norm(answer.key) == pytest.approx(norm)
    assert answer.derivation


def test_a_copy_of_a_key_gets_half_of_its_weight():
    """First part of case B2: if the key of another value is copied, both get the same weight."""
    keys = np.array([[1.0, 0], [1, 0], [0, 1], [-3, 0]])
    answer = find_key([40.0, 0], keys, 2, average([0, 1, 2], 4))
    assert answer.verdict == "reached"
    assert answer.score == pytest.approx(40)  # that of keys 0 and 1
    np.testing.assert_allclose(answer.key, [1, 1])  # orthogonal to the query it is unchanged


def test_a_key_of_length_one_that_is_selected():
    """Second part of case B2: a key of norm 1 gets at most σ(‖q‖ − log Z), which may be too little."""
    log_rest = math.log(math.exp(2) + math.exp(1))
    best = 1 / (1 + math.exp(log_rest - math.sqrt(5)))
    answer = find_key(QUERY, KEYS, 2, select(2, 3), norm=1)
    assert answer.verdict == "impossible"
    assert answer.weights[2] == pytest.approx(best)
    np.testing.assert_allclose(answer.key, QUERY / math.sqrt(5))
    least = (math.log((1 - 1e-6) / 1e-6) + log_rest) / math.sqrt(5)
    assert answer.norms == (pytest.approx(least), math.inf)
    assert find_key(QUERY, KEYS, 2, select(2, 3), norm=least * 1.000001).verdict == "reached"
    assert find_key(QUERY, KEYS, 2, select(2, 3), norm=least * 0.999999).verdict == "impossible"
    assert find_key(20 * QUERY, KEYS, 2, select(2, 3), norm=1).verdict == "impossible"  # key 0 is too similar to q
    assert find_key(200 * QUERY, KEYS, 2, select(2, 3), norm=1).verdict == "reached"


def test_the_key_changes_no_more_than_the_tolerance_requires():
    answer = find_key(QUERY, KEYS, 2, select(2, 3))
    assert answer.error == pytest.approx(1e-6) and answer.error <= 1e-6
    np.testing.assert_allclose(answer.key - KEYS[2], QUERY * (answer.score + 3) / 5)  # moved along q only


def test_proportions_of_the_others_cannot_be_changed():
    answer = find_key(QUERY, KEYS, 2, average([0, 1], 3))
    assert answer.verdict == "impossible" and answer.norms is None
    assert answer.least_error == pytest.approx(math.e / (1 + math.e) - 0.5)
    assert "impossible with any norm" in answer.derivation[-1]


def test_a_key_that_must_get_no_weight_must_be_long_enough_too():
    """Keys 0 and 1 are equal; the score of key 2 must be at most log Z + log(ε/(1 − ε)), which is far below 0."""
    keys = np.array([[1.0, 0], [1, 0], [5, 5]])
    least = (math.log((1 - 1e-6) / 1e-6) - 2 - math.log(2)) / math.sqrt(5)
    answer = find_key(QUERY, keys, 2, average([0, 1], 3))
    assert answer.verdict == "reached" and answer.norms == (pytest.approx(least), math.inf)
    assert find_key(QUERY, keys, 2, average([0, 1], 3), norm=least * 1.000001).verdict == "reached"
    assert find_key(QUERY, keys, 2, average([0, 1], 3), norm=least * 0.999999).verdict == "impossible"


def test_on_a_line_there_are_two_keys_of_each_norm():
    answer = find_key([2.0], [[1.0], [0.0]], 1, [0.5, 0.5], norm=3, within=0.01)
    assert answer.verdict == "impossible" and abs(answer.key[0]) == 3
    low, high = answer.norms
    assert low < 1 < high < 1.1


def test_a_query_of_zeros_gives_every_key_the_same():
    assert find_key([0.0, 0], KEYS, 1, average(None, 3)).verdict == "reached"
    assert find_key([0.0, 0], KEYS, 1, select(1, 3), norm=1).verdict == "impossible"
    assert find_key([0.0, 0], KEYS, 1, select(1, 3)).least_error == pytest.approx(2 / 3)


def test_a_single_key_gets_all_the_weight():
    assert find_key(QUERY, [[1.0, 0]], 0, [1.0]).verdict == "reached"


def test_scores_divided_by_the_root_of_the_width():
    plain, scaled = (find_key(QUERY, KEYS, 2, select(2, 3), scale=s) for s in (1.0, 2**-0.5))
    assert scaled.verdict == "reached" and scaled.norms[0] > plain.norms[0]


@pytest.mark.parametrize("norm", [None, 1.0])
@pytest.mark.parametrize("wanted", [select(2, 3), average(None, 3), [1, 0, 0]])
def test_as_json(norm, wanted):
    found = json.loads(json.dumps(find_key(QUERY, KEYS, 2, wanted, norm).as_json(), allow_nan=False))
    assert set(found) >= {"verdict", "key", "weights", "error", "norms", "weight_range", "derivation"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": 0}, "norm = 0; it must be above 0"),
        ({"norm": -1}, "norm = -1; it must be above 0"),
        ({"norm": math.inf}, "norm = inf; it must be above 0"),
        ({"replace": 3}, "there is no key 3; the 3 keys are numbered 0 to 2"),
        ({"query": [1.0]}, "the query is 1 number; keys of 2 numbers need a query of 2"),
        ({"query": [1.0, math.nan]}, "the query contains nan"),
        ({"keys": [[math.nan, 0]]}, "key 0 has nan at index 0"),
        ({"within": 0}, "within = 0"),
        ({"query": [1e200, 0], "keys": [[1e200, 0]] * 3}, "the scores q·k are too large for float64"),
        ({"query": [1e-308, 0], "scale": 1e-3}, "float64 cannot represent the key"),
        ({"wanted": [1, 1, 1]}, "the wanted weights sum to 3, not to 1"),
    ],
)
def test_bad_input_is_named(changes, message):
    question = {"query": QUERY, "keys": KEYS, "replace": 2, "wanted": [0, 0, 1]} | changes
    with pytest.raises(UserError) as found:
        find_key(**question)
    assert message in str(found.value)
