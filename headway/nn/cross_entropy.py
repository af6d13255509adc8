"""The output layer and its loss as one operation, because logits are the largest tensor of training.

Logits are `[R, N, V]`: for 8 replicas of a batch of 4,096 tokens and 33,000 words a billion numbers, and the backward
pass needs several tensors of that size. So the rows are processed in chunks: the loss and the gradient of a chunk are
computed together, and its logits are discarded. As the loss is a mean per replica, the backward pass only multiplies
these gradients by one factor per replica.

On a GPU this pays off if the logits would fill the memory. On a CPU it always does: newly allocated memory is the main
cost of large tensors (writing 40 MB of it takes as long as a softmax over them). So all chunks use the same memory for
their logits, results overwrite them, and rows of padding are left out of the matrix products.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core.processors import share_of_gpu
from headway.nn.kernels import fused_loss, products
from headway.nn.kernels.once_differentiable import differentiable_once
from headway.nn.kernels.onednn import product_by

LOGITS_PER_CHUNK = {"cpu": 2**28, "cuda": 2**30}
"""Logits per chunk: 1 GB in float32 on a CPU, 2 GB in bf16 on a GPU."""
SHARE_OF_MEMORY = 1 / 16
"""On a GPU with more memory, a chunk may take this share of what is this process's, because fewer chunks cost less.
(So the rounding of the weight's gradient depends on the GPU, as it does anyway.)"""
MIN_LOGITS_FOR_CHUNKS = {"cpu": 2**27, "cuda": 2**22}
"""With fewer logits than this, torch's own cross entropy is used."""
IN_PLACE_LOGITS_PER_CHUNK = 2**23
"""Logits per chunk in training on a CPU: 32 MB. (With a quarter, matrix products have too few rows to be fast; with
twice as many, a chunk does not fit into the CPU's cache.)"""


def mean_cross_entropy(
    x: Float[Tensor, "R N D"],
    weight: Float[Tensor, "R V D"],
    targets: Int[Tensor, "R N"],
    bias: Float[Tensor, "R V"] | None = None,
    counted: Bool[Tensor, "R N"] | None = None,
    smoothing: float = 0.0,
) -> Float[Tensor, "R"]:
    """Mean nats per row of predicting `targets` from the logits x Wᵀ + b, over the rows that are counted; None = all.
    `smoothing`: label smoothing, the share of the target's probability that is spread evenly over the vocabulary."""
    (R, N, _), V = x.shape, weight.shape[1]
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if _can_be_in_place(x):
        return _InPlaceCrossEntropy.apply(x, weight, targets, bias, counted, smoothing, dtype)  # pyright: ignore
    by_kernel = fused_loss.by_loss_kernel(
        x,
        dtype,
        V + -V % 64,
        smoothing,
        lambda: _FusedCrossEntropy.apply(x, weight, targets, bias, counted, smoothing, dtype),  # pyright: ignore
    )
    if by_kernel is not None:
        return by_kernel
    if MIN_LOGITS_FOR_CHUNKS[device] > R * N * V or counted is not None or smoothing:
        if R == 1:
            logits = F.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        else:
            logits = x @ weight.mT if bias is None else x @ weight.mT + bias[:, None]
        logits, targets = logits.flatten(0, 1).float(), targets.flatten()
        nats = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing).view(R, N)
        return nats.mean(1) if counted is None else (nats * counted).sum(1) / counted.sum(1).clamp(min=1)
    return _ChunkedCrossEntropy.apply(x, weight, targets, bias, dtype)  # pyright: ignore


def _can_be_in_place(x: Tensor) -> bool:
    """When training on a CPU without torch.compile."""
    return x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _InPlaceCrossEntropy(torch.autograd.Function):
    """Replica by replica, chunk by chunk: the logits are overwritten by probabilities, and these by the gradient of the
    logits. In bf16 only softmax rounds just once, because it sums in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        counted: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        R, V = weight.shape[:2]
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        losses = x.new_zeros(R, dtype=torch.promote_types(dtype, torch.float32))
        dx = torch.zeros_like(x) if counted is not None else torch.empty_like(x)
        dw = torch.zeros_like(weight) if needs_weight else None
        db = None if bias is None else torch.zeros_like(bias)
        with torch.autocast("cpu", enabled=False):
            for r in range(R):
                rows = None if counted is None else counted[r].nonzero()[:, 0]
                own_x, own_targets = (x[r], targets[r]) if rows is None else (x[r, rows], targets[r, rows])
                own_x, table = own_x.to(dtype), weight[r].to(dtype)
                own_bias = None if bias is None else bias[r].to(dtype)
                share, at_once = 1 / max(1, len(own_x)), _even_chunk(len(own_x), IN_PLACE_LOGITS_PER_CHUNK // V)
                multiply = product_by(table)
                dw_transposed: Tensor | None = None  # the weight's gradient as [D, V], the fastest way to compute it
                for first in range(0, len(own_x), at_once):
                    piece, piece_targets = own_x[first : first + at_once], own_targets[first : first + at_once, None]
                    logits = multiply(piece, table, own_bias)
                    losses[r] += share * _summed_nats(logits, piece_targets, smoothing)
                    slope = logits  # overwritten by their gradient
                    if needs_x:
                        here = slice(first, first + at_once) if rows is None else rows[first : first + at_once]
                        dx[r, here] = multiply(slope, table.mT, None).to(x.dtype).mul_(share)
                    if needs_weight:
                        of_piece = multiply((piece * share).mT, slope.mT, None)
                        dw_transposed = (
                            of_piece.to(weight.dtype) if dw_transposed is None else dw_transposed.add_(of_piece)
                        )
                    if db is not None:
                        db[r] += slope.sum(0, dtype=db.dtype) * share
                    del logits, slope  # frees the memory for the logits of the next chunk
                if dw is not None and dw_transposed is not None:
                    dw[r] = dw_transposed.mT
        ctx.save_for_backward(dx, dw, db)
        return losses

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, g: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = ctx.saved_tensors
        if not bool((g == 1).all()):
            gradients = [None if d is None else (d * g.view(-1, *[1] * (d.ndim - 1))).to(d.dtype) for d in gradients]
        dx, dw, db = gradients
        return dx, dw, None, db, None, None, None


def _summed_nats(logits: Float[Tensor, "n V"], targets: Int[Tensor, "n 1"], smoothing: float) -> Float[Tensor, ""]:
    """The summed loss of all rows. Overwrites the logits with its gradient: probabilities minus (smoothed) targets."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    asked, largest = logits.gather(1, targets).to(exact), logits.amax(1, keepdim=True).to(exact)
    if smoothing:
        asked = asked.mul_(1 - smoothing).add_(logits.mean(1, keepdim=True, dtype=exact), alpha=smoothing)
    probabilities = torch.softmax(logits, 1, out=logits)
    # log Σ exp = largest logit - log of its probability, which is never too small for a logarithm. If it is near 1, use
    # the sum of the other probabilities: their exact value is lost in 1 - ε, of which bf16 has two or three digits.
    likeliest = probabilities.amax(1, keepdim=True).to(exact)
    others = probabilities.sum(1, keepdim=True, dtype=exact) - likeliest
    total = largest - torch.where(likeliest > 0.5, torch.log1p(-others), likeliest.log())
    probabilities.scatter_(1, targets, probabilities.gather(1, targets).add_(smoothing - 1))
    if smoothing:
        probabilities.sub_(smoothing / logits.shape[1])
    return (total - asked).sum()


class _FusedCrossEntropy(torch.autograd.Function):
    """For training on a GPU without torch.compile: one kernel computes the loss of a chunk's logits and overwrites them
    with their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        counted: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        (R, N, _), V = x.shape, weight.shape[1]
        table = _padded_table(weight, dtype)
        W = table.shape[1]
        shares = x.new_full((R, N), 1 / N, dtype=torch.float32)
        if counted is not None:
            shares = counted / counted.sum(1, keepdim=True).clamp(min=1)
        rows = _even_chunk(N, _logits_per_chunk(x.device, dtype) // (R * W))
        losses, dx, dw, db = [], torch.empty_like(x, dtype=dtype), None, None
        for first in range(0, N, rows):
            here = slice(first, min(N, first + rows))
            piece = x[:, here].to(dtype)
            logits = piece @ table.mT
            if bias is not None:
                logits[..., :V] += bias[:, None].to(dtype)
            losses.append(fused_loss.loss_and_slope(logits, targets[:, here], shares[:, here], V, smoothing).sum(1))
            slope = logits  # overwritten by their gradient
            torch.bmm(slope, table, out=dx[:, here])
            here_dw = slope.mT @ piece
            dw = here_dw if dw is None else dw.float() + here_dw
            if bias is not None:
                here_db = slope[..., :V].sum(1, dtype=torch.float32)
                db = here_db if db is None else db + here_db
        ctx.save_for_backward(dx, dw, db)
        ctx.dtypes, ctx.vocabulary = (x.dtype, weight.dtype), V
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, g: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        dx, dw, db = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        d_bias = None if db is None else db * g[:, None]
        return _times(dx, g, x_dtype), _times(dw[:, : ctx.vocabulary], g, w_dtype), None, d_bias, None, None, None


def _padded_table(weight: Float[Tensor, "R V D"], dtype: torch.dtype) -> Float[Tensor, "R W D"]:
    """The weight in `dtype`, with the vocabulary padded to a multiple of 64, which is fast on tensor cores. The padding
    never gets any probability."""
    R, V, D = weight.shape
    if V % 64 == 0:
        return products.copied(weight, dtype)
    table = torch.empty(R, V + -V % 64, D, dtype=dtype, device=weight.device)
    table[:, :V] = weight
    table[:, V:] = 0
    return table


def _logits_per_chunk(device: torch.device, dtype: torch.dtype) -> int:
    if device.type != "cuda":  # kernels run as programs on a CPU, in tests
        return LOGITS_PER_CHUNK["cuda"]
    memory = share_of_gpu() * torch.cuda.get_device_properties(device).total_memory
    return max(LOGITS_PER_CHUNK["cuda"], int(SHARE_OF_MEMORY * memory) // dtype.itemsize)


def _even_chunk(rows: int, most: int) -> int:
    """The rows per chunk: as few chunks as possible, of about equal size, because a small last chunk would be slow."""
    chunks = max(1, -(-rows // max(1, most)))
    return max(1, -(-rows // chunks))


def _times(d: Float[Tensor, "R n m"], g: Float[Tensor, "R"], into: torch.dtype) -> Float[Tensor, "R n m"]:
    """d · g in dtype `into`, in one pass over memory whatever the dtypes are."""
    return torch.mul(d, g[:, None, None], out=torch.empty_like(d, dtype=into))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        (R, N, D), V = x.shape, weight.shape[1]
        # Tensor cores want sizes they can divide: pad the vocabulary, with words that get no probability.
        padding = -V % 64
        table = F.pad(weight.to(dtype), (0, 0, 0, padding))
        rows = max(1, LOGITS_PER_CHUNK[x.device.type] // (R * (V + padding)))
        losses: list[Tensor] = []  # not summed in place: with torch 2.11's compiler gradients are then zero
        dx = torch.empty(R, N, D, dtype=dtype, device=x.device)
        dw: Tensor | None = None
        slopes: list[Tensor] = []
        for first in range(0, N, rows):
            here = slice(first, min(N, first + rows))
            piece = x[:, here].to(dtype)
            logits = piece @ table.mT  # [R, n, V + padding]
            if bias is not None:
                logits = logits + F.pad(bias, (0, padding))[:, None].to(dtype)
            loss, slope = _loss_and_slope(logits, targets[:, here], V, N)
            losses.append(loss)
            dx[:, here] = slope @ table
            if bias is not None:
                slopes.append(slope[..., :V].sum(1, dtype=torch.float32))
            here_dw = (slope.mT @ piece)[:, :V].float()
            dw = here_dw if dw is None else dw.add_(here_dw)
        ctx.save_for_backward(dx, dw, torch.stack(slopes).sum(0) if slopes else None)
        ctx.dtypes = x.dtype, weight.dtype
        return torch.stack(losses).sum(0)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, g: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        dx, dw, db = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        factor = g[:, None, None]
        d_bias = None if db is None else db * g[:, None]
        return (dx * factor).to(x_dtype), (dw * factor).to(w_dtype), None, d_bias, None


def _loss_and_slope(
    logits: Float[Tensor, "R n W"], targets: Int[Tensor, "R n"], vocabulary: int, rows: int
) -> tuple[Float[Tensor, "R"], Float[Tensor, "R n W"]]:
    """The summed loss / `rows`, and its derivative with respect to the logits: (softmax - target) / rows."""
    wide = logits.float()
    word = torch.arange(logits.shape[-1], device=logits.device)
    wide = torch.where(word < vocabulary, wide, -torch.inf)
    total = wide.logsumexp(-1, keepdim=True)
    right = word == targets[..., None]
    loss = (total.squeeze(-1) - wide.gather(-1, targets[..., None]).squeeze(-1)).sum(1) / rows
    slope = ((wide - total).exp() - right.float()) / rows
    return loss, slope.to(logits.dtype)
