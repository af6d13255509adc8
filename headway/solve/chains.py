"""Gradients through chains: products of Jacobians, one per layer or step, and bounds on their norms.

    f(x) = W_n·relu(… relu(W_1·x))        ∂f/∂x     = W_n·D_{n−1}·W_{n−1} … D_1·W_1      D_i = diag(0s and 1s)
    x_{t+1} = φ(W·x_t + b_t)              ∂x_n/∂x_1 = D_{n−1}·W … D_1·W                  D_t = diag(φ'(W·x_t + b_t))

Norms are spectral: the largest factor by which a small change can grow. The norm of a product is at most the product of
the norms, and that of D_t is at most the steepest slope of φ: 1/4 for the sigmoid, 1 for tanh and ReLU. Whether an
instance satisfies a bound is decided in exact arithmetic: ‖J‖ ≤ c if and only if c²·I − Jᵀ·J has no negative
eigenvalue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

Factors = Sequence[Float64[Tensor, "N d d"]]
"""The Jacobians of the layers or steps of N instances, in order."""
Rows = Float64[Tensor, "N d"]
Matrices = Float64[Tensor, "N d d"]


@dataclass(frozen=True)
class Activation:
    name: str
    of: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    steepest: Fraction
    """The largest slope."""


SIGMOID = Activation("sigmoid", torch.sigmoid, lambda a: torch.sigmoid(a) * torch.sigmoid(-a), Fraction(1, 4))
TANH = Activation("tanh", torch.tanh, lambda a: 1 - torch.tanh(a) ** 2, Fraction(1))
RELU = Activation("ReLU", torch.relu, lambda a: (a > 0).to(a.dtype), Fraction(1))


def relu_chain(weights: Sequence[Matrices], x: Rows) -> Factors:
    """The Jacobians of the layers of a chain: D_i·W_i, and W_n for the last."""
    found = []
    for W in weights[:-1]:
        a = (W @ x[..., None])[..., 0]
        found.append(RELU.slope(a)[..., None] * W)
        x = RELU.of(a)
    return [*found, weights[-1]]


def recurrence(activation: Activation, W: Matrices, x: Rows, inputs: Sequence[Rows]) -> Factors:
    """The Jacobians of the steps of a recurrence from x_1, one for each of the `inputs` b_t."""
    found = []
    for b in inputs:
        a = (W @ x[..., None])[..., 0] + b
        found.append(activation.slope(a)[..., None] * W)
        x = activation.of(a)
    return found


def lstm(weights: Matrices, bias: Rows, x: Rows, inputs: Sequence[Rows]) -> Factors:
    """The Jacobians of the steps of an LSTM with the state `x` = (h, c), concatenated. `weights` [N, 4·d, d] act on h;
    gates are in the order input, forget, cell, output."""

    def step(state: Tensor, W: Tensor, b: Tensor) -> Tensor:
        h, c = state.chunk(2)
        i, f, g, o = (W @ h + b).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat((torch.sigmoid(o) * torch.tanh(c), c))

    jacobian = torch.func.vmap(torch.func.jacrev(step))
    found = []
    for given in inputs:
        found.append(jacobian(x, weights, bias + given))
        x = torch.func.vmap(step)(x, weights, bias + given)
    return found


def product(factors: Factors) -> Matrices:
    """The Jacobian of the whole chain."""
    found = factors[0]
    for factor in factors[1:]:
        found = factor @ found
    return found


def norms(jacobian: Matrices) -> Float64[Tensor, "N"]:
    return torch.linalg.matrix_norm(jacobian, ord=2)


def with_norm(W: Matrices, norm: float) -> Matrices:
    """Scale to this spectral norm, to 14 digits and never above it."""
    return W * ((1 - 1e-14) * norm / norms(W))[..., None, None]


# --- certificates ----------------------------------------------------------------------------------------------------


def exactly(factors: Sequence[Any]) -> np.ndarray:
    """The product for one instance in exact arithmetic, without rounding."""
    found = None
    for factor in factors:
        exact = np.array([[Fraction(float(v)) for v in row] for row in factor], dtype=object)
        found = exact if found is None else exact.dot(found)
    assert found is not None, "a chain has at least one layer"
    return found


def is_at_most(matrix: np.ndarray, bound: Fraction) -> bool:
    """Whether the spectral norm of an exact matrix is at most `bound`: elimination of bound²·I − MᵀM has no negative
    pivot, and no zero pivot with a nonzero entry in its row."""
    left = np.diag([bound**2] * matrix.shape[1]) - matrix.T.dot(matrix)
    for k in range(len(left)):
        pivot = left[k, k]
        if pivot < 0 or (pivot == 0 and any(left[k, k + 1 :])):
            return False
        for i in range(k + 1, len(left)) if pivot else ():
            left[i, k + 1 :] = left[i, k + 1 :] - left[i, k] / pivot * left[k, k + 1 :]
    return True
