"""Weights packed once for many products on a CPU, by oneDNN, which torch is built with.

torch's own products lay a weight out anew, block by block, each time they are asked. Decoding asks for the same products
token by token, with few rows each: there that is a tenth to a third of the time (64 rows by 512 × 10,000 on an AMD EPYC:
70 GFLOP/s, packed 104, and what the core can do at all is 115; docs/log.md). A packed product also adds the bias and
does the nonlinearity while its numbers are still in the cache.

What oneDNN gives is compared with the plain lines first, for each size of a weight (`trusted.py`). Where it is not there,
or not right, or where there is something it does not know (gradients, autocast), the plain product stays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.trusted import difference, numbers, trusted

NONLINEARITIES = {
    "relu": ("relu", None, F.relu),
    "gelu": ("gelu", "none", F.gelu),
    "gelu-tanh": ("gelu", "tanh", lambda x: F.gelu(x, approximate="tanh")),
    "silu": ("swish", None, F.silu),
}
"""By Headway's names: oneDNN's name and variant, and the plain lines."""


class PackedWeight:
    """A copy of a weight that may not change as long as this is used."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []  # of each replica
        self._refused = False

    def multiply(
        self,
        x: Float[Tensor, "R B T I"],
        weight: Float[Tensor, "R O I"],
        bias: Float[Tensor, "R O"] | None,
        nonlinearity: str | None = None,
    ) -> Float[Tensor, "R B T O"] | None:
        """x Wᵀ + b, and a nonlinearity of it; None where that is better done the plain way."""
        if not _is_plain(x) or self._refused:
            return None
        if not self._parts:
            self._refused = not _can_be_packed(weight)
            if self._refused:
                return None
            self._parts = [_pack(one) for one in weight.detach()]
        if len(self._parts) == 1:  # without taking the replicas apart, which a small model would notice
            return _product(x, self._parts[0], None if bias is None else bias.squeeze(0), nonlinearity)
        own = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([_product(*mine, nonlinearity) for mine in zip(x, self._parts, own, strict=True)])


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """As long as this lasts, whatever multiplies by a weight packs it when first asked; no weight may change."""
    multiplying: list[Any] = [one for one in model.modules() if hasattr(one, "packed")]
    for one in multiplying:
        one.packed = PackedWeight()
    try:
        yield
    finally:
        for one in multiplying:
            one.packed = None


def _is_plain(x: Tensor) -> bool:
    """Nobody asks for a gradient, another precision or a compiled graph."""
    watched = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return x.device.type == "cpu" and x.dtype == torch.float32 and not watched


def _can_be_packed(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return there and trusted("packed products", weight.device, check_products, *weight.shape[1:])


def _pack(weight: Float[Tensor, "O I"]) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _product(
    x: Float[Tensor, "*b I"], packed: Tensor, bias: Float[Tensor, " O"] | None, nonlinearity: str | None
) -> Float[Tensor, "*b O"]:
    name, variant = ("none", None) if nonlinearity is None else NONLINEARITIES[nonlinearity][:2]
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, name, [], variant)


def check_products(device: torch.device, outputs: int, inputs: int) -> float:
    """One row and a few, with and without a bias, with each nonlinearity, beside the plain lines."""
    weight, bias = numbers((outputs, inputs), device, 1), numbers((outputs,), device, 2)
    packed = _pack(weight)
    found, expected = [], []
    for rows in (1, 7):
        x = numbers((2, rows, inputs), device, 3)
        for own in (None, bias):
            plain = F.linear(x, weight, own)
            found.append(_product(x, packed, own, None))
            expected.append(plain)
            for name, (*_, by_torch) in NONLINEARITIES.items():
                found.append(_product(x, packed, own, name))
                expected.append(by_torch(plain))
    return difference(found, expected)
