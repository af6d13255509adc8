"""A norm and the residual addition before it as one GPU kernel (`fused.py` says why).

The forward pass reads and writes the residual stream once. The backward pass adds the gradient that reaches the stream
past the norm to the one through the norm, writes it once, and writes the sublayer's gradient in the sublayer's dtype.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headway.nn.kernels import launching
from headway.nn.kernels.fused import MAX_WIDTH, DropoutMask, example_mask, plain_dropped
from headway.nn.kernels.once_differentiable import differentiable_once
from headway.nn.kernels.trusted import by_kernel, difference_with_gradients, sample_values


class More(NamedTuple):
    """What is added to a residual stream: the output of a sublayer, its bias, and its dropout."""

    given: Float[Tensor, "R B T D"]
    bias: Float[Tensor, "R D"] | None = None
    mask: DropoutMask | None = None


def sum_and_norm(
    x: Float[Tensor, "R B T D"],
    more: More | None,
    weight: Float[Tensor, "R D"],
    bias: Float[Tensor, "R D"] | None,
    eps: float,
    centred: bool,
    into: torch.dtype,
) -> tuple[Float[Tensor, "R B T D"], Float[Tensor, "R B T D"]] | None:
    """x + more (x if `more` is None), and its norm in dtype `into`: LayerNorm if `centred`, else RMSNorm."""
    if not launching.wanted(x) or x.shape[-1] > MAX_WIDTH:
        return None
    if more is not None and torch.promote_types(x.dtype, more.given.dtype) != x.dtype:
        return None
    of_more = None if more is None else (more.given.dtype, more.bias is not None, more.mask is not None)
    case = x.shape[-1], x.dtype, of_more, into, centred, bias is not None, eps
    run = lambda: _SumAndNorm.apply(x, *(more or (None, None, None)), weight, bias, eps, centred, into)  # noqa: E731
    return by_kernel("norm", x.device, check_norm, case, run)


def plain_sum_and_norm(
    x: Tensor, given: Tensor | None, given_bias: Tensor | None, mask: DropoutMask | None, weight: Tensor,
    bias: Tensor | None, eps: float, centred: bool, into: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if given is not None:
        added = given if given_bias is None else given.float() + given_bias[:, None, None]
        x = (x + (added if mask is None else plain_dropped(added.to(given.dtype), mask))).to(x.dtype)
    wide, width = x.float(), x.shape[-1:]
    y = F.layer_norm(wide, width, eps=eps) if centred else F.rms_norm(wide, width, eps=eps)
    y = y * weight[:, None, None]
    return x, (y if bias is None else y + bias[:, None, None]).to(into)


class _SumAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, given, given_bias, mask, weight, bias, eps, centred, into):
        ctx.set_materialize_grads(False)  # zeros are made here, in the right dtype
        x, given = x.contiguous(), None if given is None else given.contiguous()
        R, D = weight.shape
        N = x.numel() // D // R
        total, normed = x.view_as(x) if given is None else torch.empty_like(x), torch.empty_like(x, dtype=into)
        scale = torch.empty(R * N, dtype=torch.float32, device=x.device)
        mean = torch.empty_like(scale) if centred else scale
        ctx.kinds = centred, bias is not None, given_bias is not None, mask is not None, into
        ctx.of_given = None if given is None else given.dtype
        ctx.first = None if mask is None else mask.first
        ctx.save_for_backward(total, weight, mean, scale, *(() if mask is None else mask[:3]))
        ROWS, BLOCK, warps = launching.tile(D)
        launching.kernels().norm_forward[(launching.ceil_div(N, ROWS), R)](
            x, weight, weight if bias is None else bias, normed, mean, scale, N, D, eps,
            x if given is None else given, weight if given_bias is None else given_bias, total, *_of_kernel(mask, x),
            centred, bias is not None, given is not None, given_bias is not None, mask is not None, ROWS, BLOCK,
            num_warps=warps,
        )  # fmt: skip
        return total, normed

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_total, d_normed):  # pyright: ignore[reportIncompatibleMethodOverride]
        total, weight, mean, scale, *drawn = ctx.saved_tensors
        centred, biased, biased_more, drops, into = ctx.kinds
        mask = DropoutMask(*drawn, first=ctx.first) if drops else None
        R, D = weight.shape
        N = total.numel() // D // R
        d_normed = torch.zeros_like(total, dtype=into) if d_normed is None else d_normed.contiguous()
        # Only after the final norm the stream has no gradient of its own. Zeros cost less than building another kernel.
        d_total = torch.zeros_like(total) if d_total is None else d_total.contiguous()
        dx = torch.empty_like(total)
        splits = ctx.of_given is not None and (drops or ctx.of_given != dx.dtype)
        d_given = torch.empty_like(dx, dtype=ctx.of_given) if splits else dx
        ROWS, BLOCK, warps = launching.tile(D)
        parts, per = launching.programs_and_rows(N, ROWS, R)
        sums = torch.empty(1 + biased + biased_more, R, parts, D, dtype=torch.float32, device=dx.device)
        launching.kernels().norm_backward[(R, parts)](
            d_normed, total, weight, mean, scale, dx, sums[0], sums[int(biased)], N, D, per,
            d_total, d_given, sums[-1], *_of_kernel(mask, total),
            centred, biased, splits, biased_more, drops, ROWS, BLOCK, num_warps=warps,
        )  # fmt: skip
        sums = sums.sum(2)
        d_given = None if ctx.of_given is None else d_given
        d_given_bias, d_bias = sums[-1] if biased_more else None, sums[1] if biased else None
        return dx, d_given, d_given_bias, None, sums[0], d_bias, None, None, None


def _of_kernel(mask: DropoutMask | None, anything: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """The kernel's arguments for dropout; without dropout, placeholders that it never reads."""
    return (anything, anything, anything, 0) if mask is None else mask


def check_norm(device, D, dtype, of_more, into, centred, biased, eps) -> float:
    """Compare with the plain code, with a stream that is used after the norm and with one that is not. `of_more`: None,
    or the dtype of `more`, whether it has a bias, and whether it has dropout."""
    of_given, biased_more, drops = of_more or (None, False, False)
    there = dtype, of_given, torch.float32 if biased_more else None, torch.float32, torch.float32 if biased else None
    shapes = (2, 3, 16, D), (2, 3, 16, D), (2, D), (2, D), (2, D)
    tensors = [None if of is None else sample_values(shapes[k], device, k + 1, of) for k, of in enumerate(there)]
    mask = example_mask(device) if drops else None

    def by(compute: Any, first: int) -> Any:
        return lambda x, given, given_bias, weight, bias: compute(
            x, given, given_bias, mask, weight, bias, eps, centred, into
        )[first:]

    return max(
        difference_with_gradients(by(_SumAndNorm.apply, first), by(plain_sum_and_norm, first), tensors)
        for first in (0, 1)
    )
