"""The weights a model starts from: drawn by its seed, or taken over from a pretrained model.

Who takes weights over takes over the shape they have: `model: {kind: classifier, start: {kind: pretrained, from:
minilm}}` is a whole description of a model. So a start has a say when a recipe is read (`completed`), and once more
when a model is built to be trained (`fill`). A finished run needs neither: it has weights of its own.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from headway.core.spec import Spec
from headway.core.variants import Variant


class BorrowedBody(Spec):
    """Somebody else's architecture, as transformers runs it (`models/borrowed/`)."""

    config: dict[str, Any]
    """All that its config.json says."""


class StartSpec(Variant):
    """The initial weights."""

    def completed(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model part of a recipe, not yet validated, with all that follows from this start. What was given by hand
        and contradicts it is refused."""
        return tree

    def short(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """The other way: without what follows from it, so that another start can be put in its place."""
        return tree

    @property
    def knows_nothing(self) -> bool:
        """Whether these are random numbers."""
        return False

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """The tokens that the weights are for, as `data.tokenizer` says it; None = any."""
        return None

    @property
    def before(self) -> Any:
        """The recipe that is trained first, for this one to begin with what it has learnt; None = there is none."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """What a run folder must know of it."""
        return {}

    @abstractmethod
    def fill(self, model: Any) -> list[str]:
        """Give every replica its weights, where they are not those that the seed gave it; and say what is new."""


class Drawn(StartSpec):
    """Random weights, drawn by the seed."""

    kind: Literal["drawn"] = "drawn"

    @property
    def knows_nothing(self) -> bool:
        return True

    def fill(self, model: Any) -> list[str]:
        return []
