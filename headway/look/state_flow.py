"""How far back the state of a recurrence depends on itself: products of the Jacobians of its steps.

    ∂state_t/∂state_s = J_t · J_{t−1} … J_{s+1},    J_t = ∂state_t/∂state_{t−1} at fixed inputs

Jacobians are computed in full at any width; beyond 256 units the largest singular value is found by power iteration.
What overflows float64 is given as infinite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headway.core import random
from headway.look.gradient_rows import GradientRows
from headway.nn.context import Context
from headway.nn.mixer import Mixer

WIDEST_SINGULAR = 256
"""The widest state whose singular values are computed."""
ITERATIONS, BLOCK = 30, 8
"""Of the power method; and how many vectors it iterates at once, since the largest singular values may lie close
together."""


@dataclass(frozen=True)
class Norms:
    """Norms of a Jacobian by distance: 0, 1, 2 …"""

    typical: list[float]
    largest: list[float] | None = None

    def up_to(self, distance: int) -> "Norms":
        reach = slice(0, distance + 1)
        return Norms(self.typical[reach], None if self.largest is None else self.largest[reach])


@dataclass(frozen=True)
class HiddenState:
    """Gradient flow through the state of one recurrence."""

    units: int
    """Size of the whole state; that of an LSTM includes hidden state and cell."""
    norms: Norms
    singular_values: list[float]
    """Singular values of a single step's Jacobian, largest first, averaged over steps. Empty for very wide states."""
    step_bound: float | None
    """An upper bound on the norm of a step's Jacobian that follows from the weights alone, for any input."""
    part: str | None = None
    """For notes: which part of the recurrence's state this is, if not all."""

    @property
    def bound(self) -> list[float] | None:
        """The bound over many steps, by distance."""
        if self.step_bound is None:
            return None
        reach = torch.arange(len(self.norms.typical), dtype=torch.float64)
        return torch.tensor(self.step_bound, dtype=torch.float64).pow(reach).tolist()


class MixerInput(NamedTuple):
    """The input of a mixer for one row."""

    x: Float[Tensor, "1 1 T D"]
    context: Context
    state: Any = None

    def of_tokens(self, behind: int) -> "MixerInput":
        """The input without padding, which does not change the state, and without the last `behind` tokens."""
        there = torch.arange(self.x.shape[2], device=self.x.device)
        if (known := self.context.padding_mask) is not None:
            there = there[known[0, 0]]
        there = there[: len(there) - behind]
        context = replace(self.context, queries=self.context.queries[there], padding_mask=None, views=[])
        return MixerInput(self.x[:, :, there], context, self.state)


def hidden_states(model: Any, rows: GradientRows) -> list[dict[str, HiddenState]]:
    """For every side, the states of all mixers whose state is a vector per row. If one stack reads both sides, its
    states are given once, for the whole row."""
    sides = {side.stack: side for side in reversed(rows.sides)}
    given = _inputs(model, rows, [mixer for stack in sides for mixer in mixers_of(model, stack).values()])
    found: list[dict[str, HiddenState]] = []
    for side in rows.sides:
        found.append({})
        for name, mixer in mixers_of(model, side.stack).items() if side is sides[side.stack] else ():
            steps = [step_jacobians(mixer, *one.of_tokens(side.behind)) for one in given[mixer]]
            if steps[0] is not None:
                found[-1][name] = _hidden_state(mixer, [one[1 - side.tokens :] for one in steps if one is not None])
    return found


def mixers_of(model: Any, stack: str) -> dict[str, Mixer]:
    """The mixers of a stack, by their names in it."""
    mixers = model.get_submodule(stack).mixers
    return {f"layers.{k}.{getattr(mixer, 'called', 'mixer')}": mixer for k, mixer in enumerate(mixers)}


def _inputs(model: Any, rows: GradientRows, mixers: Sequence[Mixer]) -> dict[Mixer, list[MixerInput]]:
    """The inputs of each mixer for every row."""
    read: dict[Mixer, list[MixerInput]] = {mixer: [] for mixer in mixers}

    def keep(found: list[MixerInput]):
        return lambda module, given: found.append(MixerInput(*given[:3]))

    hooks = [mixer.register_forward_pre_hook(keep(found)) for mixer, found in read.items()]
    try:
        with torch.no_grad():
            for row in rows.rows:
                rows.read(model, row)
    finally:
        for hook in hooks:
            hook.remove()
    return read


def step_jacobians(
    mixer: Mixer, x: Float[Tensor, "1 1 T D"], context: Context, first: Any = None
) -> Float[Tensor, "N S S"] | None:
    """∂state_t/∂state_{t−1} at every token but the first, starting from state `first`; None if the state is not a dict
    of vectors [R, B, units]."""

    def step(t: int, state: Any, rows: int) -> Any:
        slots = context.queries[t : t + 1]
        one = replace(context, shape=(1, rows), queries=slots, keys=slots, padding_mask=None, views=[])
        return mixer.advance(x[:, :, t : t + 1].detach().expand(-1, rows, -1, -1), one, state)

    with torch.no_grad():
        state = step(0, first, 1)
    if not isinstance(state, dict) or any(part.ndim != 3 for part in state.values()):
        return None
    sizes, found = [part.shape[-1] for part in state.values()], []
    for t in range(1, x.shape[2]):
        # One copy of the state per output unit: copy i gives row i of the Jacobian in a single backward pass.
        flat = torch.cat(list(state.values()), -1).expand(-1, sum(sizes), -1).detach().requires_grad_()
        after = step(t, dict(zip(state, flat.split(sizes, -1), strict=True)), sum(sizes))
        flat_after = torch.cat([after[name] for name in state], -1)[0]  # [S, S]
        found.append(torch.autograd.grad(flat_after.diagonal().sum(), flat)[0][0].double())
        state = {name: part[:, :1].detach() for name, part in after.items()}
    return torch.stack(found) if found else None


def _hidden_state(mixer: Mixer, steps: list[Float[Tensor, "N S S"]]) -> HiddenState:
    units = steps[0].shape[-1]
    typical, largest = [], []
    for jacobians in steps:
        through, norms, spectral = torch.eye(units, dtype=torch.float64, device=jacobians.device), [1.0], [1.0]
        for jacobian in jacobians.flip(0):
            through = through @ jacobian
            norms.append(_nan_as_infinite(float(through.norm())) / math.sqrt(units))
            spectral.append(_spectral_norm(through))
        typical.append(torch.tensor(norms, dtype=torch.float64))
        largest.append(torch.tensor(spectral, dtype=torch.float64))
    several = torch.cat([jacobians[:: max(1, len(jacobians) // 4)] for jacobians in steps])
    several = several[several.isfinite().flatten(1).all(1)]
    values = torch.linalg.svdvals(several).mean(0).tolist() if units <= WIDEST_SINGULAR and len(several) else []
    bound = mixer.step_bound()
    norms = Norms(torch.stack(typical).mean(0).tolist(), torch.stack(largest).mean(0).tolist())
    return HiddenState(units, norms, values, None if bound is None else bound[0].item(), mixer.advances)


def _nan_as_infinite(norm: float) -> float:
    """An overflow may give inf - inf or 0 · inf, hence NaN."""
    return math.inf if math.isnan(norm) else norm


def spectral_norms(matrices: Float[Tensor, "*N S D"]) -> Float[Tensor, "*N"]:
    """The largest singular value of each matrix; infinite for those that have overflowed."""
    finite = matrices.isfinite().flatten(-2).all(-1)
    filled = torch.where(finite[..., None, None], matrices, 0)
    return torch.where(finite, torch.linalg.matrix_norm(filled, ord=2), math.inf)


def _spectral_norm(matrix: Float[Tensor, "S S"]) -> float:
    """The largest singular value of one matrix of any width."""
    norm = float(matrix.norm())
    if len(matrix) <= WIDEST_SINGULAR or not 0 < norm < math.inf:
        return float(spectral_norms(matrix))
    matrix = matrix / norm  # otherwise the squares of small values underflow
    generator = random.generator("spectral", len(matrix))
    block = torch.randn(len(matrix), BLOCK, generator=generator, dtype=matrix.dtype).to(matrix.device)
    for _ in range(ITERATIONS):
        block = torch.linalg.qr(matrix.mT @ (matrix @ block)).Q
    return norm * float(torch.linalg.matrix_norm(matrix @ block, ord=2))
