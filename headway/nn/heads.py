"""How the outputs of the heads become one vector per position.

A fusion maps `[R, B, H, T, d]` to `[R, B, T, H·d]`; the output projection follows. Fusions differ in the order and the
weights with which they concatenate the heads.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.core import random
from headway.core.variants import Variant
from headway.nn.replicated import Noisy

Heads = Float[Tensor, "R B H T d"]
Fused = Float[Tensor, "R B T Hd"]
TokenMask = Bool[Tensor, "R B T"]


class Fusion(Noisy):
    """Base of all fusions: concatenate the heads in order."""

    why_no_cache: str | None = None  # why outputs cannot be kept when later tokens arrive

    def forward(self, heads: Heads, padding_mask: TokenMask | None = None) -> Fused:
        return side_by_side(heads)


class FusionSpec(Variant):
    """Head fusion: how the outputs of the heads become one vector."""

    why_not_causal: ClassVar[str | None] = None
    """Why a model with this fusion would see the future despite a causal mask, or None."""

    @abstractmethod
    def build(self, replicas: int, heads: int) -> Fusion:
        """The fusion of a layer with this number of heads."""


class Concat(FusionSpec):
    """Heads concatenated in order. https://arxiv.org/abs/1706.03762"""

    kind: Literal["concat"] = "concat"

    def build(self, replicas: int, heads: int) -> Fusion:
        return Fusion(replicas)


class Shuffle(FusionSpec):
    """Heads concatenated in a random order, a different one for each layer (case B5)."""

    kind: Literal["shuffle"] = "shuffle"
    drawn: Literal["once", "every-step"] = "once"
    """`once`: one order per layer for the whole run (the output projection can absorb it, so it should not matter).
    `every-step`: a new order at every training step; in evaluation the heads are in order."""

    def build(self, replicas: int, heads: int) -> Fusion:
        return ShuffledOnce(replicas) if self.drawn == "once" else ShuffledEveryStep(replicas)


class ShuffledOnce(Fusion):
    def forward(self, heads, padding_mask=None):
        return side_by_side(_reorder(heads, self.keys, step=torch.zeros_like(self.clock.step)))


class ShuffledEveryStep(Fusion):
    def forward(self, heads, padding_mask=None):
        return side_by_side(_reorder(heads, self.keys, self.clock.step) if self.training else heads)


class Shift(FusionSpec):
    """Head h moves to the place of head h + by, cyclically (case B6)."""

    kind: Literal["shift"] = "shift"
    by: int = 1
    """The number of places."""

    def build(self, replicas: int, heads: int) -> Fusion:
        return Shifted(replicas, self.by)


class Shifted(Fusion):
    def __init__(self, replicas: int, by: int):
        super().__init__(replicas)
        self.by = by

    def forward(self, heads, padding_mask=None):
        return side_by_side(heads.roll(self.by, dims=2))


class Reweight(FusionSpec):
    """Each head times the Frobenius norm of its own output over the *whole sequence*, as case B7 reports it.

    In a decoder this leaks: a position's output depends on later tokens. It is here to be measured, and to be caught by
    the audits.
    """

    kind: Literal["reweight"] = "reweight"
    scale: Literal["share", "raw"] = "share"
    """`share`: norms are divided by their mean over the heads, so the weights average 1. `raw`: the norm itself, which
    grows with the length of the sequence."""

    why_not_causal = "reweighted heads see the future: the norm is taken over the whole sequence"

    def build(self, replicas: int, heads: int) -> Fusion:
        return Reweighted(replicas, self.scale == "share")


class Reweighted(Fusion):
    why_no_cache = "reweighted heads: every new token changes the norm that earlier positions were weighted by"

    def __init__(self, replicas: int, share: bool):
        super().__init__(replicas)
        self.share = share

    def forward(self, heads, padding_mask=None):
        counted = (
            heads if padding_mask is None else heads * padding_mask[:, :, None, :, None]
        )  # padding does not count in the norm
        norms = torch.linalg.vector_norm(counted, dim=(-2, -1), keepdim=True)
        return side_by_side(heads * _weights(norms, self.share))


class ReweightCausal(FusionSpec):
    """Each head times the norm of its output at the same position: `reweight` without the leak."""

    kind: Literal["reweight-causal"] = "reweight-causal"
    scale: Literal["share", "raw"] = "share"
    """As in `reweight`."""

    def build(self, replicas: int, heads: int) -> Fusion:
        return ReweightedByPosition(replicas, self.scale == "share")


class ReweightedByPosition(Reweighted):
    why_no_cache = None

    def forward(self, heads, padding_mask=None):
        norms = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
        return side_by_side(heads * _weights(norms, self.share))


def side_by_side(heads: Heads) -> Fused:
    return heads.transpose(2, 3).flatten(3)


def _weights(norms: Float[Tensor, "R B H T1 1"], share: bool) -> Float[Tensor, "R B H T1 1"]:
    return norms / norms.mean(2, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny) if share else norms


def _reorder(heads: Heads, keys: Tensor, step: Tensor) -> Heads:
    """Each replica's heads in a random order of its own."""
    order = random.integers(keys, step, 2**31, heads.shape[2]).argsort(dim=-1)  # [R, H]
    return heads.gather(2, order[:, None, :, None, None].expand_as(heads))
