"""The parts of a model compared with their definitions: positions, norms, attention, recurrences.

Audits of outputs find what breaks a rule (looks ahead, reads padding). A part that breaks no rule but is not what its
name says (attention without its scale, a slope with the wrong sign) is found by comparing it with the formula.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models import definitions
from headway.audit.models.attention import layers_of, may_see_in, watched
from headway.audit.models.recurrences import Compared, random_vectors, recurrences
from headway.audit.probe import TINY, Probe, difference
from headway.nn.attention import Attention, SelfProjection
from headway.nn.positions import Positions
from headway.nn.replicated import LayerNorm, RMSNorm

LARGEST_SCORE = 4000
"""Scores of a model that has blown up: above this, float32 rounds them and the attention weights by more than a
thousandth, so that they cannot be compared."""


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
    whose vectors are so large that gates saturate; the output of the layer, which is the states of its directions side
    by side, followed by its output projection if it has one; the initial scale of its matrices; and the initial bias of
    an LSTM's forget gate. A thousandth of the standard deviation is allowed for rounding. A scheme or mixer without a
    definition is skipped, and so are weights that have blown up so far that rounding dominates. If it fails, the model
    is not what its recipe says: compare the formula with the code of the part that is named.
    """
    found = [*_positions(probe), *_norms(probe), *_attention(probe), *recurrences(probe)]
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


def _positions(probe: Probe) -> Iterator[Compared]:
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
        yield Compared(f"what {spec.kind} positions add to embeddings", difference(added, expected))
        if not count:
            continue
        x = random_vectors(probe, 1, 1, count, T, width // count)
        expected = x.double() if defined.rotate is None else defined.rotate(spec, x)
        off = difference(scheme.rotate(x, at).double(), expected)
        yield Compared(f"how {spec.kind} positions rotate queries and keys", off)
        yield Compared(f"the bias of {spec.kind} positions", _bias_off(probe, scheme, defined, parameters, count, T))


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


def _norms(probe: Probe) -> Iterator[Compared]:
    for name, module in probe.model.named_modules():
        if not isinstance(module, LayerNorm | RMSNorm):
            continue
        x, given = 1 + 3 * random_vectors(probe, 1, 2, 5, module.weight.shape[1]), probe.recipe.model.norm.eps
        if isinstance(module, LayerNorm):
            bias = None if module.bias is None else module.bias[0]
            expected = definitions.layer_norm(x, module.weight[0], bias, given or 1e-5)
        else:
            expected = definitions.rms_norm(x, module.weight[0], given or 0.0)
        yield Compared(f"the norm {name}", difference(module(x).double(), expected))


def _attention(probe: Probe) -> Iterator[Compared]:
    if not (layers := _layers(probe)):
        return
    ids = probe.sentences[:, ::2]

    def compared() -> list[Compared]:
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
        yield from (one if mode == "evaluation" else Compared(f"{one.what} in training", one.off) for one in found)


def _one_layer(
    probe: Probe, name: str, layer: Attention, seen: dict[str, Tensor], made: dict[str, Tensor]
) -> Iterator[Compared]:
    spec, heads, T = probe.recipe.model.positions, layer.spec.heads, seen["queries"].shape[3]
    defined = definitions.SCHEMES.get(spec.kind)
    if name in made and defined is not None:
        parts = made[name].unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5)  # [3, 1, rows, H, T, d]
        for what, own in zip(("queries", "keys", "values"), parts, strict=True):
            turned = own.double() if defined.rotate is None or what == "values" else defined.rotate(spec, own)
            yield Compared(f"the {what} of the heads in {name}", difference(seen[what].double(), turned))
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
    yield Compared(f"the attention weights of {name}", difference(seen["weights"].double(), weights))
    if not (layer.training and layer.drop.active):
        off = difference(seen["mixed"].double(), weights @ seen["values"].double())
        yield Compared(f"the output of the kernel {layer.backend.name} in {name}", off)


def learnt(layer: Attention) -> definitions.Parameters:
    """The parameters of the similarity of queries and keys, of one replica."""
    similarity = layer.similarity
    return {key: p[0] for key, p in similarity.named_parameters()} if isinstance(similarity, nn.Module) else {}


def _score_bound(queries: Tensor, keys: Tensor) -> float:
    """An upper bound on the scores."""
    lengths = (one.double().norm(dim=-1).max().item() for one in (queries, keys))
    return math.prod(lengths) / math.sqrt(queries.shape[-1])


def _layers(probe: Probe) -> dict[str, Attention]:
    try:
        return dict(layers_of(probe))
    except DoesNotApply:
        return {}


ABOUT_PIECES = (definition,)
