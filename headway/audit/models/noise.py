"""An audit of dropout: is the right share dropped, in the right pattern, and is the rest scaled up?

A model whose dropout does nothing, or drops twice as much, trains and scores like any other. It is merely worse, and
what was compared is not what the recipe says.
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
"""Tolerance of the dropped share, in standard deviations: exceeded by chance once in ten million places."""
SIZES = {
    Dropout: (1, 4, 24, 32),
    LockedDropout: (1, 8, 6, 64),
    WordDropout: (1, 2, 1024, 4),
    WeightDropout: (1, 64, 48),
}
DRAWN = {Dropout: (1, 2, 3), LockedDropout: (1, 3), WordDropout: (2,), WeightDropout: (1, 2)}
"""Axes along which the noise is drawn independently: of rows and features, of words, of a matrix."""


@audit("model", rests_on=("determinism",))
def dropout(probe: Probe) -> Outcome:
    """Dropout is what the recipe says: the right rate and pattern, new noise at every step, and the rest scaled up.

    All dropout modules that a training pass uses are found. The loss must have a gradient with respect to the output of
    each; it has none if the output is discarded. Then each is given ones. Every output must be 0 or 1/(1 − rate), so
    that the mean stays; 0 as often as the rate says, within chance; the same at all tokens of a row for locked dropout,
    the same for all occurrences of a word for word dropout, and independent otherwise; different at the next step, and
    different in every layer. All rates must be the recipe's, each in its place (that of the input is not that of the
    output), and none may be missing. In evaluation, the output must equal the input. If it fails, the model is
    regularised otherwise than its recipe says, and its scores belong to another recipe.
    """
    asked = {rate for rate in _rates(probe.recipe.model.model_dump()) if rate}
    if not asked:
        raise DoesNotApply("this model has no dropout")
    places, unused = _active_places(probe)
    if unused:
        return failed(None, f"the output of {unused[0]} is not used: the loss does not depend on it")
    for name, place in places.items():
        if problem := _problem(probe, place):
            return failed(None, f"{name} {problem}")
    if twice := _same_at_two(places):
        return failed(None, f"{' and '.join(twice)} drop the same numbers; each should draw its own")
    found = [float(place.rates[0]) for place in places.values()]
    for name, place in places.items():
        meant = _expected_rate(probe.recipe.model, name)
        if meant is not None and not _same(meant, float(place.rates[0])):
            return failed(None, f"{name} drops {float(place.rates[0]):.3g}, but the recipe says {meant:g} there")
    if strange := [rate for rate in found if not any(_same(rate, one) for one in asked)]:
        return failed(strange[0], f"a dropout rate of {strange[0]:.3g} is used, which the recipe does not contain")
    for what, rate in _required(probe.recipe.model):
        if not any(_same(rate, one) for one in found):
            return failed(rate, f"the recipe says {what} {rate:g}, but no module drops at this rate")
    return passed(len(places), f"{len(places)} dropout modules drop what the recipe says, each in its pattern")


def _rates(tree: Any, key: str = "") -> Iterator[float]:
    """All dropout rates in the recipe."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _rates(value, name)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _rates(value, key)
    elif key in ("dropout", "weight_dropout", "words", "input", "output") and isinstance(tree, float):
        yield tree


def _required(spec: Any) -> Iterator[tuple[str, float]]:
    """The rates that must be found somewhere. (The rate of the layers need not be, where single places override it.)"""
    noise = getattr(spec, "noise", ORDINARY)
    found = [("noise.words", noise.words), ("noise.input", noise.input), ("noise.output", noise.output)]
    if noise.input is None and noise.output is None:
        found.append(("dropout", spec.dropout))
    found += [("mixer.weight_dropout", getattr(mixer, "weight_dropout", 0.0)) for mixer in spec.mixers]
    yield from ((what, rate) for what, rate in found if rate)


AT_ENDS = {"drop": "input", "drop_words": "words", "drop_output": "output"}
IN_MIXERS = {"drop": "dropout", "project.together.drop": "weight_dropout"}
IN_MIXERS |= dict.fromkeys(("along.drop", "against.drop"), "weight_dropout")
"""The dropout modules of our own stack, and the keys of their rates in the recipe."""


def _expected_rate(spec: Any, name: str) -> float | None:
    """The rate that the recipe says for a module; None where its name does not tell."""
    if not isinstance(spec, BackboneSpec):
        return None
    if name in AT_ENDS:
        return spec.dropout if (own := getattr(spec.noise, AT_ENDS[name])) is None else own
    if (place := re.fullmatch(r"layers\.(\d+)\.(around_mixer|around_feedforward|mixer)\.(.+)", name)) is None:
        return None
    layer = int(place[1])
    if place[2] == "mixer":
        return getattr(spec.mixers[layer], IN_MIXERS.get(place[3], ""), None)
    ends = not spec.norm.adds and layer == spec.layers - 1  # without residuals, the last layer's place is the output's
    return spec.noise.output if ends and spec.noise.output is not None else spec.dropout


def _active_places(probe: Probe) -> tuple[dict[str, Dropout], list[str]]:
    """The dropout modules that drop anything in a training pass, and the names of those whose output does not reach the
    loss."""
    active: dict[str, Dropout] = {}
    outputs: dict[str, list[Tensor]] = {}

    def recording(name: str, place: Dropout):
        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor | None:
            if not place.active:
                return None
            active.setdefault(name, place)
            output = output + torch.zeros_like(output).requires_grad_()  # so that it has a gradient even if frozen
            outputs.setdefault(name, []).append(output)
            return output

        return hook

    places = [(name, one) for name, one in probe.model.named_modules() if isinstance(one, Dropout)]
    hooks = [one.register_forward_hook(recording(name, one)) for name, one in places]
    probe.model.train()
    try:
        with torch.enable_grad():
            loss = probe.model.loss(probe.excerpt(rows=2, tokens=8))[0].sum()
            gradients = {
                name: torch.autograd.grad(loss, found, retain_graph=True, allow_unused=True)
                for name, found in outputs.items()
            }
    finally:
        probe.model.eval()
        for hook in hooks:
            hook.remove()
    return active, [name for name, found in gradients.items() if all(gradient is None for gradient in found)]


def _problem(probe: Probe, place: Dropout) -> str:
    """What is wrong with a module's output for ones; empty if nothing is, or for a kind that is not known."""
    if type(place) not in SIZES:
        return ""
    clock, rate, axes = probe.model.clock, float(place.rates[0]), DRAWN[type(place)]
    before = int(clock.step)
    first = _of_ones(place)
    clock.set(before + 1)
    second = _of_ones(place)
    clock.set(before)
    scale, count, telling = 1 / (1 - rate), _count(place, first), _is_conclusive(place, first)
    if not torch.equal(_of_ones(place, training=False), torch.ones_like(first)):
        return "changes its input in evaluation, where nothing should be dropped"
    if telling and not bool((first == 0).any()):
        return "drops nothing"
    if not bool(((first == 0) | ((first - scale).abs() < 1e-4 * scale)).all()):
        return (
            f"outputs {float(first.max()):.3g} for 1 where it is kept; at a rate of {rate:.2g} it should be {scale:.3g}"
        )
    for axis in range(1, first.ndim):
        alike = torch.equal(first, first.narrow(axis, 0, 1).expand_as(first))
        if axis not in axes and not alike:
            return "drops different values where they should be dropped together"
        if axis in axes and alike and telling:
            return "drops the same values where each should be drawn independently"
    share = float((first == 0).double().mean())
    if not abs(share - rate) <= DEVIATIONS * math.sqrt(rate * (1 - rate) / count) + 1 / count:
        return f"drops {share:.1%}; it should drop {rate:.1%}"
    return "drops the same at every step" if telling and torch.equal(first, second) else ""


def _same_at_two(places: dict[str, Dropout]) -> tuple[str, str] | None:
    """Two modules of one kind whose noise is identical."""
    before: dict[tuple[type, bytes], str] = {}
    for name, place in places.items():
        if type(place) in SIZES and _is_conclusive(place, ones := _of_ones(place)):
            other = before.setdefault((type(place), (ones == 0).cpu().numpy().tobytes()), name)
            if other != name:
                return other, name
    return None


def _count(place: Dropout, ones: Tensor) -> int:
    """The number of independent draws for this output."""
    return math.prod(ones.shape[axis] for axis in DRAWN[type(place)])


def _is_conclusive(place: Dropout, ones: Tensor) -> bool:
    """Whether it would be practically impossible by chance that all is kept, or that two draws are equal."""
    rate = float(place.rates[0])
    return max(rate, 1 - rate) ** (_count(place, ones) - 1) < 1e-7


def _of_ones(place: Dropout, training: bool = True) -> Tensor:
    """The module's output for ones; for word dropout, sorted by word, in whatever order the words stand."""
    shape, device, was = SIZES[type(place)], place.rates.device, place.training
    words = min(shape[2], place.vocabulary) if isinstance(place, WordDropout) else 0
    shape = (*shape[:2], words, *shape[3:]) if words else shape
    given = (torch.ones(shape, device=device),)
    if words:
        order = torch.arange(words, device=device)
        given = (*given, torch.stack((order, order.flip(0)))[None])  # another word at each place in the second row
    place.train(training)
    try:
        found = place(*given)
    finally:
        place.train(was)
    return torch.stack((found[:, 0], found[:, 1].flip(1)), 1) if words else found


def _same(a: float, b: float) -> bool:
    return abs(a - b) < 1e-4


ABOUT_NOISE: tuple[Audit, ...] = (dropout,)
