"""What every layer of one forward pass shares: who may look where, and what the positions say.

Built once per pass by the model, for mixers of any kind. Attention asks for its own view of it, by its number of heads
and its own mask: a mask or a bias that layers have in common is computed once, and only if asked for.
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
    """Computed when first asked for, then kept. (functools' own takes a lock, which stops torch.compile.)"""

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
    """Of the model: causal, padding."""
    queries: Int[Tensor, "Q"]
    """The slots, and so the positions, the new tokens stand in: 0 … T - 1, or from the length of the past on."""
    keys: Int[Tensor, "K"]
    """The slots that can be seen."""
    padding_mask: Bool[Tensor, "R B T"] | None = None
    """Where the new slots hold tokens and not padding; None = everywhere."""
    memory: Float[Tensor, "R B S D"] | None = None
    """What cross attention looks at, where this is a context of cross attention: `keys` are its slots."""
    across: "Context | None" = None
    """As cross attention sees it, where there is another sequence to look at."""
    views: list[tuple[int, Mask, int | None, "AttentionContext"]] = field(default_factory=list, repr=False)
    """That were asked for so far: the heads, the mask and the number of keys they are for, and each of them."""

    def for_heads(self, heads: int, mask: Mask, keys: int | None = None) -> "AttentionContext":
        """As attention with so many heads, this mask of its own, and keys of the last so many slots, sees it."""
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
        """The case for which fused kernels need no mask at all."""
        return self.mask == Causal() and len(self.queries) == len(self.keys)

    @once
    def allowed(self) -> Bool[Tensor, "#R #B 1 Q K"] | None:
        """True = may look; None = everybody may look everywhere."""
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
        """Mask and bias as the one tensor a fused kernel takes."""
        if self.bias is None or self.allowed is None:
            return self.allowed if self.bias is None else self.bias
        return torch.where(self.allowed, self.bias, -torch.inf)
