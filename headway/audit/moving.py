"""Audits of weights: those that training is to move did move, and those that it is to leave alone are as they were.

The start is a pure function of the seed, or of what was borrowed: it is made again, and compared.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.audit import definitions
from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import TINY, Probe, difference
from headway.nn.attention import Attention
from headway.nn.trainable import moving, pace_of


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
    batch, to_move = probe.excerpt(rows=4, tokens=64), moving(dict(probe.start.named_parameters()))
    slope = cache(lambda: _gradient(probe.start, batch))

    def course(look: Callable[[Any], Parts]) -> _Course:
        def gradient() -> Parts:
            with _in_place_of_weights(probe.start, slope()):
                return look(probe.start)

        return _Course(look(probe.start), look(probe.model), gradient)

    parts = course(lambda model: {(name,): p.detach() for name, p in model.named_parameters() if name in to_move})
    share = len(parts.still) / len(parts.ways)
    if share == 1:
        return failed(share, "training has moved nothing: every parameter is where it began", "not trained")
    if frozen := parts.frozen:
        share = len(frozen) / len(parts.ways)
        return failed(share, f"{share:.0%} of the parameters never moved: {_first_two(frozen)}")
    heads = course(lambda model: _parts_of_heads(model, to_move))
    if frozen := heads.frozen:
        share = len(frozen) / len(heads.ways)
        return failed(share, f"{share:.0%} of what the heads are made of never moved: {_first_two(frozen)}")
    said = f"all {len(parts.ways)} parameters that are trained have moved since the start"
    if "embedding.weight" not in to_move:
        return passed(0, said)
    told = getattr(batch, "padding_mask", None)
    tokens = (batch.inputs if told is None else batch.inputs[told]).unique().tolist()
    rows = course(lambda model: {tuple(map(str, tokens)): model.embedding.weight[0, tokens]})
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


Parts = dict[tuple[str, ...], Tensor]
"""Parts of a model: tables [n, …], and the name of each of their rows."""


@dataclass(frozen=True)
class _Course:
    """Where parts began, where they ended, and the gradient at the start."""

    start: Parts
    end: Parts
    gradient: Callable[[], Parts]

    @cached_property
    def ways(self) -> "dict[str, _Way]":
        """What became of each, in one look at the device."""
        told = {names: _way(self.end[names], start) for names, start in self.start.items() if names in self.end}
        numbers = torch.cat([*told.values()]).tolist() if told else []  # a model without attention has no heads
        return {name: _Way(*own) for name, own in zip(chain(*told), numbers, strict=True)}

    @cached_property
    def still(self) -> list[str]:
        return [name for name, way in self.ways.items() if way.is_still]

    @property
    def frozen(self) -> list[str]:
        """Those that are still, and should not be by what the gradient of the start lets expect beside the others."""
        if not self.still:
            return []
        gradient = self.gradient()
        told = torch.cat([_steepness(gradient[names], start) for names, start in self.start.items()]).tolist()
        of = {name: own for name, own in zip(chain(*self.start), told, strict=True) if name in self.ways}
        slope = {name: steep for name, (steep, _) in of.items()}
        drawn = [name for name, (_, spread) in of.items() if spread > 0]
        usual = float(np.median([self.ways[name].far for name in drawn]))
        steep = float(np.median([slope[name] for name in drawn]))
        found = []
        for name in self.still:
            expected = usual * slope[name] / max(steep, 1e-30)
            if slope[name] <= 1e-9 * steep or self.ways[name].far < 0.01 * expected > 1e-9:
                found.append(name)
        return found


class _Way(NamedTuple):
    """From the start of a part to its end."""

    is_same: float
    is_lost: float
    """It ended as nothing, at which weight decay alone never arrives."""
    was_flat: float
    """It began as one number, many times: a vector of ones may grow as a whole."""
    far: float
    """For its size: without what weight decay does, which is the start times one number."""

    @property
    def is_still(self) -> bool:
        """Equal, or the start times one number."""
        return bool(self.is_same) or not (self.is_lost or self.was_flat or self.far > 1e-5)


def _way(now: Tensor, start: Tensor) -> Tensor:
    """The numbers of a `_Way` for each row [n, 4], on their device."""
    now, start = now.reshape(len(now), -1), start.reshape(len(start), -1)
    least, most = start.aminmax(dim=1)
    facts = (now == start).all(1), ~now.any(1), least == most
    now, start = now.double(), start.double()
    along = ((now * start).sum(1) / start.square().sum(1).clamp(min=1e-300))[:, None] * start
    far = (now - along).norm(dim=1) / now.norm(dim=1).clamp(min=1e-30)
    return torch.stack([*(fact.double() for fact in facts), far], 1)


def _steepness(gradient: Tensor, start: Tensor) -> Tensor:
    """For each row [n, 2]: the gradient for its size, and how far the numbers spread that it began with."""
    gradient, start = gradient.reshape(len(gradient), -1), start.reshape(len(start), -1)
    steep = gradient.norm(dim=1) / start.norm(dim=1).clamp(min=1e-12)
    return torch.stack([steep, start.std(1, unbiased=False)], 1)


def _gradient(model: Any, batch: Any) -> dict[str, Tensor]:
    """Of the batch's loss, in every weight."""
    named = dict(model.named_parameters())
    with torch.enable_grad():
        found = torch.autograd.grad(model.loss(batch)[0].sum(), list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}


@contextmanager
def _in_place_of_weights(model: Any, numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """While this lasts, the model has these numbers where its weights are."""
    weights = {name: p.data for name, p in model.named_parameters()}
    try:
        for name, p in model.named_parameters():
            p.data = numbers[name]
        yield
    finally:
        for name, p in model.named_parameters():
            p.data = weights[name]


def _first_two(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _parts_of_heads(model: Any, to_move: Collection[str]) -> Parts:
    """The rows of the projections' matrices, by head and what they make; of those that are to move."""
    found: Parts = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention) and any(
            f"{name}.project.{own}" in to_move for own, p in module.project.named_parameters() if p.ndim == 3
        ):
            for what, matrix in module.project.matrices.items():
                heads = range(module.spec.heads)
                names = tuple(f"{what} of head {head} in {name}" for head in heads)
                found[names] = matrix[0].unflatten(0, (len(heads), -1))
    return found


ABOUT_WEIGHTS = (moved, tuning)
