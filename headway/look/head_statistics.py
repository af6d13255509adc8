"""Numbers that say what an attention map shows: pure functions of the weights, for any leading axes.

All are means over the queries that had a choice, that is at least two keys to look at. (The first token of a decoder
sees nothing but itself, and would count as "looks at itself" and "looks at the first token" in every model.) A key
counts as one to look at if its weight is above zero. Where no query had a choice, the answer is not a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """Of each head: what its rows do, on average."""

    entropy: Float[Tensor, "*heads"]
    """Of the rows, in nats: 0 = all weight on one key, ln n = the same weight on all n."""
    entropy_share: Float[Tensor, "*heads"]
    """Entropy divided by ln n, row by row: 0 = one key, 1 = all alike."""
    distance: Float[Tensor, "*heads"]
    """Between query and key in tokens, weighted: how far the head looks."""
    on_self: Float[Tensor, "*heads"]
    """Share of the weight that stays at the query's own token."""
    on_first: Float[Tensor, "*heads"]
    """Share of the weight on the first token."""
    on_previous: Float[Tensor, "*heads"]
    """Share of the weight on the token before the query."""

    def of(self, *head: int) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)[head]) for field in fields(self)}


def statistics(weights: Float[Tensor, "*heads T T"]) -> Statistics:
    """Of maps without padding."""
    weights = weights.double()
    keys = (weights > 0).sum(-1)
    choice = keys > 1

    def mean(of_rows: Tensor, first: int = 0) -> Tensor:
        counted = choice[..., first:]
        return torch.where(counted, of_rows, 0.0).sum(-1) / counted.sum(-1)

    entropy = _entropy(weights)
    at = torch.arange(weights.shape[-1], device=weights.device)
    return Statistics(
        entropy=mean(entropy),
        entropy_share=entropy_shares(weights),
        distance=mean((weights * (at[:, None] - at).abs()).sum(-1)),
        on_self=mean(weights.diagonal(dim1=-2, dim2=-1)),
        on_first=mean(weights[..., 0]),
        on_previous=mean(weights.diagonal(-1, dim1=-2, dim2=-1), first=1),
    )


def entropy_shares(weights: Float[Tensor, "*heads Q K"]) -> Float[Tensor, "*heads"]:
    """Entropy divided by ln n, for maps of any shape."""
    weights = weights.double()
    keys = (weights > 0).sum(-1)
    shares = torch.where(keys > 1, _entropy(weights) / keys.clamp(min=2).log(), 0.0)
    return shares.sum(-1) / (keys > 1).sum(-1)


def _entropy(weights: Float[Tensor, "*heads Q K"]) -> Float[Tensor, "*heads Q"]:
    return torch.special.entr(weights).sum(-1)


def on_padding(weights: Float[Tensor, "*heads T T"], padding_mask: Bool[Tensor, "T"]) -> Float[Tensor, "*heads"]:
    """The share of their weight that tokens lose to padding: 0, unless a mask is wrong."""
    return weights[..., padding_mask, :][..., ~padding_mask].double().sum(-1).mean(-1)


def rollout(layers: Sequence[Float[Tensor, "_ T T"]]) -> Float[Tensor, "T T"]:
    """How much of each input token is in each output, if attention and residual stream were all there is.

    Of each layer: the mean of the heads, plus the identity for the residual stream, rows made to sum to one; then the
    product over the layers. (Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928)
    """
    length = layers[0].shape[-1]
    mixed = identity = torch.eye(length, dtype=torch.float64, device=layers[0].device)
    for weights in layers:
        step = weights.double().mean(0) + identity
        mixed = step / step.sum(-1, keepdim=True) @ mixed
    return mixed


def distance_between(ours: Float[Tensor, "*heads T T"], theirs: Float[Tensor, "*heads T T"]) -> Float[Tensor, "*heads"]:
    """How much of its weight a row would have to move, on average, to become the other map's: 0 to 1."""
    return (ours.double() - theirs.double()).abs().sum(-1).mean(-1) / 2
