"""Matrix products on a CPU by oneDNN, which torch contains but does not use for float32.

In float32 torch's own products are MKL's. Beside what a core can do at all (an AMD EPYC of Zen 4: 115 GFLOP/s) they are
a tenth off with the many rows of training, and a third with the few rows of decoding by a large weight, which they lay
out anew, block by block, each time (64 rows by 512 × 10,000: 70 GFLOP/s). On a newer one (Zen 5) they reach 117 where
oneDNN has 260. oneDNN is no slower on the processors it was measured on (docs/log.md), and a weight can be packed once
for many products, in which bias and nonlinearity are done while the numbers are still in the cache.

What it gives is compared with the plain lines first, for each size of a weight (`trusted.py`). Where it is not there,
or not right, or where there is something it does not know (autocast, a compiler), the plain product stays.
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
from headway.nn.kernels.trusted import difference, numbers, trusted

NONLINEARITIES = {
    "gelu": ("gelu", "none"),
    "gelu-tanh": ("gelu", "tanh"),
    "silu": ("swish", None),
}
"""By Headway's names: oneDNN's name and variant. `fused.py` has the plain lines. Not relu, which oneDNN says is zero of
what is no number: a lost model would go on writing."""
MANY_ROWS = 128
"""From which on oneDNN is faster by a weight as it lies, too."""
LARGE = 2**12
"""Outputs or inputs of a weight. What goes wrong in a product goes wrong at its edges: the blocks between are alike."""
MANY_PRODUCTS = 2**22
"""Of single numbers: from which on it is faster for the gradient of a weight."""


class PackedWeight:
    """A copy of a weight that may not change as long as this is used."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []  # of each replica
        self._refused = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """A copy of a model packs its own weights."""
        return PackedWeight, ()

    def multiply(
        self,
        x: Float[Tensor, "R B T I"],
        weight: Float[Tensor, "R O I"],
        bias: Float[Tensor, "R O"] | None,
        nonlinearity: str | None = None,
    ) -> Float[Tensor, "R B T O"] | None:
        """x Wᵀ + b, and a nonlinearity of it; None where that is better done the plain way."""
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
    """As long as this lasts, whatever multiplies by a weight packs it when first asked; no weight may change."""
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
    """x Wᵀ + b by a weight that may change; None where the plain product is as good, or better."""
    multiply = _pays_for(x, weight)
    return None if multiply is None else multiply(x, weight, bias)


def each_by_onednn(
    x: Float[Tensor, "R B T I"], weight: Float[Tensor, "R O I"], bias: Float[Tensor, "R O"] | None
) -> Float[Tensor, "R B T O"] | None:
    """One replica after the other: on a CPU there is nothing to gain from a product for all of them."""
    if (multiply := _pays_for(x[0], weight)) is None:
        return None
    biases = [None] * len(x) if bias is None else bias.unbind()
    return torch.stack([multiply(*one) for one in zip(x.unbind(), weight.unbind(), biases, strict=True)])


def _pays_for(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """What multiplies such rows by such a weight."""
    if x.numel() < MANY_ROWS * x.shape[-1] or not _is_plain(x) or not _is_trusted(weight, "products", check_product):
        return None
    return _ByOneDnn.apply if torch.is_grad_enabled() else _product  # pyright: ignore


def product_by(weight: Float[Tensor, "O I"]) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """What computes x Wᵀ + b where nobody asks for a gradient, by weights of this size, turned round too, and for their
    gradient: oneDNN's product, or torch's."""
    return _product if _is_plain(weight) and _is_trusted(weight, "products", check_product) else F.linear


class _ByOneDnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad  # where a weight stays as it is, nobody asks what it was given
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        """By operations that have gradients themselves."""
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        dx = _ByOneDnn.apply(dy, weight.mT, None) if of_x else None
        dw = _gradient_of_weight(rows, x.reshape(-1, x.shape[-1])) if of_weight else None
        return dx, dw, rows.sum(0) if of_bias else None


def _gradient_of_weight(dy: Float[Tensor, "N O"], x: Float[Tensor, "N I"]) -> Float[Tensor, "O I"]:
    """dyᵀ x. The wider of both stands where a weight would, which is up to twice as fast as the other way round."""
    outputs, inputs = dy.shape[1], x.shape[1]
    if dy.numel() * inputs < MANY_PRODUCTS:
        return dy.mT @ x
    if outputs > inputs:
        return _ByOneDnn.apply(x.mT, dy.mT, None).mT  # pyright: ignore
    return _ByOneDnn.apply(dy.mT, x.mT, None)  # pyright: ignore


def _is_plain(x: Tensor) -> bool:
    """Numbers on a CPU, and nobody asks for another precision, for operations that he knows (to record or to count
    them) or for other ways to differentiate."""
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
    """A size that is compared in the place of this one: of large ones, which take seconds, one with the same edges."""
    return size if size < 2 * LARGE else LARGE + size % LARGE


def _pack(weight: Float[Tensor, "O I"]) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _product(
    x: Float[Tensor, "*b I"], weight: Tensor, bias: Float[Tensor, " O"] | None, nonlinearity: str | None = None
) -> Float[Tensor, "*b O"]:
    """By a weight as it lies, or packed."""
    name, variant = ("none", None) if nonlinearity is None else NONLINEARITIES[nonlinearity]
    bias = None if bias is None else bias.contiguous()  # oneDNN reads it as if it were
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], variant)


# --- beside the plain lines ------------------------------------------------------------------------------------------


def check_packed(device: torch.device, outputs: int, inputs: int) -> float:
    """One row without a bias, and a few with one and each nonlinearity."""
    weight, bias = numbers((outputs, inputs), device, 1), numbers((outputs,), device, 2)
    packed, one, few = _pack(weight), numbers((1, inputs), device, 3), numbers((2, 7, inputs), device, 4)
    plain = F.linear(few, weight, bias)
    found = [_product(one, packed, None), *(_product(few, packed, bias, name) for name in (None, *NONLINEARITIES))]
    return difference(found, [F.linear(one, weight), plain, *(fused.NONLINEARITIES[n](plain) for n in NONLINEARITIES)])


def check_product(device: torch.device, outputs: int, inputs: int) -> float:
    """There, and back to the inputs and to the weight."""
    x, dy = (numbers((2, MANY_ROWS // 2, width), device, seed) for seed, width in ((1, inputs), (4, outputs)))
    weight, bias = numbers((outputs, inputs), device, 2), numbers((outputs,), device, 3)
    there_and_back = _product(x, weight, bias), _product(dy, weight.mT, None)
    plain = F.linear(x, weight, bias), dy @ weight
    x, dy = x.flatten(0, 1).mT, dy.flatten(0, 1).mT
    return difference((*there_and_back, _product(x, dy, None), _product(dy, x, None)), (*plain, x @ dy.mT, dy @ x.mT))
