"""What decoding should write, found a second time by plain loops: everything is recomputed for every token, one source
at a time, and nothing here uses headway/scoring.

    log_probabilities(answer, sources, prefixes)     after every token, in float64
    beam_search(…)                                   END is a token like any other
    greedy(…)                                        the likeliest token at each step
    sampling_log_probabilities(…)                    with temperature, top-k and top-p
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.scores.recount import CLOSE

Next = Callable[[list[list[int]]], Tensor]
"""For prefixes of one length, without END: the log-probabilities of the next token [rows, V]."""


class PlainHypothesis(NamedTuple):
    tokens: list[int]
    """Without END."""
    nats: float
    """Of the whole text including END."""
    divided_by: float = 1.0
    """The length penalty by which nats are divided to rank hypotheses."""

    @property
    def score(self) -> float:
        return -self.nats / self.divided_by

    def is_close_to(self, other: "PlainHypothesis") -> bool:
        return abs(self.score - other.score) < CLOSE * min(1.0, abs(self.score))

    def off(self, nats: float, score: float) -> float:
        """How far other numbers differ from these, relative to the nats."""
        return max(abs(nats - self.nats), abs(score * self.divided_by + self.nats)) / max(self.nats, 0.1)


@torch.no_grad()
def log_probabilities(answer: Any, sources: list[list[int]], prefixes: Tensor) -> Tensor:
    """Log-probabilities after every token [rows, T, V], in float64."""
    logits = answer(prefixes[None], sources=torch.tensor(sources)[None])[0].double().cpu()
    logits = logits - logits.amax(-1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def after(answer: Any, source: list[int], end: int) -> Next:
    """A function that gives the next-token log-probabilities in translations of one source."""

    def following(prefixes: list[list[int]]) -> Tensor:
        ids = torch.tensor([[end, *tokens] for tokens in prefixes])
        return log_probabilities(answer, [source] * len(prefixes), ids)[:, -1]

    return following


def limit(how: Any, source: list[int], most: int | None) -> int:
    """The maximum number of tokens of a translation. `most`: where positions end. The source includes its END."""
    allowed = math.ceil(how.per_source * (len(source) - 1)) + how.extra
    return allowed if most is None else min(allowed, most)


def is_greedy(how: Any) -> bool:
    """Whether decoding is greedy, or a beam of width 1."""
    return how.kind == "greedy" or (how.kind == "beam" and how.size == how.nbest == 1 and how.no_repeat is None)


def beam_search(following: Next, how: Any, end: int, most: int, never: Collection[int]) -> list[PlainHypothesis] | None:
    """The finished hypotheses that `how` asks for, best first; None if it is too close to call which hypotheses are
    kept or which finished one is better."""
    prefixes: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[PlainHypothesis] = []
    for length in range(most + 1):
        said = following([tokens for _, tokens in prefixes])
        for k, (log_probability, tokens) in enumerate(prefixes):
            whole = log_probability + said[k, end].item()
            finished.append(PlainHypothesis(tokens, -whole, (length + 1) ** how.length_penalty))
        finished = sorted(finished, key=lambda one: -one.score)[: how.nbest + 1]
        said[:, [end, *never]] = -math.inf
        for k, (_, tokens) in enumerate(prefixes):
            said[k, _repeating(tokens, how.no_repeat)] = -math.inf
        sums = (said + torch.tensor([one for one, _ in prefixes], dtype=said.dtype)[:, None]).flatten()
        best, places = sums.topk(min(how.size + 1, len(sums)))
        kept = [(c, p) for c, p in zip(best.tolist(), places.tolist(), strict=True) if c > -math.inf]
        if len(kept) > how.size and kept[-2][0] - kept[-1][0] < CLOSE:
            return None
        prefixes = [(c, [*prefixes[p // said.shape[1]][1], p % said.shape[1]]) for c, p in kept[: how.size]]
        could = prefixes[0][0] / (most + 1) ** how.length_penalty if prefixes else -math.inf
        if not prefixes or (len(finished) >= how.nbest and could <= finished[how.nbest - 1].score):
            break  # no unfinished hypothesis can become better
    if any(one.is_close_to(next_best) for one, next_best in pairwise(finished)):
        return None
    return finished[: how.nbest]


def greedy(following: Next, end: int, most: int, never: Collection[int]) -> list[PlainHypothesis] | None:
    """The result of greedy decoding; None if two tokens are too close to call."""
    nats, tokens = 0.0, []
    for length in range(most + 1):
        said = following([tokens])[0]
        allowed = said.index_fill(0, torch.tensor(list(never), dtype=torch.long), -math.inf)
        best, chosen = allowed.topk(2)
        if length < most and best[0].exp() - best[1].exp() < CLOSE:
            return None
        token = end if length == most else int(chosen[0])
        nats -= said[token].item()
        if token == end:
            break
        tokens.append(token)
    return [PlainHypothesis(tokens, nats)]


def sampling_log_probabilities(said: Tensor, how: Any, never: Collection[int]) -> Tensor:
    """From log-probabilities [rows, V], those that tokens are sampled with; minus infinity for excluded tokens."""
    said = (said / how.temperature).index_fill(1, torch.tensor(list(never), dtype=torch.long), -math.inf)
    if how.top_k is not None and how.top_k < said.shape[1]:
        said = said.masked_fill(said < said.topk(how.top_k).values[:, -1:], -math.inf)
    said = said.log_softmax(-1)
    if how.top_p is not None:
        ordered = said.sort(descending=True).values
        likelier = ordered.exp().cumsum(-1) - ordered.exp()
        last = (likelier < how.top_p).sum(-1, keepdim=True).clamp(min=1) - 1
        said = said.masked_fill(said < ordered.gather(-1, last), -math.inf).log_softmax(-1)
    return said


@contextmanager
def scaled_logits(model: Any, by: float) -> Iterator[None]:
    """Context manager: all logits are multiplied by this number below 1, so that hypotheses get closer."""
    honest = model.scores
    model.scores = lambda x: honest(x) * by
    try:
        yield
    finally:
        del model.scores


def _repeating(tokens: list[int], n: int | None) -> list[int]:
    """The tokens that would repeat an n-gram."""
    if n is None or len(tokens) < n:
        return []
    last = tokens[len(tokens) - n + 1 :]
    return [tokens[k + n - 1] for k in range(len(tokens) - n + 1) if tokens[k : k + n - 1] == last]
