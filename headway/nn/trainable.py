"""The interface between training and a model: its loss, its carried state, and learning rates per parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.replicated import Clock

Carried = dict[str, Tensor]
"""The state that a model carries from one training batch to the next: tensors [R, B, …] by name, one row per row of the
batch. Zeros = an empty state."""


class Trainable(nn.Module):
    """What the training loop needs from a model."""

    replicas: int
    clock: Clock

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss, one number per replica, and the state for the next batch, or None if this model carries
        none."""
        raise NotImplementedError

    def depth_of(self, name: str) -> int:
        """The depth of a parameter: 0 = embeddings, k = the k-th layer, `depth` = the head, which pretrained weights do
        not include."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        raise NotImplementedError

    def add_adapters(
        self, targets: Sequence[str], rank: int, alpha: float, dropout: float, seeds: Sequence[int]
    ) -> int:
        """Add low-rank adapters to the matrices that compute one of the targets (`nn/adapters.py`); return their
        number."""
        raise NotImplementedError

    def is_added(self, name: str) -> bool:
        """Whether a parameter belongs to an adapter."""
        return False

    @property
    def repeated(self) -> list[nn.Module]:
        """Its layers. They run the same code with different weights, so compiling one of them compiles all."""
        return [module for module in self.modules() if getattr(module, "is_repeated", False)]

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        """The number of items that `loss` is a mean over, such as tokens without padding; None = the same in every part
        of a batch."""
        return None

    @property
    def output_table(self) -> Tensor | None:
        """The embedding table, if it is tied to the output matrix; else None."""
        return None


def pace_of(p: Tensor) -> float:
    """The factor on the learning rate of this parameter; 0 = frozen."""
    return getattr(p, "pace", 1.0)


def set_paces(model: nn.Module, paces: Mapping[str, float]) -> None:
    """Set the learning-rate factor of every parameter. It is stored on the parameters and nowhere else."""
    for name, p in model.named_parameters():
        p.pace = paces[name]  # pyright: ignore[reportAttributeAccessIssue]


def moving(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen."""
    return {name: p for name, p in parameters.items() if pace_of(p) > 0}


def is_built_in(model: nn.Module) -> bool:
    """Whether it has no modules but Headway's own and torch's: those of users may do anything."""
    return all(type(one).__module__.partition(".")[0] in ("headway", "torch") for one in model.modules())
