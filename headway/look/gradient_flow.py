"""How far back gradients reach, by distance, for any model that reads rows of tokens.

    streams   ∂top_t/∂x_s        from what a layer is given (`embedded`, `layers.k.stream`) to what the last one gives
    hidden    ∂state_t/∂state_s  of a recurrence: the product of the Jacobians of its steps, what it reads held fixed
    losses    ∂nats_t/∂x_s       of a row's loss (`FollowedRows`) in the embedding of token s: a vector, and its length

t is the last token of a row, and s the one so many tokens before it. A matrix J has two norms here: the typical,
‖J‖_F/√D, is what becomes of a change of length one in a random direction (root mean square; 1 for the identity, so that
widths can be compared), and the largest, ‖J‖₂, what becomes of it in the worst. Up to a width of 128 the Jacobian of a
stream is computed whole. Beyond, its typical norm is Hutchinson's estimate from 64 random sign vectors, and the largest
is left out. Hidden states have whole Jacobians at any width; beyond 256 the largest is found by power iteration.

Everything is an average over rows from all over a split, without dropout. Numbers below 1e-38 are lost in float32.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.core import random
from headway.core.errors import UserError
from headway.look.followed import FollowedRows
from headway.nn.context import Context
from headway.nn.mixer import Mixer
from headway.nn.taps import tap_names, watch

WIDEST, PROBES = 128, 64
"""The widest stream whose Jacobian is computed whole; and how many sign vectors there are beyond."""
WIDEST_SINGULAR = 256
"""The widest state whose singular values are computed."""
ROUNDS = 30
"""Of power iteration."""


@dataclass(frozen=True)
class Norms:
    """Of one Jacobian, by distance: 0, 1, 2 …"""

    typical: list[float]
    largest: list[float] | None = None


@dataclass(frozen=True)
class HiddenState:
    """The state of one recurrence."""

    units: int
    """All of it: an LSTM has a hidden state and a cell."""
    norms: Norms
    singular_values: list[float]
    """Of the Jacobian of a single step, the largest first: each the mean over steps. Empty for very wide states."""
    step_bound: float | None
    """What the weights alone allow: no step's Jacobian has a larger norm, whatever is read."""

    @property
    def bound(self) -> list[float] | None:
        """… and so for many steps, by distance."""
        return None if self.step_bound is None else [self.step_bound**n for n in range(len(self.norms.typical))]


@dataclass(frozen=True)
class GradientFlow:
    """Of one model."""

    title: str
    rows: FollowedRows
    losses: list[float]
    """By distance."""
    streams: dict[str, Norms]
    """By the name of the tap that is differentiated by."""
    hidden: dict[str, HiddenState]
    """By the name of the recurrence."""
    notes: tuple[str, ...] = ()
    """What should be known where the curves are read."""

    def as_json(self) -> dict[str, Any]:
        hidden = {
            name: {
                "units": one.units,
                **_told(one.norms),
                "bound": one.bound,
                "step_bound": one.step_bound,
                "singular_values": _finite(one.singular_values),
            }
            for name, one in self.hidden.items()
        }
        return {
            "run": self.title,
            "tokens": self.rows.reach,
            "segments": self.rows.ids.shape[1],
            "loss_of": self.rows.loss,
            "notes": list(self.notes),
            "losses": _finite(self.losses),
            "streams": {name: _told(norms) for name, norms in self.streams.items()},
            "hidden": hidden,
        }


def _told(norms: Norms) -> dict[str, Any]:
    return {"typical": _finite(norms.typical), "largest": norms.largest and _finite(norms.largest)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def gradient_flow(model: Any, rows: FollowedRows, distance: int | None = None, title: str = "model") -> GradientFlow:
    """`distance`: how far to look, null = from the last token to the first."""
    tokens = rows.reach
    distance = tokens - 1 if distance is None else distance
    if not 0 < distance < tokens:
        raise UserError(f"a distance of {distance}: {rows.ends}, so distances go from 1 to {tokens - 1}")
    device = next(model.parameters()).device
    rows = replace(rows, ids=rows.ids.to(device), targets=rows.targets.to(device))
    few = rows.ids[:, :: max(1, rows.ids.shape[1] // 4)][:, :4]
    with torch.enable_grad():
        losses = loss_lengths(model, rows)
        streams = stream_norms(model, few, rows.behind)
        hidden = hidden_states(model, few, rows.behind)
    reach = slice(0, distance + 1)
    parts = [(name, mixer) for name, mixer in _mixers(model).items() if name in hidden and mixer.advances]

    def cut(norms: Norms) -> Norms:
        return Norms(norms.typical[reach], None if norms.largest is None else norms.largest[reach])

    return GradientFlow(
        title,
        rows,
        losses[reach],
        {name: cut(norms) for name, norms in streams.items()},
        {name: replace(one, norms=cut(one.norms)) for name, one in hidden.items()},
        (*rows.notes, *(f"the state of {name} is that of {mixer.advances}" for name, mixer in parts)),
    )


# --- losses ----------------------------------------------------------------------------------------------------------


def loss_lengths(model: nn.Module, rows: FollowedRows, at_once: int = 8) -> list[float]:
    """‖∂nats_t/∂x_s‖, by t − s: the mean over rows."""
    found = []
    for ids, targets in zip(rows.ids.split(at_once, dim=1), rows.targets.split(at_once, dim=1), strict=True):
        with watch(model, "embedded") as seen:
            nats = rows.nats(model, ids, targets).sum()
        (gradient,) = torch.autograd.grad(nats, seen["embedded"])
        found.append(gradient[0, :, : rows.reach].norm(dim=-1))
    return torch.cat(found).double().mean(0).flip(0).tolist()


# --- streams ---------------------------------------------------------------------------------------------------------


def stream_norms(model: Any, rows: Int[Tensor, "1 S T"], behind: int = 0) -> dict[str, Norms]:
    """Of ∂top_t/∂x_s, for every stream x up to the last layer's, top; `behind`: tokens that stand behind t."""
    t = rows.shape[-1] - 1 - behind
    *sources, top = ["embedded", *(name for name in tap_names(model) if re.fullmatch(r"layers\.\d+\.stream", name))]
    if not sources:
        raise UserError("the model has no layers whose streams could be differentiated")
    probes = _probes(model.spec.width, rows)
    squares: dict[str, list[Tensor]] = {name: [] for name in sources}
    largest: dict[str, list[Tensor]] = {name: [] for name in sources}
    for row in rows.unbind(1):
        with watch(model, *sources, top) as seen:
            model.hidden(row[:, None].expand(-1, len(probes), -1))  # a copy of the row for every direction
        if missing := [name for name in (*sources, top) if name not in seen]:  # of ALBERT, one layer many times
            raise UserError(f"nothing flows by {missing[0]}: the layers of this model cannot be told apart")
        given = [seen[name] for name in sources]
        jacobians = torch.autograd.grad(seen[top][0, :, t], given, probes)  # [1, P, T, D] each
        for name, whole in zip(sources, jacobians, strict=True):
            jacobian = whole[:, :, : t + 1]
            squares[name].append(jacobian[0].double().square().sum((0, 2)).flip(0))  # [T]
            if len(probes) == probes.shape[1]:
                values = torch.linalg.matrix_norm(jacobian[0].double().movedim(1, 0), ord=2)
                largest[name].append(values.flip(0))
    # Sign vectors have length √D each: together they are as long as so many unit vectors.
    return {name: Norms(_typical(squares[name], probes), _mean(largest[name])) for name in sources}


def _probes(width: int, like: Tensor) -> Float[Tensor, "P D"]:
    """The directions whose changes are followed back: all of them, or random signs."""
    if width <= WIDEST:
        return torch.eye(width, device=like.device)
    drawn = random.generator("gradient flow", width)
    return (2.0 * torch.randint(2, (PROBES, width), generator=drawn) - 1).to(like.device)


def _typical(squares: list[Tensor], probes: Tensor) -> list[float]:
    per_row = torch.stack(squares) / probes.square().sum()
    return per_row.sqrt().mean(0).tolist()


def _mean(values: Sequence[Tensor]) -> list[float] | None:
    return torch.stack(list(values)).mean(0).tolist() if values else None


# --- hidden states ---------------------------------------------------------------------------------------------------


def hidden_states(model: Any, rows: Int[Tensor, "1 S T"], behind: int = 0) -> dict[str, HiddenState]:
    """Of every mixer whose state is a vector per row."""
    mixers = _mixers(model)
    read: dict[str, tuple[Tensor, Context]] = {}

    def keep(name: str):
        return lambda module, given: read.__setitem__(name, given[:2])

    hooks = [mixer.register_forward_pre_hook(keep(name)) for name, mixer in mixers.items()]
    try:
        with torch.no_grad():
            model.hidden(rows)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for name, mixer in mixers.items():
        x, context = read[name]
        x = x[:, :, : x.shape[2] - behind]
        steps = [step_jacobians(mixer, x[:, row : row + 1], context) for row in range(x.shape[1])]
        if steps[0] is not None:
            found[name] = _hidden_state(mixer, [one for one in steps if one is not None])
    return found


def _mixers(model: Any) -> dict[str, Mixer]:
    return {f"layers.{k}.{getattr(mixer, 'called', 'mixer')}": mixer for k, mixer in enumerate(model.mixers)}


def step_jacobians(mixer: Mixer, x: Float[Tensor, "1 1 T D"], context: Context) -> Float[Tensor, "N S S"] | None:
    """∂state_t/∂state_{t−1} at every token but the first; None where the state is not vectors [R, B, units] by name."""

    def step(t: int, state: Any, rows: int) -> Any:
        slots = context.queries[t : t + 1]
        one = replace(context, shape=(1, rows), queries=slots, keys=slots, padding_mask=None, views=[])
        return mixer.advance(x[:, :, t : t + 1].detach().expand(-1, rows, -1, -1), one, state)

    with torch.no_grad():
        state = step(0, None, 1)
    if not isinstance(state, dict) or any(part.ndim != 3 for part in state.values()):
        return None
    sizes, found = [part.shape[-1] for part in state.values()], []
    for t in range(1, x.shape[2]):
        # A copy of the state for every number of the next one, of which each copy is asked for another.
        flat = torch.cat(list(state.values()), -1).expand(-1, sum(sizes), -1).detach().requires_grad_()
        after = step(t, dict(zip(state, flat.split(sizes, -1), strict=True)), sum(sizes))
        told = torch.cat([after[name] for name in state], -1)[0]  # [S, S]
        found.append(torch.autograd.grad(told.diagonal().sum(), flat)[0][0].double())
        state = {name: part[:, :1].detach() for name, part in after.items()}
    return torch.stack(found) if found else None


def _hidden_state(mixer: Mixer, steps: list[Float[Tensor, "N S S"]]) -> HiddenState:
    units = steps[0].shape[-1]
    typical, largest = [], []
    for jacobians in steps:
        through, norms, spectral = torch.eye(units, dtype=torch.float64, device=jacobians.device), [1.0], [1.0]
        for jacobian in jacobians.flip(0):
            through = through @ jacobian
            norms.append(float(through.norm()) / math.sqrt(units))
            spectral.append(_spectral(through))
        typical.append(torch.tensor(norms, dtype=torch.float64))
        largest.append(torch.tensor(spectral, dtype=torch.float64))
    several = torch.cat([jacobians[:: max(1, len(jacobians) // 4)] for jacobians in steps])
    values = torch.linalg.svdvals(several).mean(0).tolist() if units <= WIDEST_SINGULAR else []
    bound = mixer.step_bound()
    return HiddenState(
        units, Norms(_mean(typical) or [], _mean(largest)), values, None if bound is None else bound[0].item()
    )


def _spectral(matrix: Float[Tensor, "S S"]) -> float:
    """The largest singular value."""
    if len(matrix) <= WIDEST_SINGULAR:
        return float(torch.linalg.matrix_norm(matrix, ord=2))
    v = torch.ones(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(ROUNDS):
        v = matrix.mT @ (matrix @ v)
        v = v / v.norm().clamp(min=torch.finfo(v.dtype).tiny)
    return float((matrix @ v).norm())
