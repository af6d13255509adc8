"""The scoring part of a recipe."""

from pydantic import Field

from headway.core.spec import Spec


class ScoringSpec(Spec):
    """What is measured after training, and how."""

    splits: list[str] | None = None
    """Which splits to score; null = all but train."""
    segment: int | None = Field(default=None, ge=1)
    """Tokens the model sees at once; null = data.segment. Longer than in training asks for extrapolation."""
    stride: int | None = Field(default=None, ge=1)
    """How far the window moves: this many tokens of a segment are scored, the others are context; null = segment."""
