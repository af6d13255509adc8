"""The output layer and its loss as one operation, since logits are the largest thing that training makes.

Logits are `[R, N, V]`: for 8 replicas of a batch of 4,096 tokens and 33,000 words, a billion numbers, many times over
by the time gradients flow. Here rows are taken in chunks; of each chunk the loss and, at once, the gradient are
computed, and its logits are forgotten. The loss is a mean per replica, so all that comes back later is one factor each.

On a GPU that pays where logits would fill the memory. On a CPU it always pays: fresh memory is what large tensors cost
most (writing 40 MB of it takes as long as a softmax over them), so the logits of a chunk lie where those of the last
one did, what is computed of them is written over them, and rows of padding are left out of the products.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.nn.kernels import fused_loss, products
from headway.nn.kernels.once_differentiable import differentiable_once
from headway.nn.kernels.onednn import product_by

LOGITS_AT_ONCE = {"cpu": 2**28, "cuda": 2**30}
"""Numbers in one chunk of logits: 1 GB in float32 on a CPU, 2 GB in bf16 on a GPU, where fewer chunks cost less."""
WORTH_IT = {"cpu": 2**27, "cuda": 2**22}
"""Fewer logits than this are computed the plain way, which torch has a kernel for."""
IN_PLACE_AT_ONCE = 2**23
"""Logits of a chunk on a CPU: 32 MB. (A quarter as many: products of few rows are slow; twice as many: caches do not
hold them.)"""


def mean_cross_entropy(
    x: Float[Tensor, "R N D"],
    weight: Float[Tensor, "R V D"],
    targets: Int[Tensor, "R N"],
    bias: Float[Tensor, "R V"] | None = None,
    counted: Bool[Tensor, "R N"] | None = None,
    smoothing: float = 0.0,
) -> Float[Tensor, "R"]:
    """Mean nats per row of predicting `targets` from the logits x Wᵀ + b, over the rows that are counted; None = all.
    `smoothing`: this share of each target's chance is asked for all words alike."""
    (R, N, _), V = x.shape, weight.shape[1]
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if _can_be_in_place(x):
        return _InPlaceCrossEntropy.apply(x, weight, targets, bias, counted, smoothing, dtype)  # pyright: ignore
    by_kernel = fused_loss.lost(
        x,
        dtype,
        V + -V % 64,
        smoothing,
        lambda: _FusedCrossEntropy.apply(x, weight, targets, bias, counted, smoothing, dtype),  # pyright: ignore
    )
    if by_kernel is not None:
        return by_kernel
    if WORTH_IT[device] > R * N * V or counted is not None or smoothing:
        if R == 1:
            logits = F.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        else:
            logits = x @ weight.mT if bias is None else x @ weight.mT + bias[:, None]
        logits, targets = logits.flatten(0, 1).float(), targets.flatten()
        nats = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing).view(R, N)
        return nats.mean(1) if counted is None else (nats * counted).sum(1) / counted.sum(1).clamp(min=1)
    return _ChunkedCrossEntropy.apply(x, weight, targets, bias, dtype)  # pyright: ignore


def _can_be_in_place(x: Tensor) -> bool:
    """In training on a CPU, where nothing is compiled."""
    return x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _InPlaceCrossEntropy(torch.autograd.Function):
    """Replica by replica, chunk by chunk: the logits become probabilities, and these the gradient of the logits, where
    they lie. In bf16 a softmax is the one way that rounds once: its own sums are float32."""

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
                mine, aims = (x[r], targets[r]) if rows is None else (x[r, rows], targets[r, rows])
                mine, table = mine.to(dtype), weight[r].to(dtype)
                added = None if bias is None else bias[r].to(dtype)
                share, at_once = 1 / max(1, len(mine)), _evenly(len(mine), IN_PLACE_AT_ONCE // V)
                multiply = product_by(table)
                turned: Tensor | None = None  # the gradient of the weight, [D, V], as products make it fastest
                for first in range(0, len(mine), at_once):
                    piece, aim = mine[first : first + at_once], aims[first : first + at_once, None]
                    logits = multiply(piece, table, added)
                    losses[r] += share * _summed_nats(logits, aim, smoothing)
                    slope = logits  # which it is now
                    if needs_x:
                        here = slice(first, first + at_once) if rows is None else rows[first : first + at_once]
                        dx[r, here] = multiply(slope, table.mT, None).to(x.dtype).mul_(share)
                    if needs_weight:
                        of_piece = multiply((piece * share).mT, slope.mT, None)
                        turned = of_piece.to(weight.dtype) if turned is None else turned.add_(of_piece)
                    if db is not None:
                        db[r] += slope.sum(0, dtype=db.dtype) * share
                    del logits, slope  # before there are those of the next chunk, which then lie where these did
                if dw is not None and turned is not None:
                    dw[r] = turned.mT
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
    """The loss of all rows. Where the logits were, its gradient by them is: probabilities less what is asked for."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    asked, largest = logits.gather(1, targets).to(exact), logits.amax(1, keepdim=True).to(exact)
    if smoothing:
        asked = asked.mul_(1 - smoothing).add_(logits.mean(1, keepdim=True, dtype=exact), alpha=smoothing)
    probabilities = torch.softmax(logits, 1, out=logits)
    # log Σ exp by the likeliest word, whose probability is never too small for a logarithm. Where it is near 1, those
    # of the others say how near: 1 less a little has few digits of that, in bf16 two or three.
    likeliest = probabilities.amax(1, keepdim=True).to(exact)
    others = probabilities.sum(1, keepdim=True, dtype=exact) - likeliest
    total = largest - torch.where(likeliest > 0.5, torch.log1p(-others), likeliest.log())
    probabilities.scatter_(1, targets, probabilities.gather(1, targets).add_(smoothing - 1))
    if smoothing:
        probabilities.sub_(smoothing / logits.shape[1])
    return (total - asked).sum()


class _FusedCrossEntropy(torch.autograd.Function):
    """In training on a GPU where nothing is compiled: one kernel makes the loss and the slope of a chunk's logits, and
    writes the slope over them."""

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
        table = _filled_up(weight, dtype)
        W = table.shape[1]
        shares = x.new_full((R, N), 1 / N, dtype=torch.float32)
        if counted is not None:
            shares = counted / counted.sum(1, keepdim=True).clamp(min=1)
        rows = _evenly(N, LOGITS_AT_ONCE["cuda"] // (R * W))
        losses, dx, dw, db = [], torch.empty_like(x, dtype=dtype), None, None
        for first in range(0, N, rows):
            here = slice(first, min(N, first + rows))
            piece = x[:, here].to(dtype)
            logits = piece @ table.mT
            if bias is not None:
                logits[..., :V] += bias[:, None].to(dtype)
            losses.append(fused_loss.loss_and_slope(logits, targets[:, here], shares[:, here], V, smoothing).sum(1))
            slope = logits  # which it is now
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


def _filled_up(weight: Float[Tensor, "R V D"], dtype: torch.dtype) -> Float[Tensor, "R W D"]:
    """To sizes that matrix units like, with words of no chance: in this precision, written once."""
    R, V, D = weight.shape
    if V % 64 == 0:
        return products.copied(weight, dtype)
    table = torch.empty(R, V + -V % 64, D, dtype=dtype, device=weight.device)
    table[:, :V] = weight
    table[:, V:] = 0
    return table


def _evenly(rows: int, most: int) -> int:
    """As few chunks as can be, of about the same size: a small rest would be slow to multiply."""
    chunks = max(1, -(-rows // max(1, most)))
    return max(1, -(-rows // chunks))


def _times(d: Float[Tensor, "R n m"], g: Float[Tensor, "R"], into: torch.dtype) -> Float[Tensor, "R n m"]:
    """d · g, read and written once whatever the precisions are."""
    return torch.mul(d, g[:, None, None], out=torch.empty_like(d, dtype=into))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        (R, N, D), V = x.shape, weight.shape[1]
        # Matrix units want sizes they can divide: the vocabulary is filled up with words of no chance.
        padding = -V % 64
        table = F.pad(weight.to(dtype), (0, 0, 0, padding))
        rows = max(1, LOGITS_AT_ONCE[x.device.type] // (R * (V + padding)))
        losses: list[Tensor] = []  # not added up in place: torch 2.11, compiled, then gives gradients of zero
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
    """The summed loss over `rows`, and its derivative with respect to the logits: (softmax - target) / rows."""
    wide = logits.float()
    word = torch.arange(logits.shape[-1], device=logits.device)
    wide = torch.where(word < vocabulary, wide, -torch.inf)
    total = wide.logsumexp(-1, keepdim=True)
    right = word == targets[..., None]
    loss = (total.squeeze(-1) - wide.gather(-1, targets[..., None]).squeeze(-1)).sum(1) / rows
    slope = ((wide - total).exp() - right.float()) / rows
    return loss, slope.to(logits.dtype)
