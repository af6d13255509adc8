"""Adam and AdamW for R replicas, each with its own learning rate and weight decay.

The update is one kernel for all replicas where there is one: ours (`nn/kernels/fused_adamw.py`), or what torch.compile
makes of `move`. Otherwise torch's fused kernels are called, once per replica.
"""

# pyright: reportPrivateImportUsage=false
# (torch._foreach_* and _fused_* have no public names, but are what torch.optim itself is made of.)

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.nn.kernels import fused_adamw
from headway.nn.trainable import pace_of
from headway.training.optimizers import Optimizer, OptimizerSpec, at_pace, gradient_of, is_decayed, lengths, scaled


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
        for k, p in sorted(enumerate(self.parameters), key=lambda kp: not is_decayed(kp[1])):
            self.alike.setdefault((is_decayed(p), pace_of(p)), []).append(k)

    def step(self, factor, alive, limit=None):
        at_once = self.compiled or self.has_kernel
        return super().step(factor, alive, limit) if at_once else self.fused(factor, alive, limit)

    @property
    def has_kernel(self) -> bool:
        return len(self.own_decays) > 1 and fused_adamw.can_step(self.parameters[0])

    def ask_for_kernels(self) -> None:
        if len(self.own_decays) > 1:
            fused_adamw.can_step(self.parameters[0])

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
        given = [gradient_of(p) for p in self.parameters]
        apart = Tensor.unbind if len(self.own_decays) > 1 else lambda whole: (whole,)
        weights, gradients, means, squares = (
            [apart(x) for x in of_all] for of_all in (self.parameters, given, *self.memory.values())
        )
        norms = self.whole_norms(torch.linalg.vector_norm(lengths(given, len(self.own_decays)), dim=0))
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
                    lr=at_pace(rates[r], pace),
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
        gradient = scaled(gradient, scale) + decays * weights
        self.by_moments(weights, gradient, torch.ones_like(scale), rates, torch.zeros_like(decays), *memory)
