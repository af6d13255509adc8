"""Audits of what is learnt: the loss is the right one, batches ask the right question, weights can move, and did.

Some look at a fresh model of the same recipe, which is a pure function of the seed: what training began with.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.audit import definitions
from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.probe import TINY, Probe, difference
from headway.nn.attention import Attention
from headway.nn.replicated import moving, pace_of
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


@audit("model")
def moved(probe: Probe) -> Outcome:
    """Training has moved every parameter away from its start, and every part of it that means something.

    The start is a pure function of the seed, so it is made again and compared: tensor by tensor; queries, keys and
    values of each head, which share a matrix; and the embeddings of the tokens of the first batch, which training is
    known to have seen. What is where it began, or has only been shrunk by weight decay (to a hundred-thousandth), was
    frozen: by a learning rate of zero, a lost gradient, or a layer that nothing flows through. One such part is a
    failure; of embeddings, a quarter. Queries and keys learn more slowly than values: what has a gradient at the start,
    and has moved as far beside the others as that lets expect (a hundredth of it is enough), is not frozen.
    Weights that were imported began elsewhere and are not compared, and those that training is to leave alone are
    looked at by `tuning`.
    """
    if not probe.trained:
        raise DoesNotApply("these weights did not come from training by this recipe")
    batch = probe.excerpt(rows=4, tokens=64)
    fresh, slope = probe.start, _gradient(probe.fresh(), batch)
    to_move = moving(dict(fresh.named_parameters()))
    parts = _Course(
        *({name: p for name, p in model.named_parameters() if name in to_move} for model in (fresh, probe.model, slope))
    )
    share = len(parts.still) / len(parts.start)
    if len(parts.still) == len(parts.start):
        return failed(share, "training has moved nothing: every parameter is where it began", "not trained")
    if frozen := parts.frozen:
        share = len(frozen) / len(parts.start)
        return failed(share, f"{share:.0%} of the parameters never moved: {_first_two(frozen)}")
    heads = _Course(*(_parts_of_heads(model, to_move) for model in (fresh, probe.model, slope)))
    if frozen := heads.frozen:
        share = len(frozen) / len(heads.start)
        return failed(share, f"{share:.0%} of what the heads are made of never moved: {_first_two(frozen)}")
    said = f"all {len(parts.start)} parameters that are trained have moved since the start"
    if "embedding.weight" not in to_move:
        return passed(0, said)
    told = getattr(batch, "padding_mask", None)
    tokens = (batch.inputs if told is None else batch.inputs[told]).unique().tolist()
    rows = _Course(*({str(t): model.embedding.weight[0, t] for t in tokens} for model in (fresh, probe.model, slope)))
    if len(tokens) >= 8 and (share := len(rows.frozen) / len(tokens)) >= 0.25:
        return failed(share, f"{share:.0%} of the embeddings of tokens that training has seen never moved")
    return passed(0, f"{said}, and so have all parts of the heads")


@audit("model")
def tuning(probe: Probe) -> Outcome:
    """Training moves the weights that training.tuning says, at the pace it says, and leaves all others as they were.

    What the learning rate of each parameter is multiplied by is worked out again, from how far above the tokens it
    stands, and compared with what the optimizer goes by. Weights that should stay are compared with those that training
    began with, to the bit. Adapters must begin as nothing: a fresh model with them answers as it does without. And a
    model that has (α / r) · up · down added to its matrices answers as one that has it beside them. When it fails, more
    or less was trained than was said: look for weight decay of what is frozen, for layers that are counted from the
    wrong end, for weights that were exchanged in a checkpoint.
    """
    spec, model, fresh = probe.recipe.training.tuning, probe.model, probe.start
    paces = {name: pace_of(p) for name, p in fresh.named_parameters()}
    if all(pace == 1 for pace in paces.values()) and spec.kind == "full":
        raise DoesNotApply("all weights are trained, at one rate")
    if (formula := definitions.PACES.get(spec.kind)) is not None:
        for name, pace in paces.items():
            expected = formula(spec, fresh.depth_of(name), fresh.depth, fresh.is_added(name))
            if not math.isclose(pace, expected, rel_tol=1e-6):
                sentence = f"{name} is trained at {pace:.3g} of the rate; {spec.kind} tuning has it at {expected:.3g}"
                return failed(pace - expected, sentence)
    start, stays = dict(fresh.named_parameters()), [name for name, pace in paces.items() if pace == 0]
    if added := [name for name in paces if fresh.is_added(name)]:
        off = difference(*(probe.how.answer(one, probe.sentences) for one in (fresh, _without(probe.fresh(), added))))
        if not off <= TINY:
            return failed(off, f"adapters do not begin as nothing: answers differ by {off:.2g} with them")
        ours = any(".adapter." in name for name in added)  # and not those of a library
        off = difference(probe.answers, probe.how.answer(_as_one(probe, added), probe.sentences)) if ours else 0.0
        if not off <= TINY:
            return failed(off, f"adapters are not what they add to their matrices: answers are off by {off:.2g}")
    if probe.trained:
        now = dict(model.named_parameters())
        if went := [name for name in stays if not torch.equal(now[name], start[name])]:
            share = len(went) / len(stays)
            return failed(share, f"{share:.0%} of what should stay as it was has moved: {_first_two(went)}")
    own = {pace for pace in paces.values() if pace > 0}
    at = f"at paces from {min(own):.2g} to {max(own):.2g}" if len(own) > 1 else "at one rate"
    return passed(0, f"{len(paces) - len(stays)} parameters are trained, {at}; {len(stays)} stay as they were")


def _as_one(probe: Probe, added: Collection[str]) -> Any:
    """The model without adapters: what they add is added to the matrices they stand beside."""
    alone, spec = probe.fresh(), probe.recipe.training.tuning
    scale = getattr(spec, "alpha", 1.0) / getattr(spec, "rank", 1)
    trained, merged = dict(probe.model.named_parameters()), dict(alone.named_parameters())
    for name, p in merged.items():
        p.copy_(trained[name])
    for name in added:
        matrix, _, part = name.rpartition(".up")[0].partition(".adapter.")
        if part:
            up, down = trained[name], trained[name.removesuffix("up") + "down"]
            makes = alone.get_submodule(matrix).makes
            rows = merged[f"{matrix}.weight"].chunk(len(makes), 1)[makes.index(part)]
            rows += scale * torch.einsum("rok, rki -> roi", up, down)
    return _without(alone, added)


def _without(model: Any, added: Collection[str]) -> Any:
    """This model, all that was added to it being nothing."""
    for name, p in model.named_parameters():
        if name in added:
            p.zero_()
    return model


@audit("model")
def collapsed_answers(probe: Probe) -> Outcome:
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
    began, found = (_told(probe.how.answer(model, probe.sentences)) for model in (probe.fresh(), probe.model))
    said = f"its answers differ by {found:.2g} nats ({began:.2g} before training)"
    if found < DEAF and found < began / 10:
        where = "at all positions" if probe.how.per_token else "of all texts"
        return failed(found, f"it says the same {where}, whatever it reads: {said}", "same answer everywhere")
    return passed(found, said)


def _told(answers: Tensor) -> float:
    """By answers [..., C], of where they stand."""
    sure = answers.double().flatten(0, -2).log_softmax(-1)
    return (sure - sure.mean(0)).square().mean().item() / 2


@dataclass(frozen=True)
class _Course:
    """Parts of a model by name: where training began, where it ended, and the gradient at the start."""

    start: dict[str, Tensor]
    end: dict[str, Tensor]
    gradient: dict[str, Tensor]

    @cached_property
    def still(self) -> list[str]:
        return [name for name in self.start if name in self.end and _is_still(self.end[name], self.start[name])]

    @property
    def frozen(self) -> list[str]:
        """Those that are still, and should not be by what the gradient of the start lets expect beside the others."""
        if not self.still:
            return []
        way = {name: _way(self.end[name], self.start[name]) for name in self.start if name in self.end}
        sizes = {name: self.start[name].norm().clamp(min=1e-12) for name in way}
        slope = {name: (self.gradient[name].norm() / sizes[name]).item() for name in way}
        drawn = [name for name in way if self.start[name].numel() > 1 and self.start[name].std() > 0]
        usual, steep = (float(np.median([of[name] for name in drawn])) for of in (way, slope))
        found = []
        for name in self.still:
            expected = usual * slope[name] / max(steep, 1e-30)
            if slope[name] <= 1e-9 * steep or way[name] < 0.01 * expected > 1e-9:
                found.append(name)
        return found


def _gradient(model: Any, batch: Any) -> Any:
    """This model with the gradient of the batch's loss in place of its weights."""
    with torch.enable_grad():
        model.loss(batch)[0].sum().backward()
    for p in model.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    return model


def _first_two(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _parts_of_heads(model: Any, to_move: Collection[str]) -> dict[str, Tensor]:
    """The rows of the projections' matrices, by head and what they make; of those that are to move."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention) and any(
            f"{name}.project.{own}" in to_move for own, p in module.project.named_parameters() if p.ndim == 3
        ):
            for what, matrix in module.project.matrices.items():
                for head, rows in enumerate(matrix.unflatten(1, (module.spec.heads, -1)).unbind(1)):
                    found[f"{what} of head {head} in {name}"] = rows
    return found


def _is_still(now: Tensor, start: Tensor) -> bool:
    """Equal, or the start times one number."""
    if torch.equal(now, start):
        return True
    if not now.any():  # weight decay alone never arrives at zero
        return False
    if now.numel() < 2 or not start.any() or start.min() == start.max():  # a vector of ones may grow as a whole
        return False
    return _way(now, start) <= 1e-5


def _way(now: Tensor, start: Tensor) -> float:
    """How far a part has moved, for its size: without what weight decay does, which is the start times one number."""
    now, start = now.flatten().double(), start.flatten().double()
    size = start @ start
    along = (now @ start / size) * start if size > 0 else torch.zeros_like(now)
    return ((now - along).norm() / now.norm().clamp(min=1e-30)).item()


ABOUT_LEARNING = (loss, initial_loss, one_batch, moved, tuning, collapsed_answers)
OF_NEXT_TOKENS = (targets, tied)
"""Of models that predict the next token."""


def equal_chances(choices: int) -> tuple[float, str]:
    """The loss of a model that knows nothing of so many choices, and what that is in words."""
    return math.log(choices), f"{choices:,} equal chances"
