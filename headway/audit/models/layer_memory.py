"""What each layer remembers of earlier batches, checked layer by layer: exactly what its recipe says.

If only some layers remember, or positions restart in every batch, the outputs of the model differ from those of one
pass, so they cannot show whether the past was lost. A single layer can: its input in every batch is known, and one pass
over as much of it as the layer should remember must give the same output.
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
"""Minimum number: the second and the third continue from a state."""
MOST = 64
"""Maximum number of batches, where it takes many to fill a long memory; one that is longer still is not filled."""


class LayerMemory(NamedTuple):
    layer: str
    past: str
    """What the layer should remember, as a phrase."""
    off: float
    """In standard deviations of the output of one pass."""


def memory_by_layer(probe: Probe) -> Iterator[LayerMemory]:
    """Check every layer that carries a state."""
    specs, size = probe.recipe.model.mixers, max(1, probe.length // BATCHES)
    longest = max((int(one.remembers) for one in specs if math.isfinite(one.remembers)), default=0)
    batches = max(BATCHES, min(MOST, math.ceil((longest + 1) / size) + 1))  # more than any layer should remember
    text = probe.sentences[:, :ROWS].repeat(1, 1, math.ceil(batches * size / probe.length))
    with _recording(probe.model.mixers) as recorded:
        state, goes_on = CarriedState(), torch.zeros((), dtype=torch.bool, device=probe.device)
        for piece in text[:, :, : batches * size].split(size, dim=2):
            _, after = probe.how.carry_on(probe.model, piece, state.before(0, 1, goes_on) if state else None)
            state.after(0, 1, after or {})
    for k, (mixer, spec) in enumerate(zip(probe.model.mixers, specs, strict=True)):
        if not spec.remembers:
            continue
        # A recurrence is read for a few batches only: over thousands of tokens, some amplify rounding errors greatly.
        last = (batches if math.isfinite(spec.remembers) else BATCHES) - 1
        past = int(min(last * size, spec.remembers))
        read = torch.cat(recorded[mixer].read[: last + 1], 2)[:, :, last * size - past :]
        slots = torch.arange(read.shape[2], device=probe.device)
        context = Context((read.shape[0], read.shape[1]), probe.model.positions, probe.model.mask, slots, slots)
        at_once = with_bias(mixer(read, context)[0])[:, :, -size:]
        words = "all that came before" if math.isinf(spec.remembers) else f"the {int(spec.remembers)} slots before"
        yield LayerMemory(f"layer {k} ({spec.kind})", words, difference(recorded[mixer].given[last], at_once))


class _Recorded:
    """The input and output of a layer in every batch."""

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
