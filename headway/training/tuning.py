"""Which weights are trained, and at which learning rates: all of them, only the head, the last layers, each layer at
its own rate, or low-rank adapters beside frozen weights.

A tuning gives every parameter a *pace*, a factor on the learning rate; 0 = frozen. The pace is stored on the parameter
(`nn/trainable.py`), where optimizers, checkpoints, parameter counts and audits read it.
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
    """Which weights are trained, and at which learning rates."""

    needs_head: ClassVar[bool] = True
    """Whether the model must have a head that is trained from scratch."""
    keeps_features: ClassVar[bool] = False
    """Whether all below the head is frozen, so that the features of each text are computed only once."""

    def apply(self, model: Model, seeds: Sequence[int]) -> Model:
        """Set the pace of every parameter, after adding adapters if there are any; `seeds`: one per replica."""
        self.extend(model, seeds)
        set_paces(model, {name: self.pace(name, model) for name, _ in model.named_parameters()})
        return model

    def extend(self, model: Trainable, seeds: Sequence[int]) -> None:
        """Add adapters to the model, if this tuning has any."""

    @abstractmethod
    def pace(self, name: str, model: Trainable) -> float:
        """The pace of this parameter."""

    @abstractmethod
    def passes(self, layers: int) -> float:
        """The cost of a step in units of a forward pass through all layers; a full backward pass costs two."""


class Full(TuningSpec):
    """All weights, at one learning rate."""

    kind: Literal["full"] = "full"
    needs_head: ClassVar[bool] = False

    def pace(self, name: str, model: Trainable) -> float:
        return 1.0

    def passes(self, layers: int) -> float:
        return 3.0


class Frozen(TuningSpec):
    """Only the head. The features of each text are computed once, without dropout, as in evaluation."""

    kind: Literal["frozen"] = "frozen"
    keeps_features: ClassVar[bool] = True

    def pace(self, name: str, model: Trainable) -> float:
        return float(model.depth_of(name) == model.depth)

    def passes(self, layers: int) -> float:
        return 0.0


class LastLayers(TuningSpec):
    """The head and the last layers."""

    kind: Literal["last"] = "last"
    layers: int = Field(default=1, ge=1)
    """The number of layers below the head that are trained."""

    def pace(self, name: str, model: Trainable) -> float:
        if self.layers >= model.depth:
            reason = f"the last {self.layers} layers are to be trained, but there are only {model.depth - 1}"
            raise UserError(f"training.tuning.layers: {reason}; to train all weights, set training.tuning=full")
        return float(model.depth_of(name) >= model.depth - self.layers)

    def passes(self, layers: int) -> float:
        return 1 + 2 * min(1.0, self.layers / layers)


class Layerwise(TuningSpec):
    """All weights, each layer at a lower learning rate than the one above it, because lower layers are more general and
    should change less. https://arxiv.org/abs/1801.06146"""

    kind: Literal["layerwise"] = "layerwise"
    decay: float = Field(default=0.8, gt=0, le=1)
    """The factor on the learning rate from each layer to the one below it; the head has the full rate, the last layer
    this fraction of it, the embeddings the least."""

    def pace(self, name: str, model: Trainable) -> float:
        return self.decay ** (model.depth - model.depth_of(name))

    def passes(self, layers: int) -> float:
        return 3.0


class Lora(TuningSpec):
    """The head, and low-rank adapters beside frozen matrices. https://arxiv.org/abs/2106.09685"""

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
            raise UserError(f"training.tuning.targets: this model has no matrices for {' or '.join(self.targets)}")

    def pace(self, name: str, model: Trainable) -> float:
        return float(model.is_added(name) or model.depth_of(name) == model.depth)

    def passes(self, layers: int) -> float:
        return 2.0  # gradients flow through all layers, but those of most matrices are not computed
