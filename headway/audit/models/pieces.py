"""The parts of a model compared with their definitions: positions, norms, attention, recurrences.

Audits of answers find what breaks a rule (looks ahead, minds padding). A piece that keeps all the rules and is another
than its name says (scores without a scale, a slope with the wrong sign) is found by comparing it with the formula.
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

TOO_LOUD = 4000
"""Scores of a model that has blown up: from here on float32 rounds them by more than a thousandth, and the weights with
them, so that nothing can be told."""


@audit("model", rests_on=("finite", "determinism"))
def definition(probe: Probe) -> Outcome:
    """The pieces are what their names say: positions, norms, attention and recurrences give what their formulas give.

    `audit/models/definitions.py` has the formulas of the papers, in float64 and sharing nothing with the model. Beside
    them are put: what the positions add, turn and bias, at every position of a sentence as long as those of training;
    what each norm makes of random vectors; the queries, keys and values of each head, as the projection's rows give
    them; the attention weights, softmax(q·kᵀ/√d + bias) over what may be seen (v·tanh(q + k) if additive); and what the
    kernel makes of them, in evaluation and, where no weights are dropped, in training. Of a recurrence: its hidden
    state at every token of random rows and the state after the last, in each direction, with padding (our own kernel)
    and without (with one replica, the library's), and in a row of the length of training whose vectors are so large
    that gates stay open or shut; what the layer gives, which is these states side by side and the map behind them;
    how large the matrices of its steps start, and where the forget gates of an LSTM do. A thousandth of the spread is
    allowed for rounding. Of a scheme or a mixer that has no definition there, nothing is said, nor of weights that have
    blown up so far that rounding decides them. When it fails, the model is another than its recipe says: compare the
    formula with the code of the piece that is named.
    """
    found = [*_positions(probe), *_norms(probe), *_attention(probe), *recurrences(probe)]
    if not found:
        raise DoesNotApply("no definition is known of what this model is made of")
    wrong = [one for one in found if not one.off <= TINY]
    if wrong:
        what = ", ".join(dict.fromkeys(one.what for one in wrong[:3]))
        return failed(wrong[0].off, f"not by its definition: {what} (off by {wrong[0].off:.2g} of the spread)")
    worst = max(one.off for one in found)
    kind = probe.recipe.model.positions.kind
    unknown = "" if kind in definitions.SCHEMES else f"; of '{kind}' positions no definition is known"
    return passed(worst, f"{len(found)} pieces are what their definitions say, within {worst:.1g}{unknown}")


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
        yield Compared(f"how {spec.kind} positions turn queries and keys", off)
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
    if compare is None or _loudest(seen["queries"], seen["keys"]) > TOO_LOUD:
        return
    weights = definitions.attention_weights(compare(learnt(layer), seen["queries"], seen["keys"]) + bias, may_see)
    yield Compared(f"the weights of {name}", difference(seen["weights"].double(), weights))
    if not (layer.training and layer.drop.active):
        off = difference(seen["mixed"].double(), weights @ seen["values"].double())
        yield Compared(f"what the kernel {layer.backend.name} gives in {name}", off)


def learnt(layer: Attention) -> definitions.Parameters:
    """What queries and keys are compared by, of one replica."""
    similarity = layer.similarity
    return {key: p[0] for key, p in similarity.named_parameters()} if isinstance(similarity, nn.Module) else {}


def _loudest(queries: Tensor, keys: Tensor) -> float:
    """The largest score that these could have."""
    lengths = (one.double().norm(dim=-1).max().item() for one in (queries, keys))
    return math.prod(lengths) / math.sqrt(queries.shape[-1])


def _layers(probe: Probe) -> dict[str, Attention]:
    try:
        return dict(layers_of(probe))
    except DoesNotApply:
        return {}


ABOUT_PIECES = (definition,)
