"""Matrix products on a CPU by oneDNN, which torch contains but does not use for float32.

In float32 torch uses MKL. Compared with the peak of a core (an AMD EPYC of Zen 4: 115 GFLOP/s), MKL is a tenth slower
with the many rows of training. With the few rows of decoding and a large weight it is a third slower, because it
repacks the weight block by block each time (64 rows by 512 × 10,000: 70 GFLOP/s). On a newer processor (Zen 5) it
reaches 117 GFLOP/s and oneDNN 260. oneDNN is no slower on the processors it was measured on (docs/log.md). It can also
pack a weight once for many products, and apply bias and nonlinearity while the outputs are still in the cache.

Its results are first compared with plain torch, for each size of a weight (`trusted.py`). If oneDNN is missing or
wrong, or under something it does not support (autocast, torch.compile), the plain product is used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from headway.nn.kernels import fused
from headway.nn.kernels.trusted import difference, sample_values, trusted

NONLINEARITIES = {
    "gelu": ("gelu", "none"),
    "gelu-tanh": ("gelu", "tanh"),
    "silu": ("swish", None),
}
"""oneDNN's name and variant for Headway's names. `fused.py` has the plain versions. No relu, because oneDNN's turns NaN
into zero: a diverged model would go on generating text."""
MANY_ROWS = 128
"""From this number of rows on, oneDNN is faster even with an unpacked weight."""
LARGE = 2**12
"""Outputs or inputs of a weight from which on a smaller size is checked in its place. Errors in a product appear at its
edges; the blocks between them are all computed alike."""
MANY_PRODUCTS = 2**22
"""From this number of multiplications on, oneDNN is faster for the gradient of a weight."""


class PackedWeight:
    """A packed copy of a weight. The weight must not change while this is used."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []  # one per replica
        self._refused = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """A copy starts empty: a copied model packs its own weights."""
        return PackedWeight, ()

    def multiply(
        self,
        x: Float[Tensor, "R B T I"],
        weight: Float[Tensor, "R O I"],
        bias: Float[Tensor, "R O"] | None,
        nonlinearity: str | None = None,
    ) -> Float[Tensor, "R B T O"] | None:
        """x Wᵀ + b, and a nonlinearity of it; None = use plain torch instead."""
        if self._refused or torch.is_grad_enabled() or not _is_plain(x):
            return None
        if nonlinearity is not None and nonlinearity not in NONLINEARITIES:
            return None
        if not self._parts:
            if not _is_trusted(weight, "packed products", check_packed):
                self._refused = True
                return None
            self._parts = [_pack(one) for one in weight.detach()]
        if len(self._parts) == 1:
            return _product(x, self._parts[0], None if bias is None else bias.squeeze(0), nonlinearity)
        own = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([_product(*mine, nonlinearity) for mine in zip(x, self._parts, own, strict=True)])


class Multiplying(nn.Module):
    """A layer that multiplies by a weight."""

    packed: PackedWeight | None = None


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """Inside this block, layers pack their weights at first use; no weight may change meanwhile."""
    multiplying = [one for one in model.modules() if isinstance(one, Multiplying)]
    for one in multiplying:
        one.packed = PackedWeight()
    try:
        yield
    finally:
        for one in multiplying:
            one.packed = None


def by_onednn(
    x: Float[Tensor, "*b I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
) -> Float[Tensor, "*b O"] | None:
    """x Wᵀ + b with a weight that may change; None = plain torch is as good or better."""
    multiply = _pays_for(x, weight)
    return None if multiply is None else multiply(x, weight, bias)


def each_by_onednn(
    x: Float[Tensor, "R B T I"], weight: Float[Tensor, "R O I"], bias: Float[Tensor, "R O"] | None
) -> Float[Tensor, "R B T O"] | None:
    """The same for each replica in turn: on a CPU one batched product for all would be no faster."""
    if (multiply := _pays_for(x[0], weight)) is None:
        return None
    biases = [None] * len(x) if bias is None else bias.unbind()
    return torch.stack([multiply(*one) for one in zip(x.unbind(), weight.unbind(), biases, strict=True)])


def _pays_for(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """The function that multiplies these rows by this weight; None = plain torch is as good or better."""
    if x.numel() < MANY_ROWS * x.shape[-1] or not _is_plain(x) or not _is_trusted(weight, "products", check_product):
        return None
    return _ByOneDnn.apply if torch.is_grad_enabled() else _product  # pyright: ignore


def product_by(weight: Float[Tensor, "O I"]) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """The function that computes x Wᵀ + b without autograd: oneDNN's product, or torch's. It is for weights of this
    size, for their transposes, and for their gradients."""
    return _product if _is_plain(weight) and _is_trusted(weight, "products", check_product) else F.linear


class _ByOneDnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad  # a frozen weight does not need its input
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Made of differentiable operations, so that it can be differentiated again."""
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        dx = _ByOneDnn.apply(dy, weight.mT, None) if of_x else None
        dw = _gradient_of_weight(rows, x.reshape(-1, x.shape[-1])) if of_weight else None
        return dx, dw, rows.sum(0) if of_bias else None


def _gradient_of_weight(dy: Float[Tensor, "N O"], x: Float[Tensor, "N I"]) -> Float[Tensor, "O I"]:
    """dyᵀ x. The wider of the two takes the place of the weight, up to twice as fast as the other way round."""
    outputs, inputs = dy.shape[1], x.shape[1]
    if dy.numel() * inputs < MANY_PRODUCTS:
        return dy.mT @ x
    if outputs > inputs:
        return _ByOneDnn.apply(x.mT, dy.mT, None).mT  # pyright: ignore
    return _ByOneDnn.apply(dy.mT, x.mT, None)  # pyright: ignore


def _is_plain(x: Tensor) -> bool:
    """Whether x is a plain float32 tensor on a CPU, outside of autocast, of everything that records operations
    (compilers, tracing, dispatch modes), and of other kinds of autograd (functorch, forward mode)."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or type(x) not in (Tensor, nn.Parameter):
        return False
    recorded = torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    otherwise = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return not (torch.is_autocast_enabled("cpu") or recorded or otherwise)


def _is_trusted(weight: Tensor, operation: str, check: Callable[..., float]) -> bool:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return there and trusted(f"oneDNN's {operation}", weight.device, check, *map(_stands_for, weight.shape[-2:]))


def _stands_for(size: int) -> int:
    """The size to check in place of this one: for large sizes, whose check takes seconds, one with the same edges."""
    return size if size < 2 * LARGE else LARGE + size % LARGE


def _pack(weight: Float[Tensor, "O I"]) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _product(
    x: Float[Tensor, "*b I"], weight: Tensor, bias: Float[Tensor, " O"] | None, nonlinearity: str | None = None
) -> Float[Tensor, "*b O"]:
    """With an unpacked weight, or a packed one."""
    name, variant = ("none", None) if nonlinearity is None else NONLINEARITIES[nonlinearity]
    bias = None if bias is None else bias.contiguous()  # oneDNN reads it as if it were contiguous
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], variant)


# --- comparison with plain torch -------------------------------------------------------------------------------------


def check_packed(device: torch.device, outputs: int, inputs: int) -> float:
    """Compare one row without a bias, and a few rows with a bias and each nonlinearity."""
    weight, bias = sample_values((outputs, inputs), device, 1), sample_values((outputs,), device, 2)
    packed, one, few = _pack(weight), sample_values((1, inputs), device, 3), sample_values((2, 7, inputs), device, 4)
    plain = F.linear(few, weight, bias)
    found = [_product(one, packed, None), *(_product(few, packed, bias, name) for name in (None, *NONLINEARITIES))]
    return difference(found, [F.linear(one, weight), plain, *(fused.NONLINEARITIES[n](plain) for n in NONLINEARITIES)])


def check_product(device: torch.device, outputs: int, inputs: int) -> float:
    """Forward, and the gradients of the inputs and of the weight."""
    x, dy = (sample_values((2, MANY_ROWS // 2, width), device, seed) for seed, width in ((1, inputs), (4, outputs)))
    weight, bias = sample_values((outputs, inputs), device, 2), sample_values((outputs,), device, 3)
    both = _product(x, weight, bias), _product(dy, weight.mT, None)
    plain = F.linear(x, weight, bias), dy @ weight
    x, dy = x.flatten(0, 1).mT, dy.flatten(0, 1).mT
    return difference((*both, _product(x, dy, None), _product(dy, x, None)), (*plain, x @ dy.mT, dy @ x.mT))
