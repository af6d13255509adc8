"""Beam search: of all beginnings of one length the likeliest are kept, and of all that have ended the best are found.

An end takes no place from a beginning: whatever is kept may end here, or go on, or both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.scoring.continued import Continued, Found, Hypothesis


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


@dataclass
class BeamSearch:
    """Every source has `size` places, whose beginnings are the likeliest of their length so far. Which of the finished
    ones is best is known when no beginning can become better any more, however it goes on."""

    spec: BeamSettings
    text: Continued
    end: int
    limits: Sequence[int]
    found: Found = field(default_factory=list)

    @torch.no_grad()
    def run(self) -> Found:
        (R, B), K = self.text.ids.shape[:2], self.spec.size
        device, first = self.text.ids.device, self.text.ids.shape[2]
        self.found = [[[] for _ in range(B)] for _ in range(R)]
        rows, length = list(range(B)), 0
        nats = torch.zeros(R, B, 1, device=device)  # of each beginning: to begin with there is one, of nothing
        while rows:
            logits = self.text.scores()
            V, places = logits.shape[-1], nats.shape[2]
            chances = logits.log_softmax(-1).view(R, len(rows), places, V)
            if self.spec.no_repeat is not None:
                repeats = repeated(self.text.ids[..., first:], self.spec.no_repeat, V).view(chances.shape)
                repeats[..., self.end] = False
                chances = chances.masked_fill(repeats, -torch.inf)
            over = [self.limits[b] <= length for b in rows]
            self._keep_ended(rows, nats - chances[..., self.end], first, over)
            chances[..., [self.end, *self.text.never]] = -torch.inf
            nats, parents, tokens = likeliest(nats, chances, K)
            length += 1
            left = self._left(rows, nats[..., 0], over)
            if left:
                kept = torch.tensor(left, device=device)
                nats = nats[:, kept]
                self.text.branch(kept, parents[:, kept], tokens[:, kept])
            rows = [rows[k] for k in left]
        return self.found

    def _keep_ended(self, rows: list[int], ended: Float[Tensor, "R B K"], first: int, over: list[bool]) -> None:
        """Of the beginnings that end here, those that are among the best of their row."""
        length = self.text.ids.shape[2] - first + 1
        for r, of_rows in enumerate(ended.double().tolist()):
            for k, b in enumerate(rows):
                best = self.found[r][b]
                for place, nats in enumerate(of_rows[k]):
                    if not math.isfinite(nats):
                        continue
                    score = self.spec.score(nats, length)
                    if len(best) < self.spec.nbest or score > best[-1].score:
                        row = k * ended.shape[2] + place
                        tokens = tuple(self.text.ids[r, row, first:].tolist())
                        best.append(Hypothesis(tokens, nats, score, over[k]))
                        best.sort(key=lambda h: -h.score)
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
        best = self.found[r][b]
        bound = self.spec.score(nats, self.limits[b] + 1)
        return math.isfinite(nats) and (len(best) < self.spec.nbest or bound > best[-1].score)


def likeliest(
    nats: Float[Tensor, "R B K"], chances: Float[Tensor, "R B K V"], most: int
) -> tuple[Float[Tensor, "R B n"], Int[Tensor, "R B n"], Int[Tensor, "R B n"]]:
    """Of all ways to go on with one token, the likeliest: what each takes altogether, from which it goes on, and with
    which token. The best of a vocabulary are in those of its parts that have the largest numbers: only these parts are
    sorted."""
    *_, K, V = chances.shape
    per_part = 1 << max(0, (V.bit_length() - 1) // 2)  # about √V
    whole = V // per_part * per_part
    if whole // per_part <= most:
        best, tokens = chances.topk(min(most, V), -1)
    else:
        parts = chances[..., :whole].unflatten(-1, (-1, per_part))
        there = parts.amax(-1).topk(most, -1).indices  # [R, B, K, most]
        some = parts.gather(-2, there[..., None].expand(*there.shape, per_part)).flatten(-2)
        at = (there[..., None] * per_part + torch.arange(per_part, device=there.device)).flatten(-2)
        rest = torch.arange(whole, V, device=there.device).expand(*at.shape[:-1], -1)
        some, at = torch.cat((some, chances[..., whole:]), -1), torch.cat((at, rest), -1)
        best, places = some.topk(min(most, V), -1)
        tokens = at.gather(-1, places)
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
