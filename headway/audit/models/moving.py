"""Audits of weights: those that training is to move did move, and those that it is to leave alone are as they were.

The start is a pure function of the seed, or of what was borrowed: it is made again, and compared.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models import definitions
from headway.audit.populations.members import OneOrMember, excerpts
from headway.audit.probe import TINY, Probe, difference
from headway.nn.attention import Attention
from headway.nn.trainable import moving, pace_of


@audit("model", asked="of each")
def moved(probe: OneOrMember) -> Outcome:
    """Training has moved every parameter away from its start, and every part of it that means something.

    The start is a pure function of the seed, so it is made again and compared: tensor by tensor; queries, keys and
    values of each head, which share a matrix; and the embeddings of the tokens of the first batch, which training is
    known to have seen. What is where it began, or has only been shrunk by weight decay (to a hundred-thousandth), was
    frozen: by a learning rate of zero, a lost gradient, or a layer that nothing flows through. One such part is a
    failure; of embeddings, a quarter. Queries and keys learn more slowly than values: what has a gradient at the start,
    and has moved as far beside the others as that lets expect (a hundredth of it is enough), is not frozen.
    Weights that were imported began elsewhere and are not compared. Those that training is to leave alone
    (training.tuning) must be where they began, to the bit.
    """
    if not probe.trained:
        raise DoesNotApply("these weights did not come from training by this recipe")
    if problem := probe.share(_strayed):
        return problem
    parts = probe.share(_parameters)
    share = len(parts.still) / len(parts.ways)
    if share == 1:
        return failed(share, "training has moved nothing: every parameter is where it began", "not trained")
    if frozen := parts.frozen:
        share = len(frozen) / len(parts.ways)
        return failed(share, f"{share:.0%} of the parameters never moved: {_first_two(frozen)}")
    heads = probe.share(_heads)
    if frozen := heads.frozen:
        share = len(frozen) / len(heads.ways)
        return failed(share, f"{share:.0%} of what the heads are made of never moved: {_first_two(frozen)}")
    said = f"all {len(parts.ways)} parameters that are trained have moved since the start"
    if (rows := probe.share(_embeddings)) is None:
        return passed(0, said)
    if len(rows.ways) >= 8 and (share := len(rows.frozen) / len(rows.ways)) >= 0.25:
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
    spec, fresh = probe.recipe.training.tuning, probe.start
    paces = {name: pace_of(p) for name, p in fresh.named_parameters()}
    if all(pace == 1 for pace in paces.values()) and spec.kind == "full":
        raise DoesNotApply("all weights are trained, at one rate")
    if (formula := definitions.PACES.get(spec.kind)) is not None:
        for name, pace in paces.items():
            expected = formula(spec, fresh.depth_of(name), fresh.depth, fresh.is_added(name))
            if not math.isclose(pace, expected, rel_tol=1e-6):
                sentence = f"{name} is trained at {pace:.3g} of the rate; {spec.kind} tuning has it at {expected:.3g}"
                return failed(pace - expected, sentence)
    stays = [name for name, pace in paces.items() if pace == 0]
    if added := [name for name in paces if fresh.is_added(name)]:
        off = difference(*(probe.how.answer(one, probe.sentences) for one in (fresh, _without(probe.fresh(), added))))
        if not off <= TINY:
            return failed(off, f"adapters do not begin as nothing: answers differ by {off:.2g} with them")
        ours = any(".adapter." in name for name in added)  # and not those of a library
        off = difference(probe.answers, probe.how.answer(_as_one(probe, added), probe.sentences)) if ours else 0.0
        if not off <= TINY:
            return failed(off, f"adapters are not what they add to their matrices: answers are off by {off:.2g}")
    if probe.trained and (problem := probe.share(_strayed)):
        return problem
    own = {pace for pace in paces.values() if pace > 0}
    at = f"at paces from {min(own):.2g} to {max(own):.2g}" if len(own) > 1 else "at one rate"
    return passed(0, f"{len(paces) - len(stays)} parameters are trained, {at}; {len(stays)} stay as they were")


def _strayed(everyone: Probe) -> list[Outcome | None]:
    """Of each replica: what should stay as it was, and has moved."""
    now = dict(everyone.model.named_parameters())
    stays = {name: p for name, p in everyone.start.named_parameters() if pace_of(p) == 0}
    same = {name: (now[name] == p).flatten(1).all(1).tolist() for name, p in stays.items()}
    found: list[Outcome | None] = []
    for r in range(everyone.model.replicas):
        went = [name for name in stays if not same[name][r]]
        share = len(went) / max(1, len(stays))
        sentence = f"{share:.0%} of what should stay as it was has moved: {_first_two(went)}" if went else ""
        found.append(failed(share, sentence) if went else None)
    return found


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
            makes = alone.get_submodule(matrix).output_names
            rows = merged[f"{matrix}.weight"].chunk(len(makes), 1)[makes.index(part)]
            rows += scale * torch.einsum("rok, rki -> roi", up, down)
    return _without(alone, added)


def _without(model: Any, added: Collection[str]) -> Any:
    """This model, all that was added to it being nothing."""
    for name, p in model.named_parameters():
        if name in added:
            p.zero_()
    return model


# --- from the start to the end ---------------------------------------------------------------------------------------

Parts = dict[tuple[str, ...], Tensor]
"""Parts of models side by side: tables [R, n, …], and the name of each of their rows."""


def _parameters(everyone: Probe) -> "list[_Course]":
    to_move = _to_move(everyone)

    def look(model: Any) -> Parts:
        return {(name,): p.detach()[:, None] for name, p in model.named_parameters() if name in to_move}

    return _courses(everyone, look)


def _heads(everyone: Probe) -> "list[_Course]":
    to_move = _to_move(everyone)
    return _courses(everyone, lambda model: _parts_of_heads(model, to_move))


def _embeddings(everyone: Probe) -> "list[_Course] | list[None]":
    """Of the tokens of each one's first batch; None where embeddings are not to move."""
    batch = excerpts(everyone, rows=4, tokens=64)
    if "embedding.weight" not in _to_move(everyone):
        return [None] * len(batch.inputs)
    told = getattr(batch, "padding_mask", None)
    told = torch.ones_like(batch.inputs, dtype=torch.bool) if told is None else told
    read = [ids[own].tolist() for ids, own in zip(batch.inputs.cpu(), told.cpu(), strict=True)]
    tokens = sorted(set(chain(*read)))
    courses = _courses(everyone, lambda model: {tuple(map(str, tokens)): model.embedding.weight[:, tokens]})
    return [course.of(set(map(str, own))) for course, own in zip(courses, read, strict=True)]


def _courses(everyone: Probe, look: Callable[[Any], Parts]) -> "list[_Course]":
    """Of each replica, what became of its parts, in one look at the device."""
    start, end = look(everyone.start), look(everyone.model)
    told = {rows: _way(end[rows], began) for rows, began in start.items() if rows in end}
    names = list(chain(*told))

    @cache
    def slopes() -> list[dict[str, _Slope]]:
        (gradient,) = everyone.shares(_gradient)
        with _in_place_of_weights(everyone.start, gradient):
            steep = look(everyone.start)
        of = torch.cat([_steepness(steep[rows], start[rows]) for rows in told], 1).tolist()
        return [{name: _Slope(*numbers) for name, numbers in zip(names, own, strict=True)} for own in of]

    if not told:  # a model without attention has no heads
        return [_Course({}, dict) for _ in range(everyone.model.replicas)]
    numbers = torch.cat([*told.values()], 1).tolist()
    ways = [{name: _Way(*own) for name, own in zip(names, of_one, strict=True)} for of_one in numbers]
    return [_Course(own, lambda r=r: slopes()[r]) for r, own in enumerate(ways)]


@dataclass(frozen=True)
class _Course:
    """What became of the parts of one replica, by name."""

    ways: "dict[str, _Way]"
    slopes: "Callable[[], dict[str, _Slope]]"

    @cached_property
    def still(self) -> list[str]:
        return [name for name, way in self.ways.items() if way.is_still]

    @property
    def frozen(self) -> list[str]:
        """Those that are still, and should not be by what the gradient of the start lets expect beside the others."""
        if not self.still:
            return []
        slopes = self.slopes()
        drawn = [name for name in self.ways if slopes[name].spread > 0]
        gone = [name for name in drawn if name not in self.still] or drawn  # where most are frozen, their way is none
        usual = float(np.median([self.ways[name].far for name in gone]))
        steep = float(np.median([slopes[name].steep for name in drawn]))
        found = []
        for name in self.still:
            slope = slopes[name].steep
            expected = usual * slope / max(steep, 1e-30)
            if slope <= 1e-9 * steep or self.ways[name].far < 0.01 * expected > 1e-9:
                found.append(name)
        return found

    def of(self, names: Collection[str]) -> "_Course":
        """Of these parts alone."""
        return replace(self, ways={name: way for name, way in self.ways.items() if name in names})


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


class _Slope(NamedTuple):
    """Where a part began."""

    steep: float
    """The gradient for its size."""
    spread: float
    """Of the numbers that it began with."""


def _way(now: Tensor, start: Tensor) -> Tensor:
    """The numbers of a `_Way` for each row [R, n, 4], on their device."""
    now, start = (rows.reshape(*rows.shape[:2], -1) for rows in (now, start))
    least, most = start.aminmax(dim=2)
    facts = (now == start).all(2), ~now.any(2), least == most
    now, start = now.double(), start.double()
    along = ((now * start).sum(2) / start.square().sum(2).clamp(min=1e-300))[..., None] * start
    far = (now - along).norm(dim=2) / now.norm(dim=2).clamp(min=1e-30)
    return torch.stack([*(fact.double() for fact in facts), far], 2)


def _steepness(gradient: Tensor, start: Tensor) -> Tensor:
    """The numbers of a `_Slope` for each row [R, n, 2]."""
    gradient, start = (rows.reshape(*rows.shape[:2], -1) for rows in (gradient, start))
    steep = gradient.norm(dim=2) / start.norm(dim=2).clamp(min=1e-12)
    return torch.stack([steep, start.std(2, unbiased=False)], 2)


def _gradient(everyone: Probe) -> list[dict[str, Tensor]]:
    """Of the loss of every replica's own first batch, in all weights: one for all of them, who stand side by side."""
    named, batch = dict(everyone.start.named_parameters()), excerpts(everyone, rows=4, tokens=64)
    with torch.enable_grad():
        loss = everyone.start.loss(batch)[0].sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return [{name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}]


def _to_move(everyone: Probe) -> Collection[str]:
    return moving(dict(everyone.start.named_parameters()))


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
                found[names] = matrix.unflatten(1, (len(heads), -1))
    return found


ABOUT_WEIGHTS = (moved, tuning)
