"""How the vectors of a row become one. Padding has no say; a row without a single token becomes zeros."""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.core.spec import CHOSEN_BY_KIND, OR_BY_NAME, Spec

Rows = Float[Tensor, "R B T D"]
Real = Bool[Tensor, "R B T"]
Pooled = Float[Tensor, "R B D"]


class Mean(Spec):
    """The mean of all tokens."""

    kind: Literal["mean"] = "mean"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        count = padding_mask.sum(2).clamp(min=1)[..., None]
        return torch.where(padding_mask[..., None], x, 0.0).sum(2) / count


class First(Spec):
    """The vector of the first token, which gathers what matters if it is trained to."""

    kind: Literal["first"] = "first"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        first = padding_mask.int().argmax(2)[..., None, None]  # of equals, the first one
        vector = x.gather(2, first.expand(-1, -1, 1, x.shape[-1])).squeeze(2)
        return torch.where(padding_mask.any(2, keepdim=True), vector, 0.0)


class Max(Spec):
    """In every dimension, the largest of all tokens."""

    kind: Literal["max"] = "max"

    def pool(self, x: Rows, padding_mask: Real) -> Pooled:
        largest = x.masked_fill(~padding_mask[..., None], -torch.inf).amax(2)
        return torch.where(padding_mask.any(2, keepdim=True), largest, 0.0)


PoolingSpec = Annotated[Mean | First | Max, CHOSEN_BY_KIND, OR_BY_NAME]
