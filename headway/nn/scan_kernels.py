"""The step of an LSTM as one kernel for a GPU, there and back: what `scan.LstmCell` says in plain lines.

As a chain of ordinary operations a step is a dozen launches, each of which reads and writes all gates; torch.compile
cannot be relied on here, because the states before and after a step lie in one tensor. Every row of the batch of every
replica is a row of programs, so that replicas cost nothing beside each other.
"""

# pyright: reportMissingImports=false, reportUnreachable=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# (Triton comes with torch's CUDA builds only, and this module is imported only there.)

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


def lstm_forward(
    given: Tensor,
    product: Tensor,
    bias: Tensor | None,
    before: Tensor,
    after: Tensor,
    kept: Tensor,
    real: Tensor | None,
) -> Tensor:
    """The hidden state after the step, in the precision of the products; `after` and `kept` are written."""
    (R, B, H), masked = before.shape[1:], real is not None
    hidden = torch.empty(R, B, H, dtype=product.dtype, device=product.device)
    _lstm_forward[_grid(before)](
        given, product, before[0], before[1], after[0], after[1], kept, hidden, real if masked else given,
        given.stride(1), before.stride(2), kept.stride(1), real.stride(1) if masked else 0, H, masked, BLOCK,
    )  # fmt: skip
    return hidden


def lstm_backward(
    d_after: Tensor,
    slope: Tensor,
    pushed: Tensor,
    kept: Tensor,
    before: Tensor,
    after: Tensor,
    d_given: Tensor,
    d_product: Tensor,
    real: Tensor | None,
) -> Tensor:
    """The slope in the state before, written where that in the state after was; `d_given` is written."""
    H, masked = before.shape[-1], real is not None
    _lstm_backward[_grid(before)](
        d_after[0], d_after[1], slope[0], slope[1], pushed, kept, before[1], after[1], d_given,
        real if masked else d_given, d_after.stride(2), kept.stride(1), before.stride(2), d_given.stride(1),
        real.stride(1) if masked else 0, H, masked, BLOCK,
    )  # fmt: skip
    return slope


def _grid(state: Tensor) -> tuple[int, int]:
    _, R, B, H = state.shape
    return R * B, triton.cdiv(H, BLOCK)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


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
    i = tl.sigmoid(tl.load(given, here).to(tl.float32) + tl.load(product, here).to(tl.float32))
    f = tl.sigmoid(tl.load(given + H, here).to(tl.float32) + tl.load(product + H, here).to(tl.float32))
    g = _tanh(tl.load(given + 2 * H, here).to(tl.float32) + tl.load(product + 2 * H, here).to(tl.float32))
    o = tl.sigmoid(tl.load(given + 3 * H, here).to(tl.float32) + tl.load(product + 3 * H, here).to(tl.float32))
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
    in_hidden += tl.load(pushed + flat, here).to(tl.float32)
    in_cell = tl.load(d_cell + row * d_row + unit, here) + tl.load(slope_cell + flat, here)
    kept += row * kept_row + unit
    i, f = tl.load(kept, here).to(tl.float32), tl.load(kept + H, here).to(tl.float32)
    g, o = tl.load(kept + 2 * H, here).to(tl.float32), tl.load(kept + 3 * H, here).to(tl.float32)
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
