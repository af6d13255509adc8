"""An audit of seeds: does each replica of a population run its own seed, from its initial weights to its checkpoint?

It checks every replica, because one that runs another's seed makes confidence intervals too narrow, whichever it is.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import combinations
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import Outcome, audit, failed, passed
from headway.audit.populations.side_by_side import USUAL_RATE, SideBySide, in_a_row
from headway.audit.scores.scores import AGAIN, ROUNDED, in_float32
from headway.nn.trainable import Trainable, moving
from headway.training import schedule
from headway.training.setting import Setting
from headway.training.update import Update

TAKEN_AGAIN = 3
"""Number of training steps that are repeated."""
MAX_COSINE = 0.1
"""Maximum cosine between a checkpoint and the initial weights of another seed; by chance it is about a hundredth."""


@audit("population")
def seeds_apart(members: SideBySide) -> Outcome:
    """Each replica runs its own seed: its initial weights, data and dropout are those of that seed, and differ.

    In the population and alone, a seed must give the same initial weights and the same batches (of the first two steps
    and of the first in the second epoch), bit for bit; other seeds must give other weights, and other batches where
    batches are random at all. The runs are checked, too: the recorded loss of the first step must be what this seed has
    at its first step (within a thousandth; 2 % if training computed in bf16), and no two seeds may have recorded the
    same losses. For the first, the middle and the last replica, the next two steps are repeated alone, with the
    learning rate and optimizer of their recipe: their losses may be off by a thousandth (if training computed in
    float32, at rates up to 0.03). Finally, the checkpoint must not be correlated with the initial weights of another
    seed: a cosine above 0.1 that is more than half of that with its own is a failure. If it fails, several seeds are
    one run several times, in part or as a whole, and no interval over them is valid: look for a list of seeds, rates or
    checkpoints that is off by one, and for anything that is copied between replicas.
    """
    fresh, sampler = members.model(members.all, trained=False), members.sampler
    begins = in_a_row(fresh.parameters())
    steps = 0, 1, sampler.steps_per_epoch
    batches = [sampler.at(step).inputs for step in steps]
    for r, seed in enumerate(members.seeds):
        alone, own = members.model([r], trained=False), members.task.sampler([seed], members.device)
        if not torch.equal(begins[r], in_a_row(alone.parameters())[0]):
            both = zip(fresh.named_parameters(), alone.parameters(), strict=True)
            name = next(name for (name, p), mine in both if not torch.equal(p[r], mine[0]))
            return failed(None, f"replica {r + 1} begins with a {name} that is not that of its seed {seed}")
        for step, read in zip(steps, batches, strict=True):
            if not torch.equal(read[r], own.at(step).inputs[0]):
                return failed(None, f"replica {r + 1} does not read the batch of its seed {seed} at step {step + 1:,}")
        if members.recipes[r].training.tuning.keeps_features:  # features of the frozen part, which has no dropout
            own = members.task.with_features(alone, own, nullcontext)
        problem = _first_loss(members, r, alone, own.at(0))
        if problem is None and r in _first_middle_last(members):
            problem = _next_losses(members, r, alone, own)
        if problem is not None:
            return failed(None, problem)
    if (problem := _alike(members, begins, batches[0]) or _wrong_start(members, fresh)) is not None:
        return failed(None, problem)
    return passed(None, "weights, data and the first loss of each replica are those of its seed")


# --- what each wrote down --------------------------------------------------------------------------------------------


def _first_loss(members: SideBySide, r: int, model: Trainable, batch: Any) -> str | None:
    """What is wrong with the first loss that the run recorded; None if nothing."""
    run, recipe, lines = members.runs[r], members.recipes[r], _losses(members, r, 1)
    if run is None or not lines:
        return None
    model.train()
    parts, losses, counts = recipe.training.accumulate, [], []
    with torch.no_grad():
        for k in range(parts):
            part = batch.part(k, parts)
            model.clock.set(0, part.first_row)
            losses.append(float(model.loss(part)[0][0]))
            counted = model.counted(part)
            counts.append(1.0 if counted is None else float(counted[0]))
    model.eval()
    then, now = lines[0], sum(map(mul, losses, counts)) / sum(counts)
    if _is_near(then, now, AGAIN if in_float32(run) else ROUNDED):
        return None
    return f"{run.name} recorded a first loss of {then:.5g}; its seed {recipe.seed} begins with {now:.5g}"


def _next_losses(members: SideBySide, r: int, model: Trainable, sampler: Any) -> str | None:
    """What is wrong with the losses after it, which depend on the learning rate, the optimizer and its state; None if
    nothing. This changes the model."""
    run, recipe, lines = members.runs[r], members.recipes[r], _losses(members, r, TAKEN_AGAIN)
    spec = recipe.training
    if run is None or len(lines) < 2 or not in_float32(run) or spec.optimizer.learning_rate > USUAL_RATE:
        return None
    length = lambda one: one.in_steps(sampler.steps_per_epoch, members.task.tokens_per_step)  # noqa: E731
    total, warmup = length(spec.duration), length(spec.schedule.warmup) if spec.schedule.warmup else 0
    rates, decays = [spec.optimizer.learning_rate], [spec.optimizer.weight_decay]
    optimizer = spec.optimizer.build(moving(dict(model.named_parameters())), rates, decays)
    alive, where = torch.ones(1, dtype=torch.bool, device=members.device), torch.device(members.device)
    update = Update(model, optimizer, sampler, spec, Setting(where, torch.float32, False, False, ()), alive)
    for step, then in enumerate(lines):
        now = float(update(step, schedule.factor(spec.schedule, step, warmup, total))[0])
        if not _is_near(then, now, AGAIN):
            return (
                f"{run.name} recorded a loss of {then:.5g} at step {step + 1}; alone, with its own rate and "
                f"optimizer, it is {now:.5g}"
            )
    return None


def _losses(members: SideBySide, r: int, steps: int) -> list[float]:
    """The losses of its first steps, as far as they were recorded."""
    run = members.runs[r]
    lines = [line for line in run.metrics() if "loss" in line][:steps] if run is not None else []
    return [line["loss"] for step, line in enumerate(lines, 1) if line["step"] == step]


def _is_near(then: float, now: float, within: float) -> bool:
    return abs(then - now) <= within * max(abs(now), 0.1)


def _first_middle_last(members: SideBySide) -> set[int]:
    return {0, len(members.all) // 2, len(members.all) - 1}


# --- what two share, and should not ----------------------------------------------------------------------------------


def _alike(members: SideBySide, begins: Tensor, read: Tensor) -> str | None:
    """A sentence if replicas of different seeds have the same initial weights, first batch or losses."""
    drawn = getattr(getattr(members.recipes[0].data, "batches", None), "by_seed", False)
    curves = [[line["loss"] for line in run.metrics() if "loss" in line] if run else [] for run in members.runs]
    sums = begins.sum(1, dtype=torch.float64).tolist()  # so that only candidates are compared in full
    for a, b in combinations(members.all, 2):
        if members.seeds[a] == members.seeds[b]:
            continue
        both = f"seeds {members.seeds[a]} and {members.seeds[b]} have"
        if sums[a] == sums[b] and torch.equal(begins[a], begins[b]):
            return f"{both} the same starting weights"
        if drawn and torch.equal(read[a], read[b]):
            return f"{both} the same data"
        if curves[a] and curves[a] == curves[b]:
            return f"{both} recorded the same {len(curves[a]):,} losses"
    return None


class _Correlations(NamedTuple):
    """Of each checkpoint [R] with each seed's initial weights [S], both without the mean over replicas."""

    cosines: Tensor
    by_chance: Tensor
    """Their standard deviation for random initial weights."""


def _wrong_start(members: SideBySide, fresh: Trainable) -> str | None:
    """A sentence if a checkpoint did not come from its own initial weights. (Long training leaves no trace.)"""
    there = [r for r, weights in enumerate(members.weights) if weights is not None and _is_whole(weights)]
    starts = {members.seeds[r]: r for r in reversed(there)}
    if len(starts) < 2:
        return None
    seeds = list(starts)
    found = _towards([members.weights[r] or {} for r in there], dict(fresh.named_parameters()), list(starts.values()))
    for row, r in enumerate(there):
        own = seeds.index(members.seeds[r])
        most = found.cosines[row].clone()
        most[own] = -math.inf
        other = int(most.argmax())
        cosine, limit = float(most[other]), max(MAX_COSINE, 8 * float(found.by_chance[row, other]))
        if cosine > max(limit, 0.5 * float(found.cosines[row, own])):
            return (
                f"the checkpoint of replica {r + 1} did not come from its seed {members.seeds[r]} alone: it is "
                f"correlated with the initial weights of seed {seeds[other]} (a cosine of {cosine:.2f})"
            )
    return None


def _towards(kept: Sequence[dict[str, Tensor]], begins: dict[str, Tensor], starts: Sequence[int]) -> _Correlations:
    """Computed parameter by parameter, because all at once would need several times the memory."""
    R, S = len(kept), len(starts)
    inner, chance = torch.zeros(R, S, dtype=torch.float64), torch.zeros(R, S, dtype=torch.float64)
    lengths = torch.zeros(R, 1, dtype=torch.float64), torch.zeros(1, S, dtype=torch.float64)
    for name, p in begins.items():
        start = p.detach()[list(starts)].reshape(S, -1).double().cpu()
        start = start - start.mean(0)
        if not start.any():  # ones, zeros, or imported weights that all share
            continue
        end = torch.stack([own[name] for own in kept]).reshape(R, -1).double().cpu()
        end = torch.where(start.any(0), end - end.mean(0), 0.0)
        inner += end @ start.mT
        chance += end.square() @ start.square().mT
        lengths[0].add_(end.square().sum(1, keepdim=True))
        lengths[1].add_(start.square().sum(1)[None])
    both = (lengths[0] * lengths[1]).sqrt().clamp(min=1e-30)
    return _Correlations(inner / both, chance.sqrt() / both)


def _is_whole(weights: dict[str, Tensor]) -> bool:
    return all(bool(w.isfinite().all()) for w in weights.values())
