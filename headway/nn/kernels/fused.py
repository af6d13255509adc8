"""Fused kernels for a GPU for the small operations of a model: bias with nonlinearity, dropout, rotary positions.

In plain torch each of these is three to twenty kernel launches, which read and write the same tensors again and again.
torch.compile fuses them as well, but takes half a minute first; these kernels (`fused_kernels.py`) do not. They are for
training on CUDA without torch.compile. The compiler fuses the plain torch code, which also runs everywhere else.

Every function here returns None if its kernel cannot be used; the caller then runs the plain code. Before a kernel is
used, its outputs and gradients are compared with the plain code, at the sizes and dtypes it will be used with
(`trusted.py`). There are kernels for the rest of a step as well: norms and the additions before them
(`fused_norm.py`), the loss of logits (`fused_loss.py`) and AdamW (`fused_adamw.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headway.core import random
from headway.nn.kernels import launching
from headway.nn.kernels.once_differentiable import differentiable_once
from headway.nn.kernels.trusted import by_kernel, difference_with_gradients, sample_values

MAX_WIDTH = 8192


# --- biases and nonlinearities ---------------------------------------------------------------------------------------

NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def activate(
    products: Float[Tensor, "R B T D"], bias: Float[Tensor, "R D"], kind: str
) -> Float[Tensor, "R B T D"] | None:
    """The nonlinearity of products + bias."""
    if not launching.wanted(products) or kind not in NONLINEARITIES:
        return None
    case = products.shape[-1], products.dtype, kind
    return by_kernel("activate", products.device, check_activate, case, lambda: _Activate.apply(products, bias, kind))


def plain_activate(products: Tensor, bias: Tensor, kind: str) -> Tensor:
    return NONLINEARITIES[kind](products.float() + bias[:, None, None]).to(products.dtype)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products, bias, kind):
        products = products.contiguous()
        R, D = bias.shape
        rows, N = products.numel() // D, products.numel() // D // R
        y = torch.empty_like(products)
        BLOCK = min(256, launching.next_power_of_two(D))
        ROWS = 2048 // BLOCK
        grid = (launching.ceil_div(rows, ROWS), launching.ceil_div(D, BLOCK))
        launching.kernels().activate_forward[grid](products, bias, y, rows, N, D, kind, ROWS, BLOCK)
        ctx.save_for_backward(*(() if kind == "none" else (products,)), bias)
        ctx.kind = kind
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        *kept, bias = ctx.saved_tensors
        dy, (R, D) = dy.contiguous(), bias.shape
        N = dy.numel() // D // R
        BLOCK = min(128, launching.next_power_of_two(D))  # smaller tiles than forward: more is computed for each
        ROWS = 1024 // BLOCK
        columns = launching.ceil_div(D, BLOCK)
        parts, per = launching.programs_and_rows(N, ROWS, R * columns)
        dx = torch.empty_like(dy) if kept else dy
        sums = torch.empty(R, parts, D, dtype=torch.float32, device=dy.device)
        launching.kernels().activate_backward[(R, parts, columns)](
            dy, kept[0] if kept else dy, bias, dx, sums, N, D, per, ctx.kind, ROWS, BLOCK
        )
        return dx, sums.sum(1), None


def check_activate(device, D, dtype, kind) -> float:
    products, bias = sample_values((2, 3, 16, D), device, 1, dtype), sample_values((2, D), device, 2)
    return difference_with_gradients(
        lambda x, b: _Activate.apply(x, b, kind), lambda x, b: plain_activate(x, b, kind), (products, bias)
    )


# --- dropout ---------------------------------------------------------------------------------------------------------


class DropoutMask(NamedTuple):
    """What determines a dropout mask: see `core/random.py`."""

    keys: Int[Tensor, "R 2"]
    step: Int[Tensor, ""]
    rates: Float[Tensor, "R"]
    first: int
    """The index of each replica's first element."""


def dropped(x: Float[Tensor, "R *rest"], mask: DropoutMask) -> Float[Tensor, "R *rest"] | None:
    """x times the factors of `replicated.Dropout`, bit for bit the same."""
    if not launching.wanted(x):
        return None
    case = x.dtype, x[0].numel() % 16 == 0
    return by_kernel("dropout", x.device, check_dropout, case, lambda: _Dropped.apply(x, *mask))


def plain_dropped(x: Tensor, mask: DropoutMask) -> Tensor:
    drawn = random.bits(mask.keys, mask.step, x[0].numel(), mask.first)
    kept = (drawn >= (mask.rates * 65536 - 32768).to(torch.int32)[:, None]).view(x.shape)
    return x * (kept * (1 / (1 - mask.rates)).to(x.dtype).view(-1, *[1] * (x.ndim - 1)))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, keys, step, rates, first):
        ctx.save_for_backward(keys, step, rates)
        ctx.first = first
        return _Dropped.times(x.contiguous(), keys, step, rates, first)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        keys, step, rates = ctx.saved_tensors
        return _Dropped.times(dy.contiguous(), keys, step, rates, ctx.first), None, None, None, None

    @staticmethod
    def times(x: Tensor, keys: Tensor, step: Tensor, rates: Tensor, first: int) -> Tensor:
        y, R = torch.empty_like(x), len(x)
        count = x.numel() // R
        launching.kernels().dropped[(launching.ceil_div(count, 1024), R)](x, y, keys, step, rates, count, first, 1024)
        return y


def example_mask(device: torch.device) -> DropoutMask:
    """For two replicas, for the checks."""
    keys, rates = random.stream_keys([1, 2], "check").to(device), torch.tensor([0.125, 0.5], device=device)
    return DropoutMask(keys, torch.tensor(5, dtype=torch.int32, device=device), rates, 7)


def check_dropout(device, dtype, even) -> float:
    """`even`: the number of elements per replica is a multiple of 16."""
    x, mask = sample_values((2, 3, 16, 16) if even else (2, 3, 5, 5), device, 1, dtype), example_mask(device)
    return difference_with_gradients(lambda x: _Dropped.apply(x, *mask), lambda x: plain_dropped(x, mask), (x,))


# --- rotary positions ------------------------------------------------------------------------------------------------


def rotated(
    x: Float[Tensor, "R B H T d"], at: Int[Tensor, "*b T"], frequencies: Float[Tensor, "half"]
) -> Float[Tensor, "R B H T d"] | None:
    """Rotate heads like `positions.RotaryPositions`, if all rows have the same positions. The result has the memory
    layout that is fast for fused attention: the heads of a token are contiguous."""
    if not launching.wanted(x) or at.ndim != 1 or x.stride(-1) != 1 or x.shape[2] * x.shape[4] > 2 * MAX_WIDTH:
        return None
    case = x.shape[2], x.shape[4], x.dtype
    return by_kernel("rotate", x.device, check_rotate, case, lambda: _Rotated.apply(x, at, frequencies))


def plain_rotated(x: Tensor, at: Tensor, frequencies: Tensor) -> Tensor:
    angle = at[..., None, :, None] * frequencies  # [*b, 1, T, d/2]
    cos, sin, wide = angle.cos(), angle.sin(), x.to(torch.promote_types(x.dtype, torch.float32))
    even, odd = wide[..., 0::2], wide[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, at, frequencies):
        ctx.save_for_backward(at, frequencies)
        return _Rotated.by(x, at, frequencies, 1.0)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        at, frequencies = ctx.saved_tensors
        return _Rotated.by(dy, at, frequencies, -1.0), None, None

    @staticmethod
    def by(x: Tensor, at: Tensor, frequencies: Tensor, sign: float) -> Tensor:
        R, B, H, T, d = x.shape
        x = x.flatten(0, 1)  # a view if rows are evenly spaced in memory, as in outputs of matrix products
        x = x if x.stride(-1) == 1 else x.contiguous()
        y = torch.empty(R * B, T, H, d, dtype=x.dtype, device=x.device).transpose(1, 2)
        launching.kernels().rotated[(R * B, T)](
            x,
            y,
            at,
            frequencies,
            T,
            *x.stride()[:3],
            *y.stride()[:3],
            sign,
            H,
            d // 2,
            launching.next_power_of_two(H * d // 2),
        )
        return y.unflatten(0, (R, B))


def check_rotate(device, H, d, dtype) -> float:
    x, at = (
        sample_values((1, 2, 16, 3, H, d), device, 1, dtype)[..., 1, :, :].transpose(2, 3),
        torch.arange(16, device=device),
    )
    frequencies = 100.0 ** -(torch.arange(0, d, 2, device=device) / d)
    turn = at * 61  # up to the positions of a long segment
    return difference_with_gradients(
        lambda x: _Rotated.apply(x, turn, frequencies), lambda x: plain_rotated(x, turn, frequencies), (x,)
    )
