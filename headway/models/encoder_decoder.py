"""An encoder reads the source, and a decoder looks at what it made of it while it writes the target.

sources   [R, B, S]
memory    [R, B, S, D]   embed → place → encoder's layers → norm; everybody sees everybody
x         [R, B, T, D]   embed → place → layers: own past, then the memory, then each position alone → norm
logits    [R, B, T, V]

The encoder is a backbone of its own; the decoder is the model itself. What mixes in either is up to the recipe.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem
from headway.models.backbone import Backbone, BackboneSpec, ModelState, SourceMemory
from headway.models.translator import Translator, TranslatorSpec
from headway.nn import mixer
from headway.nn.attention import AttentionSpec
from headway.nn.block import Block, CrossBlock
from headway.nn.masks import Causal, Everything
from headway.nn.mixer import Mixer, Mixers, MixerSpec
from headway.nn.replicated import Linear, seed
from headway.nn.taps import Tap


class EncoderDecoderSpec(TranslatorSpec):
    """An encoder that reads and a decoder that writes. https://arxiv.org/abs/1706.03762

    `layers`, `mixer` and so on are the decoder's, and the encoder's where nothing else is said."""

    kind: Literal["encoder-decoder"] = "encoder-decoder"
    encoder_layers: int | None = Field(default=None, ge=1)
    """How many blocks read the source; null = as many as write the target."""
    encoder_mixer: Mixers | None = None
    """What mixes in the encoder, for all its layers or a list with one for each; null = the decoder's."""
    cross: MixerSpec | None = None
    """How the decoder looks at what the encoder made; null = attention with as many heads as the layer's own."""
    tied: Literal["none", "output", "all"] = "output"
    """Which tables are one: output, the target's embedding and the output matrix (https://arxiv.org/abs/1608.05859);
    all, the source's embedding, too, which takes one vocabulary for both; none."""

    @property
    def encoder(self) -> BackboneSpec:
        own = self.mixer if self.encoder_mixer is None else self.encoder_mixer
        layers = self.encoder_layers or self.layers
        if self.encoder_mixer is None and isinstance(own, list) and len(own) != layers:
            own = own[0]  # whose list it is says `problems`
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
        )

    def cross_for(self, own: MixerSpec) -> MixerSpec:
        """How a layer with this mixer looks at the memory."""
        if self.cross is not None:
            return self.cross
        if isinstance(own, AttentionSpec):
            return own.model_copy(update={"window": None})  # a window is around one's own place
        return AttentionSpec(heads=next((h for h in (4, 2) if self.width % h == 0), 1))

    @property
    def shares_vocabulary(self) -> str:
        return "tied: all makes one table of both embeddings" if self.tied == "all" else ""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if (
            self.encoder_mixer is None
            and isinstance(self.mixer, list)
            and self.encoder_layers not in (None, self.layers)
        ):
            reason = f"the list has a mixer for each of {self.layers} layers, and the encoder has {self.encoder_layers}"
            yield Problem(("mixer", "encoder_layers", "encoder_mixer"), f"{reason}; give encoder_mixer, too")
        elif self.encoder_mixer is not None:
            encoder = self.encoder
            for problem in mixer.problems(encoder.mixer, encoder.layers, self.width, encoder.positions):
                yield Problem(tuple(_of_encoder(key) for key in problem.keys), problem.reason)
        if self.cross is not None:
            if self.cross.why_no_cross:
                yield Problem(("cross",), f"{self.cross.why_no_cross}; use attention")
            for problem in self.cross.problems_with(self.width):
                yield Problem(("width", *(f"cross.{key}" for key in problem.keys)), problem.reason)

    def forward_flops(self, source: int, target: int, vocabulary: int) -> int:
        # Of cross attention: queries and output by the target, keys and values by the source; scores and sums between.
        of_cross = 4 * self.width * self.width * (target + source) + 4 * self.width * target * source
        of_decoder = target * self.flops_per_token(target) + self.layers * of_cross
        return source * self.encoder.flops_per_token(source) + of_decoder + 2 * target * self.width * vocabulary

    def build(
        self, source_vocabulary: int, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu"
    ) -> "EncoderDecoder":
        model = EncoderDecoder(self, source_vocabulary, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


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
        self.logits = Tap()

    def build_layer(self, spec: BackboneSpec, one: MixerSpec, *shape: Any) -> Block:
        assert isinstance(spec, EncoderDecoderSpec)
        return CrossBlock(one, spec.cross_for(one), *shape)

    @property
    def crossing(self) -> list[Mixer]:
        """What looks at the memory, layer by layer."""
        return [layer.cross for layer in self.layers]  # pyright: ignore

    @property
    def reading(self) -> Sequence[nn.Module]:
        return [self.encoder, *self.crossing]

    @property
    def why_no_cache(self) -> str | None:
        every = [*self.mixers, *self.crossing]
        return next((mixer.why_no_cache for mixer in every if mixer.why_no_cache), None)

    def read(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        vectors, _ = self.encoder.hidden(sources, padding_mask=source_mask)
        return ModelState((None,) * len(self.layers), memory=SourceMemory(vectors, source_mask))


def _of_encoder(key: str) -> str:
    return key.replace("mixer", "encoder_mixer", 1) if key.startswith("mixer") else key
