"""An audit of the training step: from the loss of a batch to new weights and their average, compared with the formulas.

Other audits look at losses before a step and at weights long after it. What happens in between (gradient accumulation,
clipping, the optimizer's state, weight decay, the learning rate, averages) can make a model worse without any error: it
trains, to another loss than it should.
"""

import math
from typing import Any

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models import definitions
from headway.audit.probe import TINY, Probe
from headway.nn.trainable import moving, pace_of
from headway.training.averaging import Averages
from headway.training.setting import Setting
from headway.training.update import Update

ROUNDING = 2.0**-22
"""Relative rounding error of adding to a weight in float32."""
MOST_COMPARED = 2**16
"""Maximum number of weights of one tensor that are compared, for optimizers that update each weight independently: half
evenly spaced, half where the gradient is largest."""
RATES = (1.0, 0.5, 1.0)
"""The factor on the recipe's learning rate at each step."""


@audit("model", rests_on=("finite", "determinism"))
def step(probe: Probe) -> Outcome:
    """A training step does what its formulas say: gradient, clipping, optimizer, weight decay, average.

    A fresh model takes three real steps on a few rows, with changing learning rates and, if the recipe clips, from the
    second step on with a limit that clips the gradient to a quarter. Plain float64 code computes the same: the loss and
    its gradient, of all rows at once, in however many parts training.accumulate splits them; the gradient norm; the
    weights after the optimizer's formula, with weight decay for matrices only; and at the end the average, if
    training.averaging asks for one. A thousandth of the step is allowed for rounding. Of a tensor with more than 65,536
    weights that many are compared: half evenly spaced, half where the gradient is largest. If it fails, training does
    something else than the recipe says, which no score can show: look for gradients that are summed instead of averaged
    or not zeroed, for means of means, for decay of biases and norms, for a missing bias correction, and for clipping
    per tensor. Your own optimizer has no formula here unless you add it to `definitions.OPTIMIZERS`.
    """
    training = probe.recipe.training
    formula = definitions.OPTIMIZERS.get(training.optimizer.kind)
    if formula is None:
        raise DoesNotApply(f"there is no definition of the optimizer '{training.optimizer.kind}'")
    taken = _Steps(probe)
    named, spec, memory = moving(dict(taken.model.named_parameters())), training.optimizer, {}
    some: dict[str, Tensor | None] = {}
    worst, passed_through = (0.0, 0, ""), []
    for number, rate in enumerate(RATES):
        loss, own = taken.loss_and_gradient(number)
        some = some or {name: _compared(g, spec.kind) for name, g in own.items()}
        before = {name: _at(p, some[name]) for name, p in named.items()}
        if not math.isfinite(loss + (length := _length(own))):
            break  # the learning rate is so high that the loss overflows
        limit = None if training.clip is None or number == 0 else length / 4
        said, norm, reached = taken.take(number, rate, limit)
        if not abs(said - loss) <= TINY * max(abs(loss), 0.1):
            return failed(said - loss, f"a step reports a loss of {said:.5g}; the loss of its batch is {loss:.5g}")
        off = _length({name: reached[name] - g for name, g in own.items()}) / max(length, 1e-30)
        if not off <= TINY:
            parts = f" (in {training.accumulate} parts)" if training.accumulate > 1 else ""
            return failed(
                off, f"the gradient that reaches the optimizer is off by {off:.1%} of that of the loss{parts}"
            )
        if not abs(norm - length) <= TINY * length + 1e-12:
            return failed(norm / length, f"a step reports a gradient norm of {norm:.4g}; it is {length:.4g}")
        scale = 1.0 if limit is None else min(1.0, limit / (length + 1e-6))
        for name, p in named.items():
            at, decay = rate * pace_of(p) * spec.learning_rate, spec.weight_decay if _is_matrix(p) else 0.0
            given = before[name], scale * _at(reached[name], some[name]), memory.get(name), number + 1
            expected, memory[name] = formula(spec, *given, at, decay)
            moved = float((expected - before[name]).norm())
            rest = float((_at(p, some[name]) - expected).norm()) - ROUNDING * float(expected.norm())
            worst = max(worst, (rest / max(moved, 1e-30), number + 1, name))
        if training.averaging is not None:
            passed_through.append({name: p.detach().clone() for name, p in named.items()})
    off, number, name = worst
    if not off <= TINY:
        return failed(
            off, f"step {number} updates {name} otherwise than {spec.kind} does: off by {off:.1%} of the update"
        )
    if taken.averages is not None and passed_through:
        off = max(_off_average(taken.averages, passed_through), _off_average(*_toy_average(taken.averages)))
        if not off <= TINY:
            kind = taken.averages.spec.kind
            return failed(off, f"the average of the weights ({kind}) is off by {off:.1%} of the change over the steps")
    return passed(
        worst[0], f"{len(RATES)} steps of {spec.kind} update all {len(named)} parameter tensors as its formula does"
    )


def _compared(gradient: Tensor, kind: str) -> Tensor | None:
    """The indices of a large tensor that are compared; None = all, also where the formula may need all of them."""
    if gradient.numel() <= MOST_COMPARED or kind not in definitions.OF_EACH_WEIGHT:
        return None
    evenly = torch.arange(0, gradient.numel(), -(-2 * gradient.numel() // MOST_COMPARED), device=gradient.device)
    return torch.cat([evenly, gradient.flatten().abs().topk(MOST_COMPARED // 2).indices]).unique()


def _at(p: Tensor, some: Tensor | None) -> Tensor:
    """A float64 copy of these values."""
    return (p.detach() if some is None else p.detach().flatten()[some]).double().clone()


class _Steps:
    """Real training steps of a fresh model, always on the same few rows, in float32."""

    def __init__(self, probe: Probe):
        training = probe.recipe.training
        rows = training.accumulate * max(1, 4 // training.accumulate)
        self.batch, self.model = probe.excerpt(rows, tokens=16), probe.fresh()
        named, spec = moving(dict(self.model.named_parameters())), training.optimizer
        self.averages = Averages(training.averaging, named, len(RATES)) if training.averaging is not None else None
        self.optimizer = spec.build(named, [spec.learning_rate], [spec.weight_decay])
        alive = torch.ones(1, dtype=torch.bool, device=probe.device)
        setting = Setting(probe.device, torch.float32, False, False, ())
        self.update = Update(
            self.model, self.optimizer, _Same(self.batch), training, setting, alive, averages=self.averages
        )

    def loss_and_gradient(self, number: int) -> tuple[float, dict[str, Tensor]]:
        """By definition: of the whole batch at once, however training splits it. Its rows start from a state of zeros
        where training keeps one, because dropout of attention weights draws for empty memory slots, too."""
        named = moving(dict(self.model.named_parameters()))
        nothing = {name: torch.zeros_like(rows) for name, rows in self.update.carried.here.items()}
        self.model.train()
        self.model.clock.set(number)
        with torch.enable_grad():
            loss = self.model.loss(self.batch, nothing or None)[0].sum()
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        if any(g is None for g in found):
            raise DoesNotApply("a parameter takes no part in the loss, so no optimizer could step")
        return loss.item(), {name: g.double() for name, g in zip(named, found, strict=True)}

    def take(self, number: int, rate: float, limit: float | None) -> tuple[float, float, dict[str, Tensor]]:
        """Take one step; returns the loss and gradient norm it reports, and the gradient that reached the optimizer."""
        self.update.spec = self.update.spec.model_copy(update={"clip": limit})
        reached: dict[str, Tensor] = {}
        move = self.optimizer.step

        def watched(factor: Tensor, alive: Tensor, limit: float | None = None) -> Tensor:
            both = zip(self.optimizer.names, self.optimizer.parameters, strict=True)
            reached.update({n: torch.zeros_like(p) if p.grad is None else p.grad.double() for n, p in both})
            return move(factor, alive, limit)

        self.optimizer.step = watched
        with torch.enable_grad():
            losses, norms = self.update(number, rate)
        self.optimizer.step = move
        return float(losses[0]), float(norms[0]), reached


def _off_average(averages: Averages, weights: list[dict[str, Tensor]]) -> float:
    """How far the average is from its definition on these weights, relative to how far the weights moved."""
    formula = definitions.AVERAGES.get(averages.spec.kind)
    if formula is None:
        return 0.0
    off, went = {}, {}
    for name, average in averages.tensors.items():
        expected = formula(averages.spec, [one[name].double() for one in weights])
        off[name], went[name] = average.double() - expected, weights[-1][name].double() - weights[0][name].double()
    return max(0.0, _length(off) - ROUNDING * _length(weights[-1])) / max(_length(went), 1e-30)


def _toy_average(averages: Averages) -> tuple[Averages, list[dict[str, Tensor]]]:
    """The average of a number that grows, over more steps than a model could take here."""
    total, number = 40, torch.nn.Parameter(torch.zeros(1, 1, device=next(iter(averages.tensors.values())).device))
    made, passed_through = Averages(averages.spec, {"number": number}, total), []
    for step in range(total):
        with torch.no_grad():
            number.fill_((1 + step) ** 1.5)
        made.update(torch.tensor(step), torch.ones(1, dtype=torch.bool, device=number.device))
        passed_through.append({"number": number.detach().clone()})
    return made, passed_through


class _Same:
    """A sampler that returns the same batch at every step."""

    steps_per_epoch = 1

    def __init__(self, batch: Any):
        self.batch = batch

    def at(self, step: Any) -> Any:
        return self.batch


def _is_matrix(p: Tensor) -> bool:
    """Whether it has two axes or more besides the replica axis; or what the parameter itself says about decay."""
    return bool(getattr(p, "decays", p[0].ndim >= 2))


def _length(tensors: dict[str, Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors.values()]).sum().sqrt())


ABOUT_STEPS: tuple[Audit, ...] = (step,)
