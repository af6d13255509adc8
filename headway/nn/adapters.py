"""Low-rank adapters (LoRA): a small trained update beside a frozen weight.

    y = W x + b + (α / r) · up · down · x        down [R, r, I], up [R, O, r]

`up` starts at zero, so a model with adapters initially computes the same as without (LoRA,
https://arxiv.org/abs/2106.09685). A matrix that computes several projections at once (queries, keys and values) can
have a separate adapter for each of them, or for only some.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.replicated import Dropout, Linear, parameter
from headway.nn.seeding import seed_part
from headway.nn.trainable import Trainable


class LowRank(nn.Module):
    """The low-rank update of one projection."""

    def __init__(self, replicas: int, inputs: int, outputs: int, rank: int, alpha: float, dropout: float):
        super().__init__()
        self.down = parameter(replicas, rank, inputs, std=1 / math.sqrt(3 * inputs))  # nn.Linear's std
        self.up = parameter(replicas, outputs, rank)
        self.drop = Dropout(replicas, dropout, fixed=True)
        self.scale = alpha / rank

    def forward(self, x: Float[Tensor, "R B T I"]) -> Float[Tensor, "R B T O"]:
        R, B, T, _ = x.shape
        rows = self.drop(x).reshape(R, B * T, -1)
        return ((rows @ self.down.mT) @ self.up.mT * self.scale).view(R, B, T, -1)

    @property
    def change(self) -> Float[Tensor, "R O I"]:
        """The update that it adds to the weight."""
        return self.scale * self.up @ self.down


class Adapter(nn.Module):
    """Low-rank updates for some of the projections that are concatenated in a Linear's output."""

    def __init__(self, linear: Linear, targets: Sequence[str], rank: int, alpha: float, dropout: float):
        super().__init__()
        replicas, outputs, inputs = linear.weight.shape
        self.output_names = linear.output_names
        for name in self.output_names:
            if name in targets:
                self.add_module(
                    name, LowRank(replicas, inputs, outputs // len(self.output_names), rank, alpha, dropout)
                )

    def forward(self, x: Float[Tensor, "R B T I"]) -> Float[Tensor, "R B T O"]:
        return self._side_by_side({name: part(x) for name, part in self.named_children()}, -1)

    @property
    def change(self) -> Float[Tensor, "R O I"]:
        """The update that it adds to the weight."""
        changes = {name: part.change for name, part in self.named_children() if isinstance(part, LowRank)}
        return self._side_by_side(changes, 1)

    def _side_by_side(self, found: dict[str, Tensor], axis: int) -> Tensor:
        """Concatenate, with zeros for the projections that have no adapter."""
        nothing = torch.zeros_like(next(iter(found.values()))) if len(found) < len(self.output_names) else None
        return torch.cat([found.get(name, nothing) for name in self.output_names], axis)  # pyright: ignore


def adaptable(model: nn.Module) -> Iterator[tuple[str, Linear]]:
    """The Linear layers whose outputs have names, each with its path in the model."""
    for name, module in model.named_modules():
        if isinstance(module, Linear) and module.output_names:
            yield name, module


def add_adapters(
    model: Trainable, targets: Sequence[str], rank: int, alpha: float, dropout: float, seeds: Sequence[int]
) -> int:
    """Add adapters to all matrices that compute one of the targets, initialised from each replica's seed. Return the
    number of matrices with an adapter."""
    chosen = [(name, linear) for name, linear in adaptable(model) if set(targets) & set(linear.output_names)]
    for name, linear in chosen:
        adapter = Adapter(linear, targets, rank, alpha, dropout)
        seed_part(model, adapter, f"{name}.adapter", seeds)
        linear.adapter = adapter.to(linear.weight.device).train(linear.training)
    return len(chosen)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights of an equivalent model without adapters: the updates are added to the frozen weights."""
    changes = {
        f"{name}.weight": one.adapter.change for name, one in adaptable(model) if isinstance(one.adapter, Adapter)
    }
    return {
        name: p.detach() + changes[name].detach() if name in changes else p.detach()
        for name, p in model.named_parameters()
        if ".adapter." not in name
    }
