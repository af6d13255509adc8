"""An audit of the state carried from batch to batch: is it the past of the same rows, and nothing else?"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models.layer_memory import memory_by_layer
from headway.audit.probe import TINY, Probe, difference
from headway.nn.positions import NoPositions
from headway.nn.replicated import Noisy
from headway.nn.trainable import Carried
from headway.training.carried import CarriedState
from headway.training.setting import Setting
from headway.training.update import Update

SMALLEST_EFFECT = 1e-4
"""Smallest relative change of the loss that shows whether the state was used."""


@audit("model", rests_on=("determinism",))
def carried_state(probe: Probe) -> Outcome:
    """A carried state comes from the same rows, has no gradient, and is reset where rows start anew.

    Sentences are read in three pieces, each continuing from the state of the one before, stored as training stores it.
    Where every layer remembers all pieces (a recurrence always does, attention as far as its memory goes), the outputs
    must equal those of one pass, within a thousandth of their standard deviation. Then a piece is read whose rows start
    anew: its outputs must equal those of a piece with nothing before it. The stored state must have no gradient. Layer
    by layer, in any model, the output in the last of several batches must equal that of one pass over the preceding
    tokens: all of them for a recurrence, as many as the memory has slots for attention, and no more. Last, training
    itself takes four steps over such pieces, in as many parts as training.accumulate says and without changing a
    weight. The state that each row starts from must be the one that this row leaves when it is read alone, whatever
    layers and positions the model has, and the loss must be computed from that state. If it fails, the model learns
    from a past that its rows never had, and no score shows it. Look for rows or parts of a batch that were swapped, for
    a state of the batch before last or of another layer, for swapped parts of a state, for memory that is too long, too
    short, misplaced or used before it is filled, for a forgotten reset, and for a loss computed without the state.
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
        return failed(
            len(attached), f"the carried state ({attached[0]}) still has a gradient: the graph grows with every step"
        )
    fresh, _ = probe.how.carry_on(probe.model, pieces[0], None)
    anew = difference(_after_reset(probe, pieces), fresh, probe.answers)
    if not anew <= TINY:
        return failed(
            anew, f"where rows start anew, the outputs still depend on earlier rows: by {anew:.2g} standard deviations"
        )
    if lost := next((one for one in memory_by_layer(probe) if not one.off <= TINY), None):
        said = f"{lost.layer} gives another output in a later batch than in one pass over {lost.past}"
        return failed(lost.off, f"{said}: off by {lost.off:.2g} standard deviations")
    if problem := _in_training(probe, min(size, (ids.shape[2] - 1) // 3)):
        return failed(None, problem)
    own = "in training every row continues from its own state, and from zeros where it starts anew"
    if least < 2 * size:
        return passed(anew, f"{own}; not every layer has enough memory to compare with one pass")
    if math.isinf(least) and not isinstance(spec.positions, NoPositions):  # a recurrence carries no count of positions
        return passed(
            anew, f"{own}; {spec.positions.kind} positions start at 0 in every batch, so one pass would differ"
        )
    worst = difference(torch.cat(answers, 2).detach(), probe.answers)
    if not worst <= TINY:
        return failed(
            worst, f"outputs for sentences read in three batches differ from those of one pass by {worst:.2g}"
        )
    return passed(worst, f"reading in several batches gives the outputs of one pass (largest difference {worst:.1g})")


def _read(probe: Probe, pieces: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs for one piece after the other, as consecutive training batches, and the state kept at the end."""
    state, answers, begins = CarriedState(), [], torch.zeros((), dtype=torch.bool, device=probe.device)
    for piece in pieces:
        before = state.before(0, 1, begins) if state else None
        found, after = probe.how.carry_on(probe.model, piece, before)
        state.after(0, 1, after or {})
        answers.append(found)
    return answers, state.here


def _after_reset(probe: Probe, pieces: list[Tensor]) -> Tensor:
    """The outputs for the first piece, in rows that start anew after others were read."""
    state, begins = CarriedState(), torch.ones((), dtype=torch.bool, device=probe.device)
    state.after(0, 1, probe.how.carry_on(probe.model, pieces[-1], None)[1] or {})
    return probe.how.carry_on(probe.model, pieces[0], state.before(0, 1, begins))[0]


# --- steps of training -----------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """What the loss of a part of a batch was computed from, and its value."""

    batch: Any
    before: Carried | None
    loss: float


def _in_training(probe: Probe, size: int) -> str | None:
    """What is wrong with the states that training steps give to their rows, as a sentence; None if nothing is."""
    if size < 1:
        return None
    ids, parts = probe.sentences, math.gcd(probe.recipe.training.accumulate, probe.sentences.shape[1])
    left = _states_alone(probe, [ids[:, :, k * size : (k + 1) * size] for k in (0, 1)])
    given = _steps(probe, [_piece(probe, k, size, begins=n in (0, 3)) for n, k in enumerate((0, 1, 2, 0))], parts)
    for n, (batch, before, loss) in enumerate(given):
        step = n // parts
        rows = slice(batch.first_row, batch.first_row + batch.inputs.shape[1])
        if step in (0, 3):
            if any(bool(kept.any()) for kept in (before or {}).values()):
                return (
                    f"in training, rows that start anew continue from those of the step before (part {n % parts + 1})"
                )
            continue
        if not _same(before or {}, {name: kept[:, rows] for name, kept in left[step - 1].items()}):
            which = f"step {step + 1}" + (f", part {n % parts + 1} of {parts}" if parts > 1 else "")
            return f"in training, rows do not continue from the state they leave when read alone ({which})"
        with_it, without = (
            float(probe.how.lowered(probe.model, probe.how.carry_on(probe.model, batch.inputs, state)[0], batch, state))
            for state in (before, None)
        )
        if not abs(loss - with_it) <= max(abs(with_it - without) / 4, SMALLEST_EFFECT * abs(with_it)):
            return f"the training loss does not use the state: it is {loss:.5g}; with the state it is {with_it:.5g}"
    return None


def _piece(probe: Probe, k: int, size: int, begins: bool) -> Any:
    """A training batch: the k-th piece of all sentences, with the next token of each as target."""
    inputs, targets = (probe.sentences[:, :, k * size + ahead : (k + 1) * size + ahead] for ahead in (0, 1))
    return replace(probe.batch, inputs=inputs, targets=targets, begins=torch.tensor(begins, device=probe.device))


def _states_alone(probe: Probe, pieces: list[Tensor]) -> list[Carried]:
    """The states after each piece, with every row read by itself."""
    left: list[list[Carried]] = [[] for _ in pieces]
    for row in range(pieces[0].shape[1]):
        state = None
        for k, piece in enumerate(pieces):
            _, state = probe.how.carry_on(probe.model, piece[:, row : row + 1], state)
            left[k].append(state or {})
    return [{name: torch.cat([one[name] for one in rows], 1) for name in rows[0]} for rows in left]


def _steps(probe: Probe, batches: list[Any], parts: int) -> list[_Given]:
    """Real training steps on these batches, without dropout or other noise, and without the optimizer's update."""
    model, clock, found = probe.model, probe.model.clock, []
    was, alive = (int(clock.step), clock.first_row), torch.ones(1, dtype=torch.bool, device=probe.device)
    spec = probe.recipe.training.model_copy(update={"accumulate": parts})
    setting = Setting(probe.device, torch.float32, False, False, ())
    update = Update(model, _NoOptimizer(model), _InOrder(batches), spec, setting, alive)  # pyright: ignore

    def watched(part: Any, before: Carried | None) -> Any:
        losses, after = model.loss(part, before)
        found.append(_Given(part, before, losses.detach()[0].item()))
        return losses, after

    update.loss = watched
    model.train()
    for place in model.modules():
        if isinstance(place, Noisy):
            place.eval()
    try:
        with torch.enable_grad():
            for step in range(len(batches)):
                update(step, 1.0)
    finally:
        model.eval()
        clock.set(was[0])
        clock.first_row = was[1]
    return found


class _NoOptimizer:
    """A stand-in for an optimizer; it changes no weight."""

    def __init__(self, model: Any):
        self.parameters = list(model.parameters())

    def step(self, factor: Tensor, alive: Tensor, limit: float | None = None) -> Tensor:
        return torch.zeros_like(alive, dtype=torch.float32)


class _InOrder:
    """A sampler that returns these batches in order."""

    def __init__(self, batches: list[Any]):
        self.batches, self.steps_per_epoch = batches, len(batches)

    def at(self, step: Any) -> Any:
        return self.batches[int(step)]


def _same(one: Carried, other: Carried) -> bool:
    """Equal up to rounding."""
    if one.keys() != other.keys():
        return False
    pairs = [(one[name].double(), kept.double()) for name, kept in other.items()]
    return all(bool((a - b).abs().max() <= TINY * b.abs().max()) for a, b in pairs)


ABOUT_CARRYING: tuple[Audit, ...] = (carried_state,)
