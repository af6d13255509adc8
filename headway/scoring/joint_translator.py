"""Ensembles of translators: at every step the members' probabilities of the next token are averaged.

    model = JointTranslator([one, other])        used in decoding and scoring like a translator with one replica

Each replica of each member counts as one model, so seeds that were trained side by side can join without being split
up. Members may differ in kind and shape as long as they share a vocabulary. Each encodes the source and keeps a cache
on its own, and all continue with the same tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headway.models.translator import Translator


@dataclass(frozen=True)
class JointState:
    """The state of each member."""

    members: tuple[Any, ...]
    replicas: tuple[int, ...]

    def of_rows(self, rows: Int[Tensor, "1 N"], same_sources: bool = False) -> "JointState":
        each = zip(self.members, self.replicas, strict=True)
        moved = tuple(state.of_rows(rows.expand(R, -1), same_sources) for state, R in each)
        return JointState(moved, self.replicas)


class JointTranslator(nn.Module):
    replicas = 1

    def __init__(self, members: Sequence[Translator]):
        super().__init__()
        first = members[0]
        for other in members:
            ours, theirs = ((one.source_vocabulary, one.vocabulary) for one in (first, other))
            assert ours == theirs, "only models of the same tokens can be joined"
        self.members = nn.ModuleList(members)
        self.source_vocabulary, self.vocabulary = first.source_vocabulary, first.vocabulary
        self.together = sum(member.replicas for member in members)
        self.never_written = tuple(sorted({token for member in members for token in member.never_written}))

    @property
    def each(self) -> list[Translator]:
        return list(self.members)  # pyright: ignore[reportReturnType]

    @property
    def longest(self) -> int:
        """The context length that all members can read."""
        return min(member.longest for member in self.each)

    @property
    def most_written(self) -> int | None:
        return min((most for member in self.each if (most := member.most_written) is not None), default=None)

    def numbers(self, length: int, answers: int, slots: int) -> int:
        """Tensor elements in memory; the members' caches exist side by side, so they add up."""
        return sum(member.numbers(length, answers, slots) for member in self.each)

    @property
    def why_no_cache(self) -> str | None:
        return next((member.why_no_cache for member in self.each if member.why_no_cache), None)

    def read(self, sources: Int[Tensor, "1 B S"], source_mask: Bool[Tensor, "1 B S"] | None = None) -> JointState:
        return self._read([member.read for member in self.each], sources, source_mask)

    def read_many(self, sources: Int[Tensor, "1 B S"], source_mask: Bool[Tensor, "1 B S"] | None = None) -> JointState:
        return self._read([member.read_many for member in self.each], sources, source_mask)

    def _read(self, readers: Sequence[Callable[..., Any]], sources: Tensor, source_mask: Tensor | None) -> JointState:
        replicas = tuple(member.replicas for member in self.each)
        read = [
            own(sources.expand(R, -1, -1), None if source_mask is None else source_mask.expand(R, -1, -1))
            for own, R in zip(readers, replicas, strict=True)
        ]
        return JointState(tuple(read), replicas)

    def go_on(
        self, ids: Int[Tensor, "1 B T"], state: JointState, padding_mask: Bool[Tensor, "1 B T"] | None = None
    ) -> tuple[Float[Tensor, "1 B T V"], JointState]:
        """The logarithms of the mean probabilities, and the members' new states."""
        parts, states = [], []
        for member, own in zip(self.each, state.members, strict=True):
            R = member.replicas
            mask = None if padding_mask is None else padding_mask.expand(R, -1, -1)
            logits, after = member.go_on(ids.expand(R, -1, -1), own, mask)
            parts.append(logits.float().log_softmax(-1).logsumexp(0))
            states.append(after)
        mean = torch.stack(parts).logsumexp(0) - math.log(self.together)
        return mean[None], JointState(tuple(states), state.replicas)

    def forward(
        self,
        sources: Int[Tensor, "1 B S"],
        ids: Int[Tensor, "1 B T"],
        source_mask: Bool[Tensor, "1 B S"] | None = None,
        padding_mask: Bool[Tensor, "1 B T"] | None = None,
    ) -> Float[Tensor, "1 B T V"]:
        return self.go_on(ids, self.read(sources, source_mask), padding_mask)[0]

    def nats(self, logits: Float[Tensor, "1 B T V"], targets: Int[Tensor, "1 B T"]) -> Float[Tensor, "1 B T"]:
        return -logits.gather(-1, targets[..., None])[..., 0]
