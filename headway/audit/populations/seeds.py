"""An audit of seeds: does each replica of a population run its own seed, from its initial weights to its checkpoint?

It checks every replica, because one that runs another's seed makes confidence intervals too narrow, whichever it is.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import Outcome, audit, failed, passed
from headway.audit.populations.control_groups import also_alone, control_groups
from headway.audit.populations.side_by_side import USUAL_RATE, SideBySide, in_a_row
from headway.audit.probe import are_finite
from headway.audit.scores.scores import AGAIN, ROUNDED, in_float32
from headway.nn.trainable import Trainable, moving
from headway.run.folder import Run
from headway.training import schedule
from headway.training.capacity import free_memory
from headway.training.setting import Setting
from headway.training.update import Update

TAKEN_AGAIN = 3
"""Number of training steps that are repeated."""
ENOUGH_ROWS = 6
"""Number of different rows from which on two seeds hardly ever read the same batches by chance."""
MAX_COSINE = 0.1
"""Maximum cosine between a checkpoint and the initial weights of another seed; by chance it is about a hundredth."""


class RecordedLoss(NamedTuple):
    step: int
    loss: float


@audit("population")
def seeds_apart(members: SideBySide) -> Outcome:
    """Each replica runs its own seed: its initial weights, data and dropout are those of that seed, and differ.

    In the population and alone, a seed must give the same initial weights and the same batches (of the first two steps
    and of the first in the second epoch), bit for bit; other seeds must give other weights, and other batches where
    batches are random at all and have at least six different rows. The runs are checked, too: the recorded loss of the
    first step must be what this seed has at its first step (within a thousandth; 2 % if training computed in bf16), and
    no two seeds may have recorded the same losses. The next two steps are repeated with the learning rate and optimizer
    of their recipe: their losses may be off by a thousandth (if training computed in float32, at rates up to 0.03).
    Finally, the checkpoint must not be correlated with the initial weights of another seed: a cosine above 0.1 that is
    more than half of that with its own is a failure. In populations of more than four, "alone" means in two groups,
    where each replica has other neighbours, and one of each group by itself. If it fails, several seeds are one run
    several times, in part or as a whole, and no interval over them is valid: look for a list of seeds, rates or
    checkpoints that is off by one, and for anything that is copied between replicas.
    """
    fresh, sampler = members.model(members.all, trained=False), members.sampler
    read = {step: sampler.at(step).inputs for step in (0, 1, sampler.steps_per_epoch)}
    curves = [_curve(run) for run in members.runs]
    population = _Population(fresh, in_a_row(fresh.parameters()), read, curves)
    groups = control_groups(members.all)
    alone = [[r] for r in also_alone(groups) if [r] not in groups]
    for some in [*groups, *alone]:
        if (problem := _problem_of(members, some, population)) is not None:
            return failed(None, problem)
    if (problem := _alike(members, population) or _wrong_start(members, fresh)) is not None:
        return failed(None, problem)
    return passed(None, "weights, data and the first loss of each replica are those of its seed")


class _Population(NamedTuple):
    """All members as one model, untrained, with what they recorded in training."""

    fresh: Trainable
    begins: Tensor
    """All initial weights of each member [R, N]."""
    read: dict[int, Tensor]
    """The inputs of some steps, by step."""
    curves: "Sequence[Sequence[RecordedLoss]]"


def _problem_of(members: SideBySide, some: Sequence[int], population: _Population) -> str | None:
    """What is wrong with the seeds of this group; None if nothing. A group that does not fit into memory, next to
    everything that training has left on the device, is checked one by one."""
    try:
        return _problem_of_group(members, some, population)
    except torch.OutOfMemoryError:
        if len(some) == 1:
            raise
    free_memory()
    return next((found for r in some if (found := _problem_of_group(members, [r], population)) is not None), None)


def _problem_of_group(members: SideBySide, some: Sequence[int], population: _Population) -> str | None:
    seeds = [members.seeds[r] for r in some]
    model, own = members.model(some, trained=False), members.task.sampler(seeds, members.device)
    if (r := _first_that_differs(population.begins, in_a_row(model.parameters()), some)) is not None:
        both = zip(population.fresh.named_parameters(), model.parameters(), strict=True)
        name = next(name for (name, p), theirs in both if not torch.equal(p[r], theirs[some.index(r)]))
        return f"replica {r + 1} begins with a {name} that is not that of its seed {members.seeds[r]}"
    for step, read in population.read.items():
        if (r := _first_that_differs(read, own.at(step).inputs, some)) is not None:
            return f"replica {r + 1} does not read the batch of its seed {members.seeds[r]} at step {step + 1:,}"
    if members.recipes[some[0]].training.tuning.keeps_features:  # features of the frozen part, which has no dropout
        own = members.task.with_features(model, own, nullcontext)
    problem = _first_losses(members, some, model, own.at(0), population.curves)
    return problem or _next_losses(members, some, model, own, population.curves)


def _first_that_differs(in_population: Tensor, in_group: Tensor, some: Sequence[int]) -> int | None:
    """The first of these members whose row in the group is not that in the population, bit for bit."""
    if torch.equal(in_population[some], in_group):
        return None
    both = zip(some, in_group, strict=True)
    return next((r for r, theirs in both if not torch.equal(in_population[r], theirs)), None)


# --- recorded losses -------------------------------------------------------------------------------------------------


def _first_losses(
    members: SideBySide, some: Sequence[int], model: Trainable, batch: Any, curves: Sequence[Sequence[RecordedLoss]]
) -> str | None:
    """What is wrong with the first losses that these members recorded; None if nothing."""
    lines = [_losses(curves[r], 1) for r in some]
    if not any(lines):
        return None
    model.train()
    parts, losses, counts = members.recipes[some[0]].training.accumulate, [], []
    with torch.no_grad():
        for k in range(parts):
            part = batch.part(k, parts)
            model.clock.set(0, part.first_row)
            losses.append(model.loss(part)[0])
            counted = model.counted(part)
            counts.append(torch.ones_like(losses[-1]) if counted is None else counted.to(losses[-1]))
    model.eval()
    each, counted = torch.stack(losses).double(), torch.stack(counts).double()
    found = ((each * counted).sum(0) / counted.sum(0)).tolist()
    for r, written, now in zip(some, lines, found, strict=True):
        run = members.runs[r]
        if run is None or not written:
            continue
        if not _is_near(written[0], now, AGAIN if in_float32(run) else ROUNDED):
            seed = members.seeds[r]
            return f"{run.name} recorded a first loss of {written[0]:.5g}; its seed {seed} begins with {now:.5g}"
    return None


def _next_losses(
    members: SideBySide, some: Sequence[int], model: Trainable, sampler: Any, curves: Sequence[Sequence[RecordedLoss]]
) -> str | None:
    """What is wrong with the losses after it, which depend on the learning rate, the optimizer and its state; None if
    nothing. This changes the model."""
    recipes = [members.recipes[r].training for r in some]
    spec, written = recipes[0], {place: _repeatable(members, r, curves[r]) for place, r in enumerate(some)}
    if not (steps := max(map(len, written.values()))):
        return None
    length = lambda one: one.in_steps(sampler.steps_per_epoch, members.task.tokens_per_step)  # noqa: E731
    total, warmup = length(spec.duration), length(spec.schedule.warmup) if spec.schedule.warmup else 0
    rates, decays = zip(*((one.optimizer.learning_rate, one.optimizer.weight_decay) for one in recipes), strict=True)
    optimizer = spec.optimizer.build(moving(dict(model.named_parameters())), rates, decays)
    alive, where = torch.ones(len(some), dtype=torch.bool, device=members.device), torch.device(members.device)
    update = Update(model, optimizer, sampler, spec, Setting(where, torch.float32, False, False, ()), alive)
    for step in range(steps):
        found = update(step, schedule.factor(spec.schedule, step, warmup, total))[0].tolist()
        for place, lines in written.items():
            if step < len(lines) and not _is_near(lines[step], found[place], AGAIN):
                run = members.runs[some[place]]
                return (
                    f"{run and run.name} recorded a loss of {lines[step]:.5g} at step {step + 1}; repeated, with its "
                    f"own rate and optimizer, it is {found[place]:.5g}"
                )
    return None


def _repeatable(members: SideBySide, r: int, curve: Sequence[RecordedLoss]) -> list[float]:
    """The first losses of this member, if they can be reproduced within a thousandth; otherwise none."""
    run, lines = members.runs[r], _losses(curve, TAKEN_AGAIN)
    if run is None or len(lines) < 2 or not in_float32(run):
        return []
    return lines if members.recipes[r].training.optimizer.learning_rate <= USUAL_RATE else []


def _curve(run: Run | None) -> list[RecordedLoss]:
    lines = run.metrics() if run is not None else []
    return [RecordedLoss(line["step"], line["loss"]) for line in lines if "loss" in line]


def _losses(curve: Sequence[RecordedLoss], steps: int) -> list[float]:
    """The losses of the first steps, as far as they were recorded."""
    return [line.loss for step, line in enumerate(curve[:steps], 1) if line.step == step]


def _is_near(then: float, now: float, within: float) -> bool:
    return abs(then - now) <= within * max(abs(now), 0.1)


# --- what two share, and should not ----------------------------------------------------------------------------------


def _alike(members: SideBySide, population: _Population) -> str | None:
    """A sentence if replicas of different seeds have the same initial weights, batches or losses."""
    drawn = getattr(getattr(members.recipes[0].data, "batches", None), "by_seed", False)
    begins, batches = population.begins, list(population.read.values())
    written = [[line.loss for line in curve] for curve in population.curves]
    # Only pairs with equal sums are compared in full, because the number of pairs grows quadratically.
    sums, read_sums = (own.flatten(1).sum(1, dtype=torch.float64).tolist() for own in (begins, batches[0]))
    for a, b in combinations(members.all, 2):
        if members.seeds[a] == members.seeds[b]:
            continue
        both = f"seeds {members.seeds[a]} and {members.seeds[b]} have"
        if sums[a] == sums[b] and torch.equal(begins[a], begins[b]):
            return f"{both} the same starting weights"
        same = drawn and read_sums[a] == read_sums[b] and all(torch.equal(read[a], read[b]) for read in batches)
        if same and _differ([read[a] for read in batches]):
            return f"{both} the same data"
        if written[a] and written[a] == written[b]:
            return f"{both} written down the same {len(written[a]):,} losses"
    return None


def _differ(batches: Sequence[Tensor]) -> bool:
    """Whether these batches have so many different rows that another seed would read them in another order."""
    different = {tuple(row) for batch in batches for row in batch.flatten(1).tolist()}
    return len(different) >= min(ENOUGH_ROWS, sum(map(len, batches)))


class _Correlations(NamedTuple):
    """Of each checkpoint [R] with each seed's initial weights [S], both without the mean over replicas."""

    cosines: Tensor
    by_chance: Tensor
    """Their standard deviation for random initial weights."""


def _wrong_start(members: SideBySide, fresh: Trainable) -> str | None:
    """A sentence if a checkpoint did not come from its own initial weights. (Long training leaves no trace.)"""
    there = [r for r, weights in enumerate(members.weights) if weights is not None and are_finite(weights.values())]
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
