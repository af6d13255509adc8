"""A norm as one kernel for a GPU, with the addition to the stream that it is the norm of (`fused.py` says what for).

There, the stream is read and written once. Back, what came to it by other ways is added to what comes through the norm,
its gradient is written once, and what goes on into the sublayer is written in the precision in which that reads it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.nn import launching
from headway.nn.fused import WIDEST, Drawing, a_drawing, plain_dropped
from headway.nn.trusted import by_kernel, numbers, there_and_back


def sum_and_norm(
    x: Float[Tensor, "R B T D"],
    more: Float[Tensor, "R B T D"] | None,
    drawing: Drawing | None,
    weight: Float[Tensor, "R D"],
    bias: Float[Tensor, "R D"] | None,
    eps: float,
    centred: bool,
    into: torch.dtype,
) -> tuple[Float[Tensor, "R B T D"], Float[Tensor, "R B T D"]] | None:
    """x + more, of which some is dropped where there is a drawing, or x, where there is no more; and the norm of that:
    LayerNorm, or RMSNorm where nothing is `centred`, in the precision of whoever reads it."""
    if not launching.wanted(x) or x.shape[-1] > WIDEST:
        return None
    if more is not None and torch.promote_types(x.dtype, more.dtype) != x.dtype:
        return None
    of_more = None if more is None else more.dtype
    case = x.shape[-1], x.dtype, of_more, into, centred, bias is not None, drawing is not None, eps
    run = lambda: _SumAndNorm.apply(x, more, drawing, weight, bias, eps, centred, into)  # noqa: E731
    return by_kernel("norm", x.device, check_norm, case, run)


def plain_sum_and_norm(
    x: Tensor, more: Tensor | None, drawing: Drawing | None, weight: Tensor, bias: Tensor | None,
    eps: float, centred: bool, into: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if more is not None:
        x = x + (more if drawing is None else plain_dropped(more, drawing))
    wide, width = x.float(), x.shape[-1:]
    y = F.layer_norm(wide, width, eps=eps) if centred else F.rms_norm(wide, width, eps=eps)
    y = y * weight[:, None, None]
    return x, (y if bias is None else y + bias[:, None, None]).to(into)


class _SumAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, more, drawing, weight, bias, eps, centred, into):
        ctx.set_materialize_grads(False)  # a stream that ends here has none
        x, more = x.contiguous(), None if more is None else more.contiguous()
        R, D = weight.shape
        N = x.numel() // D // R
        total, normed = x.view_as(x) if more is None else torch.empty_like(x), torch.empty_like(x, dtype=into)
        scale = torch.empty(R * N, dtype=torch.float32, device=x.device)
        mean = torch.empty_like(scale) if centred else scale
        ROWS, BLOCK = launching.tile(D)
        launching.kernels().norm_forward[(launching.parts(N, ROWS), R)](
            x, weight, weight if bias is None else bias, normed, mean, scale, N, D, eps,
            x if more is None else more, total, *_of_kernel(drawing, x),
            centred, bias is not None, more is not None, drawing is not None, ROWS, BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(total, weight, mean, scale, *(() if drawing is None else drawing[:3]))
        ctx.first = None if drawing is None else drawing.first
        ctx.centred, ctx.biased, ctx.of_more = centred, bias is not None, None if more is None else more.dtype
        ctx.into = into
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total, d_normed):  # pyright: ignore[reportIncompatibleMethodOverride]
        total, weight, mean, scale, *drawn = ctx.saved_tensors
        drawing = Drawing(*drawn, first=ctx.first) if drawn else None
        R, D = weight.shape
        N = total.numel() // D // R
        d_normed = torch.zeros_like(total, dtype=ctx.into) if d_normed is None else d_normed.contiguous()
        dx = torch.empty_like(total)
        splits = ctx.of_more is not None and (drawing is not None or ctx.of_more != dx.dtype)
        d_more = torch.empty_like(dx, dtype=ctx.of_more) if splits else dx
        ROWS, BLOCK = launching.tile(D)
        parts, per = launching.shared(N, ROWS, R)
        sums = torch.empty(2 if ctx.biased else 1, R, parts, D, dtype=torch.float32, device=dx.device)
        launching.kernels().norm_backward[(R, parts)](
            d_normed, total, weight, mean, scale, dx, sums[0], sums[-1], N, D, per,
            dx if d_total is None else d_total.contiguous(), d_more, *_of_kernel(drawing, total),
            ctx.centred, ctx.biased, d_total is not None, splits, drawing is not None, ROWS, BLOCK,
        )  # fmt: skip
        sums = sums.sum(2)
        d_more = None if ctx.of_more is None else d_more
        return dx, d_more, None, sums[0], sums[1] if ctx.biased else None, None, None, None


def _of_kernel(drawing: Drawing | None, anything: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """What a kernel is told of a drawing: it looks at nothing where there is none."""
    return (anything, anything, anything, 0) if drawing is None else drawing


def check_norm(device, D, dtype, of_more, into, centred, biased, drops, eps) -> float:
    """With a stream that goes on, and with one that ends here."""
    x, more = (None if of is None else numbers((2, 3, 16, D), device, k, of) for k, of in ((1, dtype), (4, of_more)))
    weight, bias = numbers((2, D), device, 2), numbers((2, D), device, 3) if biased else None
    drawing, rest = a_drawing(device) if drops else None, (eps, centred, into)

    def by(compute: Any, first: int) -> Any:
        return lambda x, more, weight, bias: compute(x, more, drawing, weight, bias, *rest)[first:]

    return max(
        there_and_back(by(_SumAndNorm.apply, first), by(plain_sum_and_norm, first), (x, more, weight, bias))
        for first in (0, 1)
    )
