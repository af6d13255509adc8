"""What each layer remembers of earlier batches, layer by layer: what its recipe says, no less and no more.

A model in which one layer remembers and another does not answers otherwise than in one pass, and so does one whose
positions begin anew in every batch. Its answers cannot tell whether the past was lost on the way. A layer can: what it
read is known, batch after batch, and one pass over as much of it as the layer is to remember must give the same.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.probe import Probe, difference
from headway.nn.context import Context
from headway.nn.mixer import Mixer
from headway.nn.replicated import with_bias
from headway.training.carried import CarriedState

ROWS = 2
BATCHES = 3
"""At least: the second and the third go on from something."""
MOST = 64
"""Batches, where a memory is so long that it takes many to fill it: one that is longer still is not filled."""


class LayerMemory(NamedTuple):
    layer: str
    past: str
    """What it is to remember, in words."""
    off: float
    """Of the spread of what one pass gives."""


def memory_by_layer(probe: Probe) -> Iterator[LayerMemory]:
    """Of every layer that carries anything."""
    specs, size = probe.recipe.model.mixers, max(1, probe.length // BATCHES)
    longest = max((int(one.remembers) for one in specs if math.isfinite(one.remembers)), default=0)
    batches = max(BATCHES, min(MOST, math.ceil((longest + 1) / size) + 1))  # more than anybody is to remember
    text = probe.sentences[:, :ROWS].repeat(1, 1, math.ceil(batches * size / probe.length))
    with _recording(probe.model.mixers) as recorded:
        state, goes_on = CarriedState(), torch.zeros((), dtype=torch.bool, device=probe.device)
        for piece in text[:, :, : batches * size].split(size, dim=2):
            _, after = probe.how.carry_on(probe.model, piece, state.before(0, 1, goes_on) if state else None)
            state.after(0, 1, after or {})
    for k, (mixer, spec) in enumerate(zip(probe.model.mixers, specs, strict=True)):
        if not spec.remembers:
            continue
        # A state is read for a few batches only: over thousands of tokens, some blow up the last digit to a whole one.
        last = (batches if math.isfinite(spec.remembers) else BATCHES) - 1
        past = int(min(last * size, spec.remembers))
        read = torch.cat(recorded[mixer].read[: last + 1], 2)[:, :, last * size - past :]
        slots = torch.arange(read.shape[2], device=probe.device)
        context = Context((read.shape[0], read.shape[1]), probe.model.positions, probe.model.mask, slots, slots)
        at_once = with_bias(mixer(read, context)[0])[:, :, -size:]
        words = "all that came before" if math.isinf(spec.remembers) else f"the {int(spec.remembers)} slots before"
        yield LayerMemory(f"layer {k} ({spec.kind})", words, difference(recorded[mixer].given[last], at_once))


class _Recorded:
    """What a layer read in every batch, and what it gave."""

    def __init__(self) -> None:
        self.read: list[Tensor] = []
        self.given: list[Tensor] = []

    def __call__(self, mixer: Mixer, read: tuple[Any, ...], given: tuple[Any, Any]) -> None:
        self.read.append(read[0])
        self.given.append(with_bias(given[0]))


@contextmanager
def _recording(mixers: list[Mixer]) -> Iterator[dict[Mixer, _Recorded]]:
    recorded = {mixer: _Recorded() for mixer in mixers}
    hooks = [mixer.register_forward_hook(own) for mixer, own in recorded.items()]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
