"""Activation regularisation (AR) and temporal activation regularisation (TAR): penalties on the size of the last
layer's vectors, and on their change from one token to the next. AWD-LSTM uses both (https://arxiv.org/abs/1708.01009).
"""

from typing import Annotated, Any

from jaxtyping import Float
from pydantic import BeforeValidator, Field
from torch import Tensor

from headway.core.spec import Spec


class PenaltySpec(Spec):
    """Added to the training loss, but to no score. Both terms are of the output layer's input, after dropout."""

    size: float = Field(default=0.0, ge=0)
    """α, the weight of the mean square of the output layer's input (AR). 2 is usual for LSTMs."""
    change: float = Field(default=0.0, ge=0)
    """β, the weight of the mean square of its change from token to token (TAR). 1 is usual for LSTMs, with locked
    dropout; independent dropout would itself be penalised as change."""

    @property
    def counts(self) -> bool:
        """Whether it adds anything."""
        return bool(self.size or self.change)

    def of(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R"]:
        x = x.float()
        total = self.size * x.square().mean((1, 2, 3))
        if self.change and x.shape[2] > 1:
            total = total + self.change * x.diff(dim=2).square().mean((1, 2, 3))
        return total


def _or_nothing(value: Any) -> Any:
    return {} if value is None else value


Penalty = Annotated[PenaltySpec, BeforeValidator(_or_nothing)]
NO_PENALTY = PenaltySpec()
