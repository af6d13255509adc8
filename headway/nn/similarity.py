"""Similarities: how attention scores a key against a query.

    scaled-dot   q·k / √d               the only one that fused kernels support
    additive     v·tanh(q + k)          a one-layer net; each head learns its vector v

Queries and keys are projected before (`attention.py`): with one head, additive attention is v·tanh(W s + U h).
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.variants import Variant
from headway.nn.replicated import parameter

Similarity = Callable[[Tensor, Tensor], Tensor]
"""From queries [R, B, H, Q, d] and keys [R, B, H, K, d] to scores [R, B, H, Q, K]."""

MAX_ELEMENTS = 2**24
"""The number of elements that additive attention holds in memory at a time: 64 MiB of them, whatever the lengths."""


class SimilaritySpec(Variant):
    """How queries and keys are compared."""

    is_product: ClassVar[bool] = False
    """Whether it is q·k / √d, which fused kernels compute and which rotary positions need."""

    @abstractmethod
    def build(self, replicas: int, heads: int, size: int) -> Similarity:
        """The similarity for heads of this size; a module if it has parameters."""


class ScaledDot(SimilaritySpec):
    """q·k / √d. https://arxiv.org/abs/1706.03762"""

    kind: Literal["scaled-dot"] = "scaled-dot"
    is_product = True

    def build(self, replicas: int, heads: int, size: int) -> Similarity:
        return scaled_dot


class Additive(SimilaritySpec):
    """v·tanh(q + k), as in the first attention model. https://arxiv.org/abs/1409.0473"""

    kind: Literal["additive"] = "additive"

    def build(self, replicas: int, heads: int, size: int) -> Similarity:
        return AdditiveSimilarity(replicas, heads, size)


def scaled_dot(queries: Float[Tensor, "R B H Q d"], keys: Float[Tensor, "R B H K d"]) -> Float[Tensor, "R B H Q K"]:
    return queries @ keys.mT / math.sqrt(queries.shape[-1])


class AdditiveSimilarity(nn.Module):
    def __init__(self, replicas: int, heads: int, size: int):
        super().__init__()
        self.vector = parameter(replicas, heads, size, std=1 / math.sqrt(size), decays=False)

    def forward(
        self, queries: Float[Tensor, "R B H Q d"], keys: Float[Tensor, "R B H K d"]
    ) -> Float[Tensor, "R B H Q K"]:
        """At least float32, also under autocast."""
        dtype = torch.promote_types(queries.dtype, torch.float32)
        return _Additive.apply(queries.to(dtype), keys.to(dtype), self.vector.to(dtype))  # pyright: ignore


class _Additive(torch.autograd.Function):
    """Every query-key pair needs d intermediate values. They are computed for some queries at a time and recomputed in
    the backward pass, so that only queries and keys are saved."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, vector: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(queries, keys, vector)
        weigh = vector[:, None, :, None, None]  # [R, 1, H, 1, 1, d]
        return torch.cat(
            [(activation * weigh).sum(-1) for activation in map(_tanh_of_sums(keys), _pieces(queries, keys))], 3
        )

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        queries, keys, vector = ctx.saved_tensors
        weigh = vector[:, None, :, None, None]
        activation_of, of_queries, of_keys, of_vector = _tanh_of_sums(keys), [], [], []
        pieces = _pieces(queries, keys)
        for some, asked in zip(pieces, slope.split([piece.shape[3] for piece in pieces], 3), strict=True):
            activation = activation_of(some)
            of_vector.append((asked[..., None] * activation).sum((1, 3, 4)))
            inside = asked[..., None] * weigh * (1 - activation * activation)  # [R, B, H, q, K, d]
            of_queries.append(inside.sum(4))
            of_keys.append(inside.sum(3))
        return torch.cat(of_queries, 3), _total(of_keys), _total(of_vector)


def _pieces(queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    """The queries in pieces, so that each piece with all keys stays within MAX_ELEMENTS elements."""
    return queries.split(max(1, MAX_ELEMENTS // max(1, keys.numel())), 3)


def _tanh_of_sums(keys: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda queries: (queries[:, :, :, :, None] + keys[:, :, :, None]).tanh()


def _total(parts: list[Tensor]) -> Tensor:
    """The sum, not computed in place: torch 2.11 silently compiles that to gradients of zero (docs/log.md)."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
