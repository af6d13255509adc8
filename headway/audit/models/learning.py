"""Audits of learning: the loss is the right one, the targets are the right ones, and the model can and did learn.

Some use a fresh model of the same recipe, as it was when training began, which is a pure function of the seed.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.populations.members import OneOrMember
from headway.audit.probe import TINY, Probe, difference
from headway.nn.trainable import moving
from headway.training.adam import AdamW
from headway.training.optimizers import OptimizerSpec

STEPS = 40
"""Maximum number of steps of the attempt to memorise one small batch."""
SAME_OUTPUT = 1e-4
"""Nats: outputs that differ by less are the same."""
HALF = 0.5
"""Half of the first loss, which token frequencies alone do not reach."""
OTHER_RATES = (2e-3, 1e-2, 3e-2)
"""For AdamW: models of width 4 to 1,000, with vocabularies of 5 to 30,000, learn with one of these."""


@audit("model", rests_on=("determinism",))
def loss(probe: Probe) -> Outcome:
    """The loss that training minimises is, by its definition, the cross-entropy of the model's outputs.

    The model reads a training batch, in evaluation and in training mode, and one row of the full training length; the
    loss is computed here again, in one line, from its outputs and the targets. The two may differ by rounding: a
    thousandth of the loss. If it fails, training minimises something else: look for shifted labels, targets that reach
    the model's input, and padding that counts.
    """
    worst, first = 0.0, None
    for mode, rows, tokens in (("evaluation", 4, 64), ("training", 4, 64), ("training", 1, probe.recipe.segment)):
        batch = probe.excerpt(rows, tokens)
        if mode == "training":
            probe.how.as_trained(probe.model)
        try:
            said = probe.how.answer_batch(probe.model, batch)
            lowers = (
                probe.how.loss_by(probe.model, said, batch)
                if mode == "evaluation"
                else probe.how.lowered(probe.model, said, batch)
            )
            expected = lowers.item()
            found = probe.model.loss(batch)[0].sum().item()
        finally:
            probe.model.eval()
        first = expected if first is None else first
        off = abs(found - expected) / max(expected, 1e-3)
        if not off <= TINY:
            where = f"training minimises {found:.4f}, but the loss of the model's outputs is {expected:.4f}"
            return failed(off, f"{where}{', in training mode' if mode == 'training' else ''}")
        worst = max(worst, off)
    return passed(worst, f"the loss agrees with its definition on the model's outputs, {first:.4f}, in both modes")


@audit("model")
def targets(probe: Probe) -> Outcome:
    """Every target is the token after its input.

    In a training batch of a language model, the target at each position must be the input at the next. All of them are
    compared; one that differs is a failure. When targets are the inputs themselves the model learns to copy, and when
    they are two positions ahead it learns another task; both have losses that look reasonable.
    """
    ahead, asked = probe.batch.inputs[..., 1:], probe.batch.targets[..., :-1]
    if not asked.numel():
        raise DoesNotApply("with segments of one token there is no next input to compare the target with")
    wrong = (ahead != asked).float().mean().item()
    if wrong > 0:
        copies = torch.equal(probe.batch.inputs, probe.batch.targets)
        what = "they are the inputs themselves" if copies else f"{wrong:.1%} of them are not"
        return failed(wrong, f"targets should be the next input, but {what}")
    return passed(0, f"all {asked.numel():,} targets of a batch are the next input")


@audit("model", rests_on=("determinism",))
def tied(probe: Probe) -> Outcome:
    """The output matrix is the embedding table if the recipe says so, and only then.

    The last hidden vectors are multiplied by the embedding table and compared with the model's outputs (minus the
    output bias); equal, within a thousandth of the standard deviation, means tied. Weights that were trained as one and
    loaded as two (or the other way round) give a model that nobody trained. If it fails, look at how the weights were
    loaded.
    """
    if not probe.model.multiplies_out:
        raise DoesNotApply("the output layer comes from a library and may do more than multiply")
    hidden = probe.model.hidden(probe.sentences)[0]
    answers, bias = probe.answers, probe.model.output_bias
    answers = answers if bias is None else answers - bias[:, None, None]
    off = difference(hidden @ probe.model.embedding.weight[:, None].mT, answers)
    if (off <= TINY) != probe.model.spec.tied:
        says, does = ("tied", "is separate") if probe.model.spec.tied else ("untied", "is the embedding table")
        return failed(off, f"the recipe says {says}, but the output matrix {does} (outputs differ by {off:.2g})")
    return passed(off, f"the output matrix is {'' if probe.model.spec.tied else 'not '}the embedding table, as asked")


@audit("model")
def initial_loss(probe: Probe) -> Outcome:
    """A fresh model's loss is that of a uniform guess: the logarithm of the number of classes or tokens.

    A model with the recipe's seed, as it was before training, reads a training batch. Random weights of a sane size
    give every class or token nearly the same probability. A higher loss means that the logits start too large, which
    costs the first hundreds of steps and may never recover (a warning from 1.5 nats above, a failure from 6). A lower
    loss means that the target has reached the input, since a fresh model cannot know anything (a failure from 0.5 nats
    below).
    """
    batch = probe.excerpt(rows=4, tokens=64)
    clueless, of_what = probe.how.clueless_of(probe.model, batch)
    found = probe.start.loss(batch)[0].sum().item()
    excess = found - clueless
    says = f"the loss of a fresh model is {found:.3f}; {of_what} has {clueless:.3f}"
    if not -0.5 <= excess <= 6:
        return failed(
            excess, f"{says}: {'it knows the answer before training' if excess < 0 else 'its logits are far too large'}"
        )
    return warned(excess, f"{says}: its logits are too large") if excess > 1.5 else passed(excess, says)


@audit("model")
def one_batch(probe: Probe) -> Outcome:
    """A fresh model can memorise one small batch, with the recipe's own optimizer and learning rate.

    Prefixes of four rows are trained on for up to 40 steps, without dropout, at the recipe's highest learning rate
    (after a short warm-up if the recipe has one), until their loss has halved, which token frequencies alone cannot do.
    A loss that is still falling after 40 steps is merely slow. If it reached a plateau, became NaN, or did not fall at
    all, AdamW is tried at 0.002, 0.01 and 0.03. Where one of them halves the loss, the recipe's learning rate is at
    fault; where none does, the architecture or the loss is. Both fail. Where one is merely slow, that is a warning.
    """
    training = probe.recipe.training
    own = _learn(probe, training.optimizer, warm=training.schedule.warmup is not None)
    rate = f"{training.optimizer.kind} at {training.optimizer.learning_rate:g}"
    tried = f"with {rate}, {own.left:.0%} of the loss of one small batch is left after {own.steps} steps"
    if own.left <= HALF:
        return passed(own.left, tried)
    if own.is_falling:
        return passed(own.left, f"{tried}, and it is still falling")
    is_slow = False
    for other in OTHER_RATES:
        attempt = _learn(probe, AdamW(learning_rate=other), warm=True)
        if attempt.left <= HALF:
            break
        is_slow |= attempt.is_falling
    else:
        if is_slow:
            return warned(own.left, f"{tried}; with adamw at other rates it still falls, but slowly")
        return failed(
            own.left, f"one small batch cannot be learnt: {tried}, and other rates do no better", "learns nothing"
        )
    fault = "low" if own.is_still else "high"
    return failed(
        own.left,
        f"the learning rate is too {fault} to train: {tried}, and it no longer falls",
        f"learning rate too {fault}",
    )


class _Attempt(NamedTuple):
    losses: list[float]

    @property
    def steps(self) -> int:
        return len(self.losses) - 1

    @property
    def left(self) -> float:
        return self.losses[-1] / self.losses[0]

    @property
    def is_still(self) -> bool:
        """Whether the loss never changed by more than a thousandth."""
        return all(abs(loss - self.losses[0]) <= 1e-3 * self.losses[0] for loss in self.losses)

    @property
    def is_falling(self) -> bool:
        """Whether the last quarter of the steps brought a tenth of the total gain, or a fiftieth if each step lowered
        the loss, as at a rate that is not too high. On a plateau it brings nothing."""
        early, late = self.losses[: -STEPS // 4], self.losses[-STEPS // 4 :]
        gained = self.losses[0] - min(self.losses)
        enough = 0.02 if all(after < before for before, after in pairwise(late)) else 0.1
        return len(self.losses) > STEPS and not self.is_still and min(early) - min(late) >= enough * gained > 0


def _learn(probe: Probe, optimizer: OptimizerSpec, warm: bool) -> _Attempt:
    """Train on one small batch until its loss has halved."""
    model, batch = probe.fresh(), probe.excerpt(rows=4, tokens=probe.how.by_heart)
    built = optimizer.build(moving(dict(model.named_parameters())), [optimizer.learning_rate], [0.0])
    alive = torch.ones(1, dtype=torch.bool, device=probe.device)
    losses: list[float] = []
    for step in range(STEPS + 1):
        with torch.enable_grad():
            loss = model.loss(batch)[0].sum()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]) or losses[-1] <= HALF * losses[0]:
            break
        loss.backward()
        factor = min(1.0, (step + 1) / 10) if warm else 1.0
        built.step(torch.tensor(factor, device=probe.device), alive, probe.recipe.training.clip)
        for p in built.parameters:
            p.grad = None
    return _Attempt(losses)


@audit("model", asked="of each")
def collapsed_answers(probe: OneOrMember) -> Outcome:
    """The model's outputs depend on its input: they are not the same everywhere.

    The log-probabilities of the outputs are compared over all positions of some sentences. The measure is half of their
    mean squared deviation from the mean over positions; for small differences this is what an output tells, in nats,
    about its position. A small fresh model has 0.005, one after its first few steps 0.001, a trained one 0.1 and more.
    Fails below 0.0001, if that is also less than a tenth of the value before training: training has destroyed the
    dependence on the input, as far too large steps do. Lower the learning rate by a factor of 3 to 10; with post-norm
    layers, add a warm-up.
    """
    if not probe.trained:
        raise DoesNotApply("these weights did not come from training by this recipe")
    probe.how.clueless(probe.model)  # raises DoesNotApply for models whose outputs are not a choice
    began, found = probe.share(_variation_before_and_now)
    at, where = (
        ("at different positions", "at all positions")
        if probe.how.per_token
        else ("for different texts", "for all texts")
    )
    said = f"outputs {at} differ by {found:.2g} nats ({began:.2g} before training)"
    if found < SAME_OUTPUT and found < began / 10:
        return failed(found, f"its output is the same {where}, whatever it reads: {said}", "same answer everywhere")
    return passed(found, said)


def _variation_before_and_now(everyone: Probe) -> list[list[float]]:
    """For each replica, how much its outputs vary before training and now."""
    began = everyone.how.answer(everyone.start, everyone.sentences)
    return torch.stack([_variation(began), _variation(everyone.answers)], 1).tolist()


def _variation(answers: Tensor) -> Tensor:
    """How much the outputs [R, ..., C] of each replica vary over positions, in nats [R]."""
    sure = answers.double().flatten(1, -2).log_softmax(-1)
    return (sure - sure.mean(1, keepdim=True)).square().mean((1, 2)) / 2


ABOUT_LEARNING = (loss, initial_loss, one_batch, collapsed_answers)
OF_NEXT_TOKENS = (targets, tied)
"""Of models that predict the next token."""


def equal_chances(choices: int) -> tuple[float, str]:
    """The loss of a uniform guess among so many classes or tokens, and a phrase that says so."""
    return math.log(choices), f"a uniform guess among {choices:,} choices"
