"""minGRU: a recurrence whose gates do not depend on the state, so that all steps are computed in parallel.

The mixer around it, with its state and its two directions, is that of all recurrences (`recurrence.py`)."""

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headway.core.spec import Problem
from headway.nn.recurrence import STATE_PARTS, Direction, RecurrenceSpec
from headway.nn.replicated import Linear
from headway.nn.taps import Tap


class MinGruSpec(RecurrenceSpec):
    """h' = (1 - z)·h + z·g(U x) with z = σ(W x): trained in parallel over time. https://arxiv.org/abs/2410.01201

    g(a) = a + ½ above zero and σ(a) below, as in the paper's appendix, so that states are positive.
    """

    kind: Literal["mingru"] = "mingru"

    def build_direction(self, replicas: int, width: int) -> "Direction":
        return MinGru(self, replicas, width, self.hidden_units(width))

    def parts(self) -> tuple[str, ...]:
        return STATE_PARTS[:1]

    def matrices(self, width: int) -> int:
        return 2 * self.hidden_units(width) * width

    def kept(self, width: int) -> int:
        return 3 * self.directions * self.hidden_units(width)  # both products, and the states

    def problems(self) -> Iterator[Problem]:
        if self.weight_dropout:
            yield Problem(("weight_dropout",), "a mingru has no matrix from state to state")


class MinGru(Direction):
    def __init__(self, spec: MinGruSpec, replicas: int, width: int, hidden: int):
        super().__init__()
        self.input = Linear(replicas, width, 2 * hidden, bias=spec.bias)
        self.gates = Tap()

    def forward(self, x, first, real):
        update, candidate = self.input(x).to(first.dtype).chunk(2, -1)
        gate = self.gates(update.sigmoid())
        keep, add = 1 - gate, gate * torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
        if real is not None:
            keep, add = torch.where(real[..., None], keep, 1.0), torch.where(real[..., None], add, 0.0)
        hidden = linear_scan(keep, add, first[0])
        return hidden.to(x.dtype), hidden[None, :, :, -1]

    def step_bound(self):
        return torch.ones(len(next(self.parameters())))  # each unit's factor is between 0 and 1


def linear_scan(
    keep: Float[Tensor, "R B T H"], add: Float[Tensor, "R B T H"], first: Float[Tensor, "R B H"]
) -> Float[Tensor, "R B T H"]:
    """h_t = keep_t·h_{t-1} + add_t for all t, in log₂ T rounds over the whole tensor: each round doubles the number of
    steps that a position has accumulated. With factors from 0 to 1 nothing can overflow, and a product that underflows
    to zero is negligible. (The paper works with logarithms instead, which lose precision with length.)"""
    add = torch.cat((torch.addcmul(add[:, :, :1], keep[:, :, :1], first[:, :, None]), add[:, :, 1:]), 2)
    return _LinearScan.apply(keep, add)  # pyright: ignore[reportReturnType]


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keep, add):  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden = _doubling(keep, add)
        ctx.save_for_backward(keep, hidden)
        return hidden

    @staticmethod
    def backward(ctx, slope):  # pyright: ignore[reportIncompatibleMethodOverride]
        # The same recurrence backwards: the gradient of h_t is its own slope plus keep_{t+1} times that of h_{t+1}.
        keep, hidden = ctx.saved_tensors
        later = F.pad(keep[:, :, 1:], (0, 0, 0, 1))
        d_add = _doubling(later.flip(2), slope.flip(2)).flip(2)
        return d_add * F.pad(hidden[:, :, :-1], (0, 0, 1, 0)), d_add


def _doubling(keep: Tensor, add: Tensor) -> Tensor:
    steps, T = 1, add.shape[2]
    while steps < T:
        # Before the first token there is nothing to add, so pad with zeros.
        add = add + keep * F.pad(add[:, :, :-steps], (0, 0, steps, 0))
        keep = keep * F.pad(keep[:, :, :-steps], (0, 0, steps, 0))
        steps *= 2
    return add
