"""Residual connections: how the output of a sublayer is added to its input, and where the norm is applied.

If fused kernels are used (`fused_norm.py`), pre-norm sublayers pass on the residual stream together with the sublayer
output that is still to be added to it. The next reader adds it and computes the norm in one kernel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.kernels import launching
from headway.nn.replicated import Dropout, Linear, Norm, PendingBias, with_bias

Stream = Float[Tensor, "R B T D"]
Given = Stream | PendingBias
"""The output of a sublayer."""


class PendingSum(NamedTuple):
    """stream + drop(more), not computed yet."""

    stream: Stream
    more: Given
    drop: Dropout


def whole(x: Stream | PendingSum) -> Stream:
    return x.stream + x.drop(with_bias(x.more)) if isinstance(x, PendingSum) else x


def with_norm(x: Stream | PendingSum, norm: nn.Module) -> tuple[Stream, Stream]:
    """The stream and the normalised stream."""
    if isinstance(norm, Norm) and norm.is_not_overridden:
        both = norm.by_kernel(*x) if isinstance(x, PendingSum) else norm.by_kernel(x)
        if both is not None:
            return both
    stream = whole(x)
    return stream, norm(stream)


class PreNorm(nn.Module):
    """x + sublayer(norm(x)); https://arxiv.org/abs/2002.04745 explains why this needs no warm-up."""

    def __init__(self, norm: nn.Module, drop: Dropout):
        super().__init__()
        self.norm, self.drop = norm, drop

    def feeds(self, sublayer: Any) -> None:
        """If the sublayer uses its input only in matrix products, the norm writes it in their dtype."""
        self.norm.for_products = getattr(sublayer, "reads_products", False)  # pyright: ignore

    def forward(
        self, x: Stream | PendingSum, sublayer: Callable[[Stream], tuple[Given, Any]]
    ) -> tuple[Stream | PendingSum, Any]:
        x, normed = with_norm(x, self.norm)
        y, state = sublayer(normed)
        pending = PendingSum(x, y, self.drop)
        return (pending if launching.wanted(x) else whole(pending)), state


class PostNorm(PreNorm):
    """norm(x + sublayer(x)): https://arxiv.org/abs/1706.03762"""

    def feeds(self, sublayer: Any) -> None:
        """The norm's output is the stream itself, which keeps its full precision."""

    def forward(self, x, sublayer):
        x = whole(x)
        y, state = sublayer(x)
        return with_norm(PendingSum(x, y, self.drop), self.norm)[1], state


class Chained(nn.Module):
    """sublayer(x), without a residual connection."""

    def __init__(self, drop: Dropout):
        super().__init__()
        self.drop = drop

    def feeds(self, sublayer: Any) -> None:
        """Nothing to prepare: there is no norm."""

    def forward(self, x: Stream, sublayer: Callable[[Stream], tuple[Given, Any]]) -> tuple[Stream, Any]:
        y, state = sublayer(x)
        return self.drop(with_bias(y)), state


class Joined(Chained):
    """tanh(W [x; sublayer(x)]): cross attention without a residual stream, which joins its output with its input
    instead of replacing it. https://arxiv.org/abs/1508.04025"""

    def __init__(self, replicas: int, width: int, drop: Dropout):
        super().__init__(drop)
        self.join = Linear(replicas, 2 * width, width, bias=False)

    def forward(self, x, sublayer):
        y, state = sublayer(x)
        return self.drop(self.join(torch.cat((x, with_bias(y)), -1)).tanh()), state
