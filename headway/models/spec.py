"""The model part of a recipe."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from headway.core.variants import Variant

MOST_LAYERS = 1000
"""As many as anybody has trained (https://arxiv.org/abs/2203.00555). Each is a module, and making them takes time and
room, however narrow they are."""


class ModelSpec(Variant):
    """What is trained. Which task a model is for follows from its kind."""

    reads: ClassVar[str]
    """The kind of data it learns from."""
    evaluated: ClassVar[tuple[str, ...]] = ("loss",)
    """The metrics that are evaluated while it trains."""
    has_head: ClassVar[bool] = False
    """Whether it ends in a head that weights from elsewhere do not have, and that is learnt in any case."""
    reads_rows: ClassVar[bool] = False
    """Whether running text is read in rows that stand for themselves, and not from left to right."""

    @property
    def needs_warmup(self) -> str:
        """Why it often fails to train at a learning rate that does not begin low; empty = it does not."""
        return ""

    @property
    def remembers(self) -> float:
        """How many slots of the segment before it can go on from: none, so many, or all (math.inf)."""
        return 0.0

    @property
    def harder_in_training(self) -> bool:
        """Whether losses of training are higher than those of evaluation: something is left out by chance, or more is
        asked for than the right answer."""
        return bool(getattr(self, "dropout", 0))

    @property
    def own_tokenizer(self) -> dict[str, Any] | None:
        """The tokens that its weights are for when training begins, as `data.tokenizer` says it; None = any."""
        return None

    @property
    def starts_clueless(self) -> bool:
        """Whether training begins with random numbers, and not with what somebody has learnt."""
        return True

    @property
    def trained_first(self) -> Any:
        """The start that some other recipe must be trained for before this one can be; None = there is none."""
        return None

    def short(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Its tree without what follows from the rest of it."""
        return tree

    def warnings(self) -> Iterator[str]:
        """What is allowed but has misled people."""
        yield from ()

    if TYPE_CHECKING:  # not every model has what most have

        def __getattr__(self, name: str) -> Any: ...
