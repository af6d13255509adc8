"""What all layers share in one forward pass: the mask, the positions and the padding.

The model builds it once per pass, for mixers of any kind. Attention layers ask for a view of it for their number of
heads and their own mask. A mask or bias that several layers use is computed once, and only when needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.nn.masks import Causal, Everything, Mask
from headway.nn.positions import Positions


class once:  # noqa: N801 (used like @property)
    """A property that is computed at first use, then kept. (functools.cached_property breaks torch.compile.)"""

    def __init__(self, compute: Callable[[Any], Any]):
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if self.name not in instance.__dict__:
            instance.__dict__[self.name] = self.compute(instance)
        return instance.__dict__[self.name]


@dataclass(frozen=True)
class Context:
    shape: tuple[int, int]
    """R, B"""
    positions: Positions
    mask: Mask
    """The model's mask: causal, padding."""
    queries: Int[Tensor, "Q"]
    """The slots (and so the positions) of the new tokens: 0 … T - 1, or counted on from the length of the past."""
    keys: Int[Tensor, "K"]
    """The slots that can be attended to."""
    padding_mask: Bool[Tensor, "R B T"] | None = None
    """True where a new slot holds a token, False where it is padding; None = no padding."""
    memory: Float[Tensor, "R B S D"] | None = None
    """The encoder's output, in a context of cross attention: `keys` are its slots."""
    across: "Context | None" = None
    """The context for cross attention, if there is another sequence."""
    views: list[tuple[int, Mask, int | None, "AttentionContext"]] = field(default_factory=list, repr=False)
    """The views made so far, each with its number of heads, mask and number of keys."""

    def for_heads(self, heads: int, mask: Mask, keys: int | None = None) -> "AttentionContext":
        """The view for attention with this number of heads, its own mask, and keys for only the last `keys` slots."""
        for known_heads, known_mask, known_keys, view in self.views:
            if known_heads == heads and known_mask == mask and known_keys == keys:
                return view
        positions = self.positions.for_heads(heads)
        slots = self.keys if keys is None else self.keys[len(self.keys) - keys :]
        view = AttentionContext((*self.shape, heads), positions, self.mask & mask, self.queries, slots)
        self.views.append((heads, mask, keys, view))
        return view


@dataclass(frozen=True)
class AttentionContext:
    shape: tuple[int, int, int]
    """R, B, H"""
    positions: Positions
    mask: Mask
    queries: Int[Tensor, "Q"]
    keys: Int[Tensor, "K"]

    @property
    def is_plainly_causal(self) -> bool:
        """Whether the mask is just causal over a whole segment, so that fused kernels need no mask tensor."""
        return self.mask == Causal() and len(self.queries) == len(self.keys)

    @once
    def allowed(self) -> Bool[Tensor, "#R #B 1 Q K"] | None:
        """True = the query may attend to the key; None = nothing is masked."""
        if isinstance(self.mask, Everything):
            return None
        R, B, _ = self.shape
        row = torch.arange(R * B, device=self.queries.device).view(R, B, 1, 1, 1)
        allowed = self.mask.allows(row, self.queries[:, None], self.keys[None, :])
        allowed = allowed.view(*[1] * (5 - allowed.ndim), *allowed.shape)
        return allowed.expand(-1, -1, -1, len(self.queries), len(self.keys))

    @once
    def bias(self) -> Float[Tensor, "#R 1 H Q K"] | None:
        """What the positions add to the scores; None = nothing."""
        if not self.positions.has_bias:
            return None
        R, _, H = self.shape
        replica = torch.arange(R, device=self.queries.device).view(R, 1, 1, 1, 1)
        head = torch.arange(H, device=self.queries.device).view(H, 1, 1)
        bias = self.positions.bias(replica, head, self.queries[:, None], self.keys[None, :])
        return bias.view(*[1] * (5 - bias.ndim), *bias.shape)

    @once
    def addend(self) -> Float[Tensor, "#R #B #H Q K"] | Bool[Tensor, "#R #B 1 Q K"] | None:
        """Mask and bias as one tensor, as fused kernels take it."""
        if self.bias is None or self.allowed is None:
            return self.allowed if self.bias is None else self.bias
        return torch.where(self.allowed, self.bias, -torch.inf)
