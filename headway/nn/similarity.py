"""How well a key matches a query: the one thing in which kinds of attention differ.

    scaled-dot   q·k / √d               the angle between them; the only one that fused kernels know
    additive     v·tanh(q + k)          a small net with one layer, whose vector v each head learns

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
"""Of queries [R, B, H, Q, d] and keys [R, B, H, K, d]: [R, B, H, Q, K]."""

AT_ONCE = 2**24
"""Numbers of additive attention that are held at a time, whatever the lengths: 64 MiB of them."""


class SimilaritySpec(Variant):
    """How queries and keys are compared."""

    is_product: ClassVar[bool] = False
    """Whether it is q·k / √d, which fused kernels compute, and which stays what it is where both are turned."""

    @abstractmethod
    def build(self, replicas: int, heads: int, size: int) -> Similarity:
        """For heads of this size; a module, if something is learnt."""


class ScaledDot(SimilaritySpec):
    """q·k / √d. https://arxiv.org/abs/1706.03762"""

    kind: Literal["scaled-dot"] = "scaled-dot"
    is_product = True

    def build(self, replicas: int, heads: int, size: int) -> Similarity:
        return scaled_dot


class Additive(SimilaritySpec):
    """v·tanh(q + k), as the first attention was. https://arxiv.org/abs/1409.0473"""

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
        """In float32 at least, whatever the products around it are computed in."""
        dtype = torch.promote_types(queries.dtype, torch.float32)
        return _Additive.apply(queries.to(dtype), keys.to(dtype), self.vector.to(dtype))  # pyright: ignore


class _Additive(torch.autograd.Function):
    """Every pair of a query and a key has d numbers in between. They are made for some queries at a time, and made
    again for the gradient: what is kept is queries and keys."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, vector: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(queries, keys, vector)
        weigh = vector[:, None, :, None, None]  # [R, 1, H, 1, 1, d]
        return torch.cat([(bent * weigh).sum(-1) for bent in map(_bent(keys), _pieces(queries, keys))], 3)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        queries, keys, vector = ctx.saved_tensors
        weigh = vector[:, None, :, None, None]
        bent_with, of_queries, of_keys, of_vector = _bent(keys), [], [], []
        pieces = _pieces(queries, keys)
        for some, asked in zip(pieces, slope.split([piece.shape[3] for piece in pieces], 3), strict=True):
            bent = bent_with(some)
            of_vector.append((asked[..., None] * bent).sum((1, 3, 4)))
            inside = asked[..., None] * weigh * (1 - bent * bent)  # [R, B, H, q, K, d]
            of_queries.append(inside.sum(4))
            of_keys.append(inside.sum(3))
        return torch.cat(of_queries, 3), _total(of_keys), _total(of_vector)


def _pieces(queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    """Queries, as many at a time as there is room for beside all keys."""
    return queries.split(max(1, AT_ONCE // max(1, keys.numel())), 3)


def _bent(keys: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda queries: (queries[:, :, :, :, None] + keys[:, :, :, None]).tanh()


def _total(parts: list[Tensor]) -> Tensor:
    """Not added up in place: torch 2.11 compiles that to gradients of zero, and says nothing (docs/log.md)."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
