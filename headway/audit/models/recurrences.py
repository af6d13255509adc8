"""Recurrences compared with their definitions: each direction, the whole layer, and the initial weights."""

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

SATURATING = 10
"""Factor on the usual size of a layer's input that saturates the gates, so that a state once stored is kept."""
LARGEST_STATE = 1e30
"""A state that blows up, as with ReLU: float32 overflows before the row ends."""
ODD_LENGTH = 13
"""Tokens per row: not a power of two, which scans handle best."""
STANDARD_ERRORS = 5.5
"""Tolerance of the scale of randomly drawn weights, in standard errors."""


class Compared(NamedTuple):
    """A part of a model compared with its definition."""

    what: str
    off: float
    """In standard deviations of what the definition gives."""


def recurrences(probe: Probe) -> Iterator[Compared]:
    """Compare all recurrences that have a definition, in both modes, and their initial weights if they are random."""
    layers = {name: one for name, one in probe.model.named_modules() if isinstance(one, Recurrence)}
    known = {name: one for name, one in layers.items() if one.spec.kind in definitions.RECURRENCES}

    def compared() -> list[Compared]:
        return [one for name, layer in known.items() for one in _one_layer(probe, name, layer)]

    for mode, found in probe.in_both_modes(compared).items():
        yield from (one if mode == "evaluation" else Compared(f"{one.what} in training", one.off) for one in found)
    for name, module in probe.fresh().named_modules() if known and probe.recipe.model.starts_random else ():
        for way, direction in _directions(module) if name in known else ():
            yield from _initial_weights(f"{name}.{way}", module, direction)


def _initial_weights(name: str, layer: Recurrence, direction: Direction) -> Iterator[Compared]:
    """The scale of the matrices of a recurrence with steps, and the forget bias of an LSTM, before training."""
    if not isinstance(direction, Cells):
        return
    for what, matrix in (("input", direction.input.weight), ("recurrent", direction.recurrent)):
        std, tolerance = 1 / math.sqrt(3 * layer.units), STANDARD_ERRORS / math.sqrt(2 * matrix[0].numel())
        off = abs(float(matrix[0].detach().double().square().mean().sqrt()) / std - 1)
        yield Compared(f"the initial scale of the {what} matrix of {name}", 0.0 if off <= tolerance else off)
    if isinstance(layer.spec, LstmSpec) and (bias := direction.input.bias) is not None:
        off = (bias[0].view(4, -1)[1].double().cpu() - layer.spec.forget_bias).abs().max().item()
        yield Compared(f"the initial forget bias of {name}", off)


def _directions(layer: Recurrence) -> list[tuple[str, Any]]:
    both = (("along", layer.along), ("against", layer.against))
    return [(way, direction) for way, direction in both if direction is not None]


def _one_layer(probe: Probe, name: str, layer: Recurrence) -> Iterator[Compared]:
    """Compare each direction by itself, and the output of the layer for a whole row and a padded one."""
    label = f"{layer.spec.kind} {name}"
    for way, direction in _directions(layer):
        yield from _one_direction(probe, f"{label}.{way}", layer, direction)
    width, T = probe.recipe.model.width, min(probe.length, ODD_LENGTH)
    x, slots = random_vectors(probe, 1, 2, T, width), torch.arange(T, device=probe.device)
    real = (slots < torch.tensor([T, max(1, 3 * T // 4)], device=probe.device)[:, None])[None]
    y = with_bias(layer(x, Context((1, 2), Positions(), Everything(), slots, slots, real))[0])
    for row in range(2):
        expected = _expected_output(layer, x[0, row], real[0, row])
        yield Compared(f"the output of the {label}", difference(y[0, row].double(), expected))


def _expected_output(layer: Recurrence, x: Tensor, real: Tensor) -> Tensor:
    """The hidden states of both directions for a row [T, D], concatenated, and projected if the layer does so."""
    found = []
    for way, direction in _directions(layer):
        start = tuple(x.new_zeros(layer.units) for _ in direction.parts)
        row, mask = (x, real) if way == "along" else (x.flip(0), real.flip(0))
        hidden, _ = definitions.recurrence(layer.spec, _parameters(direction), row, start, mask)
        found.append(hidden if way == "along" else hidden.flip(0))
    hidden = torch.cat(found, -1)
    if layer.output is None:
        return hidden
    projected = hidden @ layer.output.weight[0].double().mT
    return projected if layer.output.bias is None else projected + layer.output.bias[0].double()


def _parameters(direction: Direction) -> definitions.Parameters:
    """The parameters of one replica; in training, with the recurrent matrix as dropped at this step."""
    parameters = {key: p[0] for key, p in direction.named_parameters()}
    if isinstance(direction, Cells):
        parameters["recurrent"] = direction.drop(direction.recurrent)[0]
    return parameters


def _one_direction(probe: Probe, name: str, layer: Recurrence, direction: Direction) -> Iterator[Compared]:
    """Compare the hidden states and the last state: of random rows, around padding, and in a long row."""
    parameters = _parameters(direction)
    width, T = probe.recipe.model.width, min(probe.length, ODD_LENGTH)
    x = random_vectors(probe, 1, 3, T, width)
    first = random_vectors(probe, len(direction.parts), 1, 3, layer.units).abs()
    slots = torch.arange(T, device=probe.device)
    begins, ends = (torch.tensor(at, device=probe.device)[:, None] for at in ((0, T // 4, 1), (T, T, 3 * T // 4)))
    padded = ((slots >= begins) & (slots < ends))[None]
    long = SATURATING * random_vectors(probe, 1, 1, probe.length, width)
    long[:, :, probe.length // 4 :] = long[:, :, -1:]  # constant from here on, so saturated gates stay as they are
    given = (
        ("", x, first, None),
        (" around padding", x, first, padded),
        (" in a long row", long, first[:, :, :1], None),
    )
    for what, rows, start, real in given:
        hidden, last = direction(rows, start, real)
        for row in range(rows.shape[1]):
            row_mask = None if real is None else real[0, row]
            of_row = definitions.recurrence(layer.spec, parameters, rows[0, row], tuple(start[:, 0, row]), row_mask)
            expected, after = of_row
            if not max(part.abs().max() for part in (expected, *after)) <= LARGEST_STATE:
                continue
            yield Compared(f"the states of the {name}{what}", _off_state(hidden[0, row], expected))
            off = max(_off_state(part[0, row], right) for part, right in zip(last, after, strict=True))
            yield Compared(f"the last state of the {name}{what}", off)


def _off_state(found: Tensor, expected: Tensor) -> float:
    """The difference relative to the largest value, because a state that is kept has no spread over tokens."""
    return (found.double() - expected).abs().max().item() / max(expected.abs().max().item(), 1e-30)


def random_vectors(probe: Probe, *shape: int) -> Tensor:
    """Standard normal values, the same at every call."""
    return torch.randn(shape, generator=noise.generator("audit pieces")).to(probe.device)
