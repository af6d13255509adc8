"""What the models have in common: embed → place → layers → norm.

ids   [R, B, T]      token numbers
padding_mask  [R, B, T]   True where there is a token, False where a row is filled up; None = tokens everywhere
x     [R, B, T, D]   through `layers`

Padding may stand to the left or to the right of a row, in any amount. Nobody looks at it, and positions count real
tokens only: whatever stands around a row, its tokens get the same vectors.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.spec import OR_BY_NAME, Problem
from headway.models.spec import ModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.block import Block, FeedForwardSpec, MixerSpec, NormSpec
from headway.nn.context import AttentionContext
from headway.nn.masks import Mask, Padding, Window
from headway.nn.positions import Learned, PositionSpec
from headway.nn.replicated import Dropout, Embedding, Trainable
from headway.nn.taps import Tap

State = list[Any]


class BackboneSpec(ModelSpec):
    """A stack of layers over embedded tokens."""

    layers: int = Field(default=4, ge=1)
    """How many blocks are stacked."""
    width: int = Field(default=128, ge=1)
    """The size of the vectors that flow through the layers."""
    context: int = Field(default=64, ge=1)
    """The longest sequence, in tokens. Learned positions have this many vectors."""
    mixer: MixerSpec = AttentionSpec()
    """What moves information between positions."""
    positions: PositionSpec = Learned()
    """How order is known: none, learned, sinusoidal, alibi, rotary, t5; for encoders alibi-symmetric, t5-symmetric."""
    feedforward: Annotated[FeedForwardSpec, OR_BY_NAME] = FeedForwardSpec()
    """What works on each position alone."""
    norm: Annotated[NormSpec, OR_BY_NAME] = NormSpec()
    """Which norm, and where."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of the embeddings and of what each sublayer adds."""

    @property
    def limit(self) -> int | None:
        """The longest sequence that can be placed at all; None = any, though training saw no longer than `context`."""
        return self.context if self.positions.ends else None

    @property
    def needs_warmup(self) -> str:
        return "post-norm" if self.norm.placement == "post" else ""

    def flops_per_token(self, segment: int) -> int:
        """Of the layers alone, for one token of a segment of this length (headway/scoring/cost.py says what counts)."""
        D = self.width
        projections = 4 * D * D  # queries, keys, values, output
        attention = 2 * segment * D  # scores, and the weighted sum
        feedforward = (3 if self.feedforward.kind == "swiglu" else 2) * D * self.feedforward.hidden_units(D)
        return 2 * self.layers * (projections + attention + feedforward)

    def problems(self) -> Iterator[Problem]:
        yield from self.mixer.problems_with(self.width)
        if self.positions.kind == "rotary" and self.width % (2 * self.mixer.heads):
            reason = f"rotary turns pairs: width {self.width} over {self.mixer.heads} heads leaves an odd head"
            yield Problem(("positions", "width", "mixer.heads"), reason)


class Backbone(Trainable):
    def __init__(self, spec: BackboneSpec, vocabulary: int, replicas: int, device: str, mask: Mask):
        super().__init__()
        self.replicas, self.vocabulary = replicas, vocabulary
        self.embedding = Embedding(replicas, vocabulary, spec.width)
        self.positions = spec.positions.build(replicas, spec.width, spec.mixer.heads, spec.context)
        self.drop = Dropout(replicas, spec.dropout)
        needs = Needs(device, spec.positions.kind, spec.mixer.dropout > 0)
        # What a layer adds to the stream starts smaller the more layers add (GPT-2).
        out_gain = 1 / math.sqrt(2 * spec.layers)
        self.layers = nn.ModuleList(
            Block(spec.mixer, spec.feedforward, spec.norm, replicas, spec.width, spec.dropout, out_gain, needs)
            for _ in range(spec.layers)
        )
        self.norm = spec.norm.build_final(replicas, spec.width)
        self.embedded = Tap()
        self.heads = spec.mixer.heads
        self.mask = mask if spec.mixer.window is None else mask & Window(spec.mixer.window)

    def hidden(
        self, ids: Int[Tensor, "R B T"], state: State | None = None, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T D"], State]:
        """Everything but the output layer. A row that goes on from a state may be padded on its left only."""
        past = state[0].length if state else 0
        slots = torch.arange(past + ids.shape[2], device=ids.device)
        before = state[0].padding_mask if state else None
        if padding_mask is None and before is None:
            self.check_length(len(slots))
            at, mask = slots[past:], self.mask
        else:
            padding_mask = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
            before = padding_mask.new_ones(*padding_mask.shape[:2], past) if before is None else before
            known = torch.cat((before, padding_mask), dim=2)  # [R, B, K]
            self.check_length(len(slots), known)
            at = (known.cumsum(2) - 1).clamp(min=0)[..., past:]
            mask = self.mask & Padding(known.flatten(0, 1))
        context = AttentionContext(
            (self.replicas, ids.shape[1], self.heads), self.positions, mask, slots[past:], slots, padding_mask
        )
        x = self.embedded(self.drop(self.positions.embed(self.embedding(ids), at)))
        new_state: State = []
        for layer, layer_state in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, layer_state = layer(x, context, layer_state)
            new_state.append(layer_state)
        return self.norm(x), new_state

    def check_length(self, slots: int, known: Bool[Tensor, "R B K"] | None = None) -> None:
        """Learned positions end somewhere. The device is asked, which makes the host wait, only where it matters."""
        limit = self.positions.limit
        if limit is None or slots <= limit:
            return
        tokens = slots if known is None else int(known.sum(2).max())
        if tokens > limit:
            raise UserError(f"{tokens} tokens, but the learned positions end at {limit} (model.context)")
