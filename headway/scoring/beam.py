"""Beam search: at every length the likeliest hypotheses are kept, and of the finished ones the best are returned.

Finished hypotheses take no place in the beam: each kept prefix may end here, continue, or both.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.scoring.continued import Continued, Found, Hypothesis, blocks_of, log_total


@runtime_checkable
class BeamSettings(Protocol):
    """The settings of a search; `headway.scoring.decoding.Beam` has them."""

    @property
    def size(self) -> int: ...
    @property
    def nbest(self) -> int: ...
    @property
    def no_repeat(self) -> int | None: ...

    def score(self, nats: float, length: int) -> float: ...


class FinishedHypothesis(NamedTuple):
    """A finished hypothesis. Its tokens are only read when the search is over, since most are soon replaced by better
    ones."""

    score: float
    nats: float
    cut: bool
    written: Int[Tensor, "N T"]
    """The tokens of all rows of the replica when it ended. Later tokens are appended behind these or written elsewhere,
    so this view stays valid."""
    row: int

    @property
    def hypothesis(self) -> Hypothesis:
        return Hypothesis(tuple(self.written[self.row].tolist()), self.nats, self.score, self.cut)


@dataclass
class BeamSearch:
    """Each source has `size` prefixes, the likeliest of their length. Its search stops when no prefix can still beat
    the finished hypotheses, however it continues."""

    spec: BeamSettings
    text: Continued
    end: int
    limits: Sequence[int]
    best: list[list[list[FinishedHypothesis]]] = field(default_factory=list)
    """Finished hypotheses so far, per replica and row, best first."""

    @torch.no_grad()
    def run(self) -> Found:
        (R, B), K = self.text.ids.shape[:2], self.spec.size
        device, first = self.text.ids.device, self.text.ids.shape[2]
        self.best = [[[] for _ in range(B)] for _ in range(R)]
        rows, length = list(range(B)), 0
        nats = torch.zeros(R, B, 1, device=device)  # of each prefix; at first only the empty one
        while rows:
            logits = self.text.scores().unflatten(1, (len(rows), nats.shape[2]))
            at_limit = [self.limits[b] <= length for b in rows]
            ends = logits[..., self.end].clone()
            best, tokens = self._best_of(logits, K, first)
            nats = nats + log_total(logits)  # normalise the logits
            self._keep_finished(rows, nats - ends, first, at_limit)
            nats, parents, tokens = likeliest(nats, best, tokens, K)
            length += 1
            left = self._unfinished(rows, nats[..., 0], at_limit)
            if left:
                kept = torch.tensor(left, device=device)
                nats = nats[:, kept]
                self.text.branch(kept, parents[:, kept], tokens[:, kept])
            rows = [rows[k] for k in left]
        return [[[one.hypothesis for one in of_row] for of_row in of_replica] for of_replica in self.best]

    def _best_of(
        self, logits: Float[Tensor, "R B K V"], most: int, first: int
    ) -> tuple[Float[Tensor, "R B K n"], Int[Tensor, "R B K n"]]:
        """The best next tokens and their scores. `logits` is changed during the call and restored."""
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

    def _keep_finished(self, rows: list[int], ended: Float[Tensor, "R B K"], first: int, at_limit: list[bool]) -> None:
        """Keep the hypotheses that end here and are among the best of their row."""
        length = self.text.ids.shape[2] - first + 1
        for r, (of_rows, written) in enumerate(zip(ended.double().tolist(), self.text.ids[..., first:], strict=True)):
            for k, b in enumerate(rows):
                best = self.best[r][b]
                for row, nats in enumerate(of_rows[k], k * ended.shape[2]):
                    if not math.isfinite(nats):
                        continue
                    score = self.spec.score(nats, length)
                    if len(best) < self.spec.nbest or score > best[-1].score:
                        insort(
                            best, FinishedHypothesis(score, nats, at_limit[k], written, row), key=lambda one: -one.score
                        )
                        del best[self.spec.nbest :]

    def _unfinished(self, rows: list[int], nats: Float[Tensor, "R B"], at_limit: list[bool]) -> list[int]:
        """The rows that continue: in some replica their likeliest prefix could still beat the finished ones, at the
        length that favours it most."""
        found = nats.tolist()
        return [
            k
            for k, b in enumerate(rows)
            if not at_limit[k] and any(self._can_improve(r, b, of_rows[k]) for r, of_rows in enumerate(found))
        ]

    def _can_improve(self, r: int, b: int, nats: float) -> bool:
        best = self.best[r][b]
        bound = self.spec.score(nats, self.limits[b] + 1)
        return math.isfinite(nats) and (len(best) < self.spec.nbest or bound > best[-1].score)


def largest(scores: Float[Tensor, "R B K V"], most: int) -> tuple[Float[Tensor, "R B K n"], Int[Tensor, "R B K n"]]:
    """The largest scores and their tokens. The vocabulary is split into blocks, and only the blocks with the largest
    maxima are sorted."""
    V, (each, whole) = scores.shape[-1], blocks_of(scores.shape[-1])
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
    """The likeliest one-token continuations: their total nats, the hypothesis each continues, and the token."""
    K = nats.shape[2]
    found, places = (nats[..., None] - best).flatten(2).topk(min(most, K * best.shape[-1]), -1, largest=False)
    return found, places // best.shape[-1], tokens.flatten(2).gather(-1, places)


def repeated(ids: Int[Tensor, "R B T"], n: int, vocabulary: int) -> Bool[Tensor, "R B V"]:
    """The tokens that would complete an n-gram which has occurred already."""
    banned = torch.zeros(*ids.shape[:2], vocabulary, dtype=torch.bool, device=ids.device)
    if ids.shape[2] < n:
        return banned
    runs = ids.unfold(2, n, 1)  # [R, B, T - n + 1, n]
    again = (runs[..., :-1] == ids[:, :, None, ids.shape[2] - n + 1 :]).all(-1)
    # What does not repeat is scattered to an extra index beyond the vocabulary.
    wide = torch.zeros(*ids.shape[:2], vocabulary + 1, dtype=torch.bool, device=ids.device)
    return wide.scatter(2, runs[..., -1].masked_fill(~again, vocabulary), True)[..., :vocabulary]
