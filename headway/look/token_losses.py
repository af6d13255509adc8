"""What a model loses on a text, token by token, as it is and with some of its heads switched off.

A head is switched off by what it brings: zeros flow on in the place of what it mixed (`….mixed`), and everything else
stays. The difference of the losses is what the head did for each token; what others would do in its place, had they
been trained without it, is another question.
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
    """Of a text, of a translation; or the names of classes."""
    nats: list[float | None]
    """One per piece; None where there was nothing to predict it from."""
    what: str
    """What is lost on what, in words."""
    notes: tuple[str, ...] = ()
    """What should be known of it."""


Losing = Callable[[], TokenLosses]
"""Asks the model, as it is now, about what was settled before: one translation, for example."""
Heads = Mapping[str, Sequence[int]]
"""By the path of their attention: `layers.0.attention`."""


@torch.no_grad()
def switched_off(model: nn.Module, losing: Losing, heads: Heads) -> TokenLosses:
    """The same losses while these heads bring nothing."""
    taps = {f"{path}.mixed": without_head(*numbers) for path, numbers in heads.items() if numbers}
    if not taps:
        return losing()
    with intervene(model, taps), watch(model, *taps) as seen:
        found = losing()
    if missing := [tap for tap in taps if tap not in seen]:
        path = missing[0].removesuffix(".mixed")
        raise UserError(f"{path} computes its heads in a way of its own: they cannot be switched off one by one")
    return found


@torch.no_grad()
def each_switched_off(model: nn.Module, losing: Losing, counts: Mapping[str, int]) -> dict[tuple[str, int], float]:
    """How much is lost in all, in nats, by switching off one head after the other; `counts`: heads by path."""
    before = _total(losing())
    return {
        (path, head): _total(switched_off(model, losing, {path: [head]})) - before
        for path, count in counts.items()
        for head in range(count)
    }


def _total(losses: TokenLosses) -> float:
    return sum(nats for nats in losses.nats if nats is not None)
