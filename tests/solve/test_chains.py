"""Products of Jacobians, compared with autograd; and exact decisions about bounds on them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.solve.chains import (
    RELU,
    SIGMOID,
    TANH,
    exactly,
    is_at_most,
    lstm,
    norms,
    product,
    recurrence,
    relu_chain,
    with_norm,
)


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("activation", [SIGMOID, TANH, RELU], ids=lambda a: a.name)
def test_jacobians_of_steps_equal_autograds(activation):
    W, x, inputs = gaussian(1, 3, 3), gaussian(1, 3), list(gaussian(4, 1, 3))

    def run(x):
        for b in inputs:
            x = activation.of(W[0] @ x + b[0])
        return x

    expected = torch.autograd.functional.jacobian(run, x[0])
    torch.testing.assert_close(product(recurrence(activation, W, x, inputs))[0], expected)


def test_jacobians_of_layers_equal_autograds():
    weights, x = list(gaussian(4, 1, 3, 3)), gaussian(1, 3)

    def run(x):
        for W in weights[:-1]:
            x = torch.relu(W[0] @ x)
        return weights[-1][0] @ x

    expected = torch.autograd.functional.jacobian(run, x[0])
    torch.testing.assert_close(product(relu_chain(weights, x))[0], expected)


def test_an_lstm_equals_torchs():
    cell = torch.nn.LSTMCell(1, 3, dtype=torch.float64)
    state, given_ = gaussian(1, 6), gaussian(1, 1)

    def run(state):
        return torch.cat(cell(given_, tuple(state.chunk(2, dim=1))), 1)

    expected = torch.autograd.functional.jacobian(run, state)[0, :, 0]
    inputs = (given_ @ cell.weight_ih.T + cell.bias_ih).detach()
    (step,) = lstm(cell.weight_hh.detach()[None], cell.bias_hh.detach()[None], state, [inputs])
    torch.testing.assert_close(step[0], expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-8, 8), min_size=9, max_size=9), st.fractions(0, 30))
def test_the_exact_answer_agrees_with_singular_values(numbers, bound):
    matrix = np.array(numbers, float).reshape(3, 3)
    norm = np.linalg.norm(matrix, 2)
    if abs(norm - float(bound)) > 1e-9:
        assert is_at_most(exactly([matrix]), bound) == (norm <= bound)


def test_a_bound_that_is_attained_is_satisfied():
    assert is_at_most(exactly([np.diag([3.0, 4.0])]), Fraction(4))
    assert not is_at_most(exactly([np.diag([3.0, 4.0])]), Fraction(4) - Fraction(1, 10**30))
    scaled = with_norm(gaussian(5, 3, 3), 0.25)
    assert all(is_at_most(exactly([W]), Fraction(1, 4)) for W in scaled)
    torch.testing.assert_close(norms(scaled), torch.full((5,), 0.25, dtype=torch.float64))
