"""Weight averaging: score and save an average of the weights over a part of training in place of the last ones.

    average ← average + share · (weights − average)          the share depends only on the step

Late in training the weights oscillate around a minimum, and their mean is nearer to it than any of them
(https://arxiv.org/abs/1803.05407). Scores during training and checkpoints, and so everything that reads a run, use the
average. The weights that training continues from are saved with the optimizer state.
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
    """A mean of the weights over training steps, scored and saved in place of the last ones."""

    @abstractmethod
    def share(self, step: Float[Tensor, ""], total: int) -> Float[Tensor, ""]:
        """The share of the weights after this step (counted from 0) in the average; 1 = the average restarts here."""


class Tail(AveragingSpec):
    """The plain mean over the last part of the training; before it begins, the weights themselves."""

    kind: Literal["tail"] = "tail"
    last: float = Field(default=0.25, gt=0, le=1)
    """The fraction of the training, at its end, that is averaged over."""
    every: int = Field(default=1, ge=1)
    """Average the weights of every n-th step: 1 = of all; more = checkpoint averaging."""

    def share(self, step, total):
        taken = max(1, int(self.last * total / self.every))
        ahead = (total - 1 - step) / self.every
        place = torch.floor(taken - ahead)  # 1 for the first averaged step, at which the average restarts
        return torch.where(place < 1, 1.0, (ahead == torch.floor(ahead)) / place.clamp(min=1))


class Moving(AveragingSpec):
    """An exponential moving average. Early on it is the plain mean of all steps, so the start has no extra weight."""

    kind: Literal["moving"] = "moving"
    decay: float = Field(default=0.999, ge=0, lt=1)
    """The decay per step: 0.999 remembers about a thousand steps."""

    def share(self, step, total):
        return (1 / (step + 1)).clamp(min=1 - self.decay)


class Averages:
    """The averages of these parameters, in tensors whose memory stays the same from the first step to the last."""

    def __init__(self, spec: AveragingSpec, parameters: dict[str, nn.Parameter], total: int):
        self.spec, self.parameters, self.total = spec, parameters, total
        self.tensors = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, step: Int[Tensor, ""], alive: Bool[Tensor, "R"]) -> None:
        """Update the averages after a step. Averages of replicas that are no longer alive do not change."""
        share = self.spec.share(step.float(), self.total) * alive  # [R]
        for name, average in self.tensors.items():
            average.lerp_(self.parameters[name].detach(), share.view(-1, *[1] * (average.ndim - 1)))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside this block the model has the averaged weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def take_over(self) -> None:
        """Copy the averages into the model."""
        for name, average in self.tensors.items():
            self.parameters[name].copy_(average)

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, average in self.tensors.items():
            weights = self.parameters[name]
            trained = weights.detach().clone()
            weights.copy_(average)
            average.copy_(trained)
