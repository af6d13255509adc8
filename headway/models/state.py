"""The state of decoding: the caches of all layers, the encoded source, and the hypotheses of each row."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.nn.kv_cache import MemoryCache


@dataclass(frozen=True)
class SourceMemory:
    """An encoded source, for cross attention."""

    vectors: Float[Tensor, "R B S D"]
    padding_mask: Bool[Tensor, "R B S"] | None = None
    """True where there is a token, False where there is padding; None = no padding."""


@dataclass(frozen=True)
class Branches:
    """Several hypotheses for every row, as a tree of slots: a common prefix is stored once."""

    places: tuple[int, ...]
    """The index of each slot within its hypothesis."""
    sees: Bool[Tensor, "R B K S"]
    """The slots of each hypothesis."""
    padded: bool = False
    """Whether some rows have padding before their first token; then the index in `places` is not the position."""

    def grown(self) -> "Branches":
        """With one more slot for each hypothesis."""
        K = self.sees.shape[2]
        own = torch.eye(K, dtype=torch.bool, device=self.sees.device).expand(*self.sees.shape[:2], K, K)
        return Branches((*self.places, *[self.places[-1] + 1] * K), torch.cat((self.sees, own), 3), self.padded)

    def taken(self, parents: Int[Tensor, "R B N"]) -> "Branches":
        """New hypotheses, each continuing the one with its parent's index."""
        rows = parents[..., None].expand(-1, -1, -1, self.sees.shape[3])
        return Branches(self.places, self.sees.gather(2, rows), self.padded)


@dataclass(frozen=True)
class ModelState:
    """The state of a model: how much was read, and the state of each layer's mixer."""

    layers: tuple[Any, ...]
    length: int = 0
    """The number of slots so far, including padding."""
    padding_mask: Bool[Tensor, "R B S"] | None = None
    """True where a slot holds a token, False where it is padding; None = no padding."""
    memory: SourceMemory | None = None
    """The encoded source, in models with cross attention."""
    branches: Branches | None = None
    """The hypotheses, if the next tokens are one per hypothesis and not one per row."""

    def branched(self, parents: Int[Tensor, "R B N"]) -> "ModelState":
        """With N hypotheses per row, each continuing one of the current hypotheses, or the row if there are none."""
        known = self.branches
        if known is None:
            told, shape = self.padding_mask, (*parents.shape[:2], self.length)
            sees = torch.ones(shape, dtype=torch.bool, device=parents.device) if told is None else told
            known = Branches(tuple(range(self.length)), sees[:, :, None], told is not None)
        return replace(self, padding_mask=None, branches=known.taken(parents))

    def of_rows(self, rows: Int[Tensor, "R N"], same_sources: bool = False) -> "ModelState":
        """The state of these rows of each replica, in this order; rows can be repeated or left out. `same_sources`:
        each row has the same source as the row it replaces, so the encoded sources need not be moved."""
        return _of_rows(self, rows, (SourceMemory, MemoryCache) if same_sources else ())


def _of_rows(state: Any, rows: Int[Tensor, "R N"], untouched: tuple[type, ...]) -> Any:
    """Select rows in a nested state, whose tensors are [R, B, …]."""
    if isinstance(state, Tensor):
        if len(rows) == 1:
            return state.index_select(1, rows[0])
        return state[torch.arange(len(rows), device=rows.device)[:, None], rows]
    if isinstance(state, untouched):
        return state
    if is_dataclass(state) and not isinstance(state, type):
        parts = {part.name: _of_rows(getattr(state, part.name), rows, untouched) for part in fields(state)}
        return replace(state, **parts)
    if isinstance(state, tuple):
        return tuple(_of_rows(part, rows, untouched) for part in state)
    if isinstance(state, dict):
        return {name: _of_rows(part, rows, untouched) for name, part in state.items()}
    return state
