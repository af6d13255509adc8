"""What all schemas have in common: keys that a schema does not name are refused."""

from pydantic import BaseModel, ConfigDict

Number = float | None
"""Null where it is not finite."""


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")
