"""Decoding: greedy, sampled, or by beam search, for many rows in a batch.

The decoding method is a spec (`Greedy`, `Sampled`, `Beam`) that a recipe can name and a score can state. Each row is
decoded as if it were alone: it has its own length limit, random numbers and hypotheses, and finished rows leave the
batch. (Sums over other shapes round differently, so tokens whose scores agree to the last bits may swap.) Every row
ends: at its limit END is the only token allowed.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.models.language_model import LanguageModel
from headway.scoring.beam import BeamSearch
from headway.scoring.continued import (
    Continued,
    Found,
    Hypothesis,
    Rows,
    Scores,
    in_order,
    likeliest_token,
    log_total,
)

MAX_HYPOTHESES = 1000
"""The largest beam width. Memory grows with its square, because hypotheses share a cache and each has a mask over the
tokens of all others."""


HIGHEST_PENALTY = 20.0
"""At this exponent the longest hypothesis always wins already; a much higher one overflows."""
MIN_TEMPERATURE = 1e-30
"""Below this temperature the likeliest token is always taken; dividing logits by less would overflow."""


class DecodingSpec(Variant):
    """How the next token is chosen, and when a row must end."""

    per_source: float = Field(default=2.0, gt=0)
    """A translation may have at most this many tokens for each token of its source …"""
    extra: int = Field(default=10, ge=1)
    """… plus this many."""

    def limit(self, source: int) -> int:
        """The maximum number of tokens for a source of this length."""
        return math.ceil(self.per_source * source) + self.extra

    @abstractmethod
    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        """Decode until all rows have ended. `limits`: the maximum length of each row; `numbers`: the rows' indices in
        the whole split."""

    @property
    @abstractmethod
    def label(self) -> str:
        """For the label of a score."""


class Greedy(DecodingSpec):
    """Always the likeliest token."""

    kind: Literal["greedy"] = "greedy"

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        return one_by_one(text, end, limits, lambda logits, rows: likeliest_token(logits))

    @property
    def label(self) -> str:
        return "greedy"


class Sampled(DecodingSpec):
    """Tokens sampled from the model's distribution. Each row has its own random numbers."""

    kind: Literal["sampled"] = "sampled"
    temperature: float = Field(default=1.0, ge=0)
    """0 = always the likeliest token, 1 = the model's own distribution."""
    top_k: int | None = Field(default=None, ge=1)
    """Draw among the k likeliest tokens only; null = all."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Nucleus sampling: draw among the fewest tokens whose probabilities reach this sum; null = all."""
    seed: int = Field(default=0, ge=0)
    """The seed of the draws."""

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        noise = [[random.generator(self.seed, "sample", n) for n in numbers] for _ in range(len(text.ids))]

        def choose(logits: Scores, rows: Int[Tensor, " N"]) -> Rows:
            mine = [[own[b] for b in rows.tolist()] for own in noise]
            return draw(logits, self.temperature, self.top_k, self.top_p, mine)

        return one_by_one(text, end, limits, choose)

    @property
    def label(self) -> str:
        only = "".join(f", {k} {v:g}" for k, v in (("top-k", self.top_k), ("top-p", self.top_p)) if v is not None)
        return f"sampled, temperature {self.temperature:g}{only}, seed {self.seed}"


class Beam(DecodingSpec):
    """Beam search: at every step the best hypotheses are kept; the best finished one is the result."""

    kind: Literal["beam"] = "beam"
    size: int = Field(default=5, ge=1, le=MAX_HYPOTHESES)
    """The beam width: how many hypotheses are kept."""
    length_penalty: float = Field(default=1.0, ge=0, le=HIGHEST_PENALTY)
    """The log-probability is divided by the length, END counted, to this power (https://arxiv.org/abs/1609.08144): 0 =
    no normalisation, which favours short translations; 1 = the mean over tokens."""
    no_repeat: int | None = Field(default=None, ge=1)
    """No n-gram of this length may occur twice; null = any may."""
    nbest: int = Field(default=1, ge=1)
    """How many of the best hypotheses are returned."""

    def search(self, text: Continued, end: int, limits: Sequence[int], numbers: Sequence[int]) -> Found:
        if self.size == self.nbest == 1 and self.no_repeat is None:
            return Greedy().search(text, end, limits, numbers)  # a beam of one hypothesis is greedy
        return BeamSearch(self, text, end, limits).run()

    def score(self, nats: float, length: int) -> float:
        """The length-normalised score of a hypothesis with so many tokens, including END."""
        return -nats / length**self.length_penalty

    @property
    def label(self) -> str:
        repeats = "" if self.no_repeat is None else f", no {self.no_repeat} tokens twice"
        return f"beam {self.size}, length penalty {self.length_penalty:g}{repeats}"


# --- one token at a time ---------------------------------------------------------------------------------------------


@torch.no_grad()
def one_by_one(text: Continued, end: int, limits: Sequence[int], choose: Any) -> Found:
    """Decode without search. `choose(logits [R, N, V], rows [N])` gives the next token of each unfinished row; `rows`
    are their indices."""
    R, B = text.ids.shape[:2]
    device, longest = text.ids.device, torch.tensor(limits)
    written = torch.full((R, B, int(longest.max()) + 1), end)
    nats, cut, done = torch.zeros(R, B, dtype=torch.float64), torch.zeros(R, B).bool(), torch.zeros(R, B).bool()
    rows, length = torch.arange(B), 0
    while len(rows):
        logits, full = text.scores(), longest[rows] <= length
        share = logits[..., text.never]
        logits[..., text.never] = -torch.inf
        chosen = choose(logits, rows).masked_fill(full.to(device), end)
        taken = logits.gather(-1, chosen[..., None])[..., 0]
        logits[..., text.never] = share  # tokens that are never written still count in the normalisation
        taken = log_total(logits) - taken
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
    """Sample a token for every row, each with its own random generator."""
    if temperature < MIN_TEMPERATURE:
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
    """Yield `tokens` ids that continue the prompt, as they are drawn. The ids are the same with and without the
    cache."""
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
    """Continue the prompt several times, once for each random generator, token by token. A recurrence has no limit on
    its context."""
    context = model.spec.horizon
    if len(prompt) == 0:
        raise UserError("the prompt is empty: give at least one token to continue from")
    if context is not None and len(prompt) > context:
        raise UserError(f"the prompt has {len(prompt)} tokens, but the model's context is {context}")
    if not temperature >= 0:
        raise UserError(f"a temperature must be 0 (always the likeliest) or more, not {temperature}")
    model.eval()
    device = next(model.parameters()).device
    ids = prompt.to(device, torch.int64).expand(1, len(noise), -1)
    text = Continued(model, ids, context=context, cached=cached)
    for _ in range(tokens):
        chosen = draw(text.scores(), temperature, top_k, top_p, [noise])
        yield chosen[0].tolist()
        text.take(in_order(chosen), chosen)
