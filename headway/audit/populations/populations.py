"""Audits of populations: R replicas in one model, trained and scored together.

The audits of a model look at one replica alone, and with R = 1 every module takes a special path: faults that occur
only with several replicas are invisible to them. Here up to three replicas are put into one model, as in training, and
each is compared with itself alone: its outputs, its gradient, two of its steps. Whether each runs its own seed is
checked for all of them (`seeds.py`). The findings hold for all replicas.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, Report, audit, failed, passed, run_audits
from headway.audit.models.answers import LEAK
from headway.audit.populations.seeds import seeds_apart
from headway.audit.populations.side_by_side import USUAL_RATE, SideBySide, in_a_row
from headway.audit.probe import TINY, difference
from headway.nn.trainable import Trainable
from headway.training.update import Update

COUNTS = 1e-3
"""Relative to the largest gradient: weights with a smaller one move by rounding, which optimizers scale up to steps."""
SAME_STEPS = 0.05
"""Tolerance relative to what two steps change. The steps of two different replicas differ by more than their length."""


@audit("population")
def beside_others(members: SideBySide) -> Outcome:
    """A replica gives the same outputs in a population as alone.

    Up to three replicas, with their final weights, read rows of their own training data: together in one model, as they
    were trained and scored, and each alone. Outputs and losses must be the same, in evaluation and in training mode
    (whose dropout depends on the seed and the step alone), but for rounding: a thousandth of the standard deviation. If
    it fails, no finding about a replica alone holds for what was trained: look for masks, norms and biases that are
    broadcast over the wrong axis where there is more than one replica.
    """
    batch, worst = members.batch(), 0.0
    differing: list[str] = []

    def look(mode: str) -> None:
        nonlocal worst
        answers, losses = members.answers(members.together, batch), members.together.loss(batch)[0]
        for r, alone in enumerate(members.alone):
            own = members.batch(member=r)
            evaluated = members.said[r] if mode == "evaluation" else None
            said, loss = evaluated or (members.answers(alone, own), alone.loss(own)[0])
            off = max(difference(answers[r : r + 1], said), abs(float(losses[r] - loss[0])) / max(float(loss), 0.1))
            if not off <= TINY:
                differing.append(f"replica {r + 1}, in {mode}, by {off:.2g} standard deviations")
            worst = max(worst, off)

    members.in_both_modes(look)
    if differing:
        return failed(worst, f"outputs in the population differ from those of the replica alone: {differing[0]}")
    return passed(worst, f"{len(members.all)} replicas give the same outputs together as each alone, in both modes")


@audit("population")
def causality_beside_others(members: SideBySide) -> Outcome:
    """In a population, too, no output depends on a later token.

    This repeats `causality` with several replicas: all tokens after a position, another one in each row, are replaced,
    and no output of any replica up to there may change by more than a millionth of the change of later ones. A mask, or
    a norm over time, may be wrong only where there is more than one replica.
    """
    if members.how.looks_ahead or not members.how.per_token:
        raise DoesNotApply("such a model may look ahead")
    ids = members.batch().inputs
    R, B, T = ids.shape
    if T < 2:
        raise DoesNotApply("sequences of one token have no later tokens")
    probed = torch.linspace(0, T - 2, B, device=ids.device).round().long()
    later = (torch.arange(T, device=ids.device) > probed[:, None]).expand(R, B, T)
    by = members.how.draw(members.together, "exchanged", R * B, T).view(R, B, T).to(ids.device)
    other, leaks = members.how.exchanged(members.together, ids, later, by), {}

    def look(mode: str) -> None:
        moved = (
            (members.how.answer(members.together, ids) - members.how.answer(members.together, other)).abs().amax(-1)
        )  # [R, B, T]
        leaks[mode] = float(moved.masked_fill(later, 0).max() / moved[later].max().clamp(min=1e-30))

    members.in_both_modes(look)
    mode, worst = max(leaks.items(), key=lambda item: item[1])
    if not worst <= LEAK:
        sentence = f"in a population, replicas see the future: later tokens change earlier outputs by {worst:.2g}"
        return failed(worst, f"{sentence} of the change of later ones, in {mode}")
    return passed(worst, f"in a population, replacing later tokens changes no earlier output ({worst:.1g})")


@audit("population")
def gradients_apart(members: SideBySide) -> Outcome:
    """A replica's loss has no gradient in the others' weights, and in its own the same one as alone.

    The loss of each replica is differentiated with respect to the weights of all. In those of the others the gradient
    must be exactly zero; in its own it may differ from the gradient alone by rounding, a thousandth of its norm. If a
    state is carried from batch to batch, rows start from one. If it fails, replicas learn from each other's losses, and
    their seeds are not independent samples.
    """
    worst = 0.0
    for r in members.all:
        beside = members.gradient_of(members.together, members.batch(), r)
        in_all, own = in_a_row(beside.values()), in_a_row(members.gradients[r].values())
        if _largest_but(r, in_all) != 0:  # also true for NaN
            name, others = next((n, most) for n, g in beside.items() if (most := _largest_but(r, g)) != 0)
            return failed(
                others, f"the loss of replica {r + 1} has a gradient of {others:.2g} in another replica's {name}"
            )
        apart = _length(in_all[r] - own[0]) / max(_length(own), 1e-30)
        if not apart <= TINY:
            return failed(
                apart, f"the gradient of replica {r + 1} in the population is off by {apart:.1%} of the one alone"
            )
        worst = max(worst, apart)
    return passed(worst, "the gradient of a replica is in its own weights only, and the same as alone")


@audit("population")
def steps_beside_others(members: SideBySide) -> Outcome:
    """Two training steps change a replica in a population as they change it alone.

    Replicas take two real steps, with their optimizer, together and each alone, from the same weights, on the same
    rows. The results may differ by 5 % of what the steps change (only weights whose gradient is above a thousandth of
    the largest count, because optimizers make a full step of mere rounding). At learning rates above 0.03 one step is
    taken. The averages of the weights are compared in the same way, and so is weight decay, by a step without any
    gradient. If it fails, something between the loss and the weights mixes replicas: an optimizer's state, a norm for
    clipping, an accumulated gradient, an average; or one replica has the learning rate, weight decay or dropout of
    another.
    """
    update, worst = members.update_of_training(), 0.0
    trained = list(members.gradients[0])
    # At a very high rate, the second step starts from weights that rounding errors have made very different.
    highest = max(recipe.training.optimizer.learning_rate for recipe in members.recipes)
    steps = 2 if highest <= USUAL_RATE else 1
    for step in range(steps):
        update(step, 1.0)
    theirs, averages = _weights(update.model, trained), update.averages
    shrunk = _decayed(update)
    for r in members.all:
        sizes = in_a_row(members.gradients[r].values()).abs()
        counts = sizes > COUNTS * sizes.max()
        with members.to_train(members.alone[r]) as alone:
            before, update_alone = _weights(alone, trained), members.update(alone, [r])
            for step in range(steps):
                update_alone(step, 1.0)
            ours = _weights(alone, trained)
            own = _decayed(update_alone)[0]
        if not (length := _length(torch.where(counts, ours - before, 0))):
            continue  # a learning rate of zero
        apart = _length(torch.where(counts, theirs[r] - ours, 0)) / length
        if not apart <= SAME_STEPS:
            sentence = (
                f"after two steps in the population, replica {r + 1} is off by {apart:.1%} of what they change alone"
            )
            return failed(apart, sentence)
        if averages is not None and update_alone.averages is not None:
            means, theirs_mean = (in_a_row(one.tensors.values()) for one in (update_alone.averages, averages))
            if not (mixed := _length(torch.where(counts, theirs_mean[r] - means, 0)) / length) <= SAME_STEPS:
                return failed(
                    mixed, f"the average of replica {r + 1} in the population is off by {mixed:.1%} of the change"
                )
        decay = shrunk[r]
        if decay != own and not abs(decay - own) <= SAME_STEPS * max(abs(own), 1e-7):
            return failed(
                decay, f"weight decay takes {decay:.2g} of replica {r + 1} in the population, and {own:.2g} alone"
            )
        worst = max(worst, apart)
    return passed(worst, "two training steps change each replica in the population as alone")


@audit("population")
def diverged_apart(members: SideBySide) -> Outcome:
    """A replica with NaN in its weights does not affect the others.

    All weights of the first replica are set to NaN. The outputs of the others must stay the same, and a training step
    must change them as before. NaN times zero is NaN, so replicas that are only multiplied by zero are not separate.
    """
    batch, names = members.batch(), [name for name, _ in members.together.named_parameters()]
    before = members.answers(members.together, batch)[1:].detach()
    with members.to_train(members.together) as healthy:
        members.update(healthy, members.all)(0, 1.0)
        ours = [p.detach().clone() for p in healthy.parameters()]
    with members.to_train(members.together) as spoilt:
        with torch.no_grad():
            for p in spoilt.parameters():
                p[0] = torch.nan
        after = members.answers(spoilt, batch)[1:].detach()
        if not (off := difference(after, before)) <= TINY:
            return failed(off, f"with NaN in the first replica's weights, the others' outputs are off by {off:.2g}")
        members.update(spoilt, members.all)(0, 1.0)
        if not _are_close(in_a_row(spoilt.parameters())[1:], in_a_row(ours)[1:]):
            both = zip(names, spoilt.parameters(), ours, strict=True)
            name = next(name for name, p, own in both if not _are_close(p[1:], own[1:]))
            return failed(
                None, f"with NaN in the first replica's weights, a step changes the others' {name} differently"
            )
    return passed(off, "a replica whose weights are NaN leaves the others as they are")


POPULATION_AUDITS: tuple[Audit, ...] = (
    beside_others,
    causality_beside_others,
    gradients_apart,
    steps_beside_others,
    seeds_apart,
    diverged_apart,
)


def audit_population(members: SideBySide, everyone: SideBySide) -> Report:
    """Run the population audits on a few replicas, and `seeds_apart` on everyone. A replica whose outputs are not
    finite is audited with its initial weights."""
    weights = [w if w is not None and _has_finite_outputs(members, r) else None for r, w in enumerate(members.weights)]
    lost = any(one is None and w is not None for one, w in zip(weights, members.weights, strict=True))
    few = [one for one in POPULATION_AUDITS if one is not seeds_apart]
    with torch.enable_grad():
        of_few = run_audits(few, replace(members, weights=weights) if lost else members)
        return of_few + run_audits([seeds_apart], everyone)


@torch.no_grad()
def _decayed(update: Update) -> list[float]:
    """The share by which a step without gradients shrinks the weights of each replica; they are restored after it."""
    parameters = update.optimizer.parameters
    before, was = [p.detach().clone() for p in parameters], in_a_row(parameters)
    for kept in update.optimizer.state().values():
        kept.zero_()
    for p in parameters:
        p.grad = torch.zeros_like(p)
    update.optimizer.step(torch.ones((), device=update.alive.device), update.alive, None)
    lost, whole = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (in_a_row(parameters) - was, was))
    shares = (lost / whole.clamp(min=1e-30)).tolist()
    for p, old in zip(parameters, before, strict=True):
        p.copy_(old)
        p.grad = None
    return shares


def _has_finite_outputs(members: SideBySide, r: int) -> bool:
    """Whether its outputs and loss are finite, and small enough for float32 to compare them."""
    answers, loss = members.said[r]
    return bool(answers.isfinite().all() and loss.isfinite().all() and answers.abs().max() < 1e6)


def _weights(model: Trainable, names: Sequence[str]) -> Tensor:
    """The weights of each replica, flattened."""
    named = dict(model.named_parameters())
    return in_a_row(named[name] for name in names)


def _largest_but(r: int, numbers: Tensor) -> float:
    """The largest absolute value over all replicas but this one."""
    return float(torch.cat([numbers[:r], numbers[r + 1 :]]).abs().max())


def _are_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-6)


def _length(numbers: Tensor) -> float:
    return float(torch.linalg.vector_norm(numbers, dtype=torch.float64))
