"""The loss of logits as one GPU kernel, which overwrites the logits with its derivative (`fused.py` says why)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headway.nn.kernels import launching
from headway.nn.kernels.trusted import TOLERANCE, by_kernel, difference, sample_values

PIECES = 1024, 4096
"""Logits that a program processes at once, with small and with large vocabularies. The fewer rows are processed at the
same time, the more likely they are still in the GPU's cache when they are read again; large pieces make them few."""
MANY_WORDS = 2**14
SIDE = 8
"""Adjacent logits per lane: in bf16, as many as one load reads."""


def loss_and_slope(
    logits: Float[Tensor, "R n W"],
    targets: Int[Tensor, "R n"],
    shares: Float[Tensor, "R n"],
    vocabulary: int,
    smoothing: float,
    piece: int | None = None,
) -> Float[Tensor, "R n"]:
    """The loss of each row times its share; the logits are overwritten by the derivative. W is a multiple of 64.
    `piece`: the number of logits that are processed at once; by default it depends on W."""
    losses = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    W = logits.shape[-1]
    piece = _piece(W) if piece is None else piece
    launching.kernels().loss_and_slope[(targets.numel(),)](
        logits, targets.contiguous(), shares.contiguous(), losses, vocabulary, W, smoothing, smoothing > 0,
        piece // SIDE, SIDE, num_warps=max(4, piece // 512),
    )  # fmt: skip
    return losses


def by_loss_kernel(
    x: Tensor, dtype: torch.dtype, width: int, smoothing: float, run: Callable[[], Tensor]
) -> Tensor | None:
    """The result of `run`, which calls `loss_and_slope` for logits of this dtype and width; None = not available."""
    if not launching.wanted(x) or dtype not in TOLERANCE:
        return None
    return by_kernel("loss", x.device, check_loss, (dtype, _piece(width), smoothing > 0), run)


def plain_loss_and_slope(
    logits: Tensor, targets: Tensor, shares: Tensor, vocabulary: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        given = logits.detach().float().requires_grad_()
        rows = given[..., :vocabulary].flatten(0, 1)
        nats = F.cross_entropy(rows, targets.flatten(), reduction="none", label_smoothing=smoothing).view(targets.shape)
        (slope,) = torch.autograd.grad((nats * shares).sum(), given)
    return (nats * shares).detach(), slope.to(logits.dtype)


def _piece(width: int) -> int:
    return min(PIECES[width > MANY_WORDS], launching.next_power_of_two(width))


def check_loss(device, dtype, piece, smooth) -> float:
    W = 2 * piece + 64 if piece in PIECES else piece  # whole pieces and a part of one
    V, smoothing = W - 3, 0.1 if smooth else 0.0
    logits, targets = sample_values((2, 16, W), device, 1, dtype), torch.arange(32, device=device).view(2, 16) * 5 % V
    shares = torch.where(torch.arange(16, device=device) % 5 > 0, 1 / 16, 0.0).expand(2, 16)
    expected = plain_loss_and_slope(logits, targets, shares, V, smoothing)
    losses = loss_and_slope(logits, targets, shares, V, smoothing, piece)
    return difference((losses, logits), expected)
