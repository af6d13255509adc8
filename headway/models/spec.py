"""The model part of a recipe."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from headway.core.variants import Variant

MAX_LAYERS = 1000
"""The deepest Transformer ever trained (https://arxiv.org/abs/2203.00555). Each layer is a module, which takes time and
memory to build, however narrow it is."""


class ModelSpec(Variant):
    """The model. Its kind determines the task."""

    reads: ClassVar[str]
    """The kind of data that it is trained on."""
    evaluated: ClassVar[tuple[str, ...]] = ("loss",)
    """The metrics that are evaluated during training."""
    has_head: ClassVar[bool] = False
    """Whether it ends in a head that pretrained weights do not include, and that is always trained."""
    reads_rows: ClassVar[bool] = False
    """Whether running text is read as independent rows, and not from left to right."""

    @property
    def needs_warmup(self) -> str:
        """The reason why it often fails to train without learning-rate warm-up; empty = none."""
        return ""

    @property
    def remembers(self) -> float:
        """How many slots before a segment it can use when batches are contiguous: 0, a number, or math.inf."""
        return 0.0

    @property
    def harder_in_training(self) -> bool:
        """Whether the training loss is higher than the evaluation loss by design: by dropout, label smoothing or a
        penalty."""
        return bool(getattr(self, "dropout", 0))

    @property
    def own_tokenizer(self) -> dict[str, Any] | None:
        """The tokenizer that its initial weights were trained with, as a value of `data.tokenizer`; None = any."""
        return None

    @property
    def starts_random(self) -> bool:
        """Whether training starts from random weights, not from pretrained ones."""
        return True

    @property
    def pretrained_as(self) -> str | None:
        """The name of the pretrained model whose weights it starts from; None = random weights."""
        return None

    @property
    def trained_first(self) -> Any:
        """The start for which another recipe must be trained first; None = there is none."""
        return None

    def short(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The recipe tree without the keys that follow from others."""
        return tree

    def warnings(self) -> Iterator[str]:
        """Warnings about settings that are allowed but misleading."""
        yield from ()

    if TYPE_CHECKING:  # attributes that most models have, but not all

        def __getattr__(self, name: str) -> Any: ...
