"""Statistics of maps whose values are known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.look.head_statistics import distance_between, on_padding, rollout, statistics


def causal(length: int, heads: int = 2, seed: int = 0, sharpness: float = 1.0) -> torch.Tensor:
    scores = sharpness * torch.randn(heads, length, length, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)


def test_a_head_with_uniform_weights():
    n = 5
    found = statistics(torch.full((1, n, n), 1 / n)).of(0)
    assert found["entropy"] == pytest.approx(math.log(n)) and found["entropy_share"] == pytest.approx(1)
    assert found["on_self"] == found["on_first"] == found["on_previous"] == pytest.approx(1 / n)
    assert found["distance"] == pytest.approx(sum(abs(i - j) for i in range(n) for j in range(n)) / n**2)


def test_a_causal_head_with_uniform_weights():
    weights = torch.ones(4, 4).tril()
    found = statistics((weights / weights.sum(-1, keepdim=True))[None]).of(0)
    # Rows with 2, 3 and 4 keys; the first row has only one.
    assert found["entropy"] == pytest.approx((math.log(2) + math.log(3) + math.log(4)) / 3)
    assert found["entropy_share"] == pytest.approx(1)
    assert found["on_self"] == found["on_first"] == found["on_previous"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found["distance"] == pytest.approx((1 / 2 + 3 / 3 + 6 / 4) / 3)


def test_a_head_that_attends_mostly_to_the_previous_token():
    weights = 0.9 * torch.eye(6).roll(-1, dims=1) + 0.1 * torch.eye(6)  # row i: 0.9 at i - 1, row 0 at 5
    found = statistics(weights[None]).of(0)
    assert found["on_previous"] == pytest.approx(0.9) and found["on_self"] == pytest.approx(0.1)
    assert found["on_first"] == pytest.approx((0.1 + 0.9) / 6)
    assert found["distance"] == pytest.approx(0.9 * (5 * 1 + 5) / 6)
    one_row = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert found["entropy"] == pytest.approx(one_row)
    assert found["entropy_share"] == pytest.approx(one_row / math.log(2))  # each row has two visible keys


def test_with_one_visible_key_there_is_no_entropy():
    assert all(math.isnan(value) for value in statistics(torch.ones(1, 1, 1)).of(0).values())


@given(st.integers(2, 9), st.integers(0, 1000), st.floats(0.1, 20))
def test_bounds(length: int, seed: int, sharpness: float):
    weights = causal(length, 3, seed, sharpness)
    found = statistics(weights)
    assert ((found.entropy >= 0) & (found.entropy <= math.log(length) + 1e-6)).all()
    for share in (found.entropy_share, found.on_self, found.on_first, found.on_previous):
        assert ((share >= 0) & (share <= 1 + 1e-6)).all()
    assert ((found.distance >= 0) & (found.distance <= length - 1)).all()


def test_any_leading_axes_are_allowed():
    weights = torch.stack([causal(5, seed=s) for s in range(3)])
    assert statistics(weights).entropy.shape == (3, 2)
    assert statistics(weights).of(1, 0) == pytest.approx(statistics(weights[1]).of(0))


def test_the_weight_on_padding():
    weights = torch.tensor([[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    padding_mask = torch.tensor([True, True, False])
    assert on_padding(weights, padding_mask).tolist() == [
        0.125
    ]  # of the two tokens; the row of the padding does not count


def test_rollout_is_that_of_abnar_and_zuidema():
    layers = [causal(6, heads=h, seed=h) for h in (1, 2, 4)]
    expected = torch.eye(6).double()
    for a in layers:
        a = 0.5 * a.mean(0).double() + 0.5 * torch.eye(6)
        expected = (a / a.sum(-1, keepdim=True)) @ expected
    found = rollout(layers)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(6).double())
    assert found.triu(1).eq(0).all()


def test_the_order_of_layers_matters_to_rollout():
    a, b = causal(4, seed=1), causal(4, seed=2)
    assert not torch.allclose(rollout([a, b]), rollout([b, a]))


def test_distances_between_maps():
    self_, first = torch.eye(4)[None], torch.zeros(1, 4, 4)
    first[..., 0] = 1
    assert distance_between(self_, self_).tolist() == [0]
    assert distance_between(self_, first).tolist() == [0.75]  # the first row agrees
