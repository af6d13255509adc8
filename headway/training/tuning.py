"""Which weights training moves, and how fast: all of them, the head alone, the last layers, each layer at its own rate,
or low-rank adapters beside frozen weights.

A tuning gives every parameter a *pace*, what the learning rate is multiplied by for it, and 0 means that it stays as it
is. The pace stands on the parameter (`nn/trainable.py`), and whoever has to know reads it there: optimizers, the
memories in checkpoints, counts of parameters, audits.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.nn.trainable import Trainable, set_paces

Model = TypeVar("Model", bound=Trainable)
Target = Literal["queries", "keys", "values", "output", "feedforward"]


class TuningSpec(Variant):
    """Which weights are trained, and how fast."""

    needs_head: ClassVar[bool] = True
    """Whether the model must end in a head that is learnt, whatever is below it."""
    keeps_features: ClassVar[bool] = False
    """Whether all below the head stays as it is: what it makes of a text is then computed once."""

    def apply(self, model: Model, seeds: Sequence[int]) -> Model:
        """Give every parameter of the model its pace; for replicas of these seeds."""
        self.extend(model, seeds)
        set_paces(model, {name: self.pace(name, model) for name, _ in model.named_parameters()})
        return model

    def extend(self, model: Trainable, seeds: Sequence[int]) -> None:
        """Add to the model what is learnt beside its own weights, if anything is."""

    @abstractmethod
    def pace(self, name: str, model: Trainable) -> float:
        """Of this parameter of the model."""

    @abstractmethod
    def passes(self, layers: int) -> float:
        """What a step computes in so many layers, in passes forward; the pass back costs two where all is learnt."""


class Full(TuningSpec):
    """All weights, at one learning rate."""

    kind: Literal["full"] = "full"
    needs_head: ClassVar[bool] = False

    def pace(self, name: str, model: Trainable) -> float:
        return 1.0

    def passes(self, layers: int) -> float:
        return 3.0


class Frozen(TuningSpec):
    """The head alone. What the layers below make of each text is computed once, as in evaluation: without dropout."""

    kind: Literal["frozen"] = "frozen"
    keeps_features: ClassVar[bool] = True

    def pace(self, name: str, model: Trainable) -> float:
        return float(model.depth_of(name) == model.depth)

    def passes(self, layers: int) -> float:
        return 0.0


class LastLayers(TuningSpec):
    """The head, and the last layers below it."""

    kind: Literal["last"] = "last"
    layers: int = Field(default=1, ge=1)
    """The number of layers below the head that are trained."""

    def pace(self, name: str, model: Trainable) -> float:
        if self.layers >= model.depth:
            reason = f"the last {self.layers} layers are asked for, and there are {model.depth - 1}"
            raise UserError(f"training.tuning.layers: {reason}; to train all weights, set training.tuning=full")
        return float(model.depth_of(name) >= model.depth - self.layers)

    def passes(self, layers: int) -> float:
        return 1 + 2 * min(1.0, self.layers / layers)


class Layerwise(TuningSpec):
    """All weights, each layer more slowly than the one above it (https://arxiv.org/abs/1801.06146): what is near the
    tokens is the most general, and is kept best."""

    kind: Literal["layerwise"] = "layerwise"
    decay: float = Field(default=0.8, gt=0, le=1)
    """The factor on the learning rate from each layer to the one below it; the head has the full rate, the last layer
    this fraction of it, the embeddings the least."""

    def pace(self, name: str, model: Trainable) -> float:
        return self.decay ** (model.depth - model.depth_of(name))

    def passes(self, layers: int) -> float:
        return 3.0


class Lora(TuningSpec):
    """The head, and low-rank adapters beside matrices that stay as they are. https://arxiv.org/abs/2106.09685"""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1)
    """The rank of each adapter."""
    alpha: float = Field(default=16.0, gt=0)
    """An adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout rate of an adapter's input."""
    targets: list[Target] = Field(default=["queries", "values"], min_length=1)
    """Which matrices get an adapter: queries, keys, values, attention's output, or the feed-forward net."""

    def problems(self) -> Iterator[Problem]:
        if len(set(self.targets)) < len(self.targets):
            yield Problem(("targets",), "a target is named twice")

    def extend(self, model: Trainable, seeds: Sequence[int]) -> None:
        if not model.add_adapters(self.targets, self.rank, self.alpha, self.dropout, seeds):
            raise UserError(f"training.tuning.targets: nothing in this model makes {' or '.join(self.targets)}")

    def pace(self, name: str, model: Trainable) -> float:
        return float(model.is_added(name) or model.depth_of(name) == model.depth)

    def passes(self, layers: int) -> float:
        return 2.0  # gradients flow through all layers, and hardly any matrix wants its own
