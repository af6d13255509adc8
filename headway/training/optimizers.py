"""Optimizers for R replicas, each with its own learning rate and weight decay: SGD and Adagrad here, Adam in `adam.py`.

With R = 1 they take the same steps as torch.optim. Every parameter is treated as a table `[R, n]`, and its update is an
elementwise expression, which on CUDA is compiled once for parameters of all shapes. Replicas do not affect each other,
and the weights of a replica that is no longer alive do not change at all. A parameter can have a pace
(`training/tuning.py`), a factor on its learning rate; parameters with pace 0 are not passed to an optimizer.

Learning rates and step counts are tensors, so nothing here waits for the device, and a step can be replayed as a CUDA
graph.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.core.variants import Variant
from headway.nn.trainable import pace_of

Table = Float[Tensor, "R n"]
Column = Float[Tensor, "R 1"]


class OptimizerSpec(Variant):
    """The optimizer."""

    steps_by_length: ClassVar[bool] = False
    """Whether doubling the gradient doubles the step."""

    learning_rate: float = Field(default=1e-3, ge=0)
    """The peak learning rate; the schedule scales it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the matrices."""

    @abstractmethod
    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        """The optimizer for replicas with these learning rates and weight decays, one per replica."""


class Sgd(OptimizerSpec):
    """Stochastic gradient descent, optionally with momentum."""

    steps_by_length = True

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = Field(default=0.1, ge=0)
    """The peak learning rate; the schedule scales it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty: weight_decay × weight is added to the gradients of the matrices."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """The momentum coefficient: the fraction of the previous update that is kept."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return SgdOptimizer(self, parameters, rates, decays)


class Adagrad(OptimizerSpec):
    """Learning rates that shrink with the sum of squared gradients. https://jmlr.org/papers/v12/duchi11a.html"""

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: float = Field(default=1e-2, ge=0)
    """The peak learning rate; the schedule scales it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty: weight_decay × weight is added to the gradients of the matrices."""
    epsilon: float = Field(default=1e-10, gt=0)
    """Added to the denominator, so that it is never zero."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return AdagradOptimizer(self, parameters, rates, decays)


class Optimizer:
    """The base of all optimizers. A subclass names its state tensors (`memories`) and implements `move`."""

    memories: tuple[str, ...] = ()

    def __init__(self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]):
        self.names, self.parameters = list(parameters), list(parameters.values())
        device = self.parameters[0].device
        self.base_rates = tuple(rates)
        self.rates = torch.tensor(rates, device=device)[:, None]
        self.decays = torch.tensor(decays, device=device)[:, None]
        self.memory = {name: [torch.zeros_like(p.detach()) for p in self.parameters] for name in self.memories}
        self.steps = torch.zeros((), device=device)
        # From the norms of this process's gradients to those of the whole model, if it is sharded.
        self.whole_norms: Callable[[Tensor], Tensor] = lambda norms: norms

    @torch.no_grad()
    def step(
        self, factor: Float[Tensor, ""], alive: Bool[Tensor, "R"], limit: float | None = None
    ) -> Float[Tensor, "R"]:
        """Take a step at `factor` × each replica's learning rate, with gradients clipped to norm `limit`, for the
        replicas that are alive. A replica whose gradient is not finite is marked as no longer alive. Return the
        gradient norms."""
        self.steps += 1
        self.begin_step()
        gradients = [gradient_of(p).flatten(1) for p in self.parameters]
        if gradients[0].is_cuda:
            each = lengths(gradients, len(self.base_rates))
        else:
            each = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in gradients])
        norms = self.whole_norms(torch.linalg.vector_norm(each, dim=0))
        alive &= norms.isfinite()
        # A dead replica's gradients may be NaN, and NaN × 0 is NaN: where the scale is 0 gradients are ignored.
        scale = (alive if limit is None else alive * (limit / (norms + 1e-6)).clamp(max=1.0)).float()[:, None]
        rates, none = self.rates * factor * alive[:, None], torch.zeros_like(self.decays)
        for k, (p, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            memory = [kept[k].flatten(1) for kept in self.memory.values()]
            own, decays = at_pace(rates, pace_of(p)), self.decays if is_decayed(p) else none
            self.move(p.detach().flatten(1), gradient, scale, own, decays, *memory)
        return norms

    def begin_step(self) -> None:
        """Compute what is the same for all parameters."""

    def ask_for_kernels(self) -> None:
        """Ask for the kernels that a step uses (`nn/kernels/trusted.py`)."""

    def compile(self) -> None:
        """Fuse the update into one kernel; otherwise it passes over the weights a dozen times."""
        self.move = torch.compile(self.move, dynamic=True)  # dynamic: for parameters of every size

    def uncompile(self) -> None:
        """Undo `compile`."""
        vars(self).pop("move", None)

    def move(
        self, weights: Table, gradient: Table, scale: Column, rates: Column, decays: Column, *memory: Table
    ) -> None:
        """Update one parameter and its state tensors in place. With a learning rate of 0 the weights do not change at
        all; a scale of 0 means a gradient of 0."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All state tensors as `memory/name`, `[R, …]`; they are not copies, so writing into them changes the state."""
        return {
            f"{memory}/{name}": tensor
            for memory, tensors in self.memory.items()
            for name, tensor in zip(self.names, tensors, strict=True)
        }


class SgdOptimizer(Optimizer):
    memories = ("velocity",)

    def __init__(self, spec: Sgd, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def move(self, weights, gradient, scale, rates, decays, *memory):
        (velocity,) = memory
        gradient = scaled(gradient, scale) + decays * weights
        velocity.mul_(self.spec.momentum).add_(gradient)
        direction = gradient + self.spec.momentum * velocity if self.spec.nesterov else velocity
        weights.sub_(direction * rates)


class AdagradOptimizer(Optimizer):
    memories = ("sum",)

    def __init__(self, spec: Adagrad, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def move(self, weights, gradient, scale, rates, decays, *memory):
        (total,) = memory
        gradient = scaled(gradient, scale) + decays * weights
        total.addcmul_(gradient, gradient)
        weights.sub_(gradient / (total.sqrt() + self.spec.epsilon) * rates)


def lengths(gradients: Sequence[Tensor], replicas: int) -> Float[Tensor, "P R"]:
    """The norm of each gradient of each replica. On a GPU many small tensors share a launch."""
    apart = [gradient.unbind() if replicas > 1 else (gradient,) for gradient in gradients]
    found = torch._foreach_norm([own for each in apart for own in each])  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack(found).view(len(gradients), replicas)


def gradient_of(p: Tensor) -> Tensor:
    assert p.grad is not None, "a parameter took no part in the loss"
    return p.grad


def at_pace(rates: Tensor, pace: float) -> Tensor:
    return rates if pace == 1 else rates * pace


def scaled(gradient: Table, scale: Column) -> Table:
    """The gradient at this scale; where that is 0, what was NaN is 0 too."""
    return torch.where(scale > 0, gradient * scale, 0)


def is_decayed(p: Tensor) -> bool:
    """Whether a parameter has weight decay: matrices do, biases and norms do not."""
    return getattr(p, "decays", p.ndim >= 3)
