"""What a step of a small model is made of, one kernel each for a GPU: norms, biases with nonlinearities, dropout,
turned heads, the loss of logits, AdamW.

Uncompiled, each of these is three to twenty launches, which read and write the same numbers again and again; compiled,
they are as few, after half a minute. The kernels (`fused_kernels.py`) need no such wait. They are for training on CUDA
where nothing is compiled: a compiler makes its own of the plain lines, and everywhere else those are what runs.

Every function here gives None where the plain lines must do, and its caller has them. Before a kernel is used, what it
gives is compared with those lines, there and back, at the sizes and precisions it will be used with (`trusted.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.core import random
from headway.nn.trusted import WITHIN, by_kernel, difference, numbers, there_and_back, trusted

WIDEST = 8192
_in_use = _switched_off = False


@contextmanager
def in_use() -> Iterator[None]:
    """As long as this lasts, kernels are used where there are any: in the steps of a training. Audits, which take a few
    steps in other precisions, would wait longer for kernels to be built than for the steps."""
    global _in_use
    before, _in_use = _in_use, not _switched_off
    try:
        yield
    finally:
        _in_use = before


@contextmanager
def plainly() -> Iterator[None]:
    """As long as this lasts, no kernel is used: to compare with."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


def wanted(x: Tensor) -> bool:
    """Whether there is anything to be had here: training on CUDA, and nothing that compiles."""
    if torch.compiler.is_compiling() or not x.is_cuda:
        return False
    return _in_use and torch.is_grad_enabled() and x.dtype in WITHIN and _kernels() is not None


# --- norms -----------------------------------------------------------------------------------------------------------


def norm(
    x: Float[Tensor, "R B T D"],
    weight: Float[Tensor, "R D"],
    bias: Float[Tensor, "R D"] | None,
    eps: float,
    centred: bool,
    into: torch.dtype,
) -> Float[Tensor, "R B T D"] | None:
    """LayerNorm, or RMSNorm where nothing is `centred`, in the precision of whoever reads it."""
    if not wanted(x) or x.shape[-1] > WIDEST:
        return None
    case = x.shape[-1], x.dtype, into, centred, bias is not None, eps
    run = lambda: _Norm.apply(x, weight, bias, eps, centred, into)  # noqa: E731
    return by_kernel("norm", x.device, check_norm, case, run)


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool, into: torch.dtype) -> Tensor:
    wide, width = x.float(), x.shape[-1:]
    y = F.layer_norm(wide, width, eps=eps) if centred else F.rms_norm(wide, width, eps=eps)
    y = y * weight[:, None, None]
    return (y if bias is None else y + bias[:, None, None]).to(into)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, eps, centred, into):
        x = x.contiguous()
        R, D = weight.shape
        rows, N = x.numel() // D, x.numel() // D // R
        y = torch.empty_like(x, dtype=into)
        scale = torch.empty(rows, dtype=torch.float32, device=x.device)
        mean = torch.empty_like(scale) if centred else scale
        ROWS, BLOCK = _tile(D)
        _kernels().norm_forward[(_parts(rows, ROWS),)](
            x, weight, weight if bias is None else bias, y, mean, scale, rows, N, D, eps,
            centred, bias is not None, ROWS, BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.centred, ctx.biased = centred, bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, mean, scale = ctx.saved_tensors
        R, D = weight.shape
        N = x.numel() // D // R
        ROWS, BLOCK = _tile(D)
        parts, per = _shared(N, ROWS, R)
        dx = torch.empty_like(x)
        sums = torch.empty(2 if ctx.biased else 1, R, parts, D, dtype=torch.float32, device=x.device)
        _kernels().norm_backward[(R, parts)](
            dy.contiguous(), x, weight, mean, scale, dx, sums[0], sums[-1], N, D, per,
            ctx.centred, ctx.biased, ROWS, BLOCK,
        )  # fmt: skip
        sums = sums.sum(2)
        return dx, sums[0], sums[1] if ctx.biased else None, None, None, None


def check_norm(device, D, dtype, into, centred, biased, eps) -> float:
    x = numbers((2, 3, 16, D), device, 1, dtype)
    weight, bias = numbers((2, D), device, 2), numbers((2, D), device, 3) if biased else None
    return there_and_back(
        lambda x, w, b: _Norm.apply(x, w, b, eps, centred, into),
        lambda x, w, b: plain_norm(x, w, b, eps, centred, into),
        (x, weight, bias),
    )


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
    """This nonlinearity of products + bias."""
    if not wanted(products) or kind not in NONLINEARITIES:
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
        ROWS, BLOCK = _tile(min(D, 256))
        grid = (_parts(rows, ROWS), _parts(D, BLOCK))
        _kernels().activate_forward[grid](products, bias, y, rows, N, D, kind, ROWS, BLOCK)
        ctx.save_for_backward(*(() if kind == "none" else (products,)), bias)
        ctx.kind = kind
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        *kept, bias = ctx.saved_tensors
        dy, (R, D) = dy.contiguous(), bias.shape
        N = dy.numel() // D // R
        ROWS, BLOCK = _tile(min(D, 256))
        columns = _parts(D, BLOCK)
        parts, per = _shared(N, ROWS, R * columns)
        dx = torch.empty_like(dy) if kept else dy
        sums = torch.empty(R, parts, D, dtype=torch.float32, device=dy.device)
        _kernels().activate_backward[(R, parts, columns)](
            dy, kept[0] if kept else dy, bias, dx, sums, N, D, per, ctx.kind, ROWS, BLOCK
        )
        return dx, sums.sum(1), None


def check_activate(device, D, dtype, kind) -> float:
    products, bias = numbers((2, 3, 16, D), device, 1, dtype), numbers((2, D), device, 2)
    return there_and_back(
        lambda x, b: _Activate.apply(x, b, kind), lambda x, b: plain_activate(x, b, kind), (products, bias)
    )


# --- dropout ---------------------------------------------------------------------------------------------------------


def dropped(
    x: Float[Tensor, "R *rest"], keys: Int[Tensor, "R 2"], step: Int[Tensor, ""], rates: Float[Tensor, "R"], first: int
) -> Float[Tensor, "R *rest"] | None:
    """x times the factors of `replicated.Dropout`, from the index `first` of each replica on: the same to the bit."""
    if not wanted(x):
        return None
    case = x.dtype, x[0].numel() % 16 == 0
    return by_kernel("dropout", x.device, check_dropout, case, lambda: _Dropped.apply(x, keys, step, rates, first))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, keys, step, rates, first):
        ctx.save_for_backward(keys, step, rates)
        ctx.first = first
        return _Dropped.times(x.contiguous(), keys, step, rates, first)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        keys, step, rates = ctx.saved_tensors
        return _Dropped.times(dy.contiguous(), keys, step, rates, ctx.first), None, None, None, None

    @staticmethod
    def times(x: Tensor, keys: Tensor, step: Tensor, rates: Tensor, first: int) -> Tensor:
        y, R = torch.empty_like(x), len(x)
        count = x.numel() // R
        _kernels().dropped[(_parts(count, 1024), R)](x, y, keys, step, rates, count, first, 1024)
        return y


def check_dropout(device, dtype, even) -> float:
    """`even`: a replica has a multiple of 16 numbers."""
    shape = (2, 3, 16, 16) if even else (2, 3, 5, 5)
    keys = random.stream_keys([1, 2], "check").to(device)
    step, rates = torch.tensor(5, dtype=torch.int32, device=device), torch.tensor([0.125, 0.5], device=device)

    def plain(x: Tensor) -> Tensor:
        drawn = random.bits(keys, step, x[0].numel(), 7)
        kept = (drawn >= (rates * 65536 - 32768).to(torch.int32)[:, None]).view(x.shape)
        return x * (kept * (1 / (1 - rates)).to(x.dtype).view(-1, 1, 1, 1))

    x = numbers(shape, device, 1, dtype)
    return there_and_back(lambda x: _Dropped.apply(x, keys, step, rates, 7), plain, (x,))


# --- heads that are turned -------------------------------------------------------------------------------------------


def turned(
    x: Float[Tensor, "R B H T d"], at: Int[Tensor, "*b T"], frequencies: Float[Tensor, "half"]
) -> Float[Tensor, "R B H T d"] | None:
    """As `positions.RotaryPositions` turns them, where all rows stand at the same places; laid out as fused attention
    likes it, the heads of a token together."""
    if not wanted(x) or at.ndim != 1 or x.stride(-1) != 1 or x.shape[2] * x.shape[4] > 2 * WIDEST:
        return None
    case = x.shape[2], x.shape[4], x.dtype
    return by_kernel("turn", x.device, check_turn, case, lambda: _Turned.apply(x, at, frequencies))


def plain_turned(x: Tensor, at: Tensor, frequencies: Tensor) -> Tensor:
    angle = at[:, None] * frequencies
    cos, sin, wide = angle.cos(), angle.sin(), x.float()
    even, odd = wide[..., 0::2], wide[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, at, frequencies):
        ctx.save_for_backward(at, frequencies)
        return _Turned.by(x, at, frequencies, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        at, frequencies = ctx.saved_tensors
        return _Turned.by(dy, at, frequencies, -1.0), None, None

    @staticmethod
    def by(x: Tensor, at: Tensor, frequencies: Tensor, sign: float) -> Tensor:
        R, B, H, T, d = x.shape
        x = x.flatten(0, 1)  # a view where rows are evenly spaced, as those of products are
        x = x if x.stride(-1) == 1 else x.contiguous()
        y = torch.empty(R * B, T, H, d, dtype=x.dtype, device=x.device).transpose(1, 2)
        _kernels().turned[(R * B, T)](
            x, y, at, frequencies, T, *x.stride()[:3], *y.stride()[:3], sign, H, d // 2, _power(H * d // 2)
        )
        return y.unflatten(0, (R, B))


def check_turn(device, H, d, dtype) -> float:
    x, at = (
        numbers((1, 2, 16, 3, H, d), device, 1, dtype)[..., 1, :, :].transpose(2, 3),
        torch.arange(16, device=device),
    )
    frequencies = 100.0 ** -(torch.arange(0, d, 2, device=device) / d)
    turn = at * 61  # as far as a long segment goes
    return there_and_back(
        lambda x: _Turned.apply(x, turn, frequencies), lambda x: plain_turned(x, turn, frequencies), (x,)
    )


# --- the loss of logits ----------------------------------------------------------------------------------------------


def loss_and_slope(
    logits: Float[Tensor, "R n W"],
    targets: Int[Tensor, "R n"],
    shares: Float[Tensor, "R n"],
    vocabulary: int,
    smoothing: float,
) -> Float[Tensor, "R n"]:
    """What each row adds to the loss, which is its share; the derivative takes the place of the logits."""
    losses = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    W = logits.shape[-1]
    _kernels().loss_and_slope[(targets.numel(),)](
        logits, targets.contiguous(), shares.contiguous(), losses, vocabulary, W, smoothing, smoothing > 0, _piece(W),
        num_warps=8 if _piece(W) > 1024 else 4,
    )  # fmt: skip
    return losses


def lost(x: Tensor, dtype: torch.dtype, width: int, smoothing: float, run: Callable[[], Tensor]) -> Tensor | None:
    """What `run` gives, which calls `loss_and_slope` for logits of this precision and width; None = do without."""
    if not wanted(x) or dtype not in WITHIN:
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
    return min(4096, _power(width))


def check_loss(device, dtype, piece, smooth) -> float:
    W = piece if piece < 4096 else piece + 64
    V, smoothing = W - 3, 0.1 if smooth else 0.0
    logits, targets = numbers((2, 16, W), device, 1, dtype), torch.arange(32, device=device).view(2, 16) * 5 % V
    shares = torch.where(torch.arange(16, device=device) % 5 > 0, 1 / 16, 0.0).expand(2, 16)
    expected = plain_loss_and_slope(logits, targets, shares, V, smoothing)
    losses = loss_and_slope(logits, targets, shares, V, smoothing)
    return difference((losses, logits), expected)


# --- AdamW -----------------------------------------------------------------------------------------------------------


def adamw(
    weights: Float[Tensor, "R n"],
    gradient: Float[Tensor, "R n"],
    mean: Float[Tensor, "R n"],
    square: Float[Tensor, "R n"],
    scale: Float[Tensor, "R 1"],
    rates: Float[Tensor, "R 1"],
    decays: Float[Tensor, "R 1"],
    filled: tuple[Float[Tensor, ""], Float[Tensor, ""]],
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """One parameter, and what is remembered of it, one step on, for all replicas. Only for whoever has asked
    `can_step`. `filled`: how much of the mean, and of the root of the square, has been filled so far."""
    R, n = weights.shape
    _kernels().adamw[(_parts(n, 1024), R)](
        weights, gradient.contiguous(), mean, square, scale, rates, decays, *filled, n, *betas, epsilon, True, 1024
    )


def can_step(weights: Tensor) -> bool:
    if torch.compiler.is_compiling() or not weights.is_cuda or not _in_use or weights.dtype != torch.float32:
        return False
    return _kernels() is not None and all(trusted("adamw", weights.device, check_adamw, even) for even in (True, False))


def plain_adamw(
    weights: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, scale: Tensor, rates: Tensor, decays: Tensor,
    filled: tuple[Tensor, Tensor], betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    gradient = torch.where(scale > 0, gradient * scale, 0)
    mean.lerp_(gradient, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    size = square.sqrt() / filled[1] + epsilon
    weights.mul_(1 - rates * decays).sub_(mean / size * (rates / filled[0]))


def check_adamw(device, even) -> float:
    """`even`: a parameter of a multiple of 16 numbers."""
    given = [numbers((2, 1504 if even else 1501), device, seed) for seed in range(4)]
    given[3].abs_()
    pairs = (0.5, 0.0), (1e-2, 0.0), (0.1, 0.2)
    scale, rates, decays = (torch.tensor(pair, device=device)[:, None] for pair in pairs)
    filled = torch.tensor(0.2, device=device), torch.tensor(0.15, device=device)
    results = []
    for step in (adamw, plain_adamw):
        weights, gradient, mean, square = (t.clone() for t in given)
        step(weights, gradient, mean, square, scale, rates, decays, filled, (0.9, 0.99), 1e-8)
        results.append([weights - given[0], mean, square])
    return difference(*results)


# --- sizes -----------------------------------------------------------------------------------------------------------


@cache
def _kernels() -> Any:
    """None where there is no Triton."""
    with suppress(ImportError):
        from headway.nn import fused_kernels

        return fused_kernels
    return None


def _power(n: int) -> int:
    """The first power of two from n on; 16 at least."""
    return max(16, 1 << (n - 1).bit_length())


def _tile(D: int) -> tuple[int, int]:
    """Rows and columns of what one program works on at a time."""
    BLOCK = _power(D)
    return max(1, min(32, 2048 // BLOCK)), BLOCK


def _parts(count: int, size: int) -> int:
    return -(-count // size)


def _shared(N: int, ROWS: int, others: int) -> tuple[int, int]:
    """How many programs share the rows of a replica, and how many rows each has, where so many others run beside."""
    most = max(1, 2048 // others)
    per = _parts(_parts(N, min(most, _parts(N, ROWS))), ROWS) * ROWS
    return _parts(N, per), per
