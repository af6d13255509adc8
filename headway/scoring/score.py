"""A number that says what it is."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    name: str
    """`split.quantity`, such as `valid.perplexity`."""
    value: float
    label: str
    """The whole truth: per what, on what, how much of it, how it was cut."""

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "name"}
