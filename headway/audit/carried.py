"""An audit of what is carried from batch to batch: is it the past of the same rows, and nothing but that?"""

import math

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import TINY, Probe, difference
from headway.nn.positions import NoPositions
from headway.training.carried import CarriedState


@audit("model", rests_on=("determinism",))
def carried_state(probe: Probe) -> Outcome:
    """A state that is carried is the past of the same rows, has no gradient, and is gone where rows begin anew.

    Sentences are read in three pieces, each going on from what the one before left, kept as training keeps it. Where
    every layer remembers all of them (a recurrence always does, attention as far as its memory goes) the answers must
    be those of one pass, within a thousandth of their spread. Then a piece is read whose rows begin anew: its answers
    must be those of a piece that nothing came before. And what is kept must have no gradient. When it fails, look for
    rows that changed places, for a state of the batch before last, for memory that stands at the wrong places or is
    looked at before there is any, for a reset that was forgotten: the model learns from a past that its rows never had,
    and nothing else tells.
    """
    spec, ids = probe.recipe.model, probe.sentences
    if not spec.remembers:
        raise DoesNotApply("no layer of this model carries a state from batch to batch")
    least = min(one.remembers for one in spec.mixers)
    size = max(1, int(min(ids.shape[2] // 3, least // 2 if math.isfinite(least) else math.inf)))
    pieces = [piece for piece in ids.split((size, size, ids.shape[2] - 2 * size), dim=2) if piece.shape[2]]
    with torch.enable_grad():
        answers, kept = _read(probe, pieces)
    if attached := [name for name, tensor in kept.items() if tensor.requires_grad or tensor.grad_fn is not None]:
        return failed(len(attached), f"what is carried ({attached[0]}) still has a gradient: it grows with every step")
    fresh, _ = probe.how.carry_on(probe.model, pieces[0], None)
    anew = difference(_begun_anew(probe, pieces), fresh, probe.answers)
    if not anew <= TINY:
        return failed(anew, f"where rows begin anew, the answers still depend on those before: by {anew:.2g}")
    if least < 2 * size:
        return passed(anew, "rows that begin anew know nothing of those before; not every layer remembers, so no more")
    if math.isinf(least) and not isinstance(spec.positions, NoPositions):  # a recurrence carries no slots to count on
        words = f"{spec.positions.kind} positions begin at 0 in every batch, so no more"
        return passed(anew, f"rows that begin anew know nothing of those before; {words}")
    worst = difference(torch.cat(answers, 2).detach(), probe.answers)
    if not worst <= TINY:
        return failed(worst, f"read in three batches, sentences get other answers than at once, by {worst:.2g}")
    return passed(worst, f"going on from batch to batch gives the answers of one pass (largest difference {worst:.1g})")


def _read(probe: Probe, pieces: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """One piece after the other, as batches of training follow each other; and what is kept at the end."""
    state, answers, begins = CarriedState(), [], torch.zeros((), dtype=torch.bool, device=probe.device)
    for piece in pieces:
        before = state.before(0, 1, begins) if state else None
        found, after = probe.how.carry_on(probe.model, piece, before)
        state.after(0, 1, after or {})
        answers.append(found)
    return answers, state.here


def _begun_anew(probe: Probe, pieces: list[Tensor]) -> Tensor:
    """The first piece, in rows of which others were read before."""
    state, begins = CarriedState(), torch.ones((), dtype=torch.bool, device=probe.device)
    state.after(0, 1, probe.how.carry_on(probe.model, pieces[-1], None)[1] or {})
    return probe.how.carry_on(probe.model, pieces[0], state.before(0, 1, begins))[0]


ABOUT_CARRYING: tuple[Audit, ...] = (carried_state,)
