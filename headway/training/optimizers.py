"""AdamW, SGD and Adagrad for R replicas, each with its own learning rate and weight decay.

At R = 1 they take the steps that torch.optim takes. For R > 1 the weights are laid side by side as one `[R, P]` table,
so that a step is a handful of elementwise operations, however many parameters there are. No replica can touch another;
the weights of one that is no longer alive are left exactly as they are.

Rates and step counts are tensors: nothing here waits for the device, and a step can be replayed as a graph.
"""

# pyright: reportPrivateImportUsage=false
# (torch._foreach_* and _fused_* have no public names, but are what torch.optim itself is made of.)

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.spec import CHOSEN_BY_KIND, OR_BY_NAME, Spec

Table = Float[Tensor, "R P"]


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
        kind = AdamWOptimizer if len(rates) > 1 else FusedAdamW
        return kind(self, parameters, rates, decays)


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
    """The bookkeeping all of them share. A subclass names its `memories` and says how they make the new weights."""

    memories: tuple[str, ...] = ()

    def __init__(self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]):
        # Those that decay (matrices; not biases and norm weights) stand first in the table.
        ordered = sorted(parameters.items(), key=lambda item: not _decays(item[1]))
        self.names: list[str] = [name for name, _ in ordered]
        self.parameters: list[Tensor] = [p for _, p in ordered]
        self.shapes = [p.shape[1:] for p in self.parameters]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.decayed = sum(n for n, p in zip(self.sizes, self.parameters, strict=True) if _decays(p))
        device = self.parameters[0].device
        self.base_rates = tuple(rates)
        self.rates = torch.tensor(rates, device=device)[:, None]
        self.decays = torch.tensor(decays, device=device)[:, None]
        self.memory = {name: torch.zeros(len(rates), sum(self.sizes), device=device) for name in self.memories}
        self.steps = torch.zeros((), device=device)

    @torch.no_grad()
    def step(
        self, factor: Float[Tensor, ""], alive: Bool[Tensor, "R"], limit: float | None = None
    ) -> Float[Tensor, "R"]:
        """One step at `factor` × each replica's rate, with gradients no longer than `limit`, for the replicas that are
        alive. One whose gradient is not finite is so no longer. Gives the norms of the gradients."""
        self.steps += 1
        gradients = self.table([_gradient(p) for p in self.parameters])
        norms = torch.linalg.vector_norm(gradients, dim=1)
        alive &= norms.isfinite()
        scale = torch.ones_like(norms) if limit is None else (limit / (norms + 1e-6)).clamp(max=1.0)
        # A dead replica's gradients may be NaN, and NaN × 0 is NaN.
        gradients = torch.where(alive[:, None], gradients * scale[:, None], 0)
        weights = self.moved(self.table(self.parameters), gradients, self.rates * factor * alive[:, None])
        torch._foreach_copy_(self.parameters, self.pieces(weights))
        return norms

    def compile(self) -> None:
        """Make one kernel of the arithmetic, which else goes through the table a dozen times."""
        self.moved = torch.compile(self.moved)

    def moved(self, weights: Table, gradients: Table, rates: Float[Tensor, "R 1"]) -> Table:
        """The weights one step on. A rate of 0 leaves them exactly as they are."""
        raise NotImplementedError

    def with_decay(self, gradients: Table, weights: Table) -> Table:
        """Weight decay as part of the gradient, which is what SGD and Adagrad mean by it."""
        n = self.decayed
        return torch.cat((gradients[:, :n] + self.decays * weights[:, :n], gradients[:, n:]), dim=1)

    def table(self, tensors: Sequence[Tensor]) -> Table:
        return torch.cat([t.flatten(1) for t in tensors], dim=1)

    def pieces(self, table: Table) -> list[Tensor]:
        """The table as the parameters are shaped, without a copy."""
        return [part.unflatten(1, s) for part, s in zip(table.split(self.sizes, dim=1), self.shapes, strict=True)]

    def state(self) -> dict[str, Tensor]:
        """Every memory of every parameter as `memory/name`, still `[R, …]`; writing into them changes the memory."""
        return {
            f"{memory}/{name}": piece
            for memory, table in self.memory.items()
            for name, piece in zip(self.names, self.pieces(table), strict=True)
        }


class AdamWOptimizer(Optimizer):
    memories = ("mean", "square")

    def __init__(self, spec: AdamW, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec, self.decay = spec, decays[0]

    def moved(self, weights, gradients, rates):
        spec, mean, square, n = self.spec, self.memory["mean"], self.memory["square"], self.decayed
        mean.lerp_(gradients, 1 - spec.beta1)
        square.mul_(spec.beta2).addcmul_(gradients, gradients, value=1 - spec.beta2)
        # Both memories start at zero; dividing by what has been filled so far removes that pull.
        size = (square.sqrt() / (1 - spec.beta2**self.steps).sqrt()).add_(spec.epsilon)
        weights[:, :n] *= 1 - rates * self.decays
        return weights.sub_(mean / size * (rates / (1 - spec.beta1**self.steps)))


class FusedAdamW(AdamWOptimizer):
    """A single replica takes torch's fused kernel, which reads and writes every number once."""

    @torch.no_grad()
    def step(self, factor, alive, limit=None):
        self.steps += 1
        gradients = [_gradient(p) for p in self.parameters]
        norms = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).view(1)
        alive &= norms.isfinite()
        matrices = sum(_decays(p) for p in self.parameters)
        memory = {name: self.pieces(table) for name, table in self.memory.items()}
        for part, decay in ((slice(matrices), self.decay), (slice(matrices, None), 0.0)):
            torch._fused_adamw_(
                self.parameters[part],
                gradients[part],
                memory["mean"][part],
                memory["square"][part],
                [],
                [self.steps] * len(gradients[part]),
                lr=(self.rates * factor).view(()),
                beta1=self.spec.beta1,
                beta2=self.spec.beta2,
                weight_decay=decay,
                eps=self.spec.epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=None if limit is None else ((norms + 1e-6) / limit).clamp(min=1.0).view(()),
                found_inf=(~alive).float().view(()),  # the kernel does nothing where this is 1
            )
        return norms


class SgdOptimizer(Optimizer):
    memories = ("velocity",)

    def __init__(self, spec: Sgd, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def moved(self, weights, gradients, rates):
        gradients, velocity = self.with_decay(gradients, weights), self.memory["velocity"]
        velocity.mul_(self.spec.momentum).add_(gradients)
        direction = gradients + self.spec.momentum * velocity if self.spec.nesterov else velocity
        return weights.sub_(direction * rates)


class AdagradOptimizer(Optimizer):
    memories = ("sum",)

    def __init__(self, spec: Adagrad, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def moved(self, weights, gradients, rates):
        gradients, total = self.with_decay(gradients, weights), self.memory["sum"]
        total.addcmul_(gradients, gradients)
        return weights.sub_(gradients / (total.sqrt() + self.spec.epsilon) * rates)


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None, "a parameter took no part in the loss"
    return p.grad


def _decays(p: Tensor) -> bool:
    return getattr(p, "decays", p.ndim >= 3)
