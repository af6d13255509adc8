"""An audit of gradients: autograd's gradient is the slope of the loss.

A gradient that is cut off somewhere (by one `detach` too many), or computed by a wrong hand-written formula, changes no
output and no loss: the model trains in another direction than it should, and learns less than it could.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import Audit, Outcome, audit, failed, passed
from headway.audit.probe import Cut, Probe
from headway.core import random as noise
from headway.nn.attention import Attention
from headway.nn.backends import Plain
from headway.nn.replicated import RMSNorm
from headway.nn.taps import intervene, watch
from headway.nn.trainable import Carried

DIRECTIONS = 2
STEPS = 1e-4, 1e-6
"""How far weights are moved, relative to their size. The second is tried if the first fails: where a model has
collapsed, one ReLU has its kink at the same place for all tokens, and the first step may cross it. (In float64,
rounding is far below both.)"""
SHIFT = 1e-2
"""How far the weights are first shifted away from those that are audited, relative to their size."""
SMALL = 1e-2
"""Share of the whole gradient's norm above which a tensor is checked in full; a smaller gradient may be rounding."""
MOST_DRAWN = 65_537
"""Maximum count of random numbers for one tensor, which are then repeated; a prime, so that rows do not repeat them."""
TOLERANCE = 0.02
"""Tolerance, relative to the gradient of one tensor. Rounding stays below a thousandth."""
NEAR = 4
"""How many tokens on either side of a position are used to follow gradients across it."""
SMALLEST_EFFECT = 1e-5
"""Smallest relative change of the output for a change of earlier embeddings; below it nothing can be compared."""
TOLERANCE_ACROSS = 0.2
"""Tolerance of the slope across a position. Where a gradient is cut off, all of it is missing."""
SHARE = 0.05
"""Share of the budget for checking single positions."""
SMALL_STEP = 1e-6
"""How far embeddings are moved, relative to their size: float64 resolves it, and hardly a ReLU crosses its kink."""


@audit("model", rests_on=("finite", "determinism", "kernel", "definition", "loss"))
def gradient(probe: Probe) -> Outcome:
    """The gradient is the slope of the loss: small changes of the weights change the loss as the gradient says.

    The gradient of the loss of a few rows is taken as in training, in training mode, with its dropout and its kernels.
    It is compared with finite differences of a float64 copy of the model with plain attention, whose loss is computed
    from its outputs in one line. The copy's weights are moved in random directions, scaled so that every tensor should
    change the loss equally, and along the gradient itself, which shows an error of its size. If the two differ by more
    than 2 % of the gradient of a single tensor, tensors are moved one by one, and for none the difference may be more
    than that. If a state is carried, rows start from one. Then, in rows of the training length, the embeddings of a few
    tokens up to a position are moved, and the outputs of the few after it must change as the gradient across this
    position says: at every position or, where that would take long, at many. If it fails, look for a `detach`, for
    weights that were copied on their way, and for a hand-written backward pass.
    """
    batch = probe.excerpt(rows=2, tokens=24)
    with _away_from_kinks(probe.model):
        before = _state_before(probe, batch)
        names, gradients = _by_autograd(probe, batch, before)
        slope = _Slopes(probe, batch, before, gradients)
        ends = _where_it_is_wrong(probe, slope.model)
    off = slope.off(range(len(names)), TOLERANCE)
    if not off <= TOLERANCE:  # rounding of many tensors adds up
        alone = {name: slope.off([k]) for k, name in enumerate(names)}
        worst = max(alone, key=lambda name: alone[name])
        if not (off := alone[worst]) <= TOLERANCE:
            sentence = f"the gradient is not the slope of the loss: that of {worst} is off by {off:.2g} of its norm"
            return failed(off, sentence)
    if ends is not None:
        sentence = f"gradients do not flow back correctly over position {ends.at} of {ends.length}"
        return failed(ends.off, f"{sentence}: the slope of the outputs after it is off by {ends.off:.0%}")
    return passed(
        off, f"the loss changes with all {len(names)} parameter tensors as its gradient says (off by {off:.1g})"
    )


def _drawn(p: Tensor, *purpose: Any) -> Tensor:
    """Random numbers of its shape; for a large tensor, a shorter sequence that is repeated, which is random enough."""
    many = min(p.numel(), MOST_DRAWN)
    drawn = torch.randn(many, generator=noise.generator(*purpose), dtype=p.dtype).to(p.device)
    return drawn.repeat(-(-p.numel() // many))[: p.numel()].view(p.shape) if many else torch.zeros_like(p)


@contextmanager
def _away_from_kinks(model: Any) -> Iterator[None]:
    """Context manager: shift the weights slightly. With a bias of 0 and a dropped word, a ReLU is exactly at its kink,
    where the loss has two slopes."""
    kept = [p.detach().clone() for p in model.parameters()]
    for k, p in enumerate(model.parameters()):
        p.add_(_drawn(p, "audit corners", k) * SHIFT * p.square().mean().sqrt().clamp(min=0.1))
    try:
        yield
    finally:
        for p, was in zip(model.parameters(), kept, strict=True):
            p.copy_(was)


def _state_before(probe: Probe, batch: Any) -> Carried | None:
    """The state that rows like these leave for the next batch, where one is carried."""
    goes_on = probe.recipe.model.remembers and probe.recipe.data.rows_go_on
    return probe.how.carry_on(probe.model, batch.inputs, None)[1] if goes_on else None


def _by_autograd(probe: Probe, batch: Any, before: Carried | None) -> tuple[list[str], list[Tensor]]:
    named = {name: p for name, p in probe.model.named_parameters() if p.requires_grad}
    probe.how.as_trained(probe.model)
    try:
        with torch.enable_grad():
            loss = probe.model.loss(batch, before)[0].sum()
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    finally:
        probe.model.eval()
    both = zip(named.values(), found, strict=True)
    return list(named), [torch.zeros_like(p) if g is None else g for p, g in both]


class _Slopes:
    """A float64 copy of the model, and how its loss changes with its weights."""

    def __init__(self, probe: Probe, batch: Any, before: Carried | None, gradients: list[Tensor]):
        self.how, self.batch, self.gradients = probe.how, batch, [g.double() for g in gradients]
        self.before = before and {name: p.double() if p.is_floating_point() else p for name, p in before.items()}
        self.model = deepcopy(probe.model).double()
        self.how.as_trained(self.model)
        for layer in self.model.modules():
            if isinstance(layer, Attention):
                layer.backend = Plain(layer.similarity)
            elif isinstance(layer, RMSNorm) and layer.eps is None:  # the machine epsilon of the model's own dtype
                layer.eps = torch.finfo(torch.float32).eps
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        whole = torch.stack([g.square().sum() for g in self.gradients]).sum().sqrt()
        least = (SMALL * whole / len(gradients) ** 0.5).clamp(min=1e-30)
        self.lengths = [torch.maximum(g.norm(), least) for g in self.gradients]

    def off(self, which: Any, tolerance: float = 0.0) -> float:
        """The difference between the finite difference of the loss and the gradient's prediction when these tensors are
        moved, relative to the gradient norm of one of them: by the first step that is within tolerance, or by the best
        step."""
        found = list[float]()
        for step in STEPS:
            found.append(self._off_by(which, step))
            if found[-1] <= tolerance:
                break
        return min(found) if all(map(math.isfinite, found)) else math.inf

    def _off_by(self, which: Any, step: float) -> float:
        """The same by one step: along the gradient, or the root mean square over random directions if that is more."""
        sizes = [self.parameters[k].square().mean().sqrt().clamp(min=0.01) for k in which]
        reach = step * min(float(size * self.lengths[k]) for k, size in zip(which, sizes, strict=True))
        along = self._off_along({k: self.gradients[k] / self.lengths[k] for k in which}, reach)
        drawn = (  # one at a time, since each is as large as the model
            {k: _drawn(self.parameters[k], "audit gradient", direction, k) for k in which}
            for direction in range(DIRECTIONS)
        )
        total = sum(self._off_along(each, reach) ** 2 for each in drawn)
        return max(abs(along), (total / DIRECTIONS) ** 0.5)

    def _off_along(self, directions: dict[int, Tensor], reach: float) -> float:
        """The difference between the two slopes if these tensors are moved in these directions."""
        moves = {k: one / self.lengths[k] for k, one in directions.items()}
        said = sum(float((self.gradients[k] * move).sum()) for k, move in moves.items())
        found = (self._loss(moves, reach) - self._loss(moves, -reach)) / (2 * reach)
        return found - said

    def _loss(self, moves: dict[int, Tensor], far: float) -> float:
        for k, move in moves.items():
            self.parameters[k].add_(move, alpha=far)
        loss = self.how.lowered(self.model, self._answers(), self.batch, self.before)
        for k, move in moves.items():
            self.parameters[k].sub_(move, alpha=far)
        return loss.item()

    def _answers(self) -> Tensor:
        if self.before is None:
            return self.how.answer_batch(self.model, self.batch)
        return self.how.carry_on(self.model, self.batch.inputs, self.before)[0]


# --- from position to position ---------------------------------------------------------------------------------------


class _Across(NamedTuple):
    """How the outputs after each cut change with the embeddings before it, for a change of the size of embeddings."""

    said: Tensor
    """By the gradient, in random directions [directions, rows]."""
    found: Tensor
    """By finite differences."""
    size: float
    """The size of the outputs."""

    @property
    def off(self) -> Tensor:
        """The relative difference of the two [rows]; 0 where both are too small to compare."""
        either = torch.maximum(self.said.norm(dim=0), self.found.norm(dim=0))
        telling = (either > SMALLEST_EFFECT * self.size) & (either > SMALL * either.median())
        return torch.where(telling, (self.said - self.found).norm(dim=0) / either.clamp(min=1e-300), 0.0)


class _End(NamedTuple):
    at: int
    length: int
    off: float


def _where_it_is_wrong(probe: Probe, in_float64: Any) -> _End | None:
    """The first position over which the gradient is missing or wrong; None if there is none."""
    for cut in probe.cuts(SHARE):
        probe.how.as_trained(probe.model)
        try:
            off = _across(probe, in_float64, cut).off
        finally:
            probe.model.eval()
        if not bool((off <= TOLERANCE_ACROSS).all()):
            return _End(int(cut.behind[off.argmax()]), cut.ids.shape[2], off.max().item())
    return None


def _across(probe: Probe, in_float64: Any, cut: Cut) -> _Across:
    far = torch.arange(cut.ids.shape[2], device=probe.device) - cut.behind[:, None]  # [rows, T]
    before, behind = (far <= 0) & (far > -NEAR), (far > 0) & (far <= NEAR)

    def summed_outputs(model: Any) -> Tensor:
        answers = probe.how.answer(model, cut.ids)[0]  # [rows, T, V], or one for each row
        signs = 1 - 2 * (7 * torch.arange(answers.shape[-1], device=probe.device) % 11 % 2)
        sums = (answers * signs).sum(-1)
        return (sums * behind).sum(-1) if probe.how.per_token else sums

    with torch.enable_grad(), watch(probe.model, "embedded") as seen:
        (gradient,) = torch.autograd.grad(summed_outputs(probe.model).sum(), seen["embedded"])
    size, said, found, moved = float(seen["embedded"].detach().square().mean().sqrt()), [], [], []
    for direction in range(DIRECTIONS):
        drawn = _drawn(gradient.double(), "audit gradient across", direction) * before[None, :, :, None] * size
        moved = []
        for far in (SMALL_STEP, -SMALL_STEP):
            with intervene(in_float64, {"embedded": lambda x, far=far, by=drawn: x + far * by}):
                moved.append(summed_outputs(in_float64))
        said.append((gradient.double() * drawn).sum((0, 2, 3)))
        found.append((moved[0] - moved[1]) / (2 * SMALL_STEP))
    return _Across(torch.stack(said), torch.stack(found), moved[0].abs().max().item())


ABOUT_GRADIENTS: tuple[Audit, ...] = (gradient,)
