"""Audits of what is learnt: the loss is the right one, batches ask the right question, and answers come of it.

Some look at a fresh model of the same recipe, which is a pure function of the seed: what training began with.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.populations.members import OneOrMember
from headway.audit.probe import TINY, Probe, difference
from headway.nn.trainable import moving
from headway.training.optimizers import AdamW, OptimizerSpec

STEPS = 40
"""Of the attempt to learn one small batch by heart."""
DEAF = 1e-4
"""Nats: answers that differ by less are the same."""
HALF = 0.5
"""A loss halved: far beyond what the frequencies of words explain."""
OTHER_RATES = (2e-3, 1e-2, 3e-2)
"""Of AdamW: models from 4 to 1,000 wide, with 5 to 30,000 words, learn with one of these."""


@audit("model", rests_on=("determinism",))
def loss(probe: Probe) -> Outcome:
    """The loss that training lowers is, by its definition, that of what the model says: a cross-entropy.

    The model answers the inputs of a training batch, in evaluation and in training mode, and one row as long as those
    of training; from the answers and the targets the loss is computed here again, in a line. The two may differ by
    rounding: a thousandth of the loss. When it fails, training lowers something else:
    labels that are shifted, targets that reach the model's input, padding that counts.
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
            where = f"training lowers {found:.4f}, but the loss of what the model says is {expected:.4f}"
            return failed(off, f"{where}{', in training mode' if mode == 'training' else ''}")
        worst = max(worst, off)
    return passed(worst, f"the loss is by its definition that of the answers, {first:.4f}, in both modes")


@audit("model")
def targets(probe: Probe) -> Outcome:
    """Every target is the token after its input.

    In a training batch of a language model, the target at each place must be the input at the next. All of them are
    compared; one that differs is a failure. When targets are the inputs themselves the model learns to copy, and when
    they are two steps on it learns another task; both have losses that look reasonable.
    """
    ahead, asked = probe.batch.inputs[..., 1:], probe.batch.targets[..., :-1]
    if not asked.numel():
        raise DoesNotApply("segments of one token hold no target whose input is there to be compared")
    wrong = (ahead != asked).float().mean().item()
    if wrong > 0:
        copies = torch.equal(probe.batch.inputs, probe.batch.targets)
        what = "they are the inputs themselves" if copies else f"{wrong:.1%} of them are not"
        return failed(wrong, f"targets should be the next input, but {what}")
    return passed(0, f"all {asked.numel():,} targets of a batch are the next input")


@audit("model", rests_on=("determinism",))
def tied(probe: Probe) -> Outcome:
    """The output matrix is the embedding table if the recipe says so, and only then.

    The last hidden vectors are multiplied by the embedding table and compared with the model's answers (less a bias of
    the output); equal, within a thousandth of the spread, means tied. Weights that were trained as one and loaded as
    two (or the other way round) give a model that nobody trained. When it fails, look at how the weights were loaded.
    """
    if not probe.model.multiplies_out:
        raise DoesNotApply("its output layer is somebody else's, and may do more than multiply")
    hidden = probe.model.hidden(probe.sentences)[0]
    answers, bias = probe.answers, probe.model.output_bias
    answers = answers if bias is None else answers - bias[:, None, None]
    off = difference(hidden @ probe.model.embedding.weight[:, None].mT, answers)
    if (off <= TINY) != probe.model.spec.tied:
        says, does = ("tied", "has one of its own") if probe.model.spec.tied else ("untied", "is the embedding table")
        return failed(off, f"the recipe says {says}, but the output matrix {does} (answers differ by {off:.2g})")
    return passed(off, f"the output matrix is {'' if probe.model.spec.tied else 'not '}the embedding table, as asked")


@audit("model")
def initial_loss(probe: Probe) -> Outcome:
    """A fresh model is as clueless as chance: where it chooses, its loss is the logarithm of the number of choices.

    A model of the recipe's seed, as training began with it, is asked a training batch. Random weights of a sane size
    give every choice nearly the same chance. Above: the answers start too large, which costs the first hundreds of
    steps and may never heal (warned from 1.5 nats, failed from 6). Below: a fresh model cannot know anything, so the
    target has reached its input (failed from 0.5 nats below).
    """
    batch = probe.excerpt(rows=4, tokens=64)
    clueless, of_what = probe.how.clueless_of(probe.model, batch)
    found = probe.start.loss(batch)[0].sum().item()
    excess = found - clueless
    says = f"the loss of a fresh model is {found:.3f}, of {of_what} {clueless:.3f}"
    if not -0.5 <= excess <= 6:
        return failed(excess, f"{says}: {'it knows the answer before it has learnt' if excess < 0 else 'far too sure'}")
    return warned(excess, f"{says}: too sure") if excess > 1.5 else passed(excess, says)


@audit("model")
def one_batch(probe: Probe) -> Outcome:
    """A fresh model can learn one small batch by heart, with the recipe's own optimizer and rate.

    The beginnings of four rows are shown up to 40 times, without dropout, at the recipe's highest learning rate (after
    a short warm-up if the recipe has one), until their loss has halved, which the frequencies of words do not explain.
    A loss that is still falling after 40 steps is merely slow. If it fell to a plateau, broke, or did not fall at all,
    AdamW is tried at 0.002, 0.01 and 0.03: where one of them halves the loss, the recipe's rate is at fault; where none
    does, the architecture or the loss is. Both fail.
    """
    training = probe.recipe.training
    own = _learn(probe, training.optimizer, warm=training.schedule.warmup is not None)
    rate = f"{training.optimizer.kind} at {training.optimizer.learning_rate:g}"
    tried = f"with {rate}, {own.left:.0%} of the loss of one small batch is left after {own.steps} steps"
    if own.left <= HALF:
        return passed(own.left, tried)
    if own.is_falling:
        return passed(own.left, f"{tried}, and it is still falling")
    if not any(_learn(probe, AdamW(learning_rate=other), warm=True).left <= HALF for other in OTHER_RATES):
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
        """The loss never moved by more than a thousandth."""
        return all(abs(loss - self.losses[0]) <= 1e-3 * self.losses[0] for loss in self.losses)

    @property
    def is_falling(self) -> bool:
        """The last quarter of the steps brought a tenth of all that was gained: a plateau brings nothing."""
        early, late = self.losses[: -STEPS // 4], self.losses[-STEPS // 4 :]
        gained = self.losses[0] - min(self.losses)
        return len(self.losses) > STEPS and not self.is_still and min(early) - min(late) >= 0.1 * gained > 0


def _learn(probe: Probe, optimizer: OptimizerSpec, warm: bool) -> _Attempt:
    """Show one small batch until its loss has halved."""
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
    """What the model says depends on what it has read: its answers are not the same everywhere.

    Of the answers to some sentences, at all of their places, it is told how much their log-probabilities differ from
    place to place: half of the mean square, which for small differences is what an answer says, in nats, about where it
    stands. (Of answers that are sure, and all the same, it still tells how sure.) A fresh small model has 0.005, one
    after its first few steps 0.001, a trained one 0.1 and more. Fails below 0.0001, where it is also less than a tenth
    of what the model began with: training has made it deaf, as steps do that are far too long. Lower the learning rate
    by factors; of post-norm layers, warm it up.
    """
    if not probe.trained:
        raise DoesNotApply("these weights did not come from training by this recipe")
    probe.how.clueless(probe.model)  # of models that do not choose, nobody can say
    began, found = probe.share(_told_before_and_now)
    said = f"its answers differ by {found:.2g} nats ({began:.2g} before training)"
    if found < DEAF and found < began / 10:
        where = "at all positions" if probe.how.per_token else "of all texts"
        return failed(found, f"it says the same {where}, whatever it reads: {said}", "same answer everywhere")
    return passed(found, said)


def _told_before_and_now(everyone: Probe) -> list[list[float]]:
    """Of each replica: by what it said as it began, and by what it says."""
    began = everyone.how.answer(everyone.start, everyone.sentences)
    return torch.stack([_told(began), _told(everyone.answers)], 1).tolist()


def _told(answers: Tensor) -> Tensor:
    """By answers [R, ..., C] of each replica, of where they stand [R]."""
    sure = answers.double().flatten(1, -2).log_softmax(-1)
    return (sure - sure.mean(1, keepdim=True)).square().mean((1, 2)) / 2


ABOUT_LEARNING = (loss, initial_loss, one_batch, collapsed_answers)
OF_NEXT_TOKENS = (targets, tied)
"""Of models that predict the next token."""


def equal_chances(choices: int) -> tuple[float, str]:
    """The loss of a model that knows nothing of so many choices, and what that is in words."""
    return math.log(choices), f"{choices:,} equal chances"
