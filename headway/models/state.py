"""The state that decoding goes on from: what layers keep of the tokens so far, the encoded source, and the copies of a
row while several of its continuations are under way.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.nn.kv_cache import MemoryCache


@dataclass(frozen=True)
class SourceMemory:
    """A sequence that was read whole, for others to look at."""

    vectors: Float[Tensor, "R B S D"]
    padding_mask: Bool[Tensor, "R B S"] | None = None
    """Where it holds tokens and not padding; None = everywhere."""


@dataclass(frozen=True)
class Branches:
    """Several ways to go on from every row, as a tree: the slots that they have in common are there once."""

    places: tuple[int, ...]
    """At which place of its branch each slot stands."""
    sees: Bool[Tensor, "R B K S"]
    """The slots that each branch came through."""
    padded: bool = False
    """Whether some rows have padding before their first token: then a place is no position."""

    def grown(self) -> "Branches":
        """With a slot more for each branch, at the next place."""
        K = self.sees.shape[2]
        own = torch.eye(K, dtype=torch.bool, device=self.sees.device).expand(*self.sees.shape[:2], K, K)
        return Branches((*self.places, *[self.places[-1] + 1] * K), torch.cat((self.sees, own), 3), self.padded)

    def taken(self, parents: Int[Tensor, "R B N"]) -> "Branches":
        """Each new branch goes on from one of these."""
        rows = parents[..., None].expand(-1, -1, -1, self.sees.shape[3])
        return Branches(self.places, self.sees.gather(2, rows), self.padded)


@dataclass(frozen=True)
class ModelState:
    """What a model goes on from: how much was read, and what each layer's mixer keeps of it."""

    layers: tuple[Any, ...]
    length: int = 0
    """Slots so far, padding included."""
    padding_mask: Bool[Tensor, "R B S"] | None = None
    """Where these slots hold tokens and not padding; None = everywhere."""
    memory: SourceMemory | None = None
    """What cross attention looks at, in models that have it."""
    branches: Branches | None = None
    """Where the next token is not one for each row, but one for each branch."""

    def branched(self, parents: Int[Tensor, "R B N"]) -> "ModelState":
        """Each row goes on in N ways; each from one of the branches that it has now, or from all that was read."""
        known = self.branches
        if known is None:
            told, shape = self.padding_mask, (*parents.shape[:2], self.length)
            sees = torch.ones(shape, dtype=torch.bool, device=parents.device) if told is None else told
            known = Branches(tuple(range(self.length)), sees[:, :, None], told is not None)
        return replace(self, padding_mask=None, branches=known.taken(parents))

    def of_rows(self, rows: Int[Tensor, "R N"], same_sources: bool = False) -> "ModelState":
        """Of these rows of each replica, in this order; a row may be taken several times, or not at all.
        `same_sources`: each has the memory of the row whose place it takes, and nothing of that need be moved."""
        return _of_rows(self, rows, (SourceMemory, MemoryCache) if same_sources else ())


def _of_rows(state: Any, rows: Int[Tensor, "R N"], untouched: tuple[type, ...]) -> Any:
    """Whatever a state is made of: tensors in it are [R, B, …]."""
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
