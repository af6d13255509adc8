"""One GPU kernel per step for RNN, GRU and LSTM, forward and backward: equivalent to the plain cells of `scan.py`.

In ordinary operations a step is a dozen launches, each of which reads and writes all gates. torch.compile cannot be
relied on here, because the states before and after a step are parts of one tensor. Every batch row of every replica is
a row of programs, so that replicas run in parallel. All step functions have the same signature: see `scan._forward` and
`scan._backward`.
"""

# pyright: reportMissingImports=false, reportUnreachable=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# (Triton comes with torch's CUDA builds only, and this module is imported only there.)

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


def rnn_forward(
    nonlinearity: str, given: Tensor, product: Tensor, bias: Tensor | None, before: Tensor, after: Tensor,
    kept: Tensor, real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The hidden state after the step, in the dtype of the products; `after` is written."""
    H, masked, hidden = before.shape[-1], real is not None, _hidden(before, product)
    _rnn_forward[_grid(before)](
        given, product, before[0], after[0], hidden, real if masked else given,
        given.stride(1), before.stride(2), real.stride(1) if masked else 0, H, nonlinearity, masked, BLOCK,
    )  # fmt: skip
    return hidden


def rnn_backward(
    nonlinearity: str, d_after: Tensor, slope: Tensor, pushed: Tensor, kept: Tensor, before: Tensor, after: Tensor,
    d_given: Tensor, d_product: Tensor, real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of the state before, which overwrites that of the state after. Writes `d_given`."""
    H, masked = before.shape[-1], real is not None
    _rnn_backward[_grid(before)](
        d_after[0], slope[0], pushed, after[0], d_given, real if masked else d_given, d_after.stride(2),
        after.stride(2), d_given.stride(1), real.stride(1) if masked else 0, H, nonlinearity, masked, BLOCK,
    )  # fmt: skip
    return slope


def gru_forward(
    given: Tensor, product: Tensor, bias: Tensor | None, before: Tensor, after: Tensor, kept: Tensor,
    real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The hidden state after the step, in the dtype of the products; `after` and `kept` are written."""
    (B, H), masked, biased, hidden = before.shape[-2:], real is not None, bias is not None, _hidden(before, product)
    _gru_forward[_grid(before)](
        given, product, bias if biased else given, before[0], after[0], kept, hidden, real if masked else given,
        given.stride(1), before.stride(2), kept.stride(1), real.stride(1) if masked else 0, B, H, biased, masked, BLOCK,
    )  # fmt: skip
    return hidden


def gru_backward(
    d_after: Tensor, slope: Tensor, pushed: Tensor, kept: Tensor, before: Tensor, after: Tensor, d_given: Tensor,
    d_product: Tensor, real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of the state before, which overwrites that of the state after. Writes `d_given` and `d_product`."""
    H, masked = before.shape[-1], real is not None
    _gru_backward[_grid(before)](
        d_after[0], slope[0], pushed, kept, before[0], d_given, d_product, real if masked else d_given,
        d_after.stride(2), kept.stride(1), before.stride(2), d_given.stride(1), real.stride(1) if masked else 0,
        H, masked, BLOCK,
    )  # fmt: skip
    return slope


def lstm_forward(
    given: Tensor, product: Tensor, bias: Tensor | None, before: Tensor, after: Tensor, kept: Tensor,
    real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The hidden state after the step, in the dtype of the products; `after` and `kept` are written."""
    H, masked, hidden = before.shape[-1], real is not None, _hidden(before, product)
    _lstm_forward[_grid(before)](
        given, product, before[0], before[1], after[0], after[1], kept, hidden, real if masked else given,
        given.stride(1), before.stride(2), kept.stride(1), real.stride(1) if masked else 0, H, masked, BLOCK,
    )  # fmt: skip
    return hidden


def lstm_backward(
    d_after: Tensor, slope: Tensor, pushed: Tensor, kept: Tensor, before: Tensor, after: Tensor, d_given: Tensor,
    d_product: Tensor, real: Tensor | None,
) -> Tensor:  # fmt: skip
    """The gradient of the state before, which overwrites that of the state after. Writes `d_given`."""
    H, masked = before.shape[-1], real is not None
    _lstm_backward[_grid(before)](
        d_after[0], d_after[1], slope[0], slope[1], pushed, kept, before[1], after[1], d_given,
        real if masked else d_given, d_after.stride(2), kept.stride(1), before.stride(2), d_given.stride(1),
        real.stride(1) if masked else 0, H, masked, BLOCK,
    )  # fmt: skip
    return slope


FORWARD = {"gru": gru_forward, "lstm": lstm_forward}
BACKWARD = {"gru": gru_backward, "lstm": lstm_backward}
for _name in ("tanh", "relu", "sigmoid"):
    FORWARD[f"rnn-{_name}"], BACKWARD[f"rnn-{_name}"] = partial(rnn_forward, _name), partial(rnn_backward, _name)


def _hidden(before: Tensor, product: Tensor) -> Tensor:
    return torch.empty(before.shape[1:], dtype=product.dtype, device=product.device)


def _grid(state: Tensor) -> tuple[int, int]:
    _, R, B, H = state.shape
    return R * B, triton.cdiv(H, BLOCK)


@triton.jit
def _number(at, here):
    return tl.load(at, here).to(tl.float32)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _rnn_forward(
    given, product, hidden_before, hidden_after, hidden, real,
    given_row, state_row, real_row, H, nonlinearity: tl.constexpr, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    flat, at = row * H + unit, row * state_row + unit
    out = _number(given + row * given_row + unit, here) + _number(product + flat, here)
    if nonlinearity == "tanh":
        out = _tanh(out)
    elif nonlinearity == "relu":
        out = tl.where(out < 0, 0.0, out)  # NaN stays NaN
    else:
        out = tl.sigmoid(out)
    if masked:
        out = tl.where(tl.load(real + row * real_row), out, tl.load(hidden_before + at, here))
    tl.store(hidden_after + at, out, here)
    tl.store(hidden + flat, out, here)


@triton.jit
def _rnn_backward(
    d_hidden, slope_hidden, pushed, hidden_after, d_given, real,
    d_row, state_row, given_row, real_row, H, nonlinearity: tl.constexpr, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    flat = row * H + unit
    total = tl.load(d_hidden + row * d_row + unit, here) + tl.load(slope_hidden + flat, here)
    total += _number(pushed + flat, here)
    out = tl.load(hidden_after + row * state_row + unit, here)
    if nonlinearity == "tanh":
        d = total * (1 - out * out)
    elif nonlinearity == "relu":
        d = tl.where(out > 0, total, 0.0)
    else:
        d = total * out * (1 - out)
    to_hidden = tl.zeros_like(total)
    if masked:
        is_real = tl.load(real + row * real_row)
        d, to_hidden = tl.where(is_real, d, 0.0), tl.where(is_real, to_hidden, total)
    tl.store(slope_hidden + flat, to_hidden, here)
    tl.store(d_given + row * given_row + unit, d, here)


@triton.jit
def _gru_forward(
    given, product, bias, hidden_before, hidden_after, kept, hidden, real,
    given_row, state_row, kept_row, real_row, B, H,
    biased: tl.constexpr, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    given += row * given_row + unit
    product += row * 3 * H + unit
    kept += row * kept_row + unit
    r = tl.sigmoid(_number(given, here) + _number(product, here))
    z = tl.sigmoid(_number(given + H, here) + _number(product + H, here))
    m = _number(product + 2 * H, here)
    if biased:
        m += _number(bias + row // B * H + unit, here)  # each replica has its own bias
    n = _tanh(_number(given + 2 * H, here) + r * m)
    at = row * state_row + unit
    was = tl.load(hidden_before + at, here)
    out = (1 - z) * n + z * was
    if masked:
        out = tl.where(tl.load(real + row * real_row), out, was)
    tl.store(hidden_after + at, out, here)
    tl.store(hidden + row * H + unit, out, here)
    tl.store(kept, r, here)
    tl.store(kept + H, z, here)
    tl.store(kept + 2 * H, n, here)
    tl.store(kept + 3 * H, m, here)


@triton.jit
def _gru_backward(
    d_hidden, slope_hidden, pushed, kept, hidden_before, d_given, d_product, real,
    d_row, kept_row, state_row, given_row, real_row, H, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    flat = row * H + unit
    total = tl.load(d_hidden + row * d_row + unit, here) + tl.load(slope_hidden + flat, here)
    total += _number(pushed + flat, here)
    kept += row * kept_row + unit
    r, z = _number(kept, here), _number(kept + H, here)
    n, m = _number(kept + 2 * H, here), _number(kept + 3 * H, here)
    was = tl.load(hidden_before + row * state_row + unit, here)
    d_n = total * (1 - z) * (1 - n * n)
    d_z, d_r, to_hidden = total * (was - n) * z * (1 - z), d_n * m * r * (1 - r), total * z
    if masked:
        is_real = tl.load(real + row * real_row)
        d_r, d_z, d_n = tl.where(is_real, d_r, 0.0), tl.where(is_real, d_z, 0.0), tl.where(is_real, d_n, 0.0)
        to_hidden = tl.where(is_real, to_hidden, total)
    tl.store(slope_hidden + flat, to_hidden, here)
    d_given += row * given_row + unit
    tl.store(d_given, d_r, here)
    tl.store(d_given + H, d_z, here)
    tl.store(d_given + 2 * H, d_n, here)
    d_product += row * given_row + unit
    tl.store(d_product, d_r, here)
    tl.store(d_product + H, d_z, here)
    tl.store(d_product + 2 * H, d_n * r, here)


@triton.jit
def _lstm_forward(
    given, product, hidden_before, cell_before, hidden_after, cell_after, kept, hidden, real,
    given_row, state_row, kept_row, real_row, H, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    given += row * given_row + unit
    product += row * 4 * H + unit
    kept += row * kept_row + unit
    i = tl.sigmoid(_number(given, here) + _number(product, here))
    f = tl.sigmoid(_number(given + H, here) + _number(product + H, here))
    g = _tanh(_number(given + 2 * H, here) + _number(product + 2 * H, here))
    o = tl.sigmoid(_number(given + 3 * H, here) + _number(product + 3 * H, here))
    at = row * state_row + unit
    cell_was = tl.load(cell_before + at, here)
    cell = f * cell_was + i * g
    out = o * _tanh(cell)
    if masked:
        is_real = tl.load(real + row * real_row)
        cell = tl.where(is_real, cell, cell_was)
        out = tl.where(is_real, out, tl.load(hidden_before + at, here))
    tl.store(cell_after + at, cell, here)
    tl.store(hidden_after + at, out, here)
    tl.store(hidden + row * H + unit, out, here)
    tl.store(kept, i, here)
    tl.store(kept + H, f, here)
    tl.store(kept + 2 * H, g, here)
    tl.store(kept + 3 * H, o, here)


@triton.jit
def _lstm_backward(
    d_hidden, d_cell, slope_hidden, slope_cell, pushed, kept, cell_before, cell_after, d_given, real,
    d_row, kept_row, state_row, given_row, real_row, H, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < H
    flat, at = row * H + unit, row * state_row + unit
    in_hidden = tl.load(d_hidden + row * d_row + unit, here) + tl.load(slope_hidden + flat, here)
    in_hidden += _number(pushed + flat, here)
    in_cell = tl.load(d_cell + row * d_row + unit, here) + tl.load(slope_cell + flat, here)
    kept += row * kept_row + unit
    i, f = _number(kept, here), _number(kept + H, here)
    g, o = _number(kept + 2 * H, here), _number(kept + 3 * H, here)
    squashed = _tanh(tl.load(cell_after + at, here))
    total = in_cell + in_hidden * o * (1 - squashed * squashed)
    d_i, d_f = total * g * i * (1 - i), total * tl.load(cell_before + at, here) * f * (1 - f)
    d_g, d_o = total * i * (1 - g * g), in_hidden * squashed * o * (1 - o)
    to_hidden, to_cell = tl.zeros_like(total), total * f
    if masked:
        is_real = tl.load(real + row * real_row)
        d_i, d_f = tl.where(is_real, d_i, 0.0), tl.where(is_real, d_f, 0.0)
        d_g, d_o = tl.where(is_real, d_g, 0.0), tl.where(is_real, d_o, 0.0)
        to_hidden, to_cell = tl.where(is_real, to_hidden, in_hidden), tl.where(is_real, to_cell, in_cell)
    tl.store(slope_hidden + flat, to_hidden, here)
    tl.store(slope_cell + flat, to_cell, here)
    d_given += row * given_row + unit
    tl.store(d_given, d_i, here)
    tl.store(d_given + H, d_f, here)
    tl.store(d_given + 2 * H, d_g, here)
    tl.store(d_given + 3 * H, d_o, here)
