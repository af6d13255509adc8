"""Which weights are scored and kept: the last ones, or an average over a part of training.

    average ← average + share · (weights − average)          the share is a function of the step alone

Late in training the weights circle the place that they are drawn to, and their mean is nearer to it than any of them
(https://arxiv.org/abs/1803.05407). Scores during training, checkpoints, and so everything that reads a run, see the
average; the weights that training goes on from are kept beside the optimizer's memory.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.variants import Variant


class AveragingSpec(Variant):
    """A mean of the weights that training passes through, scored and kept in place of the last ones."""

    @abstractmethod
    def share(self, step: Float[Tensor, ""], total: int) -> Float[Tensor, ""]:
        """Of the weights after this step (counted from 0) in the average, at once; 1 = it begins anew with them."""


class Tail(AveragingSpec):
    """The plain mean over the last part of the training; before it begins, the weights themselves."""

    kind: Literal["tail"] = "tail"
    last: float = Field(default=0.25, gt=0, le=1)
    """The fraction of the training, at its end, that is averaged over."""
    every: int = Field(default=1, ge=1)
    """Average the weights of every so many steps: 1 = of all; more = checkpoint averaging."""

    def share(self, step, total):
        taken = max(1, int(self.last * total / self.every + 1e-6))  # 0.29 · 100 is a little less than 29
        ahead = (total - 1 - step) / self.every
        place = torch.floor(taken - ahead)  # the first that is taken has 1; those before are forgotten when it comes
        return torch.where(place < 1, 1.0, (ahead == torch.floor(ahead)) / place.clamp(min=1))


class Moving(AveragingSpec):
    """An exponential moving average. Early on it is the plain mean of all steps: the start has no more weight."""

    kind: Literal["moving"] = "moving"
    decay: float = Field(default=0.999, ge=0, lt=1)
    """The decay per step: 0.999 remembers about a thousand steps."""

    def share(self, step, total):
        return (1 / (step + 1)).clamp(min=1 - self.decay)


class Averages:
    """The averages of these parameters, beside them, in the same memory from the first step to the last."""

    def __init__(self, spec: AveragingSpec, parameters: dict[str, nn.Parameter], total: int):
        self.spec, self.parameters, self.total = spec, parameters, total
        self.tensors = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, step: Int[Tensor, ""], alive: Bool[Tensor, "R"]) -> None:
        """After a step. The average of a replica that is no longer alive stays as it is."""
        share = self.spec.share(step.float(), self.total) * alive  # [R]
        for name, average in self.tensors.items():
            average.lerp_(self.parameters[name].detach(), share.view(-1, *[1] * (average.ndim - 1)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """As long as this lasts the model is the average."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def take_over(self) -> None:
        """The model is the average from now on."""
        for name, average in self.tensors.items():
            self.parameters[name].copy_(average)

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, average in self.tensors.items():
            weights = self.parameters[name]
            trained = weights.detach().clone()
            weights.copy_(average)
            average.copy_(trained)
