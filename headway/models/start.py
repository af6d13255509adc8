"""The initial weights of a model: drawn by its seed, or taken from a pretrained model.

Pretrained weights determine the architecture: `model: {kind: classifier, start: {kind: pretrained, from: minilm}}` is a
complete description of a model. So a start is used when a recipe is read (`completed`), and again when a model is built
for training (`fill`). A finished run needs neither, because it has its own weights.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from headway.core.spec import Spec
from headway.core.variants import Variant


class BorrowedBody(Spec):
    """Another architecture, run by transformers (`models/borrowed/`)."""

    config: dict[str, Any]
    """The content of its config.json."""


class StartSpec(Variant):
    """The initial weights."""

    def completed(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model part of a recipe, not yet validated, completed with all that follows from this start. Values that
        contradict it raise an error."""
        return tree

    def short(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inverse of `completed`: without what follows from this start, so that it can be replaced by another."""
        return tree

    @property
    def is_random(self) -> bool:
        """Whether the weights are random."""
        return False

    @property
    def called(self) -> str | None:
        """The name of the pretrained model, for messages; None = there is none."""
        return None

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """The tokenizer that the weights were trained with, as a value of `data.tokenizer`; None = any."""
        return None

    @property
    def before(self) -> Any:
        """The recipe that must be trained first to provide the weights; None = there is none."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about it to record in the run folder."""
        return {}

    @abstractmethod
    def fill(self, model: Any) -> list[str]:
        """Load the weights that are not drawn by the seed into every replica; return notes about new weights."""


class Drawn(StartSpec):
    """Random weights, drawn by the seed."""

    kind: Literal["drawn"] = "drawn"

    @property
    def is_random(self) -> bool:
        return True

    def fill(self, model: Any) -> list[str]:
        return []
