"""Encoder–decoder: an encoder reads the source, and a decoder with cross attention to it writes the target.

sources   [R, B, S]
memory    [R, B, S, D]   embedding, positions, encoder layers (attention in both directions), norm
x         [R, B, T, D]   embedding, positions, layers (self attention, cross attention, feed-forward net), norm
logits    [R, B, T, V]

The encoder is a backbone of its own; the decoder is the model itself. The recipe chooses the mixers of both. If both
are recurrences, the decoder's initial state can be computed from the encoder's final state.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.spec import MAX_LAYERS
from headway.models.state import ModelState, SourceMemory
from headway.models.translator import Translator, TranslatorSpec
from headway.nn import mixer
from headway.nn.attention import AttentionSpec
from headway.nn.block import Block, CrossBlock
from headway.nn.masks import Causal, Everything
from headway.nn.mixer import Mixer, Mixers, MixerSpec
from headway.nn.replicated import Linear, parameter
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried


class FirstStateSpec(Variant):
    """The initial state of the decoder's recurrences."""

    @abstractmethod
    def build(self, replicas: int, left: int, sizes: Sequence[dict[str, int]]) -> "FirstStates | None":
        """The map from the encoder's final state, of size `left`, to states of these sizes, layer by layer."""

    def problems_with(self, left: int, sizes: Sequence[dict[str, int]]) -> Iterator[Problem]:
        """Why it is impossible in this model; keys are the model's."""
        yield from ()

    def flops(self, left: int, sizes: Sequence[dict[str, int]]) -> int:
        """FLOPs of the matrix products for one source."""
        return 0


class Zeros(FirstStateSpec):
    """Zeros: the decoder gets information about the source only through attention."""

    kind: Literal["zeros"] = "zeros"

    def build(self, replicas: int, left: int, sizes: Sequence[dict[str, int]]) -> None:
        return None


class FromEncoder(FirstStateSpec):
    """tanh(W s + b), where s has the final states of all of the encoder's recurrences: after the last source token, and
    in the backward direction after the first. https://arxiv.org/abs/1409.0473"""

    kind: Literal["encoder"] = "encoder"

    def build(self, replicas: int, left: int, sizes: Sequence[dict[str, int]]) -> "FirstStates":
        return FirstStates(replicas, left, sizes)

    def problems_with(self, left: int, sizes: Sequence[dict[str, int]]) -> Iterator[Problem]:
        if not left:
            reason = "no layer of the encoder is a recurrence, so it has no final state"
            yield Problem(("first_state", "encoder_mixer"), f"{reason}; use first_state: zeros")
        if not any(sizes):
            reason = "no layer of the decoder is a recurrence, so it has no initial state"
            yield Problem(("first_state", "mixer"), f"{reason}; use first_state: zeros")

    def flops(self, left: int, sizes: Sequence[dict[str, int]]) -> int:
        return 2 * left * sum(sum(parts.values()) for parts in sizes)


class FirstStates(nn.Module):
    """One linear map to the states of all layers."""

    def __init__(self, replicas: int, left: int, sizes: Sequence[dict[str, int]]):
        super().__init__()
        self.sizes = sizes
        self.map = Linear(replicas, left, sum(sum(parts.values()) for parts in sizes))

    def forward(self, left: Float[Tensor, "R B N"]) -> list[Carried]:
        """The state of each layer, as parts by name."""
        found = self.map(left[:, :, None])[:, :, 0].to(left.dtype).tanh()  # a state is float32 in every precision
        pieces = iter(found.split([size for parts in self.sizes for size in parts.values()], -1))
        return [{name: next(pieces) for name in parts} for parts in self.sizes]


class EncoderDecoderSpec(TranslatorSpec):
    """An encoder for the source and a decoder for the target. https://arxiv.org/abs/1706.03762

    `layers`, `mixer` and so on are the decoder's, and the encoder's unless set separately."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    encoder_layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    """The number of encoder layers; null = as many as the decoder has."""
    encoder_mixer: Mixers | None = None
    """The encoder's mixer: one for all of its layers, or a list with one for each; null = the decoder's."""
    cross: MixerSpec | None = None
    """Cross attention, from the decoder to the encoder's output; null = attention with as many heads as the layer's
    self attention."""
    tied: Literal["none", "output", "all"] = "output"
    """Weight tying: output = the target embedding is also the output matrix (https://arxiv.org/abs/1608.05859); all =
    the source embedding as well, which requires a joint vocabulary; none."""
    first_state: FirstStateSpec = Zeros()
    """The initial state of the decoder's recurrences: zeros; or encoder = a learnt map of the final states of the
    encoder's recurrences."""
    begin: int | None = Field(default=None, ge=0)
    """The id of the token that targets start with and that is never generated; null = END."""

    added: ClassVar[frozenset[str]] = TranslatorSpec.added | {"first_state", "begin"}

    @property
    def encoder(self) -> BackboneSpec:
        own = self.mixer if self.encoder_mixer is None else self.encoder_mixer
        layers = self.encoder_layers or self.layers
        if self.encoder_mixer is None and isinstance(own, list) and len(own) != layers:
            own = own[0]  # the length is reported by `problems`
        return BackboneSpec.model_construct(
            kind="encoder",
            layers=layers,
            width=self.width,
            context=self.context,
            mixer=own,
            positions=self.positions.for_encoders,
            feedforward=self.feedforward,
            norm=self.norm,
            dropout=self.dropout,
            noise=self.noise,
            scale_embedding=self.scale_embedding,
            embedding_std=self.embedding_std,
        )

    def cross_for(self, own: MixerSpec) -> MixerSpec:
        """The cross attention of a layer with this mixer."""
        if self.cross is not None:
            return self.cross
        if isinstance(own, AttentionSpec):
            return own.model_copy(update={"window": None})  # a window is around a position of the same sequence
        return AttentionSpec(heads=next((h for h in (4, 2) if self.width % h == 0), 1))

    @property
    def states(self) -> tuple[int, list[dict[str, int]]]:
        """The size of the encoder's final state, and the sizes of the decoder's states, by layer."""
        encoder = self.encoder
        left = sum(sum(one.state_sizes(self.width).values()) for one in encoder.mixers)
        return left, [one.state_sizes(self.width) for one in self.mixers]

    @property
    def shares_vocabulary(self) -> str:
        return "with tied: all, source and target share one embedding table" if self.tied == "all" else ""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if (
            self.encoder_mixer is None
            and isinstance(self.mixer, list)
            and self.encoder_layers not in (None, self.layers)
        ):
            reason = f"the list has a mixer for each of {self.layers} layers, but the encoder has {self.encoder_layers}"
            yield Problem(("mixer", "encoder_layers", "encoder_mixer"), f"{reason}; set encoder_mixer as well")
        elif self.encoder_mixer is not None:
            encoder = self.encoder
            for problem in mixer.problems(encoder.mixer, encoder.layers, self.width, encoder.positions):
                yield Problem(tuple(_of_encoder(key) for key in problem.keys), problem.reason)
        yield from self.first_state.problems_with(*self.states)
        if self.cross is not None:
            if self.cross.why_no_cross:
                yield Problem(("cross",), f"{self.cross.why_no_cross}; use attention")
            for problem in self.cross.problems_with(self.width):
                yield Problem(("width", *(f"cross.{key}" for key in problem.keys)), problem.reason)

    def forward_flops(self, source: int, target: int, vocabulary: int) -> int:
        # Cross attention: queries and output of the target, keys and values of the source, scores and weighted sums.
        of_cross = 4 * self.width * self.width * (target + source) + 4 * self.width * target * source
        of_cross += target * self.norm.crossing_flops(self.width)
        of_decoder = (
            target * self.flops_per_token(target) + self.layers * of_cross + self.first_state.flops(*self.states)
        )
        return source * self.encoder.flops_per_token(source) + of_decoder + 2 * target * self.width * vocabulary

    def build(
        self, source_vocabulary: int, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu"
    ) -> "EncoderDecoder":
        if self.begin is not None and self.begin >= vocabulary - 1:
            raise UserError(f"model.begin is token {self.begin}, but the tokens are 0 to {vocabulary - 2}")
        model = EncoderDecoder(self, source_vocabulary, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


SOURCES_PER_PASS = 16  # sources per encoder pass, if there are many with different lengths


class EncoderDecoder(Translator):
    sublayers = 3
    spec: EncoderDecoderSpec  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, spec: EncoderDecoderSpec, source_vocabulary: int, vocabulary: int, replicas: int, device: str = "cpu"
    ):
        super().__init__(spec, vocabulary, replicas, device, Causal())
        self.source_vocabulary = source_vocabulary
        self.spec = spec  # pyright: ignore[reportIncompatibleVariableOverride]
        self.encoder = Backbone(spec.encoder, source_vocabulary, replicas, device, Everything())
        if spec.tied == "all":
            self.encoder.embedding = self.embedding
        self.output = Linear(replicas, spec.width, vocabulary, bias=False, gain=0.2) if spec.tied == "none" else None
        self.first_states = spec.first_state.build(replicas, *spec.states)
        self.output_bias = parameter(replicas, vocabulary) if spec.output_bias else None
        self.logits = Tap()
        self.never_written = () if spec.begin is None else (spec.begin,)

    def build_layer(self, spec: BackboneSpec, one: MixerSpec, *shape: Any) -> Block:
        assert isinstance(spec, EncoderDecoderSpec)
        return CrossBlock(one, spec.cross_for(one), *shape)

    @property
    def crossing(self) -> list[Mixer]:
        """The cross attention of each layer."""
        return [layer.cross for layer in self.layers]  # pyright: ignore

    @property
    def reading(self) -> Sequence[nn.Module]:
        return [self.encoder, *self.crossing, *([] if self.first_states is None else [self.first_states])]

    @property
    def why_no_cache(self) -> str | None:
        every = [*self.mixers, *self.crossing]
        return next((mixer.why_no_cache for mixer in every if mixer.why_no_cache), None)

    def read(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        vectors, read = self.encoder.hidden(sources, padding_mask=source_mask)
        return ModelState(self._first(read), memory=SourceMemory(vectors, source_mask))

    def read_many(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        """Read in groups of similar length, each padded only to its own longest source."""
        if source_mask is None or self.first_states is not None:
            return self.read(sources, source_mask)
        groups = zip(sources.split(SOURCES_PER_PASS, 1), source_mask.split(SOURCES_PER_PASS, 1), strict=True)
        vectors = []
        for some, told in groups:
            longest = int(told.sum(2).max())
            found, _ = self.encoder.hidden(some[..., :longest], padding_mask=told[..., :longest])
            vectors.append(F.pad(found, (0, 0, 0, sources.shape[2] - longest)))
        return ModelState((None,) * len(self.layers), memory=SourceMemory(torch.cat(vectors, 1), source_mask))

    def _first(self, read: ModelState) -> tuple[Any, ...]:
        """The initial state of each layer: its mixer's, and None for cross attention."""
        if self.first_states is None:
            return (None,) * len(self.layers)
        left = [one.summary(own) for one, own in zip(self.encoder.mixers, read.layers, strict=True)]
        states = self.first_states(torch.cat([one for one in left if one is not None], -1))
        return tuple((one.going_on_from(own), None) for one, own in zip(self.mixers, states, strict=True))

    def written(
        self, ids: Int[Tensor, "R B T"], state: ModelState, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T D"], ModelState]:
        if self.spec.begin is not None:  # as an input, END occurs only at the start of a target
            ids = ids.masked_fill(ids == self.vocabulary - 1, self.spec.begin)
        return super().written(ids, state, padding_mask)


def _of_encoder(key: str) -> str:
    return key.replace("mixer", "encoder_mixer", 1) if key.startswith("mixer") else key
