"""Audits of weights: training changed those it should, and left the others as they were.

The initial weights are a pure function of the seed, or of the imported weights: they are made again and compared.
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
    """Training has changed every parameter tensor, every attention head and the embeddings it has read.

    The initial weights are a pure function of the seed, so they are made again and compared: tensor by tensor; the
    queries, keys and values of each head, which share a matrix; and the embeddings of the tokens of the first batch,
    which training is known to have read. A part that is as it began, or was only shrunk by weight decay (to within
    1e-5), was frozen: by a learning rate of zero, a lost gradient, or a layer that nothing flows through. One such part
    is a failure; of embeddings, a quarter. Queries and keys learn more slowly than values: a part that has a gradient
    at the start and has moved at least a hundredth of what this gradient predicts relative to the other parts does not
    count as frozen. Imported weights are not compared. Weights that training.tuning freezes must be exactly as they
    began, bit for bit.
    """
    if not probe.trained:
        raise DoesNotApply("these weights did not come from training by this recipe")
    if problem := probe.share(_moved_though_frozen):
        return problem
    parts = probe.share(_parameters)
    share = len(parts.still) / len(parts.changes)
    if share == 1:
        return failed(share, "training has changed nothing: every parameter tensor is as it began", "not trained")
    if frozen := parts.frozen:
        share = len(frozen) / len(parts.changes)
        return failed(share, f"{share:.0%} of the parameter tensors never changed: {_first_two(frozen)}")
    heads = probe.share(_heads)
    if frozen := heads.frozen:
        share = len(frozen) / len(heads.changes)
        return failed(
            share, f"{share:.0%} of the queries, keys and values of heads never changed: {_first_two(frozen)}"
        )
    said = f"all {len(parts.changes)} parameter tensors that are trained have changed since the start"
    if (rows := probe.share(_embeddings)) is None:
        return passed(0, said)
    if len(rows.changes) >= 8 and (share := len(rows.frozen) / len(rows.changes)) >= 0.25:
        return failed(share, f"{share:.0%} of the embeddings of tokens that training has read never changed")
    return passed(0, f"{said}, and so have all attention heads")


@audit("model")
def tuning(probe: Probe) -> Outcome:
    """Training changes the weights that training.tuning says, at the rates it says, and leaves all others as they were.

    The factor on the learning rate of each parameter tensor is worked out again from its depth in the model, and
    compared with the one the optimizer uses. Frozen weights must be exactly those that training began with, bit for
    bit. Adapters must start as zero: a fresh model with them has the same outputs as without. And a model with
    (α / r) · up · down merged into its matrices must have the same outputs as one with separate adapters. If it fails,
    more or less was trained than the recipe says: look for weight decay on frozen weights, for layers counted from the
    wrong end, and for weights that were swapped in a checkpoint.
    """
    spec, fresh = probe.recipe.training.tuning, probe.start
    paces = {name: pace_of(p) for name, p in fresh.named_parameters()}
    if all(pace == 1 for pace in paces.values()) and spec.kind == "full":
        raise DoesNotApply("all weights are trained, at one rate")
    if (formula := definitions.PACES.get(spec.kind)) is not None:
        for name, pace in paces.items():
            expected = formula(spec, fresh.depth_of(name), fresh.depth, fresh.is_added(name))
            if not math.isclose(pace, expected, rel_tol=1e-6):
                sentence = (
                    f"{name} is trained at {pace:.3g} of the rate; {spec.kind} tuning should train it at {expected:.3g}"
                )
                return failed(pace - expected, sentence)
    stays = [name for name, pace in paces.items() if pace == 0]
    if added := [name for name in paces if fresh.is_added(name)]:
        off = difference(*(probe.how.answer(one, probe.sentences) for one in (fresh, _without(probe.fresh(), added))))
        if not off <= TINY:
            return failed(
                off, f"adapters do not start as zero: outputs differ by {off:.2g} standard deviations with them"
            )
        ours = any(".adapter." in name for name in added)  # and not those of a library
        off = difference(probe.answers, probe.how.answer(_as_one(probe, added), probe.sentences)) if ours else 0.0
        if not off <= TINY:
            return failed(
                off, f"merging the adapters into their matrices changes the outputs by {off:.2g} standard deviations"
            )
    if probe.trained and (problem := probe.share(_moved_though_frozen)):
        return problem
    own = {pace for pace in paces.values() if pace > 0}
    at = f"at {min(own):.2g} to {max(own):.2g} of the rate" if len(own) > 1 else "at one rate"
    return passed(0, f"{len(paces) - len(stays)} parameter tensors are trained, {at}; {len(stays)} stay as they were")


def _moved_though_frozen(everyone: Probe) -> list[Outcome | None]:
    """For each replica, the failure if weights changed that should be frozen; None if none did."""
    now = dict(everyone.model.named_parameters())
    stays = {name: p for name, p in everyone.start.named_parameters() if pace_of(p) == 0}
    same = {name: (now[name] == p).flatten(1).all(1).tolist() for name, p in stays.items()}
    found: list[Outcome | None] = []
    for r in range(everyone.model.replicas):
        went = [name for name in stays if not same[name][r]]
        share = len(went) / max(1, len(stays))
        sentence = (
            f"{share:.0%} of the parameter tensors that should be frozen have changed: {_first_two(went)}"
            if went
            else ""
        )
        found.append(failed(share, sentence) if went else None)
    return found


def _as_one(probe: Probe, added: Collection[str]) -> Any:
    """The model without adapters, their products merged into the matrices they belong to."""
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
    """This model with all added parameters set to zero."""
    for name, p in model.named_parameters():
        if name in added:
            p.zero_()
    return model


# --- from the start to the end ---------------------------------------------------------------------------------------

Parts = dict[tuple[str, ...], Tensor]
"""Parts of the models of a population: tensors [R, n, …], and the name of each of their n rows."""


def _parameters(everyone: Probe) -> "list[_Changes]":
    to_move = _to_move(everyone)

    def look(model: Any) -> Parts:
        return {(name,): p.detach()[:, None] for name, p in model.named_parameters() if name in to_move}

    return _changes_of(everyone, look)


def _heads(everyone: Probe) -> "list[_Changes]":
    to_move = _to_move(everyone)
    return _changes_of(everyone, lambda model: _parts_of_heads(model, to_move))


def _embeddings(everyone: Probe) -> "list[_Changes] | list[None]":
    """Of the tokens of each replica's first batch; None where embeddings are frozen."""
    batch = excerpts(everyone, rows=4, tokens=64)
    if "embedding.weight" not in _to_move(everyone):
        return [None] * len(batch.inputs)
    is_real = getattr(batch, "padding_mask", None)
    is_real = torch.ones_like(batch.inputs, dtype=torch.bool) if is_real is None else is_real
    read = [ids[own].tolist() for ids, own in zip(batch.inputs.cpu(), is_real.cpu(), strict=True)]
    tokens = sorted(set(chain(*read)))
    courses = _changes_of(everyone, lambda model: {tuple(map(str, tokens)): model.embedding.weight[:, tokens]})
    return [course.of(set(map(str, own))) for course, own in zip(courses, read, strict=True)]


def _changes_of(everyone: Probe, look: Callable[[Any], Parts]) -> "list[_Changes]":
    """For each replica, how its parts changed, with one transfer from the device."""
    start, end = look(everyone.start), look(everyone.model)
    changed = {rows: _change(end[rows], began) for rows, began in start.items() if rows in end}
    names = list(chain(*changed))

    @cache
    def slopes() -> list[dict[str, _Slope]]:
        (gradient,) = everyone.shares(_gradient)
        with _in_place_of_weights(everyone.start, gradient):
            steep = look(everyone.start)
        of = torch.cat([_steepness(steep[rows], start[rows]) for rows in changed], 1).tolist()
        return [{name: _Slope(*numbers) for name, numbers in zip(names, own, strict=True)} for own in of]

    if not changed:  # a model without attention has no heads
        return [_Changes({}, dict) for _ in range(everyone.model.replicas)]
    numbers = torch.cat([*changed.values()], 1).tolist()
    changes = [{name: _Change(*own) for name, own in zip(names, of_one, strict=True)} for of_one in numbers]
    return [_Changes(own, lambda r=r: slopes()[r]) for r, own in enumerate(changes)]


@dataclass(frozen=True)
class _Changes:
    """How the parts of one replica changed, by name."""

    changes: "dict[str, _Change]"
    slopes: "Callable[[], dict[str, _Slope]]"

    @cached_property
    def still(self) -> list[str]:
        return [name for name, way in self.changes.items() if way.is_still]

    @property
    def frozen(self) -> list[str]:
        """Unchanged parts that should have changed, judged by their gradient at the start relative to the others."""
        if not self.still:
            return []
        slopes = self.slopes()
        drawn = [name for name in self.changes if slopes[name].spread > 0]
        gone = [name for name in drawn if name not in self.still] or drawn  # if all are still, the typical change is 0
        usual = float(np.median([self.changes[name].far for name in gone]))
        steep = float(np.median([slopes[name].steep for name in drawn]))
        found = []
        for name in self.still:
            slope = slopes[name].steep
            expected = usual * slope / max(steep, 1e-30)
            if slope <= 1e-9 * steep or self.changes[name].far < 0.01 * expected > 1e-9:
                found.append(name)
        return found

    def of(self, names: Collection[str]) -> "_Changes":
        """The same for these parts only."""
        return replace(self, changes={name: way for name, way in self.changes.items() if name in names})


class _Change(NamedTuple):
    """How one part changed from the start to the end."""

    is_same: float
    is_lost: float
    """It ended as all zeros, which weight decay alone never reaches."""
    was_flat: float
    """It began with all values equal: a vector of ones may grow as a whole."""
    far: float
    """Relative change, orthogonal to the start, which excludes pure scaling by weight decay."""
    """For its size: without what weight decay does, which is the start times one number."""

    @property
    def is_still(self) -> bool:
        """Unchanged, or only scaled."""
        return bool(self.is_same) or not (self.is_lost or self.was_flat or self.far > 1e-5)


class _Slope(NamedTuple):
    """The gradient of a part at the start."""

    steep: float
    """Gradient norm relative to the norm of the weights."""
    spread: float
    """Standard deviation of the initial values."""


def _change(now: Tensor, start: Tensor) -> Tensor:
    """The fields of a `_Change` for each row [R, n, 4], on their device."""
    now, start = (rows.reshape(*rows.shape[:2], -1) for rows in (now, start))
    least, most = start.aminmax(dim=2)
    facts = (now == start).all(2), ~now.any(2), least == most
    now, start = now.double(), start.double()
    along = ((now * start).sum(2) / start.square().sum(2).clamp(min=1e-300))[..., None] * start
    far = (now - along).norm(dim=2) / now.norm(dim=2).clamp(min=1e-30)
    return torch.stack([*(fact.double() for fact in facts), far], 2)


def _steepness(gradient: Tensor, start: Tensor) -> Tensor:
    """The fields of a `_Slope` for each row [R, n, 2]."""
    gradient, start = (rows.reshape(*rows.shape[:2], -1) for rows in (gradient, start))
    steep = gradient.norm(dim=2) / start.norm(dim=2).clamp(min=1e-12)
    return torch.stack([steep, start.std(2, unbiased=False)], 2)


def _gradient(everyone: Probe) -> list[dict[str, Tensor]]:
    """The gradient of every replica's loss on its own first batch; one backward pass for all replicas."""
    named, batch = dict(everyone.start.named_parameters()), excerpts(everyone, rows=4, tokens=64)
    with torch.enable_grad():
        loss = everyone.start.loss(batch)[0].sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return [{name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}]


def _to_move(everyone: Probe) -> Collection[str]:
    return moving(dict(everyone.start.named_parameters()))


@contextmanager
def _in_place_of_weights(model: Any, numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """Context manager: the model has these tensors as its weights."""
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
    """The rows of the projection matrices, by head and by queries, keys or values; of those that are trained."""
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
