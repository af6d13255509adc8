"""An encoder that guesses hidden tokens: embed → place → layers → norm → transform → logits.

ids           [R, B, T]
padding_mask  [R, B, T]      True where there is a token, False where a row is filled up
x             [R, B, T, D]   through `layers`; everybody sees everybody
logits        [R, B, T, V]   by the embedding table, and a number for every token; in training [R, B, K, V], at the
                             places that are asked for
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem, Spec
from headway.models.encoder import Encoder, EncoderSpec
from headway.nn.block import NoFeedForward
from headway.nn.cross_entropy import mean_cross_entropy
from headway.nn.replicated import Linear, parameter
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried


class Masking(Spec):
    """Which fraction of the tokens is to be predicted, and what replaces them."""

    share: float = Field(default=0.15, gt=0, lt=1)
    """The fraction of the tokens of a row that are to be predicted."""
    masked: float = Field(default=0.8, gt=0, le=1)
    """The fraction of those that [MASK] replaces."""
    random: float = Field(default=0.1, ge=0, lt=1)
    """The fraction of those that a random token replaces. The rest stay as they are."""

    def problems(self) -> Iterator[Problem]:
        if self.masked + self.random > 1:
            reason = f"{self.masked:.0%} hidden and {self.random:.0%} exchanged are more than all that are chosen"
            yield Problem(("masked", "random"), reason)


ALL_HIDDEN = Masking(masked=1.0, random=0.0)
"""As models are scored: what is guessed is not seen."""


class MaskedLanguageModelSpec(EncoderSpec):
    """An encoder that predicts hidden tokens from both sides, as BERT is pre-trained."""

    reads: ClassVar[str] = "text"
    reads_rows: ClassVar[bool] = True

    evaluated: ClassVar[tuple[str, ...]] = ("loss", "masked_accuracy")

    kind: Literal["masked-language-model"] = "masked-language-model"
    masking: Masking = Masking()
    """Which tokens are to be predicted in training, and what replaces them."""

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        if not any(one.looks_ahead for one in self.mixers):
            yield "all layers read from left to right, so what follows a hidden token has no part in guessing it"

    def forward_flops_per_row(self, vocabulary: int, length: int, guessed: int) -> int:
        """For one row of this length in one replica, of which so many tokens are guessed."""
        return length * self.flops_per_token(length) + guessed * 2 * self.width * (self.width + vocabulary)

    def build(self, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> "MaskedLanguageModel":
        """A model with one replica per seed, ready to train."""
        model = MaskedLanguageModel(self, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


class MaskedLanguageModel(Encoder):
    def __init__(self, spec: MaskedLanguageModelSpec, vocabulary: int, replicas: int, device: str = "cpu"):
        super().__init__(spec, vocabulary, replicas, device)
        self.spec = spec
        self.transform = Transform(spec, replicas)
        self.output_bias = parameter(replicas, vocabulary)
        self.logits = Tap()

    def forward(
        self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> Float[Tensor, "R B T V"]:
        """The scores of every token at every place."""
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        return self.logits(self.embedding.logits(self.transform(x)) + self.output_bias[:, None, None])

    def guesses(
        self,
        ids: Int[Tensor, "R B T"],
        places: Int[Tensor, "R B K"],
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B K V"]:
        """The same, at these places only."""
        x = self._asked_for(ids, places, padding_mask)
        return self.embedding.logits(x) + self.output_bias[:, None, None]

    def _asked_for(self, ids: Tensor, places: Tensor, padding_mask: Tensor | None) -> Float[Tensor, "R B K D"]:
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        return self.transform(x.gather(2, places[..., None].expand(-1, -1, -1, x.shape[-1])))

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """What training lowers: mean nats per token that is asked for, one number per replica. No row goes on from
        another."""
        x = self._asked_for(batch.inputs, batch.places, batch.padding_mask)
        if batch.asked is None:
            flat = x.flatten(1, 2), self.embedding.weight, batch.targets.flatten(1, 2)
            return mean_cross_entropy(*flat, self.output_bias), None
        logits = self.embedding.logits(x) + self.output_bias[:, None, None]
        nats = F.cross_entropy(logits.flatten(0, 2).float(), batch.targets.flatten(), reduction="none")
        return (nats.view(batch.targets.shape) * batch.asked).sum((1, 2)) / self.counted(batch), None

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        return None if batch.asked is None else batch.asked.sum((1, 2)).clamp(min=1).float()


class Transform(nn.Module):
    """What BERT has between its last layer and the output: a linear map, the nonlinearity of the layers (GELU, where
    they have none), a norm."""

    def __init__(self, spec: EncoderSpec, replicas: int):
        super().__init__()
        self.into = Linear(replicas, spec.width, spec.width)
        self.norm = spec.norm.build(replicas, spec.width)
        has_none = isinstance(spec.feedforward, NoFeedForward)
        self.nonlinearity = F.gelu if has_none else spec.feedforward.nonlinearity

    def forward(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T D"]:
        return self.norm(self.nonlinearity(self.into(x)))
