"""An encoder that classifies texts: embedding, positions, layers, norm, pooling, head.

ids           [R, B, T]
padding_mask  [R, B, T]      True where there is a token, False where there is padding
x             [R, B, T, D]   through `layers`; attention in both directions
features      [R, B, D]      pooled over tokens, not over padding
logits        [R, B, C]
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import OR_BY_NAME, Problem, Spec
from headway.models.encoder import Encoder, EncoderSpec
from headway.models.pooling import Mean, PoolingSpec
from headway.nn.replicated import Dropout, Linear
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried


class FeaturesOfTexts(Protocol):
    def of(self, texts: Any) -> Float[Tensor, "R N D"]:
        """The features of these texts (the head's input), computed once."""
        ...


class HeadSpec(Spec):
    """The classification head on the pooled vector: two linear maps with a nonlinearity between them."""

    kind: Literal["relu", "gelu", "tanh", "linear"] = "relu"
    """The nonlinearity between the head's two linear maps; linear = a single linear map."""
    hidden: int | None = Field(default=None, ge=1)
    """Hidden units of the head; null = the width."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout rate of the pooled vector, before the head."""

    added: ClassVar[frozenset[str]] = frozenset({"dropout"})

    def problems(self) -> Iterator[Problem]:
        if self.kind == "linear" and self.hidden is not None:
            yield Problem(("kind", "hidden"), "a linear head is a single map, without hidden units")

    def flops(self, width: int, classes: int) -> int:
        """FLOPs for one text."""
        return 2 * width * classes if self.kind == "linear" else 2 * (self.hidden or width) * (width + classes)

    def build(self, replicas: int, width: int, classes: int) -> "Head":
        return Head(self, replicas, width, classes)


class ClassifierSpec(EncoderSpec):
    """An encoder that classifies texts."""

    reads: ClassVar[str] = "labelled"
    evaluated: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    has_head: ClassVar[bool] = True

    kind: Literal["classifier"] = "classifier"
    pooling: PoolingSpec = Mean()
    """How the vectors of a row become one: mean, first, pooler, last, max."""
    head: Annotated[HeadSpec, OR_BY_NAME] = HeadSpec()
    """The classification head, on the pooled vector."""

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        if self.pooling.kind in ("first", "pooler") and not any(one.looks_ahead for one in self.mixers):
            yield "all layers read from left to right, so the first token has seen no other: set model.pooling=last"

    def forward_flops_per_row(self, classes: int, length: int) -> int:
        """FLOPs for one text, padded to this length, in one replica."""
        at_the_end = self.pooling.flops(self.width) + self.head.flops(self.width, classes)
        return length * self.flops_per_token(length) + at_the_end

    def build(self, vocabulary: int, classes: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> "Classifier":
        """A model with one replica per seed, ready to train."""
        if self.body is None:
            model = Classifier(self, vocabulary, classes, len(seeds), device)
        else:
            from headway.models.borrowed.classifier import BorrowedClassifier

            model = BorrowedClassifier(self, vocabulary, classes, len(seeds), device)
        seed(model, seeds, device)
        return model


class Classifier(Encoder):
    head_parts = ("head",)

    def __init__(self, spec: ClassifierSpec, vocabulary: int, classes: int, replicas: int, device: str = "cpu"):
        super().__init__(spec, vocabulary, replicas, device)
        self.spec, self.classes = spec, classes
        self.pooler = spec.pooling.build(replicas, spec.width)
        self.head = spec.head.build(replicas, spec.width, classes)
        self.pooled, self.logits = Tap(), Tap()
        self.kept: FeaturesOfTexts | None = None  # cached features of texts, while only the head is trained

    def forward(
        self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> Float[Tensor, "R B C"]:
        """The logits of the classes."""
        return self.decide(self.features(ids, padding_mask))

    def features(
        self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None = None
    ) -> Float[Tensor, "R B D"]:
        """The pooled vector of each row, which is the head's input."""
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        everything = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
        return self.pooler(self.spec.pooling.pool(x, everything))

    def decide(self, features: Float[Tensor, "R B D"]) -> Float[Tensor, "R B C"]:
        """The logits of the classes, computed by the head from features."""
        return self.logits(self.head(self.pooled(features)))

    def losses(self, logits: Float[Tensor, "R B C"], targets: Int[Tensor, "R B"]) -> Float[Tensor, "R B"]:
        """The loss of every row: nats of the correct class."""
        flat = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss: mean nats per row, one number per replica. No state is carried. If the batch has cached
        features, they are used."""
        known = getattr(batch, "features", None)
        features = self.features(batch.inputs, batch.padding_mask) if known is None else known
        return self.losses(self.decide(features), batch.targets).mean(1), None


class Head(nn.Module):
    def __init__(self, spec: HeadSpec, replicas: int, width: int, classes: int):
        super().__init__()
        hidden = width if spec.kind == "linear" else spec.hidden or width
        self.drop = Dropout(replicas, spec.dropout, fixed=True)
        self.into = None if spec.kind == "linear" else Linear(replicas, width, hidden)
        self.nonlinearity = _NONLINEARITIES.get(spec.kind)
        self.output = Linear(replicas, hidden, classes, gain=0.2)  # starts near uniform: about ln C nats

    def forward(self, x: Float[Tensor, "R B D"]) -> Float[Tensor, "R B C"]:
        h = self.drop(x)[:, :, None]
        if self.into is not None and self.nonlinearity is not None:
            h = self.nonlinearity(self.into(h))
        return self.output(h).squeeze(2)


_NONLINEARITIES = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}
