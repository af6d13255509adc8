"""The solve page: geometry and the search for a query agree on which keys can be selected."""

import numpy as np
import pytest
from bench_tools import AnsweringHere, asker
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.solve.inputs import select
from headway.solve.queries import find_query
from headway.workbench.bench import Bench
from headway.workbench.solving import corners


@settings(max_examples=40, deadline=None)  # the first one imports scipy
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=7))
def test_the_corners_are_the_keys_that_a_query_selects(keys):
    K = np.array(keys, dtype=np.float64)
    selected = [k for k in range(len(K)) if find_query(K, select(k, len(K)), 1e-3).verdict == "reached"]
    assert sorted(corners(K)) == selected


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with asker(Bench(tmp_path_factory.mktemp("paper"), models=AnsweringHere())) as client:
        yield client


def test_answers_equal_those_of_headway_solve(client):
    keys = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [0.1, 0.1]]
    found = client.post("/api/ask/solve/query", json={"keys": keys, "wanted": [0, 0, 0, 2]}).json()
    answer = find_query(keys, select(3, 4), 1e-3)
    assert {**answer.as_json(), "corners": found["corners"]} == found
    assert found["verdict"] == "impossible" and sorted(found["corners"]) == [0, 1, 2]
    mixture = np.array(found["certificate"]["mixture"])
    assert mixture @ np.array(keys) == pytest.approx(keys[3])
    key = client.post("/api/ask/solve/key", json={"keys": keys, "wanted": [0, 0, 0, 1], "query": [2, 1], "replace": 3})
    assert key.json()["verdict"] == "reached" and np.array(key.json()["weights"]).argmax() == 3


def test_a_convolution_attends_where_its_taps_are(client):
    asked = {"what": "convolution", "taps": [1, 2, 1], "tokens": 6}
    found = client.post("/api/ask/solve/construction", json=asked).json()
    assert found["response"] == pytest.approx(found["directly"]) and found["response"][2:5] == pytest.approx([1, 2, 1])
    weights = np.array(found["attention"][0])
    assert weights[2][weights[2] > 0] == pytest.approx([0.25, 0.5, 0.25])
    matrix = client.post("/api/ask/solve/matrix", json={"weights": [[0.5, 0.5], [0.2, 0.8]], "width": 2}).json()
    assert matrix["rows"] == np.kron([[0.5, 0.5], [0.2, 0.8]], np.eye(2)).tolist()


@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        ("query", {"keys": [[1, 0], [0, 1]], "wanted": [0, 0]}, "not all zero"),
        ("query", {"keys": [[1, 0], [0]], "wanted": [1, 0]}, ""),
        ("query", {"keys": [[1, 0]], "wanted": [1, 2, 3]}, ""),
        ("query", {"keys": [], "wanted": []}, "keys"),
        ("construction", {"what": "convolutoin", "taps": [1]}, "did you mean 'convolution'"),
        ("construction", {"what": "convolution", "taps": [1, 2]}, "no middle"),
        ("matrix", {"weights": [[1, 0], [0]]}, "different lengths"),
        ("matrix", {"weights": [[0.7, 0.7], [0.2, 0.8]]}, "query 0"),
    ],
)
def test_impossible_input_is_refused(client, path, asked, words):
    answer = client.post(f"/api/ask/solve/{path}", json=asked)
    assert answer.status_code == 422 and words in answer.json()["error"]
