"""Audits of order: do positions matter, and is every token at its own? Both what position schemes are asked for, and
whether answers change when a token is told another place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import TINY, Probe, difference
from headway.nn.attention import Attention
from headway.nn.backends import BACKENDS
from headway.nn.positions import NoPositions, Positions

USED = 1e-5
"""What other sums of the same numbers do not reach: less than this, and the positions are not used."""


@audit("model", rests_on=("determinism",))
def order(probe: Probe) -> Outcome:
    """The order of words matters if and only if the model has positions, and each token stands at its own.

    A model with positions is watched while it asks them about a sentence: it must ask about 0, 1, 2 … as the tokens
    stand. Then it is told that all tokens stand at position 0, and that they stand in a shuffled order: its answers
    must notice either, by more than the hundred-thousandth of their spread that rounding explains. (Fresh models move
    by a thousandth and more.) In an encoder the words between the first and the last are reversed as well (those two
    stay, for models that read their answer there): with positions, or with a mixer that knows order by itself as a
    recurrence does, the answer must move, and without either it must stay, within a thousandth of the spread, for it
    sees a bag of words. A decoder without positions knows order through its mask, and is not asked. When it fails,
    positions are built but not used, are the same for all tokens, or order comes in by another door.
    """
    if probe.length < 2:
        raise DoesNotApply("one token has no order")
    has_positions = not isinstance(probe.recipe.model.positions, NoPositions)
    if not has_positions and not probe.how.looks_ahead:
        raise DoesNotApply("a decoder without positions knows order through its mask")
    with written_out(probe) as replaced:
        return _order(probe, has_positions, probe.answer(probe.sentences) if replaced else probe.answers)


def _order(probe: Probe, has_positions: bool, plain: Tensor) -> Outcome:
    ids = probe.sentences
    changes: dict[str, float] = {}
    if difference(plain, plain[:, :1]) <= USED:
        raise DoesNotApply("its answers are the same whatever it reads, so nothing can be told of order")
    if has_positions:
        if (wrong := wrong_places(probe.model, lambda: probe.answer(ids), ids.shape[2])) is not None:
            return failed(None, wrong)
        changes["all tokens at position 0"] = difference(_placed(probe, ids, torch.zeros_like), plain)
        if ids.shape[2] > 3:
            shuffled = elsewhere(ids)
            changes["shuffled positions"] = difference(_placed(probe, ids, lambda at: shuffled[at]), plain)
    if probe.how.looks_ahead and probe.length > 3:
        answers = probe.answer(shuffled_inside(ids))
        changes["words in reverse"] = difference(shuffled_inside(answers) if probe.how.per_token else answers, plain)
    if not changes:
        raise DoesNotApply("fewer than four tokens have no order between the first and the last")
    what = min(changes, key=lambda what: changes[what])
    change, by_itself = changes[what], any(mixer.knows_order for mixer in probe.mixers)
    if has_positions and not change > USED:
        said = f"the positions are not used: {what} move the answers by only {change:.1g} of the spread"
        return failed(change, said, "positions not used")
    if by_itself and not change > USED:
        return failed(change, f"a recurrence reads in order, but {what} move the answers by only {change:.1g}")
    if not has_positions and not by_itself and not change <= TINY:
        return failed(change, f"there are no positions, but {what} move the answer by {change:.2g} of the spread")
    return passed(change, f"{what} move the answers by {change:.1g} of their spread, as they should")


def wrong_places(stack: Any, ask: Callable[[], Any], length: int) -> str | None:
    """What is wrong with the places that positions are asked about, while so many tokens are read."""
    asked: list[Tensor] = []
    with placed(stack, lambda at: asked.append(at) or at):
        ask()
    for at in (at.reshape(-1, length) for at in asked if at.ndim):
        if not (at == torch.arange(length, device=at.device)).all():
            said = ", ".join(str(int(place)) for place in at[0, :4])
            return f"the tokens stand at 0, 1, 2, 3 …, but the positions are asked about {said} …"
    return None


def elsewhere(ids: Tensor) -> Tensor:
    """For each slot another, in no order."""
    return torch.argsort(torch.arange(ids.shape[2], device=ids.device) * 7919 % 10007 % 101)


def shuffled_inside(x: Tensor) -> Tensor:
    """All but the first token and the last in reverse; twice, they are where they were."""
    return torch.cat((x[:, :, :1], x[:, :, 1:-1].flip(2), x[:, :, -1:]), 2)


class _Placed(Positions):
    """A scheme that is told other positions than those it is asked about."""

    def __init__(self, scheme: Positions, place: Callable[[Tensor], Tensor]):
        super().__init__()
        self.scheme, self.place, self.has_bias, self.limit = scheme, place, scheme.has_bias, scheme.limit

    def embed(self, x, at):
        return self.scheme.embed(x, self.place(at))

    def rotate(self, x, at):
        return self.scheme.rotate(x, self.place(at))

    def bias(self, replica, head, i, j):
        return self.scheme.bias(replica, head, self.place(i), self.place(j))

    def for_heads(self, heads):
        return _Placed(self.scheme.for_heads(heads), self.place)


@contextmanager
def written_out(probe: Probe) -> Iterator[bool]:
    """With plain attention for kernels that positions cannot be listened to in; gives whether there were any. (Whether
    those compute the same is asked by `kernel` and `definition`.)"""
    fused = [one for one in probe.model.modules() if isinstance(one, Attention) and one.backend.compiles_bias]
    kept = [layer.backend for layer in fused]
    try:
        for layer in fused:
            layer.backend = BACKENDS["plain"]
        yield bool(fused)
    finally:
        for layer, backend in zip(fused, kept, strict=True):
            layer.backend = backend


def _placed(probe: Probe, ids: Tensor, place: Callable[[Tensor], Tensor]) -> Tensor:
    """The answers where tokens are said to stand elsewhere."""
    with placed(probe.model, place):
        return probe.answer(ids)


@contextmanager
def placed(stack: Any, place: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """As long as this lasts, a stack of layers is told that tokens stand elsewhere than they do."""
    positions, stack.positions = stack.positions, _Placed(stack.positions, place)
    try:
        yield
    finally:
        stack.positions = positions


ABOUT_ORDER = (order,)
