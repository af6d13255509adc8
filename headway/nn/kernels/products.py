"""Mixed-precision matrix products: the bf16 copies of all float32 weights are made at once.

Autocast casts each weight to bf16 when it is used, and its gradient to bf16 and then back to float32: two launches for
every weight and every bias. When training on CUDA without torch.compile, one launch at the first product of a step
makes all copies, and the products write float32 gradients directly. The products themselves are the library's, so the
check before the first use is of this method, not of every size.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headway.nn.kernels import launching
from headway.nn.kernels.once_differentiable import differentiable_once
from headway.nn.kernels.trusted import by_kernel, difference_with_gradients, sample_values

_in_use: "CopiedWeights | None" = None


class CopiedWeights:
    """Copies of weights in lower precision for one training step, during which the weights do not change."""

    def __init__(self, weights: Iterable[Tensor]):
        self.weights = {id(weight): weight for weight in weights if weight.dtype == torch.float32}
        self.made: dict[int, Tensor] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Products use these copies inside this block, in which no weight may change."""
        global _in_use
        before, _in_use = _in_use, self
        try:
            yield
        finally:
            _in_use = before
            self.made.clear()

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The copy of this weight in `dtype`, or None if there is none."""
        if id(weight) not in self.weights:
            return None
        if not self.made:
            self.made = {own: torch.empty_like(one, dtype=dtype) for own, one in self.weights.items()}
            with torch.no_grad():
                torch._foreach_copy_(list(self.made.values()), list(self.weights.values()))  # pyright: ignore
        copy = self.made[id(weight)]
        return copy if copy.dtype == dtype else None


def has_copy(weight: Tensor) -> bool:
    """Whether there is a copy of this weight, which then exists for the whole step. (One that is gathered from several
    processes is freed after its layer.)"""
    return _in_use is not None and id(weight) in _in_use.weights


def copied(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in `dtype`: the existing copy, which has no gradient, or a new cast."""
    copy = None if _in_use is None or weight.dtype == dtype else _in_use.of(weight, dtype)
    return weight.to(dtype) if copy is None else copy


def multiply(
    x: Float[Tensor, "R B T I"], weight: Float[Tensor, "R O I"], bias: Float[Tensor, "R O"] | None
) -> Float[Tensor, "R B T O"] | None:
    """x Wᵀ + b from the copies of both; None = there are none. A bias is possible only with one replica."""
    if not launching.wanted(x) or _in_use is None or not torch.is_autocast_enabled(x.device.type):
        return None
    dtype = torch.get_autocast_dtype(x.device.type)
    copy, bias_copy = _in_use.of(weight, dtype), None if bias is None else _in_use.of(bias, dtype)
    if copy is None or (bias is not None and bias_copy is None):
        return None
    case = dtype, len(weight) > 1, bias is not None
    run = lambda: _Product.apply(x.to(dtype), weight, bias, copy, bias_copy)  # noqa: E731
    return by_kernel("product", x.device, check_product, case, run)


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.flatten(1, 2).float() @ weight.mT
    return (y if bias is None else y + bias[:, None]).to(x.dtype).unflatten(1, x.shape[1:3])


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, copy, bias_copy):
        ctx.save_for_backward(x, copy)
        if len(copy) == 1:
            return F.linear(x, copy.squeeze(0), None if bias_copy is None else bias_copy.squeeze(0))
        return (x.flatten(1, 2) @ copy.mT).unflatten(1, x.shape[1:3])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, copy = ctx.saved_tensors
        rows = dy.flatten(1, 2)
        dx = _product(rows, copy).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = _product(rows.mT, x.flatten(1, 2), torch.float32) if ctx.needs_input_grad[1] else None
        d_bias = rows.sum(1, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        return dx, d_weight, d_bias, None, None


def _product(
    a: Float[Tensor, "R n k"], b: Float[Tensor, "R k m"], into: torch.dtype | None = None
) -> Float[Tensor, "R n m"]:
    """a b, in its own dtype, or in the float32 in which it was accumulated."""
    if into is not None and not a.is_cuda:  # a CPU's product has no other output dtype
        return a.to(into) @ b.to(into)
    exactly: dict[str, Any] = {} if into is None else {"out_dtype": into}
    if len(a) == 1:
        return torch.mm(a.squeeze(0), b.squeeze(0), **exactly)[None]
    return torch.bmm(a, b, **exactly)


def check_product(device, dtype, several, biased) -> float:
    R = 2 if several else 1
    x, weight = sample_values((R, 3, 16, 64), device, 1, dtype), sample_values((R, 48, 64), device, 2)
    bias = sample_values((R, 48), device, 3) if biased else None

    def by_copies(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        copies = (None if one is None else one.detach().to(dtype) for one in (weight, bias))
        return _Product.apply(x, weight, bias, *copies)  # pyright: ignore[reportReturnType]

    rounded = [one if one is None else one.to(dtype).float() for one in (weight, bias)]
    return difference_with_gradients(by_copies, plain_product, (x, *rounded))
