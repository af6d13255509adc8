"""What training knows of a model: its loss, the state it carries, and which of its parameters move how fast."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.replicated import Clock

Carried = dict[str, Tensor]
"""The state that a model carries from one batch of training to the next, by name: tensors [R, B, …], a row of each for
a row of the batch. Zeros mean that nothing came before."""


class Trainable(nn.Module):
    """What the training loop knows of a model."""

    replicas: int
    clock: Clock

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """What training lowers, one number per replica; and the state that the next batch goes on from, None if this
        model carries none."""
        raise NotImplementedError

    def depth_of(self, name: str) -> int:
        """How far above the tokens a parameter stands: 0 = it makes vectors of them, k = it is of the k-th layer;
        `depth` = it is of the head, which borrowed weights do not have."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        raise NotImplementedError

    def add_adapters(
        self, targets: Sequence[str], rank: int, alpha: float, dropout: float, seeds: Sequence[int]
    ) -> int:
        """Beside the matrices that make one of these (`nn/adapters.py`); gives how many have one now."""
        raise NotImplementedError

    def is_added(self, name: str) -> bool:
        """Whether a parameter is of such an adapter."""
        return False

    @property
    def repeated(self) -> list[nn.Module]:
        """Its layers, of which many do the same with other weights: whoever compiles one has compiled them all."""
        return [module for module in self.modules() if getattr(module, "is_repeated", False)]

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        """How much `loss` is a mean over, such as tokens without padding; None = as much in every part of a batch."""
        return None

    @property
    def output_table(self) -> Tensor | None:
        """The table of tokens, where it is the output matrix as well."""
        return None


def pace_of(p: Tensor) -> float:
    """What the learning rate is multiplied by for this parameter; 0 = training leaves it as it is."""
    return getattr(p, "pace", 1.0)


def set_paces(model: nn.Module, paces: Mapping[str, float]) -> None:
    """Which parameters training moves, and how fast beside each other: all that anybody knows of it stands on them."""
    for name, p in model.named_parameters():
        p.pace = paces[name]  # pyright: ignore[reportAttributeAccessIssue]


def moving(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those that training moves."""
    return {name: p for name, p in parameters.items() if pace_of(p) > 0}
