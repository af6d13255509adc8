"""Attention: project, apply positions, score, mask, softmax, weighted sum.

    q, k, v   project(x)                    [R, B, H, T, d]
    q, k      positions.rotate              apply rotary positions
    scores    q·kᵀ/√d + positions.bias      score                `similarity.py` has other ways
    weights   softmax over unmasked keys    mask, softmax        `weights` is a pure function
    heads     weights·v                     weighted sum
    y         output(fusion(heads))         [R, B, T, D]

Scores, mask, softmax and weighted sum are computed by a backend (`backends.py`). All backends agree with the plain one.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem
from headway.nn.backends import Backend, BackendName, Needs, Plain, choose_backend, is_few, scores, weights
from headway.nn.context import Context
from headway.nn.dropout import WeightDropout
from headway.nn.heads import Concat, FusionSpec
from headway.nn.kv_cache import Cache, Memory, MemoryCache
from headway.nn.masks import Everything, Mask, Window
from headway.nn.mixer import Mixer, MixerSpec, check_parts, check_rows
from headway.nn.replicated import Dropout, Linear, PendingBias
from headway.nn.similarity import ScaledDot, SimilaritySpec
from headway.nn.taps import Display, Tap
from headway.nn.trainable import Carried


class AttentionSpec(MixerSpec):
    """Multi-head attention. https://arxiv.org/abs/1706.03762"""

    added: ClassVar[frozenset[str]] = frozenset({"memory", "weight_dropout", "similarity"})

    kind: Literal["attention"] = "attention"
    heads: int = Field(default=4, ge=1)
    """The number of heads, which share the width: each has width / heads dimensions."""
    similarity: SimilaritySpec = ScaledDot()
    """How queries and keys are compared: scaled-dot, additive."""
    fusion: FusionSpec = Concat()
    """How the heads' outputs become one vector: concat, shuffle, shift, reweight, reweight-causal."""
    window: int | None = Field(default=None, ge=1)
    """Sliding-window attention: attend to only this many positions, including the query's own; null = all."""
    memory: int = Field(default=0, ge=0)
    """Transformer-XL memory: also attend to this many positions of the previous segments, without a gradient, when
    batches are contiguous (data.batches=contiguous). https://arxiv.org/abs/1901.02860"""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout rate of the attention weights. Only the plain backend supports it: fused kernels use one random
    stream for all replicas."""
    weight_dropout: float = Field(default=0.0, ge=0, lt=1)
    """The DropConnect rate of the query-key-value matrix; one mask is used for a whole step."""
    bias: bool = True
    """Whether the projections have a bias."""
    backend: BackendName = "auto"
    """The kernel: plain (the reference), sdpa, flex (CUDA only); auto = the fastest that supports the recipe."""

    def build(self, replicas: int, width: int, out_gain: float, needs: Needs) -> "Attention":
        return Attention(self, SelfProjection(replicas, width, self), self._kernel(needs), replicas, width, out_gain)

    @property
    def why_no_cross(self) -> str | None:
        return None

    def build_cross(self, replicas: int, width: int, out_gain: float, needs: Needs) -> "Attention":
        """Queries from the decoder, keys and values from the encoder's output (`context.memory`)."""
        return Attention(self, CrossProjection(replicas, width, self), self._kernel(needs), replicas, width, out_gain)

    def _kernel(self, needs: Needs) -> Backend:
        products = self.similarity.is_product
        return choose_backend(self.backend, replace(needs, weight_dropout=self.dropout > 0, products=products))

    @property
    def own_mask(self) -> Mask:
        """The mask of this layer, in addition to the model's."""
        return _own_mask(self.window)

    @property
    def remembers(self) -> float:
        return float(self.memory)

    @property
    def number_of_heads(self) -> int:
        return self.heads

    @property
    def why_no_rotary(self) -> str | None:
        return None if self.similarity.is_product else f"{self.similarity.kind} attention has no query-key product"

    @property
    def why_not_causal(self) -> str | None:
        return self.fusion.why_not_causal

    def flops_per_token(self, width: int, segment: int) -> int:
        projections = 4 * width * width  # queries, keys, values, output
        remembered = 3 * width * width * self.memory // segment  # projecting the memory, per token
        return 2 * (projections + remembered) + 4 * width * self._pairs(segment) // segment  # scores and weighted sum

    def _pairs(self, segment: int) -> int:
        """The query-key pairs within the window, in a segment (without the causal mask) and the memory before it."""
        if self.window is None:
            return segment * (segment + self.memory)
        near = min(self.window, segment)
        band = segment * (2 * near - 1) - near * (near - 1)
        return band + sum(min(self.memory, self.window - 1 - i) for i in range(min(segment, self.window - 1)))

    def largest(self, width: int, length: int) -> int:
        return self.heads * (length + self.memory)  # the weights of one query

    def kept(self, width: int) -> int:
        return 4 * width  # queries, keys, values, and what was read with them

    def problems_with(self, width: int) -> Iterator[Problem]:
        if width % self.heads:
            fits = ", ".join(str(h) for h in range(1, min(width, 64) + 1) if width % h == 0)
            yield Problem(("heads",), f"width {width} is not divisible by {self.heads} heads; heads that fit: {fits}")


class SelfProjection(nn.Module):
    """Queries, keys and values of the same vectors, in one matrix product. New keys and values are appended to the past
    ones."""

    tap_name = "attention"

    def __init__(self, replicas: int, width: int, spec: AttentionSpec):
        super().__init__()
        self.heads = spec.heads
        self.together = Linear(replicas, width, 3 * width, bias=spec.bias)
        self.together.output_names = ("queries", "keys", "values")
        if spec.weight_dropout:
            self.together.drop = WeightDropout(replicas, spec.weight_dropout)

    @property
    def matrices(self) -> dict[str, Float[Tensor, "R D D"]]:
        """The weights of the query, key and value projections."""
        return dict(zip(("queries", "keys", "values"), self.together.weight.chunk(3, dim=1), strict=True))

    def forward(
        self, x: Float[Tensor, "R B T D"], context: Context, past: Cache | Memory | None
    ) -> tuple[Tensor, Cache]:
        positions = context.positions.for_heads(self.heads)
        if past is not None:
            check_rows("attention", (past.inputs if isinstance(past, Memory) else past.keys).shape, x.shape)
        past = self.recall(past, context) if isinstance(past, Memory) else past
        q, k, v = (_split(part, self.heads) for part in self.together(x).chunk(3, dim=-1))
        new = Cache(positions.rotate(k, context.queries), v)
        return positions.rotate(q, context.queries), new if past is None else past.extended(new)

    def recall(self, memory: Memory, context: Context) -> Cache:
        """Keys and values of the memory: the slots before the segment."""
        past = len(context.keys) - len(context.queries)
        at = context.keys[past - memory.inputs.shape[2] : past]
        _, k, v = (_split(part, self.heads) for part in self.together(memory.inputs).chunk(3, dim=-1))
        return Cache(context.positions.for_heads(self.heads).rotate(k, at), v)


class CrossProjection(nn.Module):
    """Queries of one sequence, keys and values of another; the keys and values are computed once and cached."""

    tap_name = "cross_attention"

    def __init__(self, replicas: int, width: int, spec: AttentionSpec):
        super().__init__()
        self.heads = spec.heads
        self.queries = Linear(replicas, width, width, bias=spec.bias)
        self.keys_values = Linear(replicas, width, 2 * width, bias=spec.bias)
        self.queries.output_names, self.keys_values.output_names = ("queries",), ("keys", "values")

    @property
    def matrices(self) -> dict[str, Float[Tensor, "R D D"]]:
        """The weights of the query, key and value projections."""
        keys, values = self.keys_values.weight.chunk(2, dim=1)
        return {"queries": self.queries.weight, "keys": keys, "values": values}

    def forward(self, x: Float[Tensor, "R B T D"], context: Context, past: Cache | None) -> tuple[Tensor, Cache]:
        positions = context.positions.for_heads(self.heads)
        q = positions.rotate(_split(self.queries(x), self.heads), context.queries)
        if past is not None:
            return q, past
        k, v = (_split(part, self.heads) for part in self.keys_values(context.memory).chunk(2, dim=-1))
        k = positions.rotate(k, context.keys)
        if is_few(q, k):  # decoding token by token reads them many times, so make each head's part contiguous
            k, v = k.contiguous(), v.contiguous()
        return q, MemoryCache(k, v)


class Attention(Mixer):
    def __init__(
        self,
        spec: AttentionSpec,
        project: SelfProjection | CrossProjection,
        backend: Backend,
        replicas: int,
        width: int,
        out_gain: float,
    ):
        super().__init__()
        self.called = project.tap_name  # in the names of taps
        self.spec, self.mask, self.reach = spec, spec.own_mask, spec.window
        self.reads_products = not spec.memory
        self.project = project
        self.similarity = spec.similarity.build(replicas, spec.heads, width // spec.heads)
        self.backend = backend if spec.similarity.is_product else Plain(self.similarity)
        self.drop = Dropout(replicas, spec.dropout, fixed=True)
        self.fusion = spec.fusion.build(replicas, spec.heads)
        self.why_no_cache = self.fusion.why_no_cache
        self.keeps_slots = not spec.memory and not backend.compiles_bias
        self.output = Linear(replicas, width, width, bias=spec.bias, gain=out_gain)
        self.output.output_names = ("output",)
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Display(), Display()  # fused kernels do not expose them
        self.mixed, self.attended = Tap(), Tap("output")

    def forward(
        self, x: Float[Tensor, "R B T D"], context: Context, state: Cache | Memory | None = None
    ) -> tuple[Float[Tensor, "R B T D"] | PendingBias, Cache]:
        q, cache = self.project(x, context, state)
        q, k, v = self.queries(q), self.keys(cache.keys), self.values(cache.values)
        seen = context.for_heads(self.spec.heads, self.mask, k.shape[3])
        if self.scores.is_watched:
            self.scores(scores(q, k, seen.bias, self.similarity))
        if self.weights.is_watched:
            self.weights(weights(q, k, seen.allowed, seen.bias, self.similarity))
        heads = self.mixed(self.backend.attend(q, k, v, seen, self.drop))
        fused = self.fusion(heads, context.padding_mask)
        y = self.attended(self.output(fused)) if self.attended.is_watched else self.output.with_pending_bias(fused)
        if self.spec.memory:
            cache = Cache(cache.keys, cache.values, self._remembered(x, context, state))
        return y, cache

    def prepare(self, context: Context) -> None:
        if not self.spec.memory:
            self.backend.prepare(context.for_heads(self.spec.heads, self.mask, len(context.keys)))

    def _remembered(self, x: Float[Tensor, "R B T D"], context: Context, state: Cache | Memory | None) -> Memory:
        told = context.padding_mask
        new = Memory(x, torch.ones(x.shape[:3], dtype=torch.bool, device=x.device) if told is None else told)
        before = state.memory if isinstance(state, Cache) else state
        before = Memory(x[:, :, :0], new.told[:, :, :0]) if before is None else before
        return before.extended(new, self.spec.memory)

    def carried(self, state: Cache) -> Carried:
        if state.memory is None:
            return {}
        memory = state.memory.filled_up(self.spec.memory)
        return {"memory": memory.inputs.detach(), "told": memory.told}

    def going_on_from(self, carried: Carried) -> Memory | None:
        check_parts("attention", carried, ("memory", "told") if self.spec.memory else ())
        return Memory(carried["memory"], carried["told"]) if carried else None

    def slots_before(self, carried: Carried) -> Bool[Tensor, "R B S"] | None:
        return carried.get("told")


@cache
def _own_mask(window: int | None) -> Mask:
    """The same object for all layers, so that the compiler sees that they are alike."""
    return Everything() if window is None else Window(window)


def _split(x: Float[Tensor, "R B T D"], heads: int) -> Float[Tensor, "R B H T d"]:
    return x.unflatten(-1, (heads, -1)).transpose(2, 3)
