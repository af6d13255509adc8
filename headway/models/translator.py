"""What all translators have in common: they read a source, and write a target token by token.

sources       [R, B, S]      the tokens of each source and END; behind that, padding
source_mask   [R, B, S]      True where there is a token
ids           [R, B, T]      END, y₁, y₂ …: a target begins where nothing has been said yet
logits        [R, B, T, V]   of y₁, y₂ …, END

    state = model.read(sources, source_mask)        once for every source
    logits, state = model.go_on(ids, state)         as often as there is something new

What is written goes on from a state, whoever reads the source and how: decoding, scores and audits know no more.
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
    """What reads a source and writes a target."""

    reads: ClassVar[str] = "pairs"

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """This much of each target's probability is spread over all tokens, in training (https://arxiv.org/abs/1512.00567).
    Reported losses are without it."""
    output_bias: bool = False
    """Whether the output layer has a bias."""

    added: ClassVar[frozenset[str]] = BackboneSpec.added | {"output_bias"}

    @property
    def harder_in_training(self) -> bool:
        return super().harder_in_training or self.label_smoothing > 0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if ahead := list(dict.fromkeys(one.kind for one in self.mixers if one.only_encodes)):
            reason = f"what writes a target may not see what comes later, and a bidirectional {ahead[0]} reads it"
            yield Problem(("mixer",), f"{reason}; bidirectional mixers are for encoders (encoder_mixer)")

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        reasons = dict.fromkeys(one.why_not_causal for one in self.mixers if not one.only_encodes)
        yield from (f"{why}, so the loss of given targets is not that of what can be written" for why in reasons if why)

    @property
    def shares_vocabulary(self) -> str:
        """Why source and target must have one vocabulary; empty = they may have two."""
        return ""

    @abstractmethod
    def forward_flops(self, source: int, target: int, vocabulary: int) -> int:
        """For one pair of these lengths, in one replica."""

    @abstractmethod
    def build(self, source_vocabulary: int, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> Any:
        """A `Translator` with one replica per seed, ready to train. Each vocabulary has END as its last token."""


class Translator(Backbone):
    """Itself the decoder: what is at the root (`embedding`, `layers`, `positions`) writes the target."""

    spec: TranslatorSpec
    source_vocabulary: int
    """Tokens of sources, of which END is the last."""
    output: Linear | None
    """None = the output matrix is the embedding table."""
    output_bias: nn.Parameter | None
    logits: Tap
    never_written: Sequence[int] = ()
    """Tokens that decoding leaves out, whatever their scores."""

    def read(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        """What targets go on from."""
        raise NotImplementedError

    def read_many(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        """The same for many sources, the longest first, that nobody watches: padding may be left out where it can."""
        return self.read(sources, source_mask)

    def go_on(
        self, ids: Int[Tensor, "R B T"], state: ModelState, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T V"], ModelState]:
        """The scores of the next token after each of these, and the state after them."""
        x, state = self.written(ids, state, padding_mask)
        return self.scores(x), state

    def written(
        self, ids: Int[Tensor, "R B T"], state: ModelState, padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> tuple[Float[Tensor, "R B T D"], ModelState]:
        """The same without the output layer."""
        return self.hidden(ids, state, padding_mask)

    def vectors(
        self,
        sources: Int[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        source_mask: Bool[Tensor, "R B S"] | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B T D"]:
        """What scores are made of, after each token of the targets, where nothing goes on from them."""
        return self.written(ids, self.read(sources, source_mask), padding_mask)[0]

    def forward(
        self,
        sources: Int[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        source_mask: Bool[Tensor, "R B S"] | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B T V"]:
        """The scores of the next token after each token of the targets."""
        return self.go_on(ids, self.read(sources, source_mask), padding_mask)[0]

    @property
    def output_table(self) -> Tensor | None:
        return self.embedding.weight if self.output is None else None

    def scores(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T V"]:
        return self.logits((self.embedding.logits if self.output is None else self.output)(x, self.output_bias))

    @property
    def longest(self) -> int:
        """Tokens of a source that are read, END among them."""
        return self.spec.context

    @property
    def most_written(self) -> int | None:
        """Tokens of a target, at most; None = any number. Learned positions end somewhere, and END stands at the first
        of them."""
        return None if self.positions.limit is None else self.spec.context - 1

    def numbers(self, length: int, answers: int, slots: int) -> int:
        """In the largest tensor of a pass, for so many answers from so many slots, in rows of this length."""
        return self.replicas * max(answers * self.vocabulary, slots * self.spec.largest(length))

    @property
    def reading(self) -> Sequence[nn.Module]:
        """The parts that read the source, or look at what was read; none, where the same stack reads and writes."""
        return ()

    @property
    def why_no_cache(self) -> str | None:
        """Why decoding has to compute everything again for every token, or None."""
        return next((mixer.why_no_cache for mixer in self.mixers if mixer.why_no_cache), None)

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """What training lowers: mean nats per target token, one number per replica; padding is none."""
        x = self.vectors(batch.sources, batch.inputs, batch.source_mask, batch.padding_mask)
        return self.mean_nats(x, batch.targets, batch.padding_mask), None

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        return batch.padding_mask.sum((1, 2)).float()

    def mean_nats(
        self, x: Float[Tensor, "R B T D"], targets: Int[Tensor, "R B T"], counted: Bool[Tensor, "R B T"]
    ) -> Float[Tensor, "R"]:
        """Of these targets, after these vectors, over what is counted, for each replica."""
        weight = self.embedding.weight if self.output is None else self.output.weight
        given, targets, counted = (one.flatten(1, 2) for one in (x, targets, counted))
        return mean_cross_entropy(given, weight, targets, self.output_bias, counted, self.smoothing)

    @property
    def smoothing(self) -> float:
        return self.spec.label_smoothing if self.training else 0.0

    def nats(self, logits: Float[Tensor, "R B T V"], targets: Int[Tensor, "R B T"]) -> Nats:
        """Of each target."""
        logits = logits.flatten(0, 2).float()
        found = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=self.smoothing)
        return found.view(targets.shape)
