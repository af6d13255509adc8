"""How far back gradients reach, by distance, for any model that reads rows of tokens, or pairs of them.

    streams   ∂top_t/∂x_s        from the input of a layer (`embedded`, `layers.k.stream`) to the output of the last
    hidden    ∂state_t/∂state_s  of a recurrence: the product of the Jacobians of its steps (`state_flow.py`)
    losses    ∂nats_t/∂x_s       the gradient norm of a row's loss (`GradientRows`) at the embedding of token s

t is the last token of a row, and s is a given distance before it. For the source of a translator, s is that distance
before the end of the source; then `embedded` and `layers.k.stream` are those of the encoder, if there is one.

A Jacobian J has two norms. The typical one, ‖J‖_F/√D, is the root mean square effect of a unit change in a random
direction (1 for the identity, so that widths can be compared). The largest, ‖J‖₂, is the effect in the worst
direction. Up to width 128 the Jacobian of a stream is computed in full. Beyond, its typical norm is Hutchinson's
estimate from 64 random sign vectors, and the largest norm is left out.

All results are averages over rows from all over a split, without dropout. Values below 1e-38 underflow in float32.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core import random
from headway.core.errors import UserError
from headway.look.gradient_rows import GradientRows
from headway.look.state_flow import HiddenState, Norms, hidden_states, spectral_norms
from headway.nn.taps import tap_names, watch

WIDEST, PROBES = 128, 64
"""The widest stream whose Jacobian is computed in full, and the number of sign vectors for wider ones."""
FEW = 4
"""The number of rows for which Jacobians are computed."""


@dataclass(frozen=True)
class SideFlow:
    """How far gradients reach along one side of the rows."""

    tokens: int
    losses: list[float]
    """Gradient norm of the loss, by distance."""
    streams: dict[str, Norms]
    """By the name of the tap x_s, in the stack that reads this side."""
    hidden: dict[str, HiddenState]
    """By the name of the recurrence in that stack."""

    def up_to(self, distance: int) -> "SideFlow":
        streams = {name: norms.up_to(distance) for name, norms in self.streams.items()}
        hidden = {name: replace(one, norms=one.norms.up_to(distance)) for name, one in self.hidden.items()}
        return SideFlow(self.tokens, self.losses[: distance + 1], streams, hidden)

    def as_json(self) -> dict[str, Any]:
        hidden = {
            name: {
                "units": one.units,
                **_as_json(one.norms),
                "bound": one.bound and _finite(one.bound),
                "step_bound": one.step_bound,
                "singular_values": _finite(one.singular_values),
            }
            for name, one in self.hidden.items()
        }
        return {
            "tokens": self.tokens,
            "losses": _finite(self.losses),
            "streams": {name: _as_json(norms) for name, norms in self.streams.items()},
            "hidden": hidden,
        }


@dataclass(frozen=True)
class GradientFlow:
    """How far gradients reach in one model."""

    title: str
    rows: GradientRows
    own: SideFlow
    """Along the side that ends with t."""
    source: SideFlow | None = None
    """Along the source, for translators."""

    @property
    def notes(self) -> list[str]:
        """Caveats for reading the curves."""
        found = list(self.rows.notes)
        for flow, whose in ((self.own, ""), (self.source, " of the source")):
            states = {} if flow is None else flow.hidden
            found += [f"the state of {name}{whose} is that of {one.part}" for name, one in states.items() if one.part]
        if self.source is not None and not any(self.source.losses):
            found.append("the source has no effect on the loss: all its gradients are zero and cannot be drawn")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.title,
            "segments": len(self.rows.rows),
            "loss_of": self.rows.loss,
            "notes": self.notes,
            **self.own.as_json(),
            "source": None if self.source is None else self.source.as_json(),
        }


def _as_json(norms: Norms) -> dict[str, Any]:
    return {"typical": _finite(norms.typical), "largest": norms.largest and _finite(norms.largest)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def gradient_flow(model: Any, rows: GradientRows, distance: int | None = None, title: str = "model") -> GradientFlow:
    """Measure how far gradients reach. `distance`: the largest distance, null = to the first token of each side."""
    if model.replicas != 1:
        raise UserError(f"gradient flow needs a single model, but this has {model.replicas} replicas: take one of them")
    furthest = max(side.tokens for side in rows.sides) - 1
    distance = furthest if distance is None else distance
    if not 0 < distance <= furthest:
        raise UserError(f"a distance of {distance}: {rows.ends}, so distances go from 1 to {furthest}")
    rows = rows.to(next(model.parameters()).device)
    few = rows.few(FEW)
    with torch.enable_grad():
        losses, streams, hidden = loss_lengths(model, rows), stream_norms(model, few), hidden_states(model, few)
    own, *source = (
        SideFlow(side.tokens, lengths, norms, states).up_to(distance)
        for side, lengths, norms, states in zip(rows.sides, losses, streams, hidden, strict=True)
    )
    return GradientFlow(title, rows, own, *source)


# --- losses ----------------------------------------------------------------------------------------------------------


def loss_lengths(model: nn.Module, rows: GradientRows) -> list[list[float]]:
    """For every side ‖∂nats_t/∂x_s‖ by distance, averaged over rows."""
    taps = [_tap(side.stack, "embedded") for side in rows.sides]
    lengths: list[list[Tensor]] = [[] for _ in taps]
    for row in rows.rows:
        with watch(model, *taps) as seen:
            nats = rows.nats(model, row).sum()
        gradients = torch.autograd.grad(nats, [seen[tap] for tap in taps], materialize_grads=True)
        for side, gradient, found in zip(rows.sides, gradients, lengths, strict=True):
            found.append(side.back(gradient[0, 0]).norm(dim=-1))
    return [torch.stack(found).double().mean(0).tolist() for found in lengths]


def _tap(stack: str, name: str) -> str:
    return f"{stack}.{name}" if stack else name


# --- streams ---------------------------------------------------------------------------------------------------------


def stream_norms(model: Any, rows: GradientRows) -> list[dict[str, Norms]]:
    """For every side, the norms of ∂top_t/∂x_s for every stream x of its stack, where top is the last layer's
    output."""
    streams = {side.stack: _streams(model, side.stack) for side in rows.sides}
    top = streams[rows.own.stack].pop()
    if not streams[rows.own.stack]:
        raise UserError("the model has no layers whose streams could be differentiated")
    taps = [_tap(stack, name) for stack, names in streams.items() for name in names]
    probes = _probes(model.spec.width, next(model.parameters()))
    squares: list[dict[str, list[Tensor]]] = [{name: [] for name in streams[side.stack]} for side in rows.sides]
    largest: list[dict[str, list[Tensor]]] = [{name: [] for name in streams[side.stack]} for side in rows.sides]
    for row in rows.rows:
        with watch(model, *taps, top) as seen:
            rows.read(model, row.copies(len(probes)))  # one copy of the row per direction
        if missing := [tap for tap in (*taps, top) if tap not in seen]:  # in ALBERT, where one layer is used many times
            raise UserError(
                f"{missing[0]} has no values: the layers of this model share a module and cannot be told apart"
            )
        t = seen[top].shape[2] - 1 - rows.own.behind
        given = [seen[tap] for tap in taps]
        jacobians = torch.autograd.grad(seen[top][0, :, t], given, probes, materialize_grads=True)  # [1, P, T, D] each
        whole = dict(zip(taps, jacobians, strict=True))
        for side, square, large in zip(rows.sides, squares, largest, strict=True):
            for name in square:
                jacobian = side.back(whole[_tap(side.stack, name)][0]).double().movedim(1, 0)  # [N, P, D]
                square[name].append(jacobian.square().sum((1, 2)))
                if len(probes) == probes.shape[1]:
                    large[name].append(spectral_norms(jacobian))
    return [
        {name: Norms(_typical(found, probes), _mean(large[name])) for name, found in square.items()}
        for square, large in zip(squares, largest, strict=True)
    ]


def _streams(model: nn.Module, stack: str) -> list[str]:
    """The taps of its layers' inputs in order, then that of the last layer's output."""
    names = tap_names(model.get_submodule(stack))
    return ["embedded", *(name for name in names if re.fullmatch(r"layers\.\d+\.stream", name))]


def _probes(width: int, like: Tensor) -> Float[Tensor, "P D"]:
    """The output directions to differentiate: the whole basis, or random sign vectors."""
    if width <= WIDEST:
        return torch.eye(width, device=like.device)
    drawn = random.generator("gradient flow", width)
    return (2.0 * torch.randint(2, (PROBES, width), generator=drawn) - 1).to(like.device)


def _typical(squares: list[Tensor], probes: Tensor) -> list[float]:
    # Each sign vector has norm √D, so dividing by the total squared norm gives the mean per unit vector.
    per_row = torch.stack(squares) / probes.square().sum()
    return per_row.sqrt().mean(0).tolist()


def _mean(values: Sequence[Tensor]) -> list[float] | None:
    return torch.stack(list(values)).mean(0).tolist() if values else None
