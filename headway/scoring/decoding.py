"""Text from a model, one token after the other: the likeliest, drawn, or by beam search; many rows at once.

    text = Continued(model, ids, state)        rows that are being written, by any model that can go on
    text.scores()                              [R, B, V]: of the next token of each
    text.take(rows, tokens)                    these rows go on, each with its token
    text.branch(sources, parents, tokens)      or: each of these sources goes on in several ways

How the next token is chosen is a spec (`Greedy`, `Sampled`, `Beam`), which a recipe can name and a score can state. A
row is decoded as if it were alone: its limit, its noise and its hypotheses are its own, and rows that are finished
leave the batch. (Sums of another shape round differently, so tokens whose scores are equal to the last bits may change
places.) Every row ends: at its limit END is the only choice left.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.models.language_model import LanguageModel

Scores = Float[Tensor, "R B V"]
Rows = Int[Tensor, "R N"]


@runtime_checkable
class Continues(Protocol):
    """A model that goes on from tokens, and from what it was given before them."""

    replicas: int

    @property
    def why_no_cache(self) -> str | None: ...

    def go_on(self, ids: Int[Tensor, "R B T"], state: Any) -> tuple[Float[Tensor, "R B T V"], Any]: ...


class Continued:
    """Rows that are being written, all of one length. Where sources go on in several ways, the rows of a source stand
    one after the other; a model that keeps a slot for every token has each slot once for all of them."""

    def __init__(
        self,
        model: Continues,
        ids: Int[Tensor, "R B T"],
        begin: Any = None,
        context: int | None = None,
        cached: bool = True,
    ):
        """`begin` is the state before the first of these ids. When there are more than `context`, the older half is
        forgotten. (Forgetting one token at a time would move every other one to a new position, and nothing could be
        kept in the cache.)"""
        self.model, self.ids, self.context = model, ids, context
        self.cached = cached and model.why_no_cache is None
        self.never = list(getattr(model, "never_written", ()))
        self.ways = 1  # in which each source goes on
        self._shares = self.cached and context is None and getattr(model, "can_branch", False)
        self._begin, self._fresh = begin, ids
        self._state: Any = begin

    def scores(self) -> Scores:
        """Of every token, as the next one of each row."""
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
        """Go on with these rows of each replica, in this order, each one token longer. `same_sources`: every row that
        takes a place was written from the same source as the one that had it."""
        if rows.shape[1] != self.ids.shape[1] or not torch.equal(rows, _in_order(rows)):
            self._state = None if self._state is None else self._state.of_rows(rows, same_sources)
            if self._begin is not None and not (same_sources and rows.shape[1] == self.ids.shape[1]):
                self._begin = self._begin.of_rows(rows)
        self._write(rows, tokens)

    def branch(self, sources: Int[Tensor, "B"], parents: Int[Tensor, "R B K"], tokens: Int[Tensor, "R B K"]) -> None:
        """Go on with these sources, each in K ways: from these of the ways it has now, each with its token."""
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
        self._fresh = tokens[..., None]
        written = self.ids.gather(1, rows[..., None].expand(-1, -1, self.ids.shape[2]))
        self.ids = torch.cat((written, self._fresh), 2)


@dataclass(frozen=True)
class Hypothesis:
    """One way to write a row."""

    tokens: tuple[int, ...]
    """Without END."""
    nats: float
    """What all of it and its END take: minus the logarithm of their chance."""
    score: float
    """By which hypotheses of one row are ranked; higher is better."""
    cut: bool = False
    """It did not end by itself."""


Found = list[list[list[Hypothesis]]]
"""Of every replica, of every row, the best first."""


class DecodingSpec(Variant):
    """How the next token is chosen, and when a row must end."""

    per_source: float = Field(default=2.0, gt=0)
    """A row ends after so many tokens for each token of its source …"""
    extra: int = Field(default=10, ge=1)
    """… and so many more."""

    def limit(self, source: int) -> int:
        """The most tokens of a row whose source has so many."""
        return math.ceil(self.per_source * source) + self.extra

    @abstractmethod
    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        """Until all rows have ended. `limits`: the most tokens of each; `numbers`: which rows of all they are."""

    @property
    @abstractmethod
    def label(self) -> str:
        """In words, as it stands behind a score."""


class Greedy(DecodingSpec):
    """The likeliest token, always."""

    kind: Literal["greedy"] = "greedy"

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        return one_by_one(text, end, limits, lambda logits, rows: logits.argmax(-1))

    @property
    def label(self) -> str:
        return "greedy"


class Sampled(DecodingSpec):
    """A token drawn by its chance. Each row has random numbers of its own."""

    kind: Literal["sampled"] = "sampled"
    temperature: float = Field(default=1.0, ge=0)
    """0 = always the likeliest, 1 = as learnt."""
    top_k: int | None = Field(default=None, ge=1)
    """Only among the k likeliest; null = among all."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Only the likeliest that reach this sum; null = all."""
    seed: int = Field(default=0, ge=0)
    """Of the draw."""

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        noise = [[random.generator(self.seed, "sample", n) for n in numbers] for _ in range(len(text.ids))]

        def choose(logits: Scores, rows: Int[Tensor, " N"]) -> Rows:
            mine = [[own[b] for b in rows.tolist()] for own in noise]
            return draw(logits, self.temperature, self.top_k, self.top_p, mine)

        return one_by_one(text, end, limits, choose)

    @property
    def label(self) -> str:
        only = "".join(f", {k} {v:g}" for k, v in (("top-k", self.top_k), ("top-p", self.top_p)) if v is not None)
        return f"drawn, temperature {self.temperature:g}{only}, seed {self.seed}"


class Beam(DecodingSpec):
    """The best of the beginnings are kept, token by token, and the best that have ended are the answer."""

    kind: Literal["beam"] = "beam"
    size: int = Field(default=5, ge=1)
    """How many beginnings are kept."""
    length_penalty: float = Field(default=1.0, ge=0)
    """The logarithm of the chance is divided by this power of the length, END counted (https://arxiv.org/abs/1609.08144):
    0 = not at all, which favours short ones; 1 = the mean of the tokens."""
    no_repeat: int | None = Field(default=None, ge=1)
    """No run of so many tokens may come twice; null = any may."""
    nbest: int = Field(default=1, ge=1)
    """How many of the best are given."""

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        if self.size == self.nbest == 1 and self.no_repeat is None:
            return Greedy().search(text, end, limits, numbers)  # of one beginning nothing is left to choose
        return _BeamSearch(self, text, end, limits).run()

    def score(self, nats: float, length: int) -> float:
        """Of a hypothesis of so many tokens, END among them."""
        return -nats / length**self.length_penalty

    @property
    def label(self) -> str:
        repeats = "" if self.no_repeat is None else f", no {self.no_repeat} tokens twice"
        return f"beam {self.size}, length penalty {self.length_penalty:g}{repeats}"


# --- one token at a time ---------------------------------------------------------------------------------------------


@torch.no_grad()
def one_by_one(text: Continued, end: int, limits: Sequence[int], choose: Any) -> Found:
    """`choose(logits [R, N, V], rows [N])` gives the next token of every row that is left; `rows` are their numbers."""
    R, B = text.ids.shape[:2]
    device, longest = text.ids.device, torch.tensor(limits)
    written = torch.full((R, B, int(longest.max()) + 1), end)
    nats, cut, done = torch.zeros(R, B, dtype=torch.float64), torch.zeros(R, B).bool(), torch.zeros(R, B).bool()
    rows, length = torch.arange(B), 0
    while len(rows):
        logits, full = text.scores(), longest[rows] <= length
        total = logits.logsumexp(-1)
        logits[..., text.never] = -torch.inf  # what is never written has its share of the chances all the same
        chosen = choose(logits, rows).masked_fill(full.to(device), end)
        taken = total - logits.gather(-1, chosen[..., None])[..., 0]
        going = ~done[:, rows]
        now = chosen.cpu().where(going, end)
        nats[:, rows] += taken.double().cpu() * going
        written[:, rows, length] = now
        cut[:, rows] |= going & full
        done[:, rows] |= now == end
        left = torch.nonzero(~done[:, rows].all(0))[:, 0]
        rows, length = rows[left], length + 1
        if len(rows):
            left = left.to(device).expand(R, -1)
            text.take(left, chosen.gather(1, left))
    lengths = (written != end).sum(2)
    return [
        [
            [Hypothesis(tuple(written[r, b, : lengths[r, b]].tolist()), nats_rb, -nats_rb, bool(cut[r, b]))]
            for b, nats_rb in enumerate(nats[r].tolist())
        ]
        for r in range(R)
    ]


def draw(
    logits: Scores,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    noise: Sequence[Sequence[torch.Generator | None]],
) -> Rows:
    """A token for every row, by its chances; each row by the random numbers of its own generator."""
    if temperature == 0:
        return logits.argmax(-1)
    device, logits = logits.device, logits.cpu() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1:], -torch.inf)
    chances = logits.softmax(-1)
    if top_p is not None:  # the fewest likeliest tokens that together reach top_p (https://arxiv.org/abs/1904.09751)
        ordered, order = chances.sort(descending=True)
        dropped = (ordered.cumsum(-1) - ordered) >= top_p
        dropped[..., 0] = False
        chances = chances.scatter(-1, order, ordered.masked_fill(dropped, 0))
    drawn = [
        [int(torch.multinomial(row, 1, generator=own)) for row, own in zip(rows, mine, strict=True)]
        for rows, mine in zip(chances, noise, strict=True)
    ]
    return torch.tensor(drawn, device=device)


# --- beam search -----------------------------------------------------------------------------------------------------


@dataclass
class _BeamSearch:
    """Every source has `size` places, whose beginnings are the likeliest of their length so far. Which of the finished
    ones is best is known when no beginning can become better any more, however it goes on."""

    spec: Beam
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


# --- language models -------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, "N"],
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Iterator[int]:
    """`tokens` ids that follow the prompt, as they are drawn. With or without the cache, the same ids."""
    for (token,) in samples(model, prompt, tokens, temperature, top_k, top_p, [generator], cached):
        yield token


@torch.no_grad()
def samples(
    model: LanguageModel,
    prompt: Int[Tensor, "N"],
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    noise: Sequence[torch.Generator | None] = (None,),
    cached: bool = True,
) -> Iterator[list[int]]:
    """Several texts that begin with the prompt, one for each source of random numbers, token by token. The context of a
    recurrence is never full."""
    context = model.spec.horizon
    if len(prompt) == 0:
        raise UserError("the prompt is empty: there is nothing to go on from")
    if context is not None and len(prompt) > context:
        raise UserError(f"the prompt has {len(prompt)} tokens, but the model's context is {context}")
    if temperature < 0:
        raise UserError(f"a temperature must be 0 (always the likeliest) or more, not {temperature}")
    model.eval()
    device = next(model.parameters()).device
    ids = prompt.to(device, torch.int64).expand(1, len(noise), -1)
    text = Continued(model, ids, context=context, cached=cached)
    for _ in range(tokens):
        chosen = draw(text.scores(), temperature, top_k, top_p, [noise])
        yield chosen[0].tolist()
        text.take(_in_order(chosen), chosen)


def _in_order(rows: Rows) -> Rows:
    return torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)
