"""Attention: project → place → score → mask → weigh → mix.

    q, k, v   project(x)                    [R, B, H, T, d]
    q, k      positions.rotate              place
    scores    q·kᵀ/√d + positions.bias      score
    weights   softmax over what may be seen mask, weigh          `weights` is a pure function
    heads     weights·v                     mix
    y         output(fusion(heads))         [R, B, T, D]

The four steps in the middle are done by a backend (`backends.py`); every backend gives what the plain one gives.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem, Spec
from headway.nn.backends import Backend, BackendName, Needs, choose_backend, scores, weights
from headway.nn.context import AttentionContext
from headway.nn.heads import Concat, FusionSpec
from headway.nn.replicated import Dropout, Linear
from headway.nn.taps import Display, Tap


@dataclass(frozen=True)
class Cache:
    """The state attention carries: the keys (already placed) and values of all slots so far."""

    keys: Float[Tensor, "R B H S d"]
    values: Float[Tensor, "R B H S d"]
    padding_mask: Bool[Tensor, "R B S"] | None = None
    """Where these slots hold tokens and not padding; None = everywhere."""

    @property
    def length(self) -> int:
        return self.keys.shape[3]

    def extended(self, new: "Cache") -> "Cache":
        keys, values = torch.cat((self.keys, new.keys), dim=3), torch.cat((self.values, new.values), dim=3)
        if self.padding_mask is None and new.padding_mask is None:
            return Cache(keys, values)
        return Cache(keys, values, torch.cat((self.known_real, new.known_real), dim=2))

    @property
    def known_real(self) -> Bool[Tensor, "R B S"]:
        (R, B, _, S, _), device = self.keys.shape, self.keys.device
        return torch.ones(R, B, S, dtype=torch.bool, device=device) if self.padding_mask is None else self.padding_mask


class AttentionSpec(Spec):
    """Multi-head attention. https://arxiv.org/abs/1706.03762"""

    kind: Literal["attention"] = "attention"
    heads: int = Field(default=4, ge=1)
    """How many heads share the width between them."""
    fusion: FusionSpec = Concat()
    """How the heads' outputs become one vector: concat, shuffle, shift, reweight, reweight-causal."""
    window: int | None = Field(default=None, ge=1)
    """See only this many slots, one's own included; null = all."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of the attention weights. Only the plain backend can: fused kernels draw from one stream for all replicas."""
    bias: bool = True
    """Whether the projections add a bias."""
    backend: BackendName = "auto"
    """Which kernel computes it: plain, sdpa, flex (CUDA only), or the fastest that can."""

    def build(self, replicas: int, width: int, out_gain: float, needs: Needs) -> "Attention":
        backend = choose_backend(self.backend, needs)
        return Attention(self, SelfProjection(replicas, width, self), backend, replicas, width, out_gain)

    def build_cross(self, replicas: int, width: int, out_gain: float, needs: Needs) -> "Attention":
        """Queries from the decoder, keys and values from the memory that the encoder left in the context."""
        backend = choose_backend(self.backend, needs)
        return Attention(self, CrossProjection(replicas, width, self), backend, replicas, width, out_gain)

    @property
    def why_not_causal(self) -> str | None:
        """Why it would see the future behind a causal mask, or None."""
        return self.fusion.why_not_causal

    def problems_with(self, width: int) -> list[Problem]:
        """What does not go together with a model of this width; the model's spec asks."""
        if width % self.heads:
            fits = ", ".join(str(h) for h in range(1, min(width, 64) + 1) if width % h == 0)
            reason = f"width {width} is not divisible by {self.heads} heads; heads that fit: {fits}"
            return [Problem(("width", "mixer.heads"), reason)]
        return []


class SelfProjection(nn.Module):
    """Queries, keys and values of the same vectors, in one matrix product; keys and values join those of the past."""

    makes = "attention"

    def __init__(self, replicas: int, width: int, spec: AttentionSpec):
        super().__init__()
        self.heads = spec.heads
        self.together = Linear(replicas, width, 3 * width, bias=spec.bias)

    def forward(
        self, x: Float[Tensor, "R B T D"], context: AttentionContext, past: Cache | None
    ) -> tuple[Tensor, Cache]:
        q, k, v = (_split(part, self.heads) for part in self.together(x).chunk(3, dim=-1))
        q, k = context.positions.rotate(q, context.queries), context.positions.rotate(k, context.queries)
        new = Cache(k, v, context.padding_mask)
        return q, new if past is None else past.extended(new)


class CrossProjection(nn.Module):
    """Queries of one sequence, keys and values of another, which are computed once and then kept."""

    makes = "cross_attention"

    def __init__(self, replicas: int, width: int, spec: AttentionSpec):
        super().__init__()
        self.heads = spec.heads
        self.queries = Linear(replicas, width, width, bias=spec.bias)
        self.keys_values = Linear(replicas, width, 2 * width, bias=spec.bias)

    def forward(
        self, x: Float[Tensor, "R B T D"], context: AttentionContext, past: Cache | None
    ) -> tuple[Tensor, Cache]:
        q = context.positions.rotate(_split(self.queries(x), self.heads), context.queries)
        if past is not None:
            return q, past
        k, v = (_split(part, self.heads) for part in self.keys_values(context.memory).chunk(2, dim=-1))
        return q, Cache(context.positions.rotate(k, context.keys), v)


class Attention(nn.Module):
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
        self.called = project.makes  # in the names of taps
        self.project = project
        self.backend = backend
        self.drop = Dropout(replicas, spec.dropout, fixed=True)
        self.fusion = spec.fusion.build(replicas, spec.heads)
        self.output = Linear(replicas, width, width, bias=spec.bias, gain=out_gain)
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Display(), Display()  # fused kernels never show them
        self.mixed, self.attended = Tap(), Tap("output")

    def forward(
        self, x: Float[Tensor, "R B T D"], context: AttentionContext, state: Cache | None = None
    ) -> tuple[Float[Tensor, "R B T D"], Cache]:
        q, cache = self.project(x, context, state)
        q, k, v = self.queries(q), self.keys(cache.keys), self.values(cache.values)
        if self.scores.is_watched:
            self.scores(scores(q, k, context.bias))
        if self.weights.is_watched:
            self.weights(weights(q, k, context.allowed, context.bias))
        heads = self.mixed(self.backend.attend(q, k, v, context, self.drop))
        return self.attended(self.output(self.fusion(heads, context.padding_mask))), cache


def _split(x: Float[Tensor, "R B T D"], heads: int) -> Float[Tensor, "R B H T d"]:
    return x.unflatten(-1, (heads, -1)).transpose(2, 3)
