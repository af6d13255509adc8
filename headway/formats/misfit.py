"""What a format cannot represent of a model, and what it can instead."""

from collections.abc import Iterable
from typing import NamedTuple


class Misfit(NamedTuple):
    key: str
    """The key in the recipe, such as `model.norm.placement`."""
    why: str
    fitting: str | None = None
    """A value of the key that the format can represent; None if there is none, or if it depends on other keys."""

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"

    @property
    def change(self) -> str | None:
        """The change of the recipe after which it fits."""
        return None if self.fitting is None else f"{self.key}={self.fitting}"


def misfits(asked: Iterable[tuple[bool, str, str | None, str]]) -> list[Misfit]:
    """Of tuples of whether it fits, the key below `model`, a value that fits, and the reason: those that do not fit."""
    return [Misfit(f"model.{key}", why, fitting) for fits, key, fitting, why in asked if not fits]
