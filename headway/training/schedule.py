"""The length of training, and the learning-rate schedule."""

import math
import re
from abc import abstractmethod
from typing import Any, Literal, NamedTuple

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from headway.core.spec import LARGEST
from headway.core.variants import Variant


class Duration(NamedTuple):
    """A length of training: `500 steps`, `10 epochs`, `2.5M tokens` (tokens of one replica)."""

    amount: float
    unit: str

    def __str__(self) -> str:
        return f"{str(self.amount).removesuffix('.0')} {self.unit if self.amount != 1 else self.unit[:-1]}"

    def in_steps(self, steps_per_epoch: int, tokens_per_step: int) -> int:
        """Rounded up, so that one epoch covers all data."""
        per_unit = {"steps": 1.0, "epochs": float(steps_per_epoch), "tokens": 1 / tokens_per_step}[self.unit]
        return max(1, math.ceil(self.amount * per_unit - 1e-9))

    @classmethod
    def parse(cls, given: Any) -> "Duration":
        if isinstance(given, cls):
            return given
        found = re.fullmatch(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([kKM]?)\s*(step|epoch|token)s?\s*", str(given))
        try:
            amount = float(found[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6}[found[2]] if found else 0.0
        except ValueError:
            amount = 0.0
        if not found or not 0 < amount < math.inf:
            text = "expected a length such as '500 steps', '10 epochs' or '2.5M tokens'"
            if isinstance(given, int | float) and given > 0:
                text += f"; did you mean '{given} steps'?"
            raise PydanticCustomError("duration", text)  # pyright: ignore[reportArgumentType]
        if amount > LARGEST:
            text = f"expected at most {LARGEST:.1e} {found[3]}s"
            raise PydanticCustomError("duration", text)  # pyright: ignore[reportArgumentType]
        return cls(amount, found[3] + "s")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())


class ScheduleSpec(Variant):
    """The learning-rate schedule."""

    warmup: Duration | None = None
    """How long the rate rises linearly from zero; null = no warm-up."""

    @abstractmethod
    def after_warmup(self, progress: float) -> float:
        """The factor on the learning rate after this fraction of the steps that follow the warm-up."""


class Constant(ScheduleSpec):
    """A constant learning rate, after the warm-up if there is one."""

    kind: Literal["constant"] = "constant"

    def after_warmup(self, progress: float) -> float:
        return 1.0


class LinearDecay(ScheduleSpec):
    """Linear decay to `final`, after the warm-up if there is one."""

    kind: Literal["linear"] = "linear"
    warmup: Duration | None = Duration(100, "steps")
    """How long the rate rises linearly from zero; null = no warm-up."""
    final: float = Field(default=0.0, ge=0, le=1)
    """The rate at the last step, as a fraction of the peak."""

    def after_warmup(self, progress: float) -> float:
        return 1 + (self.final - 1) * progress


class Cosine(ScheduleSpec):
    """Cosine decay to `final`, after the warm-up if there is one. https://arxiv.org/abs/1608.03983"""

    kind: Literal["cosine"] = "cosine"
    warmup: Duration | None = Duration(100, "steps")
    """How long the rate rises linearly from zero; null = no warm-up."""
    final: float = Field(default=0.1, ge=0, le=1)
    """The rate at the last step, as a fraction of the peak."""

    def after_warmup(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


def factor(schedule: ScheduleSpec, step: int, warmup: int, total: int) -> float:
    """The factor on the learning rate at this step (counted from 0)."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return schedule.after_warmup(min(1.0, (step - warmup) / max(1, total - 1 - warmup)))
