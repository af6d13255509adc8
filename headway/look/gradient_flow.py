"""How far back gradients reach, by distance, for any model that reads rows of tokens, or pairs of them.

    streams   ∂top_t/∂x_s        from what a layer is given (`embedded`, `layers.k.stream`) to what the last one gives
    hidden    ∂state_t/∂state_s  of a recurrence: the product of the Jacobians of its steps (`state_flow.py`)
    losses    ∂nats_t/∂x_s       of a row's loss (`GradientRows`) in the embedding of token s: a vector, and its length

t is the last token of a row, and s the one so many tokens before it; or, of a translator's source, the one so many
before its end, whoever reads it: then `embedded` and `layers.k.stream` are the encoder's, where there is one.

A matrix J has two norms here: the typical, ‖J‖_F/√D, is what becomes of a change of length one in a random direction
(root mean square; 1 for the identity, so that widths can be compared), and the largest, ‖J‖₂, what becomes of it in the
worst. Up to a width of 128 the Jacobian of a stream is computed whole. Beyond, its typical norm is Hutchinson's
estimate from 64 random sign vectors, and the largest is left out.

Everything is an average over rows from all over a split, without dropout. Numbers below 1e-38 are lost in float32.
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
from headway.look.state_flow import HiddenState, Norms, hidden_states, spectral
from headway.nn.taps import tap_names, watch

WIDEST, PROBES = 128, 64
"""The widest stream whose Jacobian is computed whole; and how many sign vectors there are beyond."""
FEW = 4
"""Rows that Jacobians are computed in."""


@dataclass(frozen=True)
class SideFlow:
    """How far gradients reach along one side of the rows."""

    tokens: int
    losses: list[float]
    """By distance."""
    streams: dict[str, Norms]
    """By the name of the tap that is differentiated by, in the stack that reads this side."""
    hidden: dict[str, HiddenState]
    """By the name of the recurrence there."""

    def up_to(self, distance: int) -> "SideFlow":
        streams = {name: norms.up_to(distance) for name, norms in self.streams.items()}
        hidden = {name: replace(one, norms=one.norms.up_to(distance)) for name, one in self.hidden.items()}
        return SideFlow(self.tokens, self.losses[: distance + 1], streams, hidden)

    def as_json(self) -> dict[str, Any]:
        hidden = {
            name: {
                "units": one.units,
                **_told(one.norms),
                "bound": one.bound and _finite(one.bound),
                "step_bound": one.step_bound,
                "singular_values": _finite(one.singular_values),
            }
            for name, one in self.hidden.items()
        }
        return {
            "tokens": self.tokens,
            "losses": _finite(self.losses),
            "streams": {name: _told(norms) for name, norms in self.streams.items()},
            "hidden": hidden,
        }


@dataclass(frozen=True)
class GradientFlow:
    """Of one model."""

    title: str
    rows: GradientRows
    own: SideFlow
    """Along the side that ends with t."""
    source: SideFlow | None = None
    """Along the source, of a translator."""

    @property
    def notes(self) -> list[str]:
        """What should be known where the curves are read."""
        found = list(self.rows.notes)
        for flow, whose in ((self.own, ""), (self.source, " of the source")):
            states = {} if flow is None else flow.hidden
            found += [f"the state of {name}{whose} is that of {one.part}" for name, one in states.items() if one.part]
        if self.source is not None and not any(self.source.losses):
            found.append("nothing of the source reaches the loss: all its gradients are zero, and cannot be drawn")
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


def _told(norms: Norms) -> dict[str, Any]:
    return {"typical": _finite(norms.typical), "largest": norms.largest and _finite(norms.largest)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def gradient_flow(model: Any, rows: GradientRows, distance: int | None = None, title: str = "model") -> GradientFlow:
    """`distance`: how far to look, null = to the first token of each side."""
    if model.replicas != 1:
        raise UserError(
            f"gradients are followed in one model, and these are {model.replicas} replicas: take one of them"
        )
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
    """Of every side ‖∂nats_t/∂x_s‖, by distance: the mean over rows."""
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
    """Of every side, of ∂top_t/∂x_s for every stream x that its stack has up to the last layer's of the model, top."""
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
            rows.read(model, row.copies(len(probes)))  # a copy of the row for every direction
        if missing := [tap for tap in (*taps, top) if tap not in seen]:  # of ALBERT, one layer many times
            raise UserError(f"nothing flows by {missing[0]}: the layers of this model cannot be told apart")
        t = seen[top].shape[2] - 1 - rows.own.behind
        given = [seen[tap] for tap in taps]
        jacobians = torch.autograd.grad(seen[top][0, :, t], given, probes, materialize_grads=True)  # [1, P, T, D] each
        whole = dict(zip(taps, jacobians, strict=True))
        for side, square, large in zip(rows.sides, squares, largest, strict=True):
            for name in square:
                jacobian = side.back(whole[_tap(side.stack, name)][0]).double().movedim(1, 0)  # [N, P, D]
                square[name].append(jacobian.square().sum((1, 2)))
                if len(probes) == probes.shape[1]:
                    large[name].append(spectral(jacobian))
    return [
        {name: Norms(_typical(found, probes), _mean(large[name])) for name, found in square.items()}
        for square, large in zip(squares, largest, strict=True)
    ]


def _streams(model: nn.Module, stack: str) -> list[str]:
    """What its layers are given, the first first; and what the last one gives."""
    names = tap_names(model.get_submodule(stack))
    return ["embedded", *(name for name in names if re.fullmatch(r"layers\.\d+\.stream", name))]


def _probes(width: int, like: Tensor) -> Float[Tensor, "P D"]:
    """The directions whose changes are followed back: all of them, or random signs."""
    if width <= WIDEST:
        return torch.eye(width, device=like.device)
    drawn = random.generator("gradient flow", width)
    return (2.0 * torch.randint(2, (PROBES, width), generator=drawn) - 1).to(like.device)


def _typical(squares: list[Tensor], probes: Tensor) -> list[float]:
    # Sign vectors have length √D each: together they are as long as so many unit vectors.
    per_row = torch.stack(squares) / probes.square().sum()
    return per_row.sqrt().mean(0).tolist()


def _mean(values: Sequence[Tensor]) -> list[float] | None:
    return torch.stack(list(values)).mean(0).tolist() if values else None
