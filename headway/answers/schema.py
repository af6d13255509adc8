"""The base of all schemas: unknown keys are errors."""

from pydantic import BaseModel, ConfigDict

Number = float | None
"""Null if not finite."""


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")
