"""Segment embeddings: how a model knows which of several texts in one row a token belongs to.

Rows with two texts have a separator after each (`[CLS] first [SEP] second [SEP]`). So the number of separators before a
token tells which text it belongs to, and no input other than the tokens is needed.
"""

from abc import abstractmethod
from typing import Literal

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.variants import Variant
from headway.nn.replicated import Embedding


class SegmentSpec(Variant):
    """Segment embeddings: which of several texts in one row a token belongs to."""

    @abstractmethod
    def build(self, replicas: int, width: int) -> "SegmentVectors | None":
        """The module that adds to the embeddings; None = nothing."""


class NoSegments(SegmentSpec):
    """No segment embeddings."""

    kind: Literal["none"] = "none"

    def build(self, replicas: int, width: int) -> None:
        return None


class Separated(SegmentSpec):
    """A learned vector per text, added to the embeddings. https://arxiv.org/abs/1810.04805"""

    kind: Literal["separated"] = "separated"
    separator: int | None = Field(default=None, ge=0)
    """The id of the token that ends each text; null = none, and every token belongs to the first text."""
    count: int = Field(default=2, ge=1)
    """The number of segment embeddings. Texts beyond that share the last."""

    def build(self, replicas: int, width: int) -> "SegmentVectors":
        return SegmentVectors(replicas, width, self.separator, self.count)


class SegmentVectors(nn.Module):
    def __init__(self, replicas: int, width: int, separator: int | None, count: int):
        super().__init__()
        self.separator, self.count = separator, count
        self.table = Embedding(replicas, count, width)

    def forward(
        self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None
    ) -> Float[Tensor, "R B T D"]:
        """The segment embedding of each token."""
        return self.table(which_text(ids, padding_mask, self.separator, self.count))


def which_text(
    ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None, separator: int | None, count: int
) -> Int[Tensor, "R B T"]:
    """The number of the text that each token belongs to; a separator belongs to the text before it."""
    ends = (ids == (-1 if separator is None else separator)).long()
    if padding_mask is not None:
        ends = ends * padding_mask
    return (ends.cumsum(2) - ends).clamp(max=count - 1)
