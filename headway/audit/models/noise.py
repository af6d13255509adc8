"""An audit of dropout: is as much left out as the recipe says, by the pattern it says, and the rest made up for?

A model whose dropout does nothing, or drops twice as much, trains and scores like any other. It is merely worse, and
what was compared was not what the recipe says.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import Probe
from headway.models.backbone import BackboneSpec
from headway.nn.dropout import ORDINARY, LockedDropout, WeightDropout, WordDropout
from headway.nn.replicated import Dropout

DEVIATIONS = 5.5
"""Of a share that is drawn, from its rate: beyond, once in ten million places."""
SIZES = {
    Dropout: (1, 4, 24, 32),
    LockedDropout: (1, 8, 6, 64),
    WordDropout: (1, 2, 1024, 4),
    WeightDropout: (1, 64, 48),
}
DRAWN = {Dropout: (1, 2, 3), LockedDropout: (1, 3), WordDropout: (2,), WeightDropout: (1, 2)}
"""Along which of these axes a number is drawn for each place: of a row and its numbers, of words, of a matrix."""


@audit("model", rests_on=("determinism",))
def dropout(probe: Probe) -> Outcome:
    """Dropout is what the recipe says: so much is left out, by this pattern, in every step another, and the rest grows.

    The places are found at which a training pass drops anything; the loss must have a gradient in what each of them
    gives (a result that nobody uses has none). Then each is given ones. What comes out must be 0, or
    1/(1 − rate) so that the mean stays; as often 0 as the rate says, within what chance allows; the same at all tokens
    of a row where noise is locked, for a word wherever it stands where words are dropped, and nowhere else the same;
    other numbers in the next step, and in every layer others than in the one before. All rates must be the recipe's,
    each at its place (that of the input is not that of the output), and none of the recipe's may be missing. In
    evaluation, all must come out as it went in. When it fails, the model is regularised otherwise than its recipe says,
    and its scores are those of another recipe.
    """
    asked = {rate for rate in _rates(probe.recipe.model.model_dump()) if rate}
    if not asked:
        raise DoesNotApply("nothing is dropped in this model")
    places, lost = _used(probe)
    if lost:
        return failed(None, f"what {lost[0]} leaves is not used: the loss is made of what it was given")
    for name, place in places.items():
        if problem := _problem(probe, place):
            return failed(None, f"{name} {problem}")
    if twice := _same_at_two(places):
        return failed(None, f"{' and '.join(twice)} drop the same numbers, where each should draw its own")
    found = [float(place.rates[0]) for place in places.values()]
    for name, place in places.items():
        meant = _meant(probe.recipe.model, name)
        if meant is not None and not _same(meant, float(place.rates[0])):
            return failed(None, f"{name} drops {float(place.rates[0]):.3g}, and the recipe says {meant:g} there")
    if strange := [rate for rate in found if not any(_same(rate, one) for one in asked)]:
        return failed(strange[0], f"a share of {strange[0]:.3g} is dropped, which the recipe does not say")
    for what, rate in _must(probe.recipe.model):
        if not any(_same(rate, one) for one in found):
            return failed(rate, f"the recipe says {what} {rate:g}, and nothing of the kind is dropped")
    return passed(len(places), f"{len(places)} places drop what the recipe says, each by its pattern")


def _rates(tree: Any, key: str = "") -> Iterator[float]:
    """Everything in the recipe that is a rate of dropout."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _rates(value, name)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _rates(value, key)
    elif key in ("dropout", "weight_dropout", "words", "input", "output") and isinstance(tree, float):
        yield tree


def _must(spec: Any) -> Iterator[tuple[str, float]]:
    """What has to be found somewhere. (The rate of the layers need not, where places have rates of their own.)"""
    noise = getattr(spec, "noise", ORDINARY)
    found = [("noise.words", noise.words), ("noise.input", noise.input), ("noise.output", noise.output)]
    if noise.input is None and noise.output is None:
        found.append(("dropout", spec.dropout))
    found += [("mixer.weight_dropout", getattr(mixer, "weight_dropout", 0.0)) for mixer in spec.mixers]
    yield from ((what, rate) for what, rate in found if rate)


AT_ENDS = {"drop": "input", "drop_words": "words", "drop_output": "output"}
IN_MIXERS = {"drop": "dropout", "project.together.drop": "weight_dropout"}
IN_MIXERS |= dict.fromkeys(("along.drop", "against.drop"), "weight_dropout")
"""Places of the stack that is the model's own, and the keys that their rates have."""


def _meant(spec: Any, name: str) -> float | None:
    """What the recipe says of a place; None where its name does not tell."""
    if not isinstance(spec, BackboneSpec):
        return None
    if name in AT_ENDS:
        return spec.dropout if (own := getattr(spec.noise, AT_ENDS[name])) is None else own
    if (place := re.fullmatch(r"layers\.(\d+)\.(around_mixer|around_feedforward|mixer)\.(.+)", name)) is None:
        return None
    layer = int(place[1])
    if place[2] == "mixer":
        return getattr(spec.mixers[layer], IN_MIXERS.get(place[3], ""), None)
    ends = not spec.norm.adds and layer == spec.layers - 1  # where layers are chained, the last one's is the output's
    return spec.noise.output if ends and spec.noise.output is not None else spec.dropout


def _used(probe: Probe) -> tuple[dict[str, Dropout], list[str]]:
    """The places that a training pass goes through, where they drop anything; and those of them whose result the loss
    does not depend on."""
    seen: dict[str, Dropout] = {}
    given: dict[str, list[Tensor]] = {}

    def noted(name: str, place: Dropout):
        def hook(module: Any, inputs: Any, dropped: Tensor) -> Tensor | None:
            seen.setdefault(name, place)
            if not place.active:
                return None
            dropped = dropped + torch.zeros_like(dropped).requires_grad_()  # also where nothing before it is trained
            given.setdefault(name, []).append(dropped)
            return dropped

        return hook

    places = [(name, one) for name, one in probe.model.named_modules() if isinstance(one, Dropout)]
    hooks = [one.register_forward_hook(noted(name, one)) for name, one in places]
    probe.model.train()
    try:
        with torch.enable_grad():
            loss = probe.model.loss(probe.excerpt(rows=2, tokens=8))[0].sum()
            reached = {
                name: torch.autograd.grad(loss, all_, retain_graph=True, allow_unused=True)
                for name, all_ in given.items()
            }
    finally:
        probe.model.eval()
        for hook in hooks:
            hook.remove()
    lost = [name for name, slopes in reached.items() if all(slope is None for slope in slopes)]
    return {name: place for name, place in seen.items() if place.active}, lost


def _problem(probe: Probe, place: Dropout) -> str:
    """What is wrong with what it makes of ones; empty where nothing is, or where nobody knows such a kind."""
    if type(place) not in SIZES:
        return ""
    clock, rate, axes = probe.model.clock, float(place.rates[0]), DRAWN[type(place)]
    before = int(clock.step)
    first = _of_ones(place)
    clock.set(before + 1)
    second = _of_ones(place)
    clock.set(before)
    scale, count, telling = 1 / (1 - rate), _count(place, first), _is_telling(place, first)
    if not torch.equal(_of_ones(place, training=False), torch.ones_like(first)):
        return "changes what goes by in evaluation, where nothing is to be dropped"
    if telling and not bool((first == 0).any()):
        return "drops nothing"
    if not bool(((first == 0) | ((first - scale).abs() < 1e-4 * scale)).all()):
        return f"makes {float(first.max()):.3g} of 1 where it is kept; at a rate of {rate:.2g} it should be {scale:.3g}"
    for axis in range(1, first.ndim):
        alike = torch.equal(first, first.narrow(axis, 0, 1).expand_as(first))
        if axis not in axes and not alike:
            return "drops other numbers where they should be the same"
        if axis in axes and alike and telling:
            return "drops the same numbers where each should be drawn"
    share = float((first == 0).double().mean())
    if not abs(share - rate) <= DEVIATIONS * math.sqrt(rate * (1 - rate) / count) + 1 / count:
        return f"drops {share:.1%}, and should {rate:.1%}"
    return "drops the same at every step" if telling and torch.equal(first, second) else ""


def _same_at_two(places: dict[str, Dropout]) -> tuple[str, str] | None:
    """Two places of one kind and rate whose noise is the same: what the one leaves out, the other does, too."""
    before: dict[tuple[type, bytes], str] = {}
    for name, place in places.items():
        if type(place) in SIZES and _is_telling(place, ones := _of_ones(place)):
            other = before.setdefault((type(place), (ones == 0).cpu().numpy().tobytes()), name)
            if other != name:
                return other, name
    return None


def _count(place: Dropout, ones: Tensor) -> int:
    """How many numbers were drawn for these."""
    return math.prod(ones.shape[axis] for axis in DRAWN[type(place)])


def _is_telling(place: Dropout, ones: Tensor) -> bool:
    """That all is kept, or the same twice, is no chance."""
    rate = float(place.rates[0])
    return max(rate, 1 - rate) ** (_count(place, ones) - 1) < 1e-7


def _of_ones(place: Dropout, training: bool = True) -> Tensor:
    """What it makes of them; of words, each at its number, in whatever order they stand."""
    shape, device, was = SIZES[type(place)], place.rates.device, place.training
    words = min(shape[2], place.vocabulary) if isinstance(place, WordDropout) else 0
    shape = (*shape[:2], words, *shape[3:]) if words else shape
    given = (torch.ones(shape, device=device),)
    if words:
        order = torch.arange(words, device=device)
        given = (*given, torch.stack((order, order.flip(0)))[None])  # in every row another word at a place
    place.train(training)
    try:
        found = place(*given)
    finally:
        place.train(was)
    return torch.stack((found[:, 0], found[:, 1].flip(1)), 1) if words else found


def _same(a: float, b: float) -> bool:
    return abs(a - b) < 1e-4


ABOUT_NOISE: tuple[Audit, ...] = (dropout,)
