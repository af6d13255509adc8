"""The loss of a model on a text, token by token, as it is and with some of its heads switched off.

A head is switched off by replacing its output (`….mixed`) with zeros; everything else stays. The difference of the
losses is what the head contributes to each token. It does not show what a model trained without the head would do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from headway.core.errors import UserError
from headway.nn.taps import intervene, watch, without_head


@dataclass(frozen=True)
class TokenLosses:
    pieces: list[str]
    """The tokens of a text or translation, or the names of classes."""
    nats: list[float | None]
    """One per piece; None where there was no context to predict it from."""
    what: str
    """For headings: what the losses are of."""
    notes: tuple[str, ...] = ()
    """Caveats."""


Losing = Callable[[], TokenLosses]
"""Computes the losses with the model as it is now, on a fixed text or translation."""
Heads = Mapping[str, Sequence[int]]
"""Head numbers by the path of their attention, such as `layers.0.attention`."""


@torch.no_grad()
def switched_off(model: nn.Module, losing: Losing, heads: Heads) -> TokenLosses:
    """The losses with the outputs of these heads set to zero."""
    taps = {f"{path}.mixed": without_head(*numbers) for path, numbers in heads.items() if numbers}
    if not taps:
        return losing()
    with intervene(model, taps), watch(model, *taps) as seen:
        found = losing()
    if missing := [tap for tap in taps if tap not in seen]:
        path = missing[0].removesuffix(".mixed")
        raise UserError(f"{path} does not compute its heads separately, so they cannot be switched off one by one")
    return found


@torch.no_grad()
def each_switched_off(model: nn.Module, losing: Losing, counts: Mapping[str, int]) -> dict[tuple[str, int], float]:
    """The increase of the total loss in nats from switching off each head alone; `counts`: number of heads by path."""
    before = _total(losing())
    return {
        (path, head): _total(switched_off(model, losing, {path: [head]})) - before
        for path, count in counts.items()
        for head in range(count)
    }


def _total(losses: TokenLosses) -> float:
    return sum(nats for nats in losses.nats if nats is not None)
