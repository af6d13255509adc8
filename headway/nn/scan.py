"""Recurrences over time for R replicas at once: one matrix product per step for all of them, hand-written gradients.

    products    [R, B, T, G·H]       the input's part of the gates, computed for all tokens in one matrix product before
    recurrent   [R, G·H, H]          the matrix from the hidden state to the gates
    states      [S, R, B, T + 1, H]  in float32: the initial state, then one after every token
    kept        [R, B, T, K·H]       what the cell saves of every step for its gradient: the gates

A step is one matrix product and one pointwise operation, the cell. On a GPU the latter is a single kernel
(`kernels/scan_kernels.py`). The gradient of the recurrent matrix is one product over all steps at the end. To a
compiler (and to autograd) the whole loop is one operation: it is not unrolled. Padding leaves the state unchanged.
"""

from functools import cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

States = Float[Tensor, "S R B H"]


class Cell:
    """What one step computes. `forward` and `backward` write into tensors that they are given."""

    gates: ClassVar[int]
    """G: the number of gates in `products`."""
    states: ClassVar[int] = 1
    """S: the number of state tensors, including the hidden state."""
    keeps: ClassVar[int] = 0
    """K: the number of values per unit saved for the gradient."""
    steepest: ClassVar[float | None] = None
    """The largest slope of the nonlinearity, if a step is only that and the recurrent matrix; else None."""

    def forward(
        self, given: Tensor, product: Tensor, bias: Tensor | None, before: Tensor, after: Tensor, kept: Tensor
    ) -> None:
        """Compute the state after the step from `given` [R, B, G·H] and `product`, recurrent matrix · hidden state."""
        raise NotImplementedError

    def backward(
        self, slope: Tensor, kept: Tensor, before: Tensor, after: Tensor, d_given: Tensor, d_product: Tensor
    ) -> Tensor:
        """From the gradient `slope` of the state after the step: write those of `given` and `product`, and return that
        of the state before, [S, R, B, H]."""
        raise NotImplementedError


class TanhCell(Cell):
    """h' = tanh(a + W h)"""

    gates = 1
    steepest = 1.0

    def activate(self, x: Tensor) -> Tensor:
        return x.tanh()

    def derivative(self, y: Tensor) -> Tensor:
        """The derivative as a function of the output y."""
        return 1 - y * y

    def forward(self, given, product, bias, before, after, kept):
        after[0].copy_(self.activate(given.to(before.dtype) + product))

    def backward(self, slope, kept, before, after, d_given, d_product):
        d_given.copy_(slope[0] * self.derivative(after[0]))
        return torch.zeros_like(slope)


class ReluCell(TanhCell):
    """h' = max(a + W h, 0)"""

    def activate(self, x):
        return x.relu()

    def derivative(self, y):
        return (y > 0).to(y.dtype)


class SigmoidCell(TanhCell):
    """h' = σ(a + W h)"""

    steepest = 0.25

    def activate(self, x):
        return x.sigmoid()

    def derivative(self, y):
        return y * (1 - y)


class LstmCell(Cell):
    """c' = f·c + i·g, h' = o·tanh(c'), with the gates in the order i, f, g, o."""

    gates, states, keeps = 4, 2, 4

    def forward(self, given, product, bias, before, after, kept):
        i, f, g, o = (given.to(before.dtype) + product).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cell = f * before[1] + i * g
        after[0].copy_(o * cell.tanh())
        after[1].copy_(cell)
        kept.copy_(torch.cat((i, f, g, o), -1))

    def backward(self, slope, kept, before, after, d_given, d_product):
        i, f, g, o = kept.chunk(4, -1)
        squashed = after[1].tanh()
        d_cell = slope[1] + slope[0] * o * (1 - squashed * squashed)
        d_i, d_f, d_g = d_cell * g * i * (1 - i), d_cell * before[1] * f * (1 - f), d_cell * i * (1 - g * g)
        d_o = slope[0] * squashed * o * (1 - o)
        d_given.copy_(torch.cat((d_i, d_f, d_g, d_o), -1))
        return torch.stack((torch.zeros_like(d_cell), d_cell * f))


class GruCell(Cell):
    """h' = (1 - z)·n + z·h with n = tanh(a + r·(W h + b)); the gates are r, z, n. W h + b is saved with them."""

    gates, keeps = 3, 4

    def forward(self, given, product, bias, before, after, kept):
        (a_r, a_z, a_n), (b_r, b_z, b_n) = given.to(before.dtype).chunk(3, -1), product.chunk(3, -1)
        m = b_n if bias is None else b_n + bias[:, None]
        r, z = (a_r + b_r).sigmoid(), (a_z + b_z).sigmoid()
        n = (a_n + r * m).tanh()
        after[0].copy_((1 - z) * n + z * before[0])
        kept.copy_(torch.cat((r, z, n, m), -1))

    def backward(self, slope, kept, before, after, d_given, d_product):
        r, z, n, m = kept.chunk(4, -1)
        d_n = slope[0] * (1 - z) * (1 - n * n)
        d_z, d_r = slope[0] * (before[0] - n) * z * (1 - z), d_n * m * r * (1 - r)
        d_given.copy_(torch.cat((d_r, d_z, d_n), -1))
        d_product.copy_(torch.cat((d_r, d_z, d_n * r), -1))
        return (slope[0] * z)[None]


CELLS: dict[str, Cell] = {
    "rnn-tanh": TanhCell(),
    "rnn-relu": ReluCell(),
    "rnn-sigmoid": SigmoidCell(),
    "gru": GruCell(),
    "lstm": LstmCell(),
}


def scan(
    kind: str,
    products: Float[Tensor, "R B T GH"],
    recurrent: Float[Tensor, "R GH H"],
    bias: Float[Tensor, "R H"] | None,
    first: Float[Tensor, "S R B H"],
    real: Bool[Tensor, "R B T"] | None = None,
) -> tuple[Float[Tensor, "S R B T1 H"], Float[Tensor, "R B T KH"]]:
    """All states from the initial one on, and what was saved for the gradient. `bias`: the b of a GRU's W h + b."""
    return _scan(kind, products, recurrent, bias, first, None if real is None else real.contiguous())


@torch.library.custom_op("headway::scan", mutates_args=())
def _scan(
    kind: str, products: Tensor, recurrent: Tensor, bias: Tensor | None, first: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    cell, (R, B, T, _), dtype = CELLS[kind], products.shape, products.dtype
    states = first.new_empty(len(first), R, B, T + 1, first.shape[-1])
    kept = products.new_empty(R, B, T, cell.keeps * first.shape[-1])
    states[:, :, :, 0] = first
    into, step = recurrent.to(dtype).mT, _forward(kind, _has_kernels(first))
    hidden, products = first[0].to(dtype), products.contiguous()
    for t in range(T):
        before, after = states[:, :, :, t], states[:, :, :, t + 1]
        hidden = step(products[:, :, t], hidden @ into, bias, before, after, kept[:, :, t], _at(real, t))
    return states, kept


@_scan.register_fake
def _(kind, products, recurrent, bias, first, real):
    (R, B, T, _), (S, _, _, H) = products.shape, first.shape
    return first.new_empty(S, R, B, T + 1, H), products.new_empty(R, B, T, CELLS[kind].keeps * H)


@torch.library.custom_op("headway::scan_backward", mutates_args=())
def _scan_backward(
    kind: str,
    d_states: Tensor,
    recurrent: Tensor,
    states: Tensor,
    kept: Tensor,
    real: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `products`, of recurrent matrix · hidden state (empty if the same: all but GRU), and of the
    initial state."""
    cell, (S, R, B, _, H) = CELLS[kind], states.shape
    T, step, back = kept.shape[2], _backward(kind, _has_kernels(states)), recurrent.to(dtype)
    d_given = torch.empty(R, B, T, cell.gates * H, dtype=dtype, device=states.device)
    d_product = torch.empty_like(d_given) if kind == "gru" else d_given
    slope, pushed, d_states = states.new_zeros(S, R, B, H), d_given.new_zeros(R, B, H), d_states.contiguous()
    for t in reversed(range(T)):
        before, after = states[:, :, :, t], states[:, :, :, t + 1]
        told = d_given[:, :, t], d_product[:, :, t]
        slope = step(d_states[:, :, :, t + 1], slope, pushed, kept[:, :, t], before, after, *told, _at(real, t))
        pushed = d_product[:, :, t] @ back
    slope = slope + d_states[:, :, :, 0]
    slope[0] += pushed
    return d_given, d_product if kind == "gru" else d_given.new_empty(0), slope


@_scan_backward.register_fake
def _(kind, d_states, recurrent, states, kept, real, dtype):
    S, R, B, T1, H = states.shape
    d_given = torch.empty(R, B, T1 - 1, CELLS[kind].gates * H, dtype=dtype, device=states.device)
    return d_given, torch.empty_like(d_given) if kind == "gru" else d_given.new_empty(0), states.new_empty(S, R, B, H)


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    kind, products, recurrent, bias, _, real = inputs
    ctx.kind, ctx.has_bias, ctx.dtype = kind, bias is not None, products.dtype
    ctx.save_for_backward(recurrent, real, *output)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, d_states: Tensor | None, d_kept: Tensor | None):
    recurrent, real, states, kept = ctx.saved_tensors
    if d_states is None:
        return (None,) * 6
    d_given, d_product, d_first = _scan_backward(ctx.kind, d_states, recurrent, states, kept, real, ctx.dtype)
    d_product = d_product if d_product.numel() else d_given
    hidden = states[0, :, :, :-1].to(d_product.dtype).flatten(1, 2)  # [R, B·T, H]
    d_recurrent = d_product.flatten(1, 2).mT @ hidden
    d_bias = d_product[..., -hidden.shape[-1] :].sum((1, 2), dtype=states.dtype) if ctx.has_bias else None
    return None, d_given, d_recurrent.to(recurrent.dtype), d_bias, d_first, None


_scan.register_autograd(_gradient, setup_context=_remember)


def _at(real: Tensor | None, t: int) -> Tensor | None:
    return None if real is None else real[:, :, t, None]


def _has_kernels(states: Tensor) -> bool:
    return states.is_cuda and states.dtype == torch.float32


@cache
def _forward(kind: str, has_kernels: bool) -> Any:
    """The function for one step; it returns the new hidden state in the dtype of the products."""
    if has_kernels:
        from headway.nn.kernels.scan_kernels import FORWARD

        return FORWARD[kind]
    cell = CELLS[kind]

    def step(given, product, bias, before, after, kept, real):
        cell.forward(given, product, bias, before, after, kept)
        if real is not None:
            after.copy_(torch.where(real, after, before))
        return after[0].to(product.dtype)

    return step


@cache
def _backward(kind: str, has_kernels: bool) -> Any:
    """The function for one step of the backward pass; it returns the gradient of the state before the step."""
    if has_kernels:
        from headway.nn.kernels.scan_kernels import BACKWARD

        return BACKWARD[kind]
    cell = CELLS[kind]

    def step(d_after, slope, pushed, kept, before, after, d_given, d_product, real):
        whole = slope + d_after
        whole[0] += pushed
        passed = cell.backward(whole, kept, before, after, d_given, d_product)
        if real is None:
            return passed
        d_given.copy_(torch.where(real, d_given, 0))
        d_product.copy_(torch.where(real, d_product, 0))
        return torch.where(real, passed, whole)

    return step
