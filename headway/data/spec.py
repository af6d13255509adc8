"""The data part of a recipe, whatever its kind; `spec.py` of running, labelled, pairs and images are the kinds."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.data.vocabularies import Given


class DataSpec(Variant):
    """What a model learns from."""

    @abstractmethod
    def row_length(self, context: int) -> int:
        """Tokens per row of training, for a model of this context."""

    @property
    def rows_go_on(self) -> bool:
        """Whether rows continue those of the step before, so that a model can carry a state from batch to batch."""
        return False

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        """What is read must fit the model, in training and in scoring. Keys are those of the recipe."""
        yield from ()

    def kept_in(self, folder: Path) -> Self:
        """The same data for a run in this folder. Vocabularies that were given, not learnt, are read from there: where
        they came from may be gone by now."""
        given = [name for name in type(self).model_fields if getattr(getattr(self, name), "is_given", False)]
        return self.model_copy(update={name: Given(path=str(folder / f"{name}.json")) for name in given})

    if TYPE_CHECKING:  # not every kind of data has what most have

        def __getattr__(self, name: str) -> Any: ...


def known_as(source: str, known: Sequence[str], kind: str) -> str:
    """A hint, where this source is among those of another kind of data."""
    return f"; as one of data.kind={kind} there is" if source in known else ""
