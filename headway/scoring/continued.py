"""The state of generation: rows of tokens written so far, for any model that can continue a text.

    text = Continued(model, ids, state)        rows that begin with these ids
    text.scores()                              [R, B, V]: logits of the next token of each row
    text.take(rows, tokens)                    continue these rows, each with its token
    text.branch(sources, parents, tokens)      or: continue each of these sources with several hypotheses

The code that chooses tokens (`scoring/decoding.py`, `scoring/beam.py`) knows nothing of caches and masks.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Scores = Float[Tensor, "R B V"]
Rows = Int[Tensor, "R N"]


@runtime_checkable
class Continues(Protocol):
    """A model that continues from tokens and from the state before them."""

    replicas: int

    @property
    def why_no_cache(self) -> str | None: ...

    def go_on(self, ids: Int[Tensor, "R B T"], state: Any) -> tuple[Float[Tensor, "R B T V"], Any]: ...


class Continued:
    """Rows that are being written, all of the same length. With several hypotheses per source, the rows of a source are
    adjacent, and a model with a KV cache stores each token that they share only once."""

    def __init__(
        self,
        model: Continues,
        ids: Int[Tensor, "R B T"],
        begin: Any = None,
        context: int | None = None,
        cached: bool = True,
    ):
        """`begin` is the state before the first id. When there are more than `context` ids, the older half is dropped.
        (Dropping one token at a time would shift every position and invalidate the whole cache.)"""
        self.model, self.context = model, context
        self.ids = ids
        self.cached = cached and model.why_no_cache is None
        self.never = list(getattr(model, "never_written", ()))
        self.ways = 1  # hypotheses per source
        self._shares = self.cached and context is None and getattr(model, "can_branch", False)
        self._begin, self._fresh = begin, ids
        self._state: Any = begin

    @property
    def ids(self) -> Int[Tensor, "R B T"]:
        """The tokens so far."""
        return self._room[..., : self._length]

    @ids.setter
    def ids(self, ids: Int[Tensor, "R B T"]) -> None:
        self._room, self._length = ids.clone(), ids.shape[2]

    def scores(self) -> Scores:
        """Logits of the next token of each row."""
        if self.context is not None and self.ids.shape[2] > self.context:
            self.ids = self._fresh = self.ids[..., -max(1, self.context // 2) :]
            self._state = self._begin
        if not self.cached:
            logits, _ = self.model.go_on(self.ids, self._begin)
            return logits[:, :, -1].float()
        if getattr(self._state, "branches", None) is not None:
            of_sources = self._fresh.view(len(self.ids), -1, self.ways)
            logits, self._state = self.model.go_on(of_sources, self._state)
            return logits.flatten(1, 2).float()
        logits, self._state = self.model.go_on(self._fresh, self._state)
        return logits[:, :, -1].float()

    def take(self, rows: Rows, tokens: Rows, same_sources: bool = False) -> None:
        """Continue these rows of each replica, in this order, each with its token. `same_sources`: each row was written
        from the same source as the row that it replaces."""
        if rows.shape[1] != self.ids.shape[1] or not torch.equal(rows, in_order(rows)):
            self._state = None if self._state is None else self._state.of_rows(rows, same_sources)
            if self._begin is not None and not (same_sources and rows.shape[1] == self.ids.shape[1]):
                self._begin = self._begin.of_rows(rows)
        self._write(rows, tokens)

    def branch(self, sources: Int[Tensor, "B"], parents: Int[Tensor, "R B K"], tokens: Int[Tensor, "R B K"]) -> None:
        """Continue these sources with K hypotheses each: `parents` are the hypotheses they extend, `tokens` the next
        tokens."""
        R, K = len(self.ids), parents.shape[2]
        rows, all_of_them = (sources[:, None] * self.ways + parents).flatten(1), self.ids.shape[1] // self.ways
        if not self._shares:
            self.take(rows, tokens.flatten(1), same_sources=len(sources) == all_of_them and self.ways == K)
        else:
            if len(sources) != all_of_them:
                self._state = self._state.of_rows(sources.expand(R, -1))
            self._state = self._state.branched(parents)
            self._write(rows, tokens.flatten(1))
        self.ways = K

    def _write(self, rows: Rows, tokens: Rows) -> None:
        self._fresh, n = tokens[..., None], self._length
        if rows.shape[1] != self.ids.shape[1] or not torch.equal(rows, in_order(rows)):
            self.ids = self.ids.gather(1, rows[..., None].expand(-1, -1, n))
        if n == self._room.shape[2]:  # double the buffer, so that a long text is not copied for every token
            self._room = torch.cat((self._room, torch.zeros_like(self._room)), 2)
        self._room[..., n] = tokens
        self._length = n + 1


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis: one decoded output for a row."""

    tokens: tuple[int, ...]
    """Without END."""
    nats: float
    """The negative log-probability of all tokens and END."""
    score: float
    """Hypotheses of a row are ranked by this; higher is better."""
    cut: bool = False
    """Whether it was cut at the length limit."""


Found = list[list[list[Hypothesis]]]
"""Hypotheses per replica and row, best first."""


def log_total(scores: Float[Tensor, "*b V"]) -> Float[Tensor, "*b"]:
    """logsumexp over the tokens, computed in place: `scores` is overwritten, and no memory is allocated. It uses
    torch's softmax, which handles each row while it is in the CPU cache; the normaliser follows from the largest
    probability."""
    largest = scores.amax(-1)
    torch.softmax(scores, -1, out=scores)
    return torch.where(largest == -torch.inf, largest, largest - scores.amax(-1).log())


def blocks_of(vocabulary: int) -> tuple[int, int]:
    """Split a vocabulary into blocks of about √V tokens: the size of a block, and the tokens in all full blocks
    together."""
    each = 1 << max(0, (vocabulary.bit_length() - 1) // 2)
    return each, vocabulary // each * each


def likeliest_token(scores: Float[Tensor, "*b V"]) -> Int[Tensor, "*b"]:
    """argmax, with the first of equal maxima as in torch. torch's argmax on a CPU is slow, since it compares element by
    element. This takes the maximum of each block first and then searches one block only."""
    V, (each, whole) = scores.shape[-1], blocks_of(scores.shape[-1])
    if scores.device.type != "cpu" or V < 1024:
        return scores.argmax(-1)
    largest = scores[..., :whole].unflatten(-1, (-1, each)).amax(-1)
    if whole < V:
        largest = torch.cat((largest, scores[..., whole:].amax(-1, keepdim=True)), -1)
    at = (largest.argmax(-1, keepdim=True) * each + torch.arange(each)).clamp(max=V - 1)
    return at.gather(-1, scores.gather(-1, at).argmax(-1, keepdim=True))[..., 0]


def in_order(rows: Rows) -> Rows:
    """The identity permutation, in the shape of `rows`."""
    return torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)
