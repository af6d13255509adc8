"""The output layer and its loss as one operation, for vocabularies whose logits would fill the memory.

Logits are `[R, N, V]`: for 8 replicas of a batch of 4,096 tokens and 33,000 words, a billion numbers, many times over
by the time gradients flow. Here rows are taken in chunks; of each chunk the loss and, at once, the gradient are
computed, and its logits are forgotten. The loss is a mean per replica, so all that comes back later is one factor each.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

LOGITS_AT_ONCE = {"cpu": 2**28, "cuda": 2**30}
"""Numbers in one chunk of logits: 1 GB in float32 on a CPU, 2 GB in bf16 on a GPU, where fewer chunks cost less."""
WORTH_IT = {"cpu": 2**27, "cuda": 2**22}
"""Fewer logits than this are computed the plain way, which torch has a kernel for: on a CPU, as long as they fit."""


def mean_cross_entropy(
    x: Float[Tensor, "R N D"],
    weight: Float[Tensor, "R V D"],
    targets: Int[Tensor, "R N"],
    bias: Float[Tensor, "R V"] | None = None,
) -> Float[Tensor, "R"]:
    """Mean nats per row of predicting `targets` from the logits x Wᵀ + b."""
    (R, N, _), V = x.shape, weight.shape[1]
    if WORTH_IT[x.device.type] > R * N * V:
        if R == 1:
            logits = F.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        else:
            logits = x @ weight.mT if bias is None else x @ weight.mT + bias[:, None]
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(R, N).mean(1)
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    return _ChunkedCrossEntropy.apply(x, weight, targets, bias, dtype)  # pyright: ignore


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
