"""Attention masks. Everywhere in Headway, True = the query may attend to the key.

A mask has a method `allows(row, i, j)` for broadcasting index tensors: may query slot i of batch row `row` attend to
key slot j? It serves the plain kernel (whole grids at once), the fused ones, and flex attention (index by index). Masks
are combined with `&`. A query for which every key is masked gets zeros.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Mask:
    """Base of all masks."""

    def allows(self, row: Int[Tensor, "..."], i: Int[Tensor, "..."], j: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        parts = [part for mask in (self, other) for part in (mask.parts if isinstance(mask, Both) else (mask,))]
        parts = [part for part in parts if not isinstance(part, Everything)]
        return Both(tuple(parts)) if len(parts) > 1 else parts[0] if parts else Everything()


@dataclass(frozen=True)
class Everything(Mask):
    """No restriction: an encoder without padding."""

    def allows(self, row, i, j):
        return torch.ones_like(i + j, dtype=torch.bool)


@dataclass(frozen=True)
class Causal(Mask):
    """No query attends to a later slot."""

    def allows(self, row, i, j):
        return j <= i


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Padding is masked. `padding_mask` is True where a key slot holds a token; replicas are folded into the rows."""

    padding_mask: Bool[Tensor, "rows K"]

    def allows(self, row, i, j):
        return self.padding_mask[row, j]


@dataclass(frozen=True)
class Window(Mask):
    """Only slots fewer than `size` steps away; with `Causal`, the last `size` slots, including the query's own."""

    size: int

    def allows(self, row, i, j):
        return (i - j).abs() < self.size


@dataclass(frozen=True)
class Prefix(Mask):
    """Causal, except that every query may attend to the first `length` slots, as in decoder-only translation."""

    length: int

    def allows(self, row, i, j):
        return (j <= i) | (j < self.length)


@dataclass(frozen=True, eq=False)
class BranchMask(Mask):
    """For a tree of tokens (hypotheses with shared prefixes): each query attends only to the tokens of its own branch.
    For whole grids only, because positions do not tell branches apart."""

    sees: Bool[Tensor, "R B Q K"]

    def allows(self, row, i, j):
        return self.sees[:, :, None]


@dataclass(frozen=True, eq=False)
class Both(Mask):
    """All of these masks at once."""

    parts: tuple[Mask, ...]

    def allows(self, row, i, j):
        allowed = self.parts[0].allows(row, i, j)
        for part in self.parts[1:]:
            allowed = allowed & part.allows(row, i, j)
        return allowed
