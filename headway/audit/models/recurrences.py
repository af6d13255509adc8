"""Recurrences beside their definitions: each direction, the whole layer, and how it starts."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.models import definitions
from headway.audit.probe import Probe, difference
from headway.core import random as noise
from headway.nn.context import Context
from headway.nn.masks import Everything
from headway.nn.positions import Positions
from headway.nn.recurrence import Cells, Direction, LstmSpec, Recurrence
from headway.nn.replicated import with_bias

LOUD = 10
"""Times as large as the vectors that layers usually read: gates are open or shut, and what was kept once is kept."""
TOO_LARGE = 1e30
"""A state that blows up, as that of a ReLU may: float32 ends before the row does."""
BY_CHANCE = 5.5
"""Standard errors that numbers which are drawn may be off by."""


class Compared(NamedTuple):
    what: str
    off: float
    """Of the spread of what the definition gives."""


def recurrences(probe: Probe) -> Iterator[Compared]:
    layers = {name: one for name, one in probe.model.named_modules() if isinstance(one, Recurrence)}
    known = {name: one for name, one in layers.items() if one.spec.kind in definitions.RECURRENCES}

    def compared() -> list[Compared]:
        return [one for name, layer in known.items() for one in _one_recurrence(probe, name, layer)]

    for mode, found in probe.in_both_modes(compared).items():
        yield from (one if mode == "evaluation" else Compared(f"{one.what} in training", one.off) for one in found)
    for name, module in probe.fresh().named_modules() if known else ():
        for way, direction in _directions(module) if name in known else ():
            yield from _as_it_starts(f"{name}.{way}", module, direction)


def _as_it_starts(name: str, layer: Recurrence, direction: Direction) -> Iterator[Compared]:
    """Before training: how far the matrices of its steps reach, and the forget gates."""
    if not isinstance(direction, Cells):
        return
    for what, matrix in (("input", direction.input.weight), ("recurrent", direction.recurrent)):
        usual, chance = 1 / math.sqrt(3 * layer.units), BY_CHANCE / math.sqrt(2 * matrix[0].numel())
        off = abs(float(matrix[0].detach().double().square().mean().sqrt()) / usual - 1)
        yield Compared(f"how large the {what} matrix of {name} starts", 0.0 if off <= chance else off)
    if isinstance(layer.spec, LstmSpec) and (bias := direction.input.bias) is not None:
        off = (bias[0].view(4, -1)[1].double().cpu() - layer.spec.forget_bias).abs().max().item()
        yield Compared(f"where the forget gate of {name} starts", off)


def _directions(layer: Recurrence) -> list[tuple[str, Any]]:
    both = (("along", layer.along), ("against", layer.against))
    return [(way, direction) for way, direction in both if direction is not None]


def _one_recurrence(probe: Probe, name: str, layer: Recurrence) -> Iterator[Compared]:
    named = f"{layer.spec.kind} {name}"
    for way, direction in _directions(layer):
        yield from _one_direction(probe, f"{named}.{way}", layer, direction)
    width, T = probe.recipe.model.width, min(probe.length, 13)
    x, slots = random_vectors(probe, 1, 2, T, width), torch.arange(T, device=probe.device)
    real = (slots < torch.tensor([T, max(1, 3 * T // 4)], device=probe.device)[:, None])[None]
    y = with_bias(layer(x, Context((1, 2), Positions(), Everything(), slots, slots, real))[0])
    for row in range(2):
        expected = _of_all_directions(layer, x[0, row], real[0, row])
        yield Compared(f"what the {named} gives", difference(y[0, row].double(), expected))


def _of_all_directions(layer: Recurrence, x: Tensor, real: Tensor) -> Tensor:
    """The hidden states of a row [T, D], side by side, and the map that follows where there is one."""
    found = []
    for way, direction in _directions(layer):
        start = tuple(x.new_zeros(layer.units) for _ in direction.parts)
        rows, told = (x, real) if way == "along" else (x.flip(0), real.flip(0))
        hidden, _ = definitions.recurrence(layer.spec, _of_this_step(direction), rows, start, told)
        found.append(hidden if way == "along" else hidden.flip(0))
    hidden = torch.cat(found, -1)
    if layer.output is None:
        return hidden
    mapped = hidden @ layer.output.weight[0].double().mT
    return mapped if layer.output.bias is None else mapped + layer.output.bias[0].double()


def _of_this_step(direction: Direction) -> definitions.Parameters:
    """Of one replica, as training has them now: some of the weights are left out."""
    parameters = {key: p[0] for key, p in direction.named_parameters()}
    if isinstance(direction, Cells):
        parameters["recurrent"] = direction.drop(direction.recurrent)[0]
    return parameters


def _one_direction(probe: Probe, name: str, layer: Recurrence, direction: Direction) -> Iterator[Compared]:
    parameters = _of_this_step(direction)
    width, T = probe.recipe.model.width, min(probe.length, 13)  # no power of two, as scans like it
    x, first = (
        random_vectors(probe, 1, 3, T, width),
        random_vectors(probe, len(direction.parts), 1, 3, layer.units).abs(),
    )
    slots = torch.arange(T, device=probe.device)
    begins, ends = (torch.tensor(at, device=probe.device)[:, None] for at in ((0, T // 4, 1), (T, T, 3 * T // 4)))
    padded, long = ((slots >= begins) & (slots < ends))[None], LOUD * random_vectors(probe, 1, 1, probe.length, width)
    long[:, :, probe.length // 4 :] = long[:, :, -1:]  # from then on, what a gate keeps it keeps to the end
    given = (
        ("", x, first, None),
        (" around padding", x, first, padded),
        (" in a long row", long, first[:, :, :1], None),
    )
    for what, rows, start, real in given:
        hidden, last = direction(rows, start, real)
        for row in range(rows.shape[1]):
            told = None if real is None else real[0, row]
            of_row = definitions.recurrence(layer.spec, parameters, rows[0, row], tuple(start[:, 0, row]), told)
            expected, after = of_row
            if not max(part.abs().max() for part in (expected, *after)) <= TOO_LARGE:
                continue
            yield Compared(f"the states of the {name}{what}", _off_state(hidden[0, row], expected))
            off = max(_off_state(part[0, row], right) for part, right in zip(last, after, strict=True))
            yield Compared(f"the last state of the {name}{what}", off)


def _off_state(found: Tensor, expected: Tensor) -> float:
    """Beside its largest number: a state that is kept does not vary from token to token."""
    return (found.double() - expected).abs().max().item() / max(expected.abs().max().item(), 1e-30)


def random_vectors(probe: Probe, *shape: int) -> Tensor:
    return torch.randn(shape, generator=noise.generator("audit pieces")).to(probe.device)
