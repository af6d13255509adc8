"""Adam, AdamW, SGD and Adagrad for R replicas, each with its own learning rate and weight decay.

With R = 1 they take the same steps as torch.optim. Every parameter is treated as a table `[R, n]`, and its update is an
elementwise expression, which on CUDA is compiled once for parameters of all shapes. Without torch.compile, Adam and
AdamW use torch's fused kernels instead. Replicas do not affect each other, and the weights of a replica that is no
longer alive do not change at all. A parameter can have a pace (`training/tuning.py`), a factor on its learning rate;
parameters with pace 0 are not passed to an optimizer.

Learning rates and step counts are tensors, so nothing here waits for the device, and a step can be replayed as a CUDA
graph.
"""

# pyright: reportPrivateImportUsage=false
# (torch._foreach_* and _fused_* have no public names, but are what torch.optim itself is made of.)

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.core.variants import Variant
from headway.nn.kernels import fused_adamw
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


class Moments(OptimizerSpec):
    """What Adam and AdamW share: running means of the gradients and of their squares."""

    learning_rate: float = Field(default=1e-3, ge=0)
    """The peak learning rate; the schedule scales it."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """The decay of the running mean of gradients."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """The decay of the running mean of squared gradients. 0.99 suits small batches, 0.95–0.999 large ones."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the denominator, so that it is never zero."""


class AdamW(Moments):
    """Adam with decoupled weight decay. https://arxiv.org/abs/1711.05101"""

    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of the matrices; biases and norms are never decayed."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return AdamWOptimizer(self, parameters, rates, decays)


class Adam(Moments):
    """Adam, whose weight decay is an L2 penalty on the loss: weights with small gradients, such as those of rare words,
    decay fastest. https://arxiv.org/abs/1412.6980"""

    kind: Literal["adam"] = "adam"
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty: weight_decay × weight is added to the gradients of the matrices. 1e-6 is usual for LSTMs; 1e-3 can
    keep a small model from learning."""

    def build(
        self, parameters: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]
    ) -> "Optimizer":
        return AdamOptimizer(self, parameters, rates, decays)


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
        gradients = [_gradient(p).flatten(1) for p in self.parameters]
        lengths = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in gradients])
        norms = self.whole_norms(torch.linalg.vector_norm(lengths, dim=0))
        alive &= norms.isfinite()
        # A dead replica's gradients may be NaN, and NaN × 0 is NaN: where the scale is 0 gradients are ignored.
        scale = (alive if limit is None else alive * (limit / (norms + 1e-6)).clamp(max=1.0)).float()[:, None]
        rates, none = self.rates * factor * alive[:, None], torch.zeros_like(self.decays)
        for k, (p, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            memory = [kept[k].flatten(1) for kept in self.memory.values()]
            own, decays = _at_pace(rates, pace_of(p)), self.decays if _decays(p) else none
            self.move(p.detach().flatten(1), gradient, scale, own, decays, *memory)
        return norms

    def begin_step(self) -> None:
        """Compute what is the same for all parameters."""

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


class MomentsOptimizer(Optimizer):
    """Uses one kernel for all replicas if there is one (`nn/kernels/fused_adamw.py`, or a compiled one); otherwise
    `fused`, because many small kernels are slow."""

    memories = ("mean", "square")
    kernel: Callable[..., None]
    """torch's fused kernel for this optimizer."""

    def __init__(self, spec: Moments, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec, self.own_decays, self.compiled = spec, tuple(decays), False
        self.alike: dict[tuple[bool, float], list[int]] = {}  # parameters by (decays, pace), which share a kernel call
        for k, p in sorted(enumerate(self.parameters), key=lambda kp: not _decays(kp[1])):
            self.alike.setdefault((_decays(p), pace_of(p)), []).append(k)

    def step(self, factor, alive, limit=None):
        at_once = self.compiled or self.has_kernel
        return super().step(factor, alive, limit) if at_once else self.fused(factor, alive, limit)

    @property
    def has_kernel(self) -> bool:
        return len(self.own_decays) > 1 and fused_adamw.can_step(self.parameters[0])

    def compile(self) -> None:
        # For a single replica torch's fused kernel is the fastest, and our own kernel needs no compiler.
        if len(self.own_decays) > 1 and not self.has_kernel:
            super().compile()
            self.compiled = True

    def uncompile(self) -> None:
        super().uncompile()
        self.compiled = False

    def begin_step(self) -> None:
        # Bias correction: both running means start at zero.
        filled_mean, filled_square = (1 - torch.pow(beta, self.steps) for beta in (self.spec.beta1, self.spec.beta2))
        self.filled = filled_mean, filled_square.sqrt()

    def by_moments(self, weights, gradient, scale, rates, decays, mean, square) -> None:
        """AdamW's update, which without decay is Adam's."""
        adamw = fused_adamw.adamw if fused_adamw.can_step(weights) else fused_adamw.plain_adamw
        betas = self.spec.beta1, self.spec.beta2
        adamw(weights, gradient, mean, square, scale, rates, decays, self.filled, betas, self.spec.epsilon)

    @torch.no_grad()
    def fused(self, factor: Float[Tensor, ""], alive: Bool[Tensor, "R"], limit: float | None) -> Float[Tensor, "R"]:
        """A step with torch's fused kernel, which reads and writes everything once and takes many tensors at a time.
        Each replica has its own call on slices of the parameters, with its own learning rate, decay and clipping."""
        self.steps += 1
        given = [_gradient(p) for p in self.parameters]
        apart = Tensor.unbind if len(self.own_decays) > 1 else lambda whole: (whole,)
        weights, gradients, means, squares = (
            [apart(x) for x in of_all] for of_all in (self.parameters, given, *self.memory.values())
        )
        lengths = torch.stack(torch._foreach_norm([mine for of_all in gradients for mine in of_all]))
        norms = self.whole_norms(torch.linalg.vector_norm(lengths.view(len(given), -1), dim=0))
        alive &= norms.isfinite()
        rates, dead = (self.rates * factor).flatten(), (~alive).float()
        shrunk = None if limit is None else ((norms + 1e-6) / limit).clamp(min=1.0)
        for (decayed, pace), mine in self.alike.items():
            for r, decay in enumerate(self.own_decays):
                self.kernel(
                    [weights[k][r] for k in mine],
                    [gradients[k][r] for k in mine],
                    [means[k][r] for k in mine],
                    [squares[k][r] for k in mine],
                    [],
                    [self.steps] * len(mine),
                    lr=_at_pace(rates[r], pace),
                    beta1=self.spec.beta1,
                    beta2=self.spec.beta2,
                    weight_decay=decay if decayed else 0.0,
                    eps=self.spec.epsilon,
                    amsgrad=False,
                    maximize=False,
                    grad_scale=None if shrunk is None else shrunk[r],
                    found_inf=dead[r],  # the kernel does nothing where this is 1
                )
        return norms


class AdamWOptimizer(MomentsOptimizer):
    kernel = staticmethod(torch._fused_adamw_)

    def move(self, weights, gradient, scale, rates, decays, *memory):
        self.by_moments(weights, gradient, scale, rates, decays, *memory)


class AdamOptimizer(MomentsOptimizer):
    """Here decay is part of the gradient, and so of both running means."""

    kernel = staticmethod(torch._fused_adam_)

    def move(self, weights, gradient, scale, rates, decays, *memory):
        gradient = _scaled(gradient, scale) + decays * weights
        self.by_moments(weights, gradient, torch.ones_like(scale), rates, torch.zeros_like(decays), *memory)


class SgdOptimizer(Optimizer):
    memories = ("velocity",)

    def __init__(self, spec: Sgd, parameters, rates, decays):
        super().__init__(parameters, rates, decays)
        self.spec = spec

    def move(self, weights, gradient, scale, rates, decays, *memory):
        (velocity,) = memory
        gradient = _scaled(gradient, scale) + decays * weights
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
        gradient = _scaled(gradient, scale) + decays * weights
        total.addcmul_(gradient, gradient)
        weights.sub_(gradient / (total.sqrt() + self.spec.epsilon) * rates)


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None, "a parameter took no part in the loss"
    return p.grad


def _at_pace(rates: Tensor, pace: float) -> Tensor:
    return rates if pace == 1 else rates * pace


def _scaled(gradient: Table, scale: Column) -> Table:
    return torch.where(scale > 0, gradient * scale, 0)


def _decays(p: Tensor) -> bool:
    return getattr(p, "decays", p.ndim >= 3)
