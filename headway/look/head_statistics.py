"""Statistics of attention maps: pure functions of the weights, for any leading axes.

All are means over the queries with a choice, which have at least two keys with weight above zero. (The first token of a
decoder only sees itself, and would count as attending to itself and to the first token in every model.) If no query has
a choice, the result is NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """Statistics of each head, averaged over queries."""

    entropy: Float[Tensor, "*heads"]
    """Entropy of the weights in nats: 0 = all weight on one key, ln n = equal weight on all n."""
    entropy_share: Float[Tensor, "*heads"]
    """Entropy divided by ln n, row by row: 0 = one key, 1 = uniform."""
    distance: Float[Tensor, "*heads"]
    """Weighted mean distance between query and key, in tokens."""
    on_self: Float[Tensor, "*heads"]
    """Share of the weight on the query's own token."""
    on_first: Float[Tensor, "*heads"]
    """Share of the weight on the first token."""
    on_previous: Float[Tensor, "*heads"]
    """Share of the weight on the token before the query."""

    def of(self, *head: int) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)[head]) for field in fields(self)}


def statistics(weights: Float[Tensor, "*heads T T"]) -> Statistics:
    """The statistics of maps without padding."""
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
    """The share of tokens' weight that is on padding: 0, unless a mask is wrong."""
    return weights[..., padding_mask, :][..., ~padding_mask].double().sum(-1).mean(-1)


def rollout(layers: Sequence[Float[Tensor, "_ T T"]]) -> Float[Tensor, "T T"]:
    """Attention rollout: how much of each input token is in each output, counting only attention and residual stream.

    For each layer, take the mean of the heads, add the identity for the residual stream and scale rows to sum to one;
    then multiply the layers. (Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928)
    """
    length = layers[0].shape[-1]
    mixed = identity = torch.eye(length, dtype=torch.float64, device=layers[0].device)
    for weights in layers:
        step = weights.double().mean(0) + identity
        mixed = step / step.sum(-1, keepdim=True) @ mixed
    return mixed


def distance_between(ours: Float[Tensor, "*heads T T"], theirs: Float[Tensor, "*heads T T"]) -> Float[Tensor, "*heads"]:
    """Mean total variation distance between the rows of two maps: the share of weight that would have to move, 0 to
    1."""
    return (ours.double() - theirs.double()).abs().sum(-1).mean(-1) / 2
