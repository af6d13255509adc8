"""An audit of seeds: does each member of a population run its own, from its start to what was kept of it?

It is asked of every member: one that runs another's seed makes an interval too narrow, whichever it is.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import Outcome, audit, failed, passed
from headway.audit.populations.company import asked_alone_too, companies
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
"""Steps of a training that are taken again."""
LEANS = 0.1
"""Cosine of what is left of a start, and of the start of another seed: by chance it is a hundredth."""


class WrittenLoss(NamedTuple):
    step: int
    loss: float


@audit("population")
def seeds_apart(members: SideBySide) -> Outcome:
    """Each replica runs its own seed: starting weights, data and noise are those of that seed, and differ.

    Side by side and alone, a seed must give the same starting weights and the same batches (of the first two steps and
    of the first in the second pass), to the bit; other seeds must give other weights, and other batches where batches
    are drawn at all. And the runs themselves are looked at, each of them: the loss of the first step that was written
    down must be what this seed has at its first step (within a thousandth; 2 % where training computed in bf16), and no
    two seeds may have written down the same losses. The next two steps are taken again with the rate and the optimizer
    of their recipe: their losses may be off by a thousandth (where training computed in float32, at rates up to 0.03).
    What was kept, at last, must not lean towards the start of another seed: a cosine of 0.1 that is more than half of
    that with its own. When it fails, several seeds are one run several times, in part or as a whole, and every interval
    over them is a fiction: look for a list of seeds, rates or checkpoints that is off by one, and for what is copied
    from member to member. Of more than four members two are asked alone, and all of them in two groups, where each has
    other neighbours.
    """
    fresh, sampler = members.model(members.all, trained=False), members.sampler
    read = {step: sampler.at(step).inputs for step in (0, 1, sampler.steps_per_epoch)}
    curves = [_curve(run) for run in members.runs]
    among_all = _AmongAll(fresh, in_a_row(fresh.parameters()), read, curves)
    groups = companies(members.all)
    alone = [[r] for r in asked_alone_too(groups) if [r] not in groups]
    for some in [*groups, *alone]:
        if (problem := _of_these(members, some, among_all)) is not None:
            return failed(None, problem)
    if (problem := _alike(members, among_all.begins, read[0], curves) or _leaning(members, fresh)) is not None:
        return failed(None, problem)
    return passed(None, "weights, data and the first loss of each replica are those of its seed")


class _AmongAll(NamedTuple):
    """What members have where all of them stand side by side."""

    fresh: Trainable
    begins: Tensor
    """All that it begins with, in a row [R, N]."""
    read: dict[int, Tensor]
    """By step."""
    curves: "Sequence[Sequence[WrittenLoss]]"
    """What each has written down."""


def _of_these(members: SideBySide, some: Sequence[int], among_all: _AmongAll) -> str | None:
    """What is wrong with the seeds of these, by themselves. A group for which there is no room, beside all that
    training has left on the device, is asked one by one."""
    try:
        return _of_group(members, some, among_all)
    except torch.OutOfMemoryError:
        if len(some) == 1:
            raise
    free_memory()
    return next((told for r in some if (told := _of_group(members, [r], among_all)) is not None), None)


def _of_group(members: SideBySide, some: Sequence[int], among_all: _AmongAll) -> str | None:
    seeds = [members.seeds[r] for r in some]
    model, own = members.model(some, trained=False), members.task.sampler(seeds, members.device)
    if (r := _first_that_differs(among_all.begins, in_a_row(model.parameters()), some)) is not None:
        both = zip(among_all.fresh.named_parameters(), model.parameters(), strict=True)
        name = next(name for (name, p), theirs in both if not torch.equal(p[r], theirs[some.index(r)]))
        return f"replica {r + 1} begins with a {name} that is not that of its seed {members.seeds[r]}"
    for step, read in among_all.read.items():
        if (r := _first_that_differs(read, own.at(step).inputs, some)) is not None:
            return f"replica {r + 1} reads what its seed {members.seeds[r]} does not read, at step {step + 1:,}"
    if members.recipes[some[0]].training.tuning.keeps_features:  # below which nothing is dropped
        own = members.task.with_features(model, own, nullcontext)
    problem = _first_losses(members, some, model, own.at(0), among_all.curves)
    return problem or _next_losses(members, some, model, own, among_all.curves)


def _first_that_differs(among_all: Tensor, by_themselves: Tensor, some: Sequence[int]) -> int | None:
    """Of these members, by what each has among all and what it has in this company, to the bit."""
    if torch.equal(among_all[some], by_themselves):
        return None
    both = zip(some, by_themselves, strict=True)
    return next((r for r, theirs in both if not torch.equal(among_all[r], theirs)), None)


# --- what each wrote down --------------------------------------------------------------------------------------------


def _first_losses(
    members: SideBySide, some: Sequence[int], model: Trainable, batch: Any, curves: Sequence[Sequence[WrittenLoss]]
) -> str | None:
    """What is wrong with the first losses that these have written down."""
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
            return f"{run.name} wrote down a first loss of {written[0]:.5g}; its seed {seed} begins with {now:.5g}"
    return None


def _next_losses(
    members: SideBySide, some: Sequence[int], model: Trainable, sampler: Any, curves: Sequence[Sequence[WrittenLoss]]
) -> str | None:
    """What is wrong with those after it: here they hang on the rate, the optimizer and what it remembers. The model is
    moved."""
    recipes = [members.recipes[r].training for r in some]
    spec, written = recipes[0], {place: _to_be_taken_again(members, r, curves[r]) for place, r in enumerate(some)}
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
                    f"{run and run.name} wrote down a loss of {lines[step]:.5g} at step {step + 1}; taken again, with "
                    f"its own rate and optimizer, it is {found[place]:.5g} there"
                )
    return None


def _to_be_taken_again(members: SideBySide, r: int, curve: Sequence[WrittenLoss]) -> list[float]:
    """The first losses of this member, where they can be had again to within a thousandth."""
    run, lines = members.runs[r], _losses(curve, TAKEN_AGAIN)
    if run is None or len(lines) < 2 or not in_float32(run):
        return []
    return lines if members.recipes[r].training.optimizer.learning_rate <= USUAL_RATE else []


def _curve(run: Run | None) -> list[WrittenLoss]:
    """All losses that a run has written down, with their steps."""
    return (
        [WrittenLoss(line["step"], line["loss"]) for line in run.metrics() if "loss" in line] if run is not None else []
    )


def _losses(curve: Sequence[WrittenLoss], steps: int) -> list[float]:
    """Of the first steps, as far as they were written down."""
    return [line.loss for step, line in enumerate(curve[:steps], 1) if line.step == step]


def _is_near(then: float, now: float, within: float) -> bool:
    return abs(then - now) <= within * max(abs(now), 0.1)


# --- what two share, and should not ----------------------------------------------------------------------------------


def _alike(members: SideBySide, begins: Tensor, read: Tensor, curves: Sequence[Sequence[WrittenLoss]]) -> str | None:
    """Of replicas of different seeds: their starts, what they read first, and what they wrote down."""
    drawn = getattr(getattr(members.recipes[0].data, "batches", None), "by_seed", False)
    written = [[line.loss for line in curve] for curve in curves]
    # To look closely at those alone that may be the same: there are as many pairs as members, squared.
    sums, read_sums = (own.flatten(1).sum(1, dtype=torch.float64).tolist() for own in (begins, read))
    for a, b in combinations(members.all, 2):
        if members.seeds[a] == members.seeds[b]:
            continue
        both = f"seeds {members.seeds[a]} and {members.seeds[b]} have"
        if sums[a] == sums[b] and torch.equal(begins[a], begins[b]):
            return f"{both} the same starting weights"
        if drawn and read_sums[a] == read_sums[b] and torch.equal(read[a], read[b]):
            return f"{both} the same data"
        if written[a] and written[a] == written[b]:
            return f"{both} written down the same {len(written[a]):,} losses"
    return None


class _Leaning(NamedTuple):
    """Of what each kept [R], towards each start [S]: both without what all of them have in common."""

    cosines: Tensor
    by_chance: Tensor
    """Their standard deviation, were the starts drawn anew."""


def _leaning(members: SideBySide, fresh: Trainable) -> str | None:
    """Whose weights did not come from their own start. (After a long training nothing is left of any start.)"""
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
        leans, limit = float(most[other]), max(LEANS, 8 * float(found.by_chance[row, other]))
        if leans > max(limit, 0.5 * float(found.cosines[row, own])):
            return (
                f"what replica {r + 1} kept did not come from the start of its seed {members.seeds[r]} alone: it leans "
                f"towards that of seed {seeds[other]} (a cosine of {leans:.2f})"
            )
    return None


def _towards(kept: Sequence[dict[str, Tensor]], begins: dict[str, Tensor], starts: Sequence[int]) -> _Leaning:
    """Parameter by parameter: all of them at once would fill the memory a few times over."""
    R, S = len(kept), len(starts)
    inner, chance = torch.zeros(R, S, dtype=torch.float64), torch.zeros(R, S, dtype=torch.float64)
    lengths = torch.zeros(R, 1, dtype=torch.float64), torch.zeros(1, S, dtype=torch.float64)
    for name, p in begins.items():
        start = p.detach()[list(starts)].reshape(S, -1).double().cpu()
        start = start - start.mean(0)
        if not start.any():  # ones, zeros, or what was lent to all of them
            continue
        end = torch.stack([own[name] for own in kept]).reshape(R, -1).double().cpu()
        end = torch.where(start.any(0), end - end.mean(0), 0.0)
        inner += end @ start.mT
        chance += end.square() @ start.square().mT
        lengths[0].add_(end.square().sum(1, keepdim=True))
        lengths[1].add_(start.square().sum(1)[None])
    both = (lengths[0] * lengths[1]).sqrt().clamp(min=1e-30)
    return _Leaning(inner / both, chance.sqrt() / both)
