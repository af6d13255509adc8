"""The parts of a model compared with their definitions: positions, norms, attention, recurrences.

Audits of outputs find what breaks a rule (looks ahead, reads padding). A part that breaks no rule but is not what its
name says (attention without its scale, a slope with the wrong sign) is found by comparing it with the formula.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models import definitions
from headway.audit.models.attention import layers_of, may_see_in, watched
from headway.audit.probe import TINY, Probe, difference
from headway.core import random as noise
from headway.nn.attention import Attention, SelfProjection
from headway.nn.positions import Positions
from headway.nn.recurrence import Cells, Direction, Recurrence
from headway.nn.replicated import LayerNorm, RMSNorm

LARGEST_SCORE = 4000
"""Scores of a model that has blown up: above this, float32 rounds them and the attention weights by more than a
thousandth, so that they cannot be compared."""


SATURATING = 10
"""Factor on the usual size of a layer's input that saturates the gates, so that a state once stored is kept."""
LARGEST_STATE = 1e30
"""A state that blows up, as with ReLU: float32 overflows before the row ends."""


class _Compared(NamedTuple):
    what: str
    off: float
    """In standard deviations of what the definition gives."""


@audit("model", rests_on=("finite", "determinism"))
def definition(probe: Probe) -> Outcome:
    """Positions, norms, attention and recurrences compute what their formulas say.

    `audit/models/definitions.py` has the formulas of the papers, in float64 and sharing no code with the model. With
    them are compared: what positions add to embeddings, how they rotate, and their bias, at every position of a
    sentence as long as those of training; the output of each norm for random vectors; the queries, keys and values of
    each head, from the output of the projection; the attention weights, softmax(q·kᵀ/√d + bias) over what may be seen
    (v·tanh(q + k) if additive); and the output of the kernel, in evaluation and, where no weights are dropped, in
    training. Of a recurrence: its hidden state at every token of random rows and the last state, in each direction,
    with padding (our own kernel) and without (with one replica, the library's), and in a row of the training length
    whose vectors are so large that gates saturate; and the initial bias of an LSTM's forget gate. A thousandth of the
    standard deviation is allowed for rounding. A scheme or mixer without a definition is skipped, and so are weights
    that have blown up so far that rounding dominates. If it fails, the model is not what its recipe says: compare the
    formula with the code of the part that is named.
    """
    found = [*_positions(probe), *_norms(probe), *_attention(probe), *_recurrences(probe)]
    if not found:
        raise DoesNotApply("no part of this model has a definition to compare it with")
    wrong = [one for one in found if not one.off <= TINY]
    if wrong:
        what = ", ".join(dict.fromkeys(one.what for one in wrong[:3]))
        return failed(
            wrong[0].off, f"differs from its definition: {what} (off by {wrong[0].off:.2g} standard deviations)"
        )
    worst = max(one.off for one in found)
    kind = probe.recipe.model.positions.kind
    unknown = "" if kind in definitions.SCHEMES else f"; there is no definition of '{kind}' positions"
    return passed(worst, f"{len(found)} parts agree with their definitions, within {worst:.1g}{unknown}")


def _positions(probe: Probe) -> Iterator[_Compared]:
    spec = probe.recipe.model.positions
    defined = definitions.SCHEMES.get(spec.kind)
    if defined is None:
        return
    T, width = probe.length, probe.recipe.model.width
    at = torch.arange(T, device=probe.device)
    heads = {layer.spec.heads for layer in _layers(probe).values()}
    for scheme, count in [(probe.model.positions.for_heads(h), h) for h in heads] or [(probe.model.positions, 0)]:
        parameters = {name: p[0].cpu() for name, p in scheme.named_parameters()}
        nothing = torch.zeros(1, 1, T, width, device=probe.device)
        added = scheme.embed(nothing, at)[0, 0].double().cpu()
        expected = nothing[0, 0].double().cpu() if defined.embed is None else defined.embed(spec, parameters, T, width)
        yield _Compared(f"what {spec.kind} positions add to embeddings", difference(added, expected))
        if not count:
            continue
        x = _random(probe, 1, 1, count, T, width // count)
        expected = x.double() if defined.rotate is None else defined.rotate(spec, x)
        off = difference(scheme.rotate(x, at).double(), expected)
        yield _Compared(f"how {spec.kind} positions rotate queries and keys", off)
        yield _Compared(f"the bias of {spec.kind} positions", _bias_off(probe, scheme, defined, parameters, count, T))


def _bias_off(
    probe: Probe, scheme: Positions, defined: definitions.Scheme, parameters: dict[str, Tensor], heads: int, T: int
) -> float:
    if defined.bias is None or not scheme.has_bias:
        return 0.0 if (defined.bias is None) == (not scheme.has_bias) else float("inf")
    bias = _bias(probe, scheme, heads, T)[0, 0].double().cpu()
    expected = [defined.bias(probe.recipe.model.positions, parameters, heads, T, nudge) for nudge in (-1e-4, 1e-4)]
    nearest = torch.where((bias - expected[0]).abs() <= (bias - expected[1]).abs(), *expected)
    if not probe.how.looks_ahead:
        bias, nearest = bias.tril(), nearest.tril()
    return difference(bias, nearest)


def _bias(probe: Probe, scheme: Positions, heads: int, T: int) -> Tensor:
    """[1, 1, H, T, T]"""
    at = torch.arange(T, device=probe.device)
    replica = torch.zeros(1, 1, 1, 1, 1, dtype=torch.long, device=probe.device)
    head = torch.arange(heads, device=probe.device).view(heads, 1, 1)
    bias = scheme.bias(replica, head, at[:, None], at[None, :])
    return bias.view(*[1] * (5 - bias.ndim), *bias.shape)


def _norms(probe: Probe) -> Iterator[_Compared]:
    for name, module in probe.model.named_modules():
        if not isinstance(module, LayerNorm | RMSNorm):
            continue
        x, given = 1 + 3 * _random(probe, 1, 2, 5, module.weight.shape[1]), probe.recipe.model.norm.eps
        if isinstance(module, LayerNorm):
            bias = None if module.bias is None else module.bias[0]
            expected = definitions.layer_norm(x, module.weight[0], bias, given or 1e-5)
        else:
            expected = definitions.rms_norm(x, module.weight[0], given or 0.0)
        yield _Compared(f"the norm {name}", difference(module(x).double(), expected))


def _attention(probe: Probe) -> Iterator[_Compared]:
    if not (layers := _layers(probe)):
        return
    ids = probe.sentences[:, ::2]

    def compared() -> list[_Compared]:
        made: dict[str, Tensor] = {}

        def kept(name: str) -> Callable[[nn.Module, tuple, Tensor], None]:
            return lambda module, given, out: made.__setitem__(name, out)

        hooks = [
            layer.project.together.register_forward_hook(kept(name))
            for name, layer in layers.items()
            if isinstance(layer.project, SelfProjection)
        ]
        try:
            seen = watched(probe, ("queries", "keys", "values", "weights", "mixed"), ids, None)
        finally:
            for hook in hooks:
                hook.remove()
        return [
            one
            for name, layer in layers.items()
            for one in _one_layer(probe, name, layer, {tap: seen[tap, name] for tap, at in seen if at == name}, made)
        ]

    for mode, found in probe.in_both_modes(compared).items():
        yield from (one if mode == "evaluation" else _Compared(f"{one.what} in training", one.off) for one in found)


def _one_layer(
    probe: Probe, name: str, layer: Attention, seen: dict[str, Tensor], made: dict[str, Tensor]
) -> Iterator[_Compared]:
    spec, heads, T = probe.recipe.model.positions, layer.spec.heads, seen["queries"].shape[3]
    defined = definitions.SCHEMES.get(spec.kind)
    if name in made and defined is not None:
        parts = made[name].unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5)  # [3, 1, rows, H, T, d]
        for what, own in zip(("queries", "keys", "values"), parts, strict=True):
            turned = own.double() if defined.rotate is None or what == "values" else defined.rotate(spec, own)
            yield _Compared(f"the {what} of the heads in {name}", difference(seen[what].double(), turned))
    scheme = probe.model.positions.for_heads(heads)
    bias = _bias(probe, scheme, heads, T).double() if scheme.has_bias else 0.0
    everything = torch.ones(
        seen["queries"].shape[0], seen["queries"].shape[1], T, dtype=torch.bool, device=probe.device
    )
    may_see = may_see_in(probe, layer, everything)[:, :, None]
    compare = definitions.SIMILARITIES.get(layer.spec.similarity.kind)
    if compare is None or _score_bound(seen["queries"], seen["keys"]) > LARGEST_SCORE:
        return
    weights = definitions.attention_weights(compare(learnt(layer), seen["queries"], seen["keys"]) + bias, may_see)
    yield _Compared(f"the attention weights of {name}", difference(seen["weights"].double(), weights))
    if not (layer.training and layer.drop.active):
        off = difference(seen["mixed"].double(), weights @ seen["values"].double())
        yield _Compared(f"the output of the kernel {layer.backend.name} in {name}", off)


def learnt(layer: Attention) -> definitions.Parameters:
    """The parameters of the similarity of queries and keys, of one replica."""
    similarity = layer.similarity
    return {key: p[0] for key, p in similarity.named_parameters()} if isinstance(similarity, nn.Module) else {}


def _score_bound(queries: Tensor, keys: Tensor) -> float:
    """An upper bound on the scores."""
    lengths = (one.double().norm(dim=-1).max().item() for one in (queries, keys))
    return math.prod(lengths) / math.sqrt(queries.shape[-1])


def _recurrences(probe: Probe) -> Iterator[_Compared]:
    layers = {name: one for name, one in probe.model.named_modules() if isinstance(one, Recurrence)}
    known = {name: one for name, one in layers.items() if one.spec.kind in definitions.RECURRENCES}

    def compared() -> list[_Compared]:
        return [
            one
            for name, layer in known.items()
            for way, direction in _directions(layer)
            for one in _one_direction(probe, f"{layer.spec.kind} {name}.{way}", layer, direction)
        ]

    for mode, found in probe.in_both_modes(compared).items():
        yield from (one if mode == "evaluation" else _Compared(f"{one.what} in training", one.off) for one in found)
    fresh = probe.fresh() if any(hasattr(layer.spec, "forget_bias") for layer in known.values()) else None
    for name, module in [] if fresh is None else fresh.named_modules():
        if name not in known or not hasattr(module.spec, "forget_bias"):
            continue
        for way, direction in _directions(module):
            if (bias := direction.input.bias) is not None:
                off = (bias[0].view(4, -1)[1].double().cpu() - module.spec.forget_bias).abs().max().item()
                yield _Compared(f"the initial forget bias of {name}.{way}", off)


def _directions(layer: Recurrence) -> list[tuple[str, Any]]:
    both = (("along", layer.along), ("against", layer.against))
    return [(way, direction) for way, direction in both if direction is not None]


def _one_direction(probe: Probe, name: str, layer: Recurrence, direction: Direction) -> Iterator[_Compared]:
    parameters = {key: p[0] for key, p in direction.named_parameters()}
    if isinstance(direction, Cells):
        parameters["recurrent"] = direction.drop(direction.recurrent)[0]  # as dropped at this step, in training
    width, T = probe.recipe.model.width, min(probe.length, 13)  # not a power of two, which scans handle best
    x, first = _random(probe, 1, 3, T, width), _random(probe, len(direction.parts), 1, 3, layer.units).abs()
    slots = torch.arange(T, device=probe.device)
    begins, ends = (torch.tensor(at, device=probe.device)[:, None] for at in ((0, T // 4, 1), (T, T, 3 * T // 4)))
    padded, long = ((slots >= begins) & (slots < ends))[None], SATURATING * _random(probe, 1, 1, probe.length, width)
    long[:, :, probe.length // 4 :] = long[:, :, -1:]  # constant from here on, so saturated gates stay as they are
    given = (
        ("", x, first, None),
        (" around padding", x, first, padded),
        (" in a long row", long, first[:, :, :1], None),
    )
    for what, rows, start, real in given:
        hidden, last = direction(rows, start, real)
        for row in range(rows.shape[1]):
            row_mask = None if real is None else real[0, row]
            of_row = definitions.recurrence(layer.spec, parameters, rows[0, row], tuple(start[:, 0, row]), row_mask)
            expected, after = of_row
            if not max(part.abs().max() for part in (expected, *after)) <= LARGEST_STATE:
                continue
            yield _Compared(f"the states of the {name}{what}", _off_state(hidden[0, row], expected))
            off = max(_off_state(part[0, row], right) for part, right in zip(last, after, strict=True))
            yield _Compared(f"the last state of the {name}{what}", off)


def _off_state(found: Tensor, expected: Tensor) -> float:
    """The difference relative to the largest value, because a state that is kept has no spread over tokens."""
    return (found.double() - expected).abs().max().item() / max(expected.abs().max().item(), 1e-30)


def _layers(probe: Probe) -> dict[str, Attention]:
    try:
        return dict(layers_of(probe))
    except DoesNotApply:
        return {}


def _random(probe: Probe, *shape: int) -> Tensor:
    return torch.randn(shape, generator=noise.generator("audit pieces")).to(probe.device)


ABOUT_PIECES = (definition,)
