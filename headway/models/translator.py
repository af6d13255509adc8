"""What all translators have in common: they read a source and write a target token by token.

sources       [R, B, S]      the tokens of each source and END, then padding
source_mask   [R, B, S]      True where there is a token
ids           [R, B, T]      END, y₁, y₂ …: a target starts with END
logits        [R, B, T, V]   of y₁, y₂ …, END

    state = model.read(sources, source_mask)        once per source
    logits, state = model.go_on(ids, state)         for each new token or tokens

Decoding, scores and audits use only this interface, whatever the architecture.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.state import ModelState
from headway.nn.cross_entropy import mean_cross_entropy
from headway.nn.replicated import Linear
from headway.nn.taps import Tap
from headway.nn.trainable import Carried

Nats = Float[Tensor, "R B T"]


class TranslatorSpec(BackboneSpec):
    """A model that reads a source and writes a target."""

    reads: ClassVar[str] = "pairs"

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing: the share of each target's probability that is spread over all tokens, in training only
    (https://arxiv.org/abs/1512.00567). Reported losses are without it."""
    output_bias: bool = False
    """Whether the output layer has a bias."""

    added: ClassVar[frozenset[str]] = BackboneSpec.added | {"output_bias"}

    @property
    def harder_in_training(self) -> bool:
        return super().harder_in_training or self.label_smoothing > 0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if ahead := list(dict.fromkeys(one.kind for one in self.mixers if one.only_encodes)):
            reason = f"a decoder must not see later tokens, but a bidirectional {ahead[0]} reads them"
            yield Problem(("mixer",), f"{reason}; bidirectional mixers are for encoders (encoder_mixer)")

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        reasons = dict.fromkeys(one.why_not_causal for one in self.mixers if not one.only_encodes)
        yield from (f"{why}, so the loss on given targets says nothing about decoding" for why in reasons if why)

    @property
    def shares_vocabulary(self) -> str:
        """Why source and target must share a vocabulary; empty = they may have two."""
        return ""

    @abstractmethod
    def forward_flops(self, source: int, target: int, vocabulary: int) -> int:
        """FLOPs for one pair of these lengths, in one replica."""

    @abstractmethod
    def build(self, source_vocabulary: int, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> Any:
        """A `Translator` with one replica per seed, ready to train. END is the last token of each vocabulary."""


class Translator(Backbone):
    """The base of translators. Its own `embedding`, `layers` and `positions` are the decoder's."""

    spec: TranslatorSpec
    source_vocabulary: int
    """The size of the source vocabulary, in which END is the last token."""
    output: Linear | None
    """None = the output matrix is the embedding table."""
    output_bias: nn.Parameter | None
    logits: Tap
    never_written: Sequence[int] = ()
    """Tokens that decoding never generates, whatever their logits."""

    def read(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        """The state after reading the sources, from which targets are decoded."""
        raise NotImplementedError

    def read_many(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        """The same for many sources, longest first, without watched taps, so that padding can be skipped."""
        return self.read(sources, source_mask)

    def go_on(
        self, ids: Int[Tensor, "R B T"], state: ModelState, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T V"], ModelState]:
        """The logits of the next token after each of these, and the state after them."""
        x, state = self.written(ids, state, padding_mask)
        return self.scores(x), state

    def written(
        self, ids: Int[Tensor, "R B T"], state: ModelState, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T D"], ModelState]:
        """The same without the output layer: vectors in place of logits."""
        return self.hidden(ids, state, padding_mask)

    def vectors(
        self,
        sources: Int[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        source_mask: Bool[Tensor, "R B S"] | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B T D"]:
        """The input of the output layer after each token of the targets, without a state to continue from."""
        return self.written(ids, self.read(sources, source_mask), padding_mask)[0]

    def forward(
        self,
        sources: Int[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        source_mask: Bool[Tensor, "R B S"] | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B T V"]:
        """The logits of the next token after each token of the targets."""
        return self.go_on(ids, self.read(sources, source_mask), padding_mask)[0]

    @property
    def output_table(self) -> Tensor | None:
        return self.embedding.weight if self.output is None else None

    def scores(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T V"]:
        return self.logits((self.embedding.logits if self.output is None else self.output)(x, self.output_bias))

    @property
    def longest(self) -> int:
        """The largest number of source tokens that are read, including END."""
        return self.spec.context

    @property
    def most_written(self) -> int | None:
        """The largest number of target tokens; None = any. With learned positions it is one less than the context,
        because END takes the first position."""
        return None if self.positions.limit is None else self.spec.context - 1

    def numbers(self, length: int, answers: int, slots: int) -> int:
        """Elements in the largest tensor of a pass with so many predicted tokens and slots, in rows of this length."""
        return self.replicas * max(answers * self.vocabulary, slots * self.spec.largest(length))

    @property
    def reading(self) -> Sequence[nn.Module]:
        """The modules that read the source or attend to it; empty if one stack both reads and writes."""
        return ()

    @property
    def why_no_cache(self) -> str | None:
        """Why decoding must recompute the whole sequence for every token, or None."""
        return next((mixer.why_no_cache for mixer in self.mixers if mixer.why_no_cache), None)

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss: mean nats per target token without padding, one number per replica."""
        x = self.vectors(batch.sources, batch.inputs, batch.source_mask, batch.padding_mask)
        return self.mean_nats(x, batch.targets, batch.padding_mask), None

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        return batch.padding_mask.sum((1, 2)).float()

    def mean_nats(
        self, x: Float[Tensor, "R B T D"], targets: Int[Tensor, "R B T"], counted: Bool[Tensor, "R B T"]
    ) -> Float[Tensor, "R"]:
        """The mean loss of these targets, predicted from vectors `x`, over the counted ones, per replica."""
        weight = self.embedding.weight if self.output is None else self.output.weight
        given, targets, counted = (one.flatten(1, 2) for one in (x, targets, counted))
        return mean_cross_entropy(given, weight, targets, self.output_bias, counted, self.smoothing)

    @property
    def smoothing(self) -> float:
        return self.spec.label_smoothing if self.training else 0.0

    def nats(self, logits: Float[Tensor, "R B T V"], targets: Int[Tensor, "R B T"]) -> Nats:
        """The loss of each target token, in nats."""
        logits = logits.flatten(0, 2).float()
        found = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=self.smoothing)
        return found.view(targets.shape)
