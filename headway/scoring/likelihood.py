"""Likelihood scores of language models: nats per token, perplexity per token and per word, bits per byte.

A text is read through a window of `segment` tokens that moves by `stride`. In each window only the tokens that no
earlier window has scored count, so each token is scored exactly once, with at least segment - stride tokens of context
(except in the first window). The very first token of a text has no context and is not scored.

With carried state the text is one stream: every segment is read once and continues from the state of the one before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from headway.core.errors import UserError
from headway.data.tokens import Tokens
from headway.models.language_model import LanguageModel
from headway.scoring.reading import Reading
from headway.scoring.score import Score
from headway.scoring.stream import Stream

PIECES = 64
"""A text is cut into so many pieces of about equal length, to estimate how much the loss would vary on other text."""
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""Elements in the largest tensor of a batch, by device: 16 MB in float32 on a CPU, to stay near the size of its caches;
1 GB on a GPU, which small batches would leave idle."""
MIN_TOKENS = 256
"""Minimum tokens in a batch, whatever its size in memory: with fewer, matrix products are bound by reading the
weights."""


class ScoredWindow(NamedTuple):
    """A window whose inputs begin at `start`, and whose targets are scored from index `first` on."""

    start: int
    first: int


def windows(tokens: int, segment: int, stride: int) -> tuple[int, list[ScoredWindow]]:
    """The common length of the windows, and the windows. Targets are tokens 1 … tokens - 1, each scored once."""
    targets = tokens - 1
    length = min(segment, targets)
    found, scored = [], 0
    while scored < targets:
        # A window that would reach beyond the end is moved back, so that all have the same length.
        start = min(max(0, scored - (segment - stride)), targets - length)
        found.append(ScoredWindow(start, scored - start))
        scored = start + length
    return length, found


def token_losses(
    model: LanguageModel, ids: Integer[Tensor, "N"], segment: int, stride: int
) -> Float[Tensor, "R N_minus_1"]:
    """Nats of every token but the first, for every replica, by sliding windows."""
    if len(ids) < 2:
        raise UserError(f"{len(ids)} token cannot be scored: at least 2 are needed, one as context and one to predict")
    if stride > segment:
        raise UserError(f"a stride of {stride} would skip tokens between segments of {segment}")
    device = next(model.parameters()).device
    length, places = windows(len(ids), segment, stride)
    ids = ids.to(device, torch.int64)
    losses = torch.empty(model.replicas, len(ids) - 1, device=device)
    widest = max(model.vocabulary, model.spec.largest(length))  # the logits or a layer's activations
    tokens = (
        max(MIN_TOKENS, MAX_ELEMENTS.get(device.type, MAX_ELEMENTS["cpu"]) // widest) // model.replicas
    )  # per replica
    for some in _batches(places, max(1, tokens // length)):
        starts, firsts = torch.tensor(some)[..., None].unbind(1)  # [windows, 1] each
        slots = starts + torch.arange(length + 1)
        rows = ids[slots.to(device)].expand(model.replicas, -1, -1)
        nats = model.losses(rows[..., :-1], rows[..., 1:])
        # One indexing operation for all windows of the batch, since each costs a kernel launch. The boolean mask is
        # resolved on the CPU; on the GPU that would force a synchronisation.
        due = torch.arange(length) >= firsts
        losses[:, slots[:, :-1][due].to(device)] = nats.flatten(1)[:, due.flatten().nonzero()[:, 0].to(device)]
    return losses


def losses_going_on(model: LanguageModel, ids: Integer[Tensor, "N"], segment: int) -> Float[Tensor, "R N_minus_1"]:
    """Nats of every token but the first, for every replica, reading the text once as a stream with carried state."""
    if len(ids) < 2:
        raise UserError(f"{len(ids)} token cannot be scored: at least 2 are needed, one as context and one to predict")
    ids = ids.to(next(model.parameters()).device, torch.int64)
    starts = range(0, len(ids) - 1, segment)
    stream = Stream(model, len(starts))
    return torch.cat(
        [stream.losses(ids[start : start + segment + 1].expand(model.replicas, 1, -1)) for start in starts], 1
    )


def losses_of(model: LanguageModel, ids: Integer[Tensor, "N"], reading: Reading) -> Float[Tensor, "R N_minus_1"]:
    """Nats of every token but the first, for every replica, by the given reading."""
    segment, stride, carried = reading
    return losses_going_on(model, ids, segment) if carried else token_losses(model, ids, segment, stride)


@dataclass(frozen=True)
class Surprise:
    """The total nats of one model on one text, with the facts needed to label scores."""

    nats: float
    tokens: int
    words: int
    bytes: int
    segment: int
    stride: int
    token_kind: str
    unknown: int = 0
    """How many tokens are the unknown word: they are easy to predict, so they flatter the score."""
    carried: bool = False
    """Whether state was carried from segment to segment."""
    read_in: str | None = None
    """For labels: how the text was read, where several models read it in different ways."""
    pieces: tuple[tuple[float, int], ...] | None = None
    """Nats and token count of each consecutive piece; None if the text is too short."""

    def scores(self, split: str) -> list[Score]:
        """`split.loss`, `.perplexity`, `.perplexity_per_word` and `.bits_per_byte`, with labels."""
        tokens, words, size = _count(self.tokens, "token"), _count(self.words, "word"), _count(self.bytes, "byte")
        how = f"{split} · {tokens} · {self.read_in or Reading(self.segment, self.stride, self.carried).label}"
        if self.unknown:
            how += f" · {self.unknown:,} of the tokens ({self.unknown / self.tokens:.1%}) are unknown words"
        per_token = self.nats / self.tokens
        pieces = self.pieces if math.isfinite(per_token) else None
        found = [
            Score(f"{split}.loss", per_token, f"nats per token ({self.token_kind}) · {how}", counts=pieces),
            Score(f"{split}.perplexity", _exp(per_token), f"perplexity per token ({self.token_kind}) · {how}"),
        ]
        if self.words:
            label = f"perplexity per word ({words} between white space; line ends not counted) · {how}"
            found.append(Score(f"{split}.perplexity_per_word", _exp(self.nats / self.words), label))
        if self.bytes:
            bits = self.nats / math.log(2) / self.bytes
            found.append(Score(f"{split}.bits_per_byte", bits, f"bits per byte ({size} of UTF-8) · {how}"))
        return found


@torch.no_grad()
def surprise(
    model: LanguageModel,
    tokens: Tokens,
    segment: int,
    stride: int,
    token_kind: str,
    at_most: int | None = None,
    unknown: int | None = None,
    carried: bool = False,
) -> list[Surprise]:
    """Score a text, or its first `at_most` tokens, for every replica. `unknown` is the id of the unknown word."""
    model.eval()
    end = len(tokens.ids) if at_most is None else min(len(tokens.ids), at_most + 1)
    reading = Reading(segment, stride, carried)
    losses = losses_of(model, torch.as_tensor(tokens.ids[:end]), reading)
    found = [surprise_of(n, tokens, reading, token_kind, end, unknown) for n in losses.double().sum(1).tolist()]
    if at_most is not None or losses.shape[1] < 2 * PIECES:
        return found
    cut = losses.tensor_split(PIECES, 1)
    nats = torch.stack([piece.double().sum(1) for piece in cut], 1).tolist()
    sizes = [piece.shape[1] for piece in cut]
    return [replace(one, pieces=tuple(zip(own, sizes, strict=True))) for one, own in zip(found, nats, strict=True)]


def surprise_of(
    nats: float, tokens: Tokens, reading: Reading, token_kind: str, end: int | None = None, unknown: int | None = None
) -> Surprise:
    """Add the facts about the text up to token `end` to its total nats."""
    ids, starts, sizes = tokens.ids[1:end], tokens.starts[1:end], tokens.bytes[1:end]
    strange = 0 if unknown is None else int((ids == unknown).sum())
    segment, stride, carried = reading
    return Surprise(nats, len(ids), int(starts.sum()), int(sizes.sum()), segment, stride, token_kind, strange, carried)


def _batches(places: list[ScoredWindow], size: int) -> Iterator[list[ScoredWindow]]:
    for k in range(0, len(places), size):
        yield places[k : k + size]


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)  # NaN stays NaN


def _count(n: int, of: str) -> str:
    return f"{n:,} {of}" + ("" if n == 1 else "s")
