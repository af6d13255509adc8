"""AdamW, SGD and Adagrad for R replicas, each with its own learning rate and weight decay.

At R = 1 they take the steps that torch.optim takes. Parameters are `[R, …]`, rates are `[R]`, and all arithmetic is
elementwise, so no replica can touch another; the weights of one that is no longer alive are left exactly as they are.
"""

# pyright: reportPrivateImportUsage=false
# (torch._foreach_* has no public name, but is what torch.optim itself is made of.)

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.spec import CHOSEN_BY_KIND, OR_BY_NAME, Spec


class AdamW(Spec):
    """Adam with decoupled weight decay. https://arxiv.org/abs/1711.05101"""

    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=1e-3, ge=0)
    """The highest rate; the schedule scales it."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Pull of the matrices towards zero; biases and norms are never decayed."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the gradient's mean."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Memory of the gradient's square. 0.99 suits small batches, 0.95–0.999 large ones."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Keeps the division finite."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return AdamWOptimizer(self, parameters, rates, decays)


class Sgd(Spec):
    """Stochastic gradient descent, with momentum if asked for."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = Field(default=0.1, ge=0)
    """The highest rate; the schedule scales it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Added to the gradients of the matrices as weight_decay × weight."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """How much of the last direction is kept."""
    nesterov: bool = False
    """Look ahead along the momentum."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return SgdOptimizer(self, parameters, rates, decays)


class Adagrad(Spec):
    """Rates that shrink with the sum of squared gradients. https://jmlr.org/papers/v12/duchi11a.html"""

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: float = Field(default=1e-2, ge=0)
    """The highest rate; the schedule scales it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Added to the gradients of the matrices as weight_decay × weight."""
    epsilon: float = Field(default=1e-10, gt=0)
    """Keeps the division finite."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return AdagradOptimizer(self, parameters, rates, decays)


OptimizerSpec = Annotated[AdamW | Sgd | Adagrad, CHOSEN_BY_KIND, OR_BY_NAME]


class Optimizer:
    """The bookkeeping all three share. A subclass names its `memories` and says how they make an `update`."""

    memories: tuple[str, ...] = ()

    def __init__(self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]):
        self.names: list[str] = list(parameters)
        self.parameters: list[Tensor] = list(parameters.values())
        device = self.parameters[0].device
        self.rates = torch.tensor(rates, device=device)
        self.decays = torch.tensor(decays, device=device)
        self.decays_anything = any(decays)
        # Matrices are [R, out, in]: biases and norm weights have fewer axes and are not decayed.
        self.is_matrix = [p.ndim >= 3 for p in self.parameters]
        self.memory = {name: [torch.zeros_like(p) for p in self.parameters] for name in self.memories}
        self.steps = 0

    @torch.no_grad()
    def step(self, factor: float, alive: Bool[Tensor, "R"]) -> None:
        """One step at `factor` × each replica's rate, for the replicas that are alive."""
        self.steps += 1
        rates = self.rates * factor * alive
        # A dead replica's gradients may be NaN, and NaN × 0 is NaN. (Asking is free on a CPU; a GPU would wait.)
        if alive.is_cuda or not alive.all():
            for p in self.parameters:
                assert p.grad is not None
                p.grad = torch.where(_like(alive, p), p.grad, 0)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        updates = self.update(gradients, rates)
        torch._foreach_sub_(self.parameters, [u * _like(rates, u) for u in updates])

    def update(self, gradients: list[Tensor], rates: Float[Tensor, "R"]) -> Sequence[Tensor]:
        """The direction to walk against, for every parameter; may decay the parameters or the gradients."""
        raise NotImplementedError

    def decayed_gradients(self, gradients: list[Tensor]) -> list[Tensor]:
        """Weight decay as part of the gradient, which is what SGD and Adagrad mean by it."""
        if not self.decays_anything:
            return gradients
        return [
            g + p * _like(self.decays, p) if matrix else g
            for g, p, matrix in zip(gradients, self.parameters, self.is_matrix, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """Every memory of every parameter as `memory/name`, still `[R, …]`."""
        return {f"{m}/{n}": t for m, kept in self.memory.items() for n, t in zip(self.names, kept, strict=True)}


class AdamWOptimizer(Optimizer):
    memories = ("mean", "square")

    def __init__(self, spec: AdamW, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec
        self.rate, self.decay = rates[0], decays[0]

    def step(self, factor, alive):
        if len(self.rates) > 1:
            super().step(factor, alive)
        else:
            self.steps += 1
            self.step_alone(self.rate * factor, alive)

    @torch.no_grad()
    def step_alone(self, rate: float, alive: Bool[Tensor, "1"]) -> None:
        """A single replica takes torch's fused kernel, which reads and writes every number once."""
        dead = (~alive).float()  # the kernel does nothing where this is 1
        steps = torch.full((), float(self.steps), device=alive.device)
        for decayed in (True, False):
            chosen = [k for k, matrix in enumerate(self.is_matrix) if matrix == decayed]
            torch._fused_adamw_(
                [self.parameters[k] for k in chosen],
                [g for k in chosen if (g := self.parameters[k].grad) is not None],
                [self.memory["mean"][k] for k in chosen],
                [self.memory["square"][k] for k in chosen],
                [],
                [steps] * len(chosen),
                lr=rate,
                beta1=self.spec.beta1,
                beta2=self.spec.beta2,
                weight_decay=self.decay if decayed else 0.0,
                eps=self.spec.epsilon,
                amsgrad=False,
                maximize=False,
                found_inf=dead,
            )

    def update(self, gradients, rates):
        spec, mean, square = self.spec, self.memory["mean"], self.memory["square"]
        if self.decays_anything:
            kept = 1 - rates * self.decays
            for p, matrix in zip(self.parameters, self.is_matrix, strict=True):
                if matrix:
                    p.mul_(_like(kept, p))
        torch._foreach_lerp_(mean, gradients, 1 - spec.beta1)
        torch._foreach_mul_(square, spec.beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - spec.beta2)
        # Both memories start at zero; dividing by what has been filled so far removes that pull.
        size = torch._foreach_sqrt(square)
        torch._foreach_div_(size, math.sqrt(1 - spec.beta2**self.steps))
        torch._foreach_add_(size, spec.epsilon)
        torch._foreach_mul_(size, 1 - spec.beta1**self.steps)
        return torch._foreach_div(mean, size)


class SgdOptimizer(Optimizer):
    memories = ("velocity",)

    def __init__(self, spec: Sgd, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def update(self, gradients, rates):
        gradients, velocity = self.decayed_gradients(gradients), self.memory["velocity"]
        torch._foreach_mul_(velocity, self.spec.momentum)
        torch._foreach_add_(velocity, gradients)
        return torch._foreach_add(gradients, velocity, alpha=self.spec.momentum) if self.spec.nesterov else velocity


class AdagradOptimizer(Optimizer):
    memories = ("sum",)

    def __init__(self, spec: Adagrad, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def update(self, gradients, rates):
        gradients, total = self.decayed_gradients(gradients), self.memory["sum"]
        torch._foreach_addcmul_(total, gradients, gradients, 1.0)
        size = torch._foreach_sqrt(total)
        torch._foreach_add_(size, self.spec.epsilon)
        return torch._foreach_div(gradients, size)


@torch.no_grad()
def clip(parameters: Sequence[Tensor], limit: float | None) -> Float[Tensor, "R"]:
    """Scale each replica's gradient down to the norm `limit`; gives the norms before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    norm = torch.linalg.vector_norm(norms, dim=0)
    if limit is not None:
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        if scale.is_cuda or (scale < 1).any():  # as above: asking is free on a CPU, and saves a pass
            for g in gradients:
                g.mul_(_like(scale, g))
    return norm


def _like(per_replica: Tensor, p: Tensor) -> Tensor:
    """[R] as [R, 1, …], to go with a parameter."""
    return per_replica.view(-1, *[1] * (p.ndim - 1))
