"""Batches of running text: which tokens a language model sees at each step.

A sampler is a pure function of the step and has no internal state, so a resumed run just asks for the next step.
Batches have the replica axis first. What a replica sees depends on its own seed alone, never on the other replicas.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Int32, Int64, Integer
from pydantic import Field
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.core.variants import Variant

Step = int | Int32[Tensor, ""]
"""A tensor if the step is replayed as a CUDA graph, where only this value changes."""


@dataclass(frozen=True)
class Batch:
    """Rows of text, and for each token the next one."""

    inputs: Int64[Tensor, "R B T"]
    targets: Int64[Tensor, "R B T"]
    begins: Bool[Tensor, ""]
    """True if the rows do not continue those of the previous step, so that carried state must be reset."""
    first_row: int = 0
    """The index of the first row in the whole batch. Noise is drawn by row, so a part of a batch gets the same noise as
    in the whole."""

    def part(self, k: int, n: int) -> "Batch":
        """The k-th of n equal slices of the rows, for gradient accumulation."""
        rows, left_over = divmod(self.inputs.shape[1], n)
        if left_over:
            raise UserError(f"a batch of {self.inputs.shape[1]} rows cannot be split into {n} equal parts")
        mine = slice(k * rows, (k + 1) * rows)
        return Batch(self.inputs[:, mine], self.targets[:, mine], self.begins, self.first_row + k * rows)


class TokenSampler(Protocol):
    steps_per_epoch: int
    """Steps until the number of tokens seen equals the length of the text."""

    def at(self, step: Step) -> Batch: ...


class BatchSpec(Variant):
    """How the batches are taken from the text."""

    by_seed: ClassVar[bool] = True
    """Whether the batches depend on the seed."""
    rows_go_on: ClassVar[bool] = False
    """Whether each row continues the same row of the previous step."""
    by_line: ClassVar[bool] = False
    """Whether each row is a single line of the text."""

    @abstractmethod
    def build(
        self, tokens_on_device: Integer[Tensor, " N"], segment: int, batch: int, seeds: Sequence[int]
    ) -> TokenSampler:
        """A sampler of `batch` rows per seed, each of `segment` tokens and the token after them."""


class Crops(BatchSpec):
    """Every row is a random crop of the text. Each seed has its own crops."""

    kind: Literal["crops"] = "crops"

    def build(
        self, tokens_on_device: Integer[Tensor, " N"], segment: int, batch: int, seeds: Sequence[int]
    ) -> "CropSampler":
        longest = len(tokens_on_device) - 1
        if longest < segment:
            raise _too_short(tokens_on_device, f"a segment of {segment} tokens and the one after it", longest)
        keys = random.stream_keys(seeds, "crops").to(tokens_on_device.device)
        return CropSampler(tokens_on_device, segment, batch, keys)


class Contiguous(BatchSpec):
    """The text is cut into as many streams as the batch has rows, and each is read from left to right, segment after
    segment, so that state can be carried from one batch to the next. The order is the same for every seed. The end of
    the streams, too short for one more segment, is not read. State is reset with every pass over the text and nowhere
    else."""

    by_seed: ClassVar[bool] = False
    rows_go_on: ClassVar[bool] = True
    kind: Literal["contiguous"] = "contiguous"

    def build(
        self, tokens_on_device: Integer[Tensor, " N"], segment: int, batch: int, seeds: Sequence[int]
    ) -> "ContiguousSampler":
        return ContiguousSampler(_streams(tokens_on_device, segment, batch), segment, len(seeds))


class ShiftedContiguous(BatchSpec):
    """Like contiguous, but every pass over the text begins at another token of the first segment, so that the text is
    not cut, and gradients do not stop, at the same places every time. (AWD-LSTM varies the segment length for this
    purpose, https://arxiv.org/abs/1708.02182; here the length is fixed.) All seeds have the same shifts."""

    by_seed: ClassVar[bool] = False
    rows_go_on: ClassVar[bool] = True
    kind: Literal["contiguous-shifted"] = "contiguous-shifted"

    def build(
        self, tokens_on_device: Integer[Tensor, " N"], segment: int, batch: int, seeds: Sequence[int]
    ) -> "ContiguousSampler":
        streams = _streams(tokens_on_device, segment, batch)
        furthest = min(segment, streams.shape[1] - segment) - 1
        return ContiguousSampler(streams, segment, len(seeds), furthest)


class TextLines(BatchSpec):
    """Every row is a line of the text, padded; a line longer than a row continues in the next. Every line once per
    epoch, in an order that depends on the seed, lines of similar length together. Only for models that read rows in
    both directions; for others, each row would begin without context."""

    by_line: ClassVar[bool] = True
    kind: Literal["lines"] = "lines"
    buckets: int = Field(default=4, ge=1)
    """Lines of similar length share a batch: the number of length ranges; 1 = lines of any length together. Fewer are
    used where lines are few."""

    def build(
        self, tokens_on_device: Integer[Tensor, " N"], segment: int, batch: int, seeds: Sequence[int]
    ) -> TokenSampler:
        raise UserError("data.batches=lines gives padded rows, which only masked-language-models can read")


class CropSampler:
    def __init__(self, tokens: Integer[Tensor, " N"], segment: int, batch: int, keys: Int32[Tensor, "R 2"]):
        self._tokens, self._batch, self._keys = tokens, batch, keys
        self._within = torch.arange(segment + 1, device=tokens.device)
        self.steps_per_epoch = math.ceil(len(tokens) / (batch * segment))

    def at(self, step: Step) -> Batch:
        last_first = len(self._tokens) - len(self._within)
        firsts = random.integers(self._keys, on_device(step, self._keys), last_first + 1, self._batch)  # [R, B]
        rows = self._tokens[firsts[:, :, None] + self._within].long()  # [R, B, T + 1]
        return Batch(rows[..., :-1], rows[..., 1:], begins=torch.ones_like(self._within[0], dtype=torch.bool))


class ContiguousSampler:
    """`furthest`: the largest shift, in tokens at the beginning of every stream that a pass may skip."""

    def __init__(self, streams: Integer[Tensor, "B L"], segment: int, replicas: int, furthest: int = 0):
        self._streams, self._segment, self._replicas, self._furthest = streams, segment, replicas, furthest
        self._within = torch.arange(segment + 1, device=streams.device)
        self._keys = random.stream_keys([0], "shifts").to(streams.device)
        self.steps_per_epoch = (streams.shape[1] - 1 - furthest) // segment

    def at(self, step: Step) -> Batch:
        step = on_device(step, self._streams)
        position, first = step % self.steps_per_epoch, self._within
        if self._furthest:
            turn = torch.div(step, self.steps_per_epoch, rounding_mode="floor")
            first = first + random.integers(self._keys, turn, self._furthest + 1, 1)[0]
        rows = self._streams.index_select(1, position * self._segment + first).long()  # [B, T + 1]
        rows = rows.expand(self._replicas, -1, -1)  # [R, B, T + 1], a view
        return Batch(rows[..., :-1], rows[..., 1:], begins=position == 0)


def on_device(step: Step, beside: Tensor) -> Int32[Tensor, ""]:
    """The step as a tensor on the device. It is created there, because copying would wait for all queued work."""
    return step if isinstance(step, Tensor) else torch.full((), step, dtype=torch.int32, device=beside.device)


def _streams(tokens: Integer[Tensor, " N"], segment: int, batch: int) -> Integer[Tensor, "B L"]:
    length = len(tokens) // batch
    if length < segment + 1:
        needed = f"{batch} streams of at least {segment} tokens and the one after them"
        raise _too_short(tokens, needed, length - 1, most_rows=len(tokens) // (segment + 1))
    return tokens[: batch * length].reshape(batch, length)


def _too_short(tokens: Tensor, needed: str, longest: int, most_rows: int = 0) -> UserError:
    """`longest`: the longest possible segment, if any; `most_rows`: the largest possible batch, if it matters."""
    remedies = [f"the longest possible segment is {longest}"] if longest > 0 else []
    if most_rows > 0:
        remedies.append(f"with segments of this length training.batch is {most_rows} at most")
    remedy = "; ".join(remedies) or "it is too short for any segment"
    return UserError(f"the train split has {len(tokens):,} tokens, too few for {needed}; {remedy}")
