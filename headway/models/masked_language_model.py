"""A masked language model like BERT: embedding, positions, layers, norm, transform, logits.

ids           [R, B, T]
padding_mask  [R, B, T]      True where there is a token, False where there is padding
x             [R, B, T, D]   through `layers`; attention in both directions
logits        [R, B, T, V]   by the embedding table and a bias; in training [R, B, K, V], at the predicted positions
                             only
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
    """The fraction of the tokens to predict, and what replaces them."""

    share: float = Field(default=0.15, gt=0, lt=1)
    """The fraction of the tokens of a row to predict."""
    masked: float = Field(default=0.8, gt=0, le=1)
    """The fraction of these that are replaced by [MASK]."""
    random: float = Field(default=0.1, ge=0, lt=1)
    """The fraction of these that are replaced by a random token. The rest are left as they are."""

    def problems(self) -> Iterator[Problem]:
        if self.masked + self.random > 1:
            reason = f"{self.masked:.0%} masked and {self.random:.0%} random add up to more than 100%"
            yield Problem(("masked", "random"), reason)


ALL_HIDDEN = Masking(masked=1.0, random=0.0)
"""The masking for scores: every predicted token is replaced by [MASK]."""


class MaskedLanguageModelSpec(EncoderSpec):
    """An encoder that predicts masked tokens from the tokens on both sides, as in BERT's pretraining."""

    reads: ClassVar[str] = "text"
    reads_rows: ClassVar[bool] = True

    evaluated: ClassVar[tuple[str, ...]] = ("loss", "masked_accuracy")

    kind: Literal["masked-language-model"] = "masked-language-model"
    masking: Masking = Masking()
    """Which tokens are to be predicted in training, and what replaces them."""

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        if not any(one.looks_ahead for one in self.mixers):
            yield "all layers read from left to right, so masked tokens are predicted from earlier tokens only"

    def forward_flops_per_row(self, vocabulary: int, length: int, guessed: int) -> int:
        """FLOPs for one row of this length in one replica, with `guessed` predicted tokens."""
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
        """The logits at every position."""
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        return self.logits(self.embedding.logits(self.transform(x)) + self.output_bias[:, None, None])

    def guesses(
        self,
        ids: Int[Tensor, "R B T"],
        places: Int[Tensor, "R B K"],
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B K V"]:
        """The logits at these positions only."""
        x = self._predicted_vectors(ids, places, padding_mask)
        return self.embedding.logits(x) + self.output_bias[:, None, None]

    def _predicted_vectors(self, ids: Tensor, places: Tensor, padding_mask: Tensor | None) -> Float[Tensor, "R B K D"]:
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        return self.transform(x.gather(2, places[..., None].expand(-1, -1, -1, x.shape[-1])))

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss: mean nats per predicted token, one number per replica. No state is carried."""
        x = self._predicted_vectors(batch.inputs, batch.places, batch.padding_mask)
        if batch.asked is None:
            flat = x.flatten(1, 2), self.embedding.weight, batch.targets.flatten(1, 2)
            return mean_cross_entropy(*flat, self.output_bias), None
        logits = self.embedding.logits(x) + self.output_bias[:, None, None]
        nats = F.cross_entropy(logits.flatten(0, 2).float(), batch.targets.flatten(), reduction="none")
        return (nats.view(batch.targets.shape) * batch.asked).sum((1, 2)) / self.counted(batch), None

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        return None if batch.asked is None else batch.asked.sum((1, 2)).clamp(min=1).float()


class Transform(nn.Module):
    """BERT's transform between the last layer and the output: a linear map, the nonlinearity of the layers (GELU if
    they have none), a norm."""

    def __init__(self, spec: EncoderSpec, replicas: int):
        super().__init__()
        self.into = Linear(replicas, spec.width, spec.width)
        self.norm = spec.norm.build(replicas, spec.width)
        has_none = isinstance(spec.feedforward, NoFeedForward)
        self.nonlinearity = F.gelu if has_none else spec.feedforward.nonlinearity

    def forward(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T D"]:
        return self.norm(self.nonlinearity(self.into(x)))
