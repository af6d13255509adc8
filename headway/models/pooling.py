"""How the vectors of a row become one. Padding has no say; a row without a single token becomes zeros."""

from abc import abstractmethod
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.core.variants import Variant

Rows = Float[Tensor, "R B T D"]
Real = Bool[Tensor, "R B T"]
Pooled = Float[Tensor, "R B D"]


class PoolingSpec(Variant):
    """How the vectors of a row become one."""

    @abstractmethod
    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        """Of tokens only, not of padding."""


class Mean(PoolingSpec):
    """The mean of all tokens."""

    kind: Literal["mean"] = "mean"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        count = padding_mask.sum(2).clamp(min=1)[..., None]
        return torch.where(padding_mask[..., None], x, 0.0).sum(2) / count


class First(PoolingSpec):
    """The vector of the first token, which gathers what matters if it is trained to."""

    kind: Literal["first"] = "first"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        first = padding_mask.int().argmax(2)[..., None, None]  # of equals, the first one
        vector = x.gather(2, first.expand(-1, -1, 1, x.shape[-1])).squeeze(2)
        return torch.where(padding_mask.any(2, keepdim=True), vector, 0.0)


class Last(PoolingSpec):
    """The vector of the last token: all that a recurrence has read by then."""

    kind: Literal["last"] = "last"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        return First().pool(x.flip(2), padding_mask.flip(2))


class Max(PoolingSpec):
    """In every dimension, the largest of all tokens."""

    kind: Literal["max"] = "max"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        largest = x.masked_fill(~padding_mask[..., None], -torch.inf).amax(2)
        return torch.where(padding_mask.any(2, keepdim=True), largest, 0.0)
