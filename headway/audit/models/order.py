"""An audit of order: do positions matter, and does every token get its own? Checks which positions the scheme is asked
for, and whether outputs change when tokens are given other positions.
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
"""Below this the positions are not used: reordering the same sums changes less."""


@audit("model", rests_on=("determinism",))
def order(probe: Probe) -> Outcome:
    """The order of tokens matters if and only if the model has positions, and each token gets its own.

    A model with positions is watched while it reads a sentence: it must ask its position scheme for 0, 1, 2 … as the
    tokens are. Then it is given position 0 for all tokens, and shuffled positions: both must change its outputs by more
    than 1e-5 of their standard deviation, which rounding could explain. (Fresh models change by a thousandth and more.)
    In an encoder the tokens between the first and the last are also reversed (those two stay, for models that read
    their output there). With positions, or with a mixer that knows order by itself, such as a recurrence, the output
    must change. Without either it must stay within a thousandth, since the model sees a bag of words (unless a window
    shows which words are near). A decoder without positions knows order through its mask and is not checked. If it
    fails, positions are built but not used, are the same for all tokens, or order enters in another way.
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
        raise DoesNotApply("the outputs are the same whatever the model reads, so nothing can be said about order")
    if has_positions:
        if (wrong := wrong_places(probe.model, lambda: probe.answer(ids), ids.shape[2])) is not None:
            return failed(None, wrong)
        changes["giving all tokens position 0"] = difference(_placed(probe, ids, torch.zeros_like), plain)
        if ids.shape[2] > 3:
            shuffled = elsewhere(ids)
            changes["shuffling the positions"] = difference(_placed(probe, ids, lambda at: shuffled[at]), plain)
    if probe.how.looks_ahead and probe.length > 3:
        answers = probe.answer(shuffled_inside(ids))
        changes["reversing the tokens"] = difference(
            shuffled_inside(answers) if probe.how.per_token else answers, plain
        )
    if not changes:
        raise DoesNotApply("with fewer than four tokens there is no order between the first and the last")
    what = min(changes, key=lambda what: changes[what])
    change, by_itself = changes[what], any(mixer.knows_order for mixer in probe.mixers)
    has_window = any(mixer.reach and mixer.reach < ids.shape[2] for mixer in probe.mixers)
    if has_positions and not change > USED:
        said = f"the positions are not used: {what} changes the outputs by only {change:.1g} standard deviations"
        return failed(change, said, "positions not used")
    if by_itself and not change > USED:
        return failed(
            change, f"a recurrence should depend on order, but {what} changes the outputs by only {change:.1g}"
        )
    if not has_positions and not by_itself and not has_window and not change <= TINY:
        return failed(
            change, f"there are no positions, but {what} changes the output by {change:.2g} standard deviations"
        )
    return passed(change, f"{what} changes the outputs by {change:.1g} standard deviations, as it should")


def wrong_places(stack: Any, ask: Callable[[], Any], length: int) -> str | None:
    """What is wrong with the positions that the scheme is asked for while `length` tokens are read; None if nothing."""
    asked: list[Tensor] = []
    with placed(stack, lambda at: asked.append(at) or at):
        ask()
    for at in (at.reshape(-1, length) for at in asked if at.ndim):
        if not (at == torch.arange(length, device=at.device)).all():
            said = ", ".join(str(int(place)) for place in at[0, :4])
            return f"the tokens are at positions 0, 1, 2, 3 …, but the model uses positions {said} …"
    return None


def elsewhere(ids: Tensor) -> Tensor:
    """A fixed permutation of the positions."""
    return torch.argsort(torch.arange(ids.shape[2], device=ids.device) * 7919 % 10007 % 101)


def shuffled_inside(x: Tensor) -> Tensor:
    """All but the first and the last token in reverse order; applied twice, it restores the original order."""
    return torch.cat((x[:, :, :1], x[:, :, 1:-1].flip(2), x[:, :, -1:]), 2)


class _Placed(Positions):
    """A position scheme that is given other positions than those it is asked for."""

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
    """Use plain attention in place of kernels that compile the position bias and so cannot be watched; yields whether
    there were any. (`kernel` and `definition` check that those compute the same.)"""
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
    """The outputs where tokens are given other positions."""
    with placed(probe.model, place):
        return probe.answer(ids)


@contextmanager
def placed(stack: Any, place: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context manager: a stack of layers is given other positions than the true ones."""
    positions, stack.positions = stack.positions, _Placed(stack.positions, place)
    try:
        yield
    finally:
        stack.positions = positions


ABOUT_ORDER = (order,)
