"""A decoder language model: embed → place → layers → norm → logits.

ids     [R, B, T]
x       [R, B, T, D]   through `layers`
logits  [R, B, T, V]   the output matrix is the embedding's own when `tied`
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.errors import UserError
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.block import Block, FeedForwardSpec, MixerSpec, NormSpec
from headway.nn.cross_entropy import mean_cross_entropy
from headway.nn.heads import Fusion
from headway.nn.masks import Causal, Mask, Window
from headway.nn.positions import Learned, PositionSpec
from headway.nn.replicated import Dropout, Embedding, Linear, Trainable, seed
from headway.nn.scene import Scene
from headway.nn.taps import Tap
from headway.spec import OR_BY_NAME, Problem, Spec

State = list[Any]


class LanguageModelSpec(Spec):
    """A decoder that predicts the next token."""

    kind: Literal["language-model"] = "language-model"
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
    tied: bool = True
    """Whether the output matrix is the embedding table (https://arxiv.org/abs/1608.05859)."""

    def problems(self) -> Iterator[Problem]:
        yield from self.mixer.problems_with(self.width)
        if self.positions.kind == "rotary" and self.width % (2 * self.mixer.heads):
            reason = f"rotary turns pairs: width {self.width} over {self.mixer.heads} heads leaves an odd head"
            yield Problem(("positions", "width", "mixer.heads"), reason)

    def build(self, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> "LanguageModel":
        """A model with one replica per seed, ready to train."""
        model = LanguageModel(self, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


class LanguageModel(Trainable):
    def __init__(self, spec: LanguageModelSpec, vocabulary: int, replicas: int, device: str = "cpu"):
        super().__init__()
        self.spec, self.replicas, self.vocabulary = spec, replicas, vocabulary
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
        self.output = None if spec.tied else Linear(replicas, spec.width, vocabulary, bias=False, gain=0.2)
        self.embedded, self.logits = Tap(), Tap()
        self.mask: Mask = Causal() if spec.mixer.window is None else Causal() & Window(spec.mixer.window)

    @property
    def why_no_cache(self) -> str | None:
        """Why sampling has to compute everything again for every token, or None."""
        return next((m.why_no_cache for m in self.modules() if isinstance(m, Fusion) and m.why_no_cache), None)

    def forward(self, ids: Int[Tensor, "R B T"], state: State | None = None) -> tuple[Float[Tensor, "R B T V"], State]:
        """The scores of the next token after each token, and the state to go on from."""
        x, state = self.hidden(ids, state)
        return self.logits(self.embedding.logits(x) if self.output is None else self.output(x)), state

    def hidden(self, ids: Int[Tensor, "R B T"], state: State | None = None) -> tuple[Float[Tensor, "R B T D"], State]:
        """Everything but the output layer."""
        past = state[0].length if state else 0
        slots = torch.arange(past + ids.shape[2], device=ids.device)
        limit = self.positions.limit
        if limit is not None and len(slots) > limit:
            raise UserError(f"{len(slots)} tokens, but the learned positions end at {limit} (model.context)")
        heads = self.spec.mixer.heads
        scene = Scene((self.replicas, ids.shape[1], heads), self.positions, self.mask, slots[past:], slots)
        x = self.embedded(self.drop(self.positions.embed(self.embedding(ids), scene.queries)))
        new_state: State = []
        for layer, layer_state in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, layer_state = layer(x, scene, layer_state)
            new_state.append(layer_state)
        return self.norm(x), new_state

    def losses(self, inputs: Int[Tensor, "R B T"], targets: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T"]:
        """Nats for every target token."""
        logits, _ = self(inputs)
        nats = F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), reduction="none")
        return nats.view(targets.shape)

    def loss(self, batch: Any) -> Float[Tensor, "R"]:
        """What training lowers: mean nats per token, one number per replica."""
        x, _ = self.hidden(batch.inputs)
        weight = self.embedding.weight if self.output is None else self.output.weight
        return mean_cross_entropy(x.flatten(1, 2), weight, batch.targets.flatten(1, 2))
