"""Pooling: how the vectors of a row become one. Padding is ignored; a row without any token becomes zeros."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headway.core.variants import Variant
from headway.nn.replicated import Linear

Rows = Float[Tensor, "R B T D"]
TokenMask = Bool[Tensor, "R B T"]
Pooled = Float[Tensor, "R B D"]


class PoolingSpec(Variant):
    """Pooling: how the vectors of a row become one."""

    reaches: ClassVar[str | None] = None
    """A sentence that says which tokens get a gradient directly from the pooled vector; None = not known."""

    @abstractmethod
    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        """The pooled vector of each row, over tokens and not over padding."""

    def build(self, replicas: int, width: int) -> nn.Module:
        """The learned part, applied to the pooled vector."""
        return nn.Identity()

    def flops(self, width: int) -> int:
        """FLOPs of the learned part, for one row."""
        return 0


class Mean(PoolingSpec):
    """The mean of all tokens."""

    kind: Literal["mean"] = "mean"

    reaches = "pooling by mean reaches every token directly, however far it is"

    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        count = padding_mask.sum(2).clamp(min=1)[..., None]
        return torch.where(padding_mask[..., None], x, 0.0).sum(2) / count


class First(PoolingSpec):
    """The vector of the first token, such as [CLS]."""

    kind: Literal["first"] = "first"

    reaches = "pooling reaches the first token directly, and the others through the layers"

    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        first = padding_mask.int().argmax(2)[..., None, None]  # argmax gives the first of equal values
        vector = x.gather(2, first.expand(-1, -1, 1, x.shape[-1])).squeeze(2)
        return torch.where(padding_mask.any(2, keepdim=True), vector, 0.0)


class Pooler(PoolingSpec):
    """The vector of the first token through a linear map and a tanh, as for BERT's next-sentence prediction.
    https://arxiv.org/abs/1810.04805"""

    kind: Literal["pooler"] = "pooler"

    reaches = "pooling reaches the first token directly, and the others through the layers"

    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        return First().pool(x, padding_mask)

    def build(self, replicas: int, width: int) -> nn.Module:
        return DenseTanh(replicas, width)

    def flops(self, width: int) -> int:
        return 2 * width * width


class DenseTanh(nn.Module):
    def __init__(self, replicas: int, width: int):
        super().__init__()
        self.dense = Linear(replicas, width, width)

    def forward(self, x: Pooled) -> Pooled:
        return self.dense(x[:, :, None]).tanh().squeeze(2)


class Last(PoolingSpec):
    """The vector of the last token, by which a recurrence has read the whole row."""

    kind: Literal["last"] = "last"

    reaches = "pooling reaches the last token directly, and the others through the layers"

    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        return First().pool(x.flip(2), padding_mask.flip(2))


class Max(PoolingSpec):
    """The maximum over tokens, in every dimension."""

    kind: Literal["max"] = "max"

    reaches = "pooling by max reaches directly every token that is the largest in some dimension, however far it is"

    def pool(self, x: Rows, padding_mask: TokenMask) -> Pooled:
        largest = x.masked_fill(~padding_mask[..., None], -torch.inf).amax(2)
        return torch.where(padding_mask.any(2, keepdim=True), largest, 0.0)
