"""A number that says what it is."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    name: str
    """`split.quantity`, such as `valid.perplexity`."""
    value: float
    label: str
    """The whole truth: per what, on what, how much of it, how it was cut."""

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity and no NaN: both are null."""
        return {"value": self.value if math.isfinite(self.value) else None, "label": self.label}
