"""Beam search: of all beginnings of one length the likeliest are kept, and of all that have ended the best are found.

An end takes no place from a beginning: whatever is kept may end here, or go on, or both.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.scoring.continued import Continued, Found, Hypothesis, log_total, parts_of


@runtime_checkable
class BeamSettings(Protocol):
    """What a search must know; `headway.scoring.decoding.Beam` is such."""

    @property
    def size(self) -> int: ...
    @property
    def nbest(self) -> int: ...
    @property
    def no_repeat(self) -> int | None: ...

    def score(self, nats: float, length: int) -> float: ...


class EndedRow(NamedTuple):
    """A hypothesis whose tokens are read when the search is over: most are soon replaced by better ones."""

    score: float
    nats: float
    cut: bool
    written: Int[Tensor, "N T"]
    """By all rows of the replica when it ended: rows that go on are written behind that, or elsewhere."""
    row: int

    @property
    def hypothesis(self) -> Hypothesis:
        return Hypothesis(tuple(self.written[self.row].tolist()), self.nats, self.score, self.cut)


@dataclass
class BeamSearch:
    """Every source has `size` places, whose beginnings are the likeliest of their length so far. Which of the finished
    ones is best is known when no beginning can become better any more, however it goes on."""

    spec: BeamSettings
    text: Continued
    end: int
    limits: Sequence[int]
    best: list[list[list[EndedRow]]] = field(default_factory=list)
    """Of every replica and row, what has ended so far, the best first."""

    @torch.no_grad()
    def run(self) -> Found:
        (R, B), K = self.text.ids.shape[:2], self.spec.size
        device, first = self.text.ids.device, self.text.ids.shape[2]
        self.best = [[[] for _ in range(B)] for _ in range(R)]
        rows, length = list(range(B)), 0
        nats = torch.zeros(R, B, 1, device=device)  # of each beginning: to begin with there is one, of nothing
        while rows:
            logits = self.text.scores().unflatten(1, (len(rows), nats.shape[2]))
            over = [self.limits[b] <= length for b in rows]
            ends = logits[..., self.end].clone()
            best, tokens = self._best_of(logits, K, first)
            nats = nats + log_total(logits)  # from scores to chances
            self._keep_ended(rows, nats - ends, first, over)
            nats, parents, tokens = likeliest(nats, best, tokens, K)
            length += 1
            left = self._left(rows, nats[..., 0], over)
            if left:
                kept = torch.tensor(left, device=device)
                nats = nats[:, kept]
                self.text.branch(kept, parents[:, kept], tokens[:, kept])
            rows = [rows[k] for k in left]
        return [[[one.hypothesis for one in of_row] for of_row in of_replica] for of_replica in self.best]

    def _best_of(
        self, logits: Float[Tensor, "R B K V"], most: int, first: int
    ) -> tuple[Float[Tensor, "R B K n"], Int[Tensor, "R B K n"]]:
        """The best tokens to go on with, and their scores; the scores of all are afterwards as they were."""
        if self.spec.no_repeat is None:
            allowed = logits
        else:
            repeats = repeated(self.text.ids[..., first:], self.spec.no_repeat, logits.shape[-1]).view(logits.shape)
            allowed = logits.masked_fill(repeats, -torch.inf)
        never = [self.end, *self.text.never]
        kept = allowed[..., never]
        allowed[..., never] = -torch.inf
        found = largest(allowed, most)
        allowed[..., never] = kept
        return found

    def _keep_ended(self, rows: list[int], ended: Float[Tensor, "R B K"], first: int, over: list[bool]) -> None:
        """Of the beginnings that end here, those that are among the best of their row."""
        length = self.text.ids.shape[2] - first + 1
        for r, (of_rows, written) in enumerate(zip(ended.double().tolist(), self.text.ids[..., first:], strict=True)):
            for k, b in enumerate(rows):
                best = self.best[r][b]
                for row, nats in enumerate(of_rows[k], k * ended.shape[2]):
                    if not math.isfinite(nats):
                        continue
                    score = self.spec.score(nats, length)
                    if len(best) < self.spec.nbest or score > best[-1].score:
                        insort(best, EndedRow(score, nats, over[k], written, row), key=lambda one: -one.score)
                        del best[self.spec.nbest :]

    def _left(self, rows: list[int], nats: Float[Tensor, "R B"], over: list[bool]) -> list[int]:
        """Which rows go on: those whose likeliest beginning could still end better, at the length that favours it most,
        in any replica."""
        found = nats.tolist()
        return [
            k
            for k, b in enumerate(rows)
            if not over[k] and any(self._can_improve(r, b, of_rows[k]) for r, of_rows in enumerate(found))
        ]

    def _can_improve(self, r: int, b: int, nats: float) -> bool:
        best = self.best[r][b]
        bound = self.spec.score(nats, self.limits[b] + 1)
        return math.isfinite(nats) and (len(best) < self.spec.nbest or bound > best[-1].score)


def largest(scores: Float[Tensor, "R B K V"], most: int) -> tuple[Float[Tensor, "R B K n"], Int[Tensor, "R B K n"]]:
    """The largest scores and their tokens. The largest of a vocabulary are in those of its parts that have the largest
    numbers: only these parts are sorted."""
    V, (each, whole) = scores.shape[-1], parts_of(scores.shape[-1])
    if whole // each <= most:
        return scores.topk(min(most, V), -1)
    parts = scores[..., :whole].unflatten(-1, (-1, each))
    there = parts.amax(-1).topk(most, -1).indices  # [R, B, K, most]
    some = parts.gather(-2, there[..., None].expand(*there.shape, each)).flatten(-2)
    at = (there[..., None] * each + torch.arange(each, device=there.device)).flatten(-2)
    rest = torch.arange(whole, V, device=there.device).expand(*at.shape[:-1], -1)
    some, at = torch.cat((some, scores[..., whole:]), -1), torch.cat((at, rest), -1)
    best, places = some.topk(most, -1)
    return best, at.gather(-1, places)


def likeliest(
    nats: Float[Tensor, "R B K"], best: Float[Tensor, "R B K m"], tokens: Int[Tensor, "R B K m"], most: int
) -> tuple[Float[Tensor, "R B n"], Int[Tensor, "R B n"], Int[Tensor, "R B n"]]:
    """Of all ways to go on with one of the best tokens, the likeliest: what each takes altogether, from which it goes
    on, and with which token."""
    K = nats.shape[2]
    found, places = (nats[..., None] - best).flatten(2).topk(min(most, K * best.shape[-1]), -1, largest=False)
    return found, places // best.shape[-1], tokens.flatten(2).gather(-1, places)


def repeated(ids: Int[Tensor, "R B T"], n: int, vocabulary: int) -> Bool[Tensor, "R B V"]:
    """The tokens that would end a run of n which is there already."""
    banned = torch.zeros(*ids.shape[:2], vocabulary, dtype=torch.bool, device=ids.device)
    if ids.shape[2] < n:
        return banned
    runs = ids.unfold(2, n, 1)  # [R, B, T - n + 1, n]
    again = (runs[..., :-1] == ids[:, :, None, ids.shape[2] - n + 1 :]).all(-1)
    # What does not repeat is written to a place beyond the vocabulary.
    wide = torch.zeros(*ids.shape[:2], vocabulary + 1, dtype=torch.bool, device=ids.device)
    return wide.scatter(2, runs[..., -1].masked_fill(~again, vocabulary), True)[..., :vocabulary]
