"""The data part of a recipe: what all kinds share. The kinds are in `spec.py` of running, labelled, pairs and
images."""

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
        """Tokens per training row, for a model with this context."""

    @property
    def rows_go_on(self) -> bool:
        """Whether rows continue those of the previous step, so that a model can carry state from batch to batch."""
        return False

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        """Problems of these data with the model or the scoring, with the recipe keys concerned."""
        yield from ()

    def kept_in(self, folder: Path) -> Self:
        """The same data for a run in this folder. Given vocabularies are read from the run folder, since the original
        file may be gone."""
        given = [name for name in type(self).model_fields if getattr(getattr(self, name), "is_given", False)]
        return self.model_copy(update={name: Given(path=str(folder / f"{name}.json")) for name in given})

    if TYPE_CHECKING:  # attributes that only some kinds have

        def __getattr__(self, name: str) -> Any: ...


def known_as(source: str, known: Sequence[str], kind: str) -> str:
    """A hint, if another kind of data has this source."""
    return f"; it exists with data.kind={kind}" if source in known else ""
