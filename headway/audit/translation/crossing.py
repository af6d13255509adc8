"""Audits of what passes from an encoder to a decoder, beside the formulas of the papers (`models/definitions.py`): what
cross attention makes of the source, and the state that a recurrent decoder begins with.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models import definitions
from headway.audit.models.pieces import learnt
from headway.audit.probe import TINY, Probe, difference
from headway.audit.translation.sources import of_unlike_lengths
from headway.models.encoder_decoder import EncoderDecoder, FirstStates
from headway.nn.attention import Attention
from headway.nn.recurrence import Direction, Recurrence
from headway.nn.taps import named_taps, watch

ROWS = 6
"""Sources of a training batch, short ones and long ones."""


@audit("model", rests_on=("finite", "determinism"))
def crossing(probe: Probe) -> Outcome:
    """What looks at the source computes what its definition says: its weights, and weights times values.

    In every layer, for sources of a training batch, cut to many lengths, and their padding, the weights of cross
    attention are computed again from its queries and keys in float64 (softmax of q·k/√d, or of v·tanh(q + k), over the
    tokens of the source) and multiplied by the values; a thousandth of the spread is allowed for rounding. When it
    fails, every map of cross attention shows something else than what the decoder sees: compare the formula with the
    layer that is named.
    """
    layers = _looking(probe)
    batch = of_unlike_lengths(probe.excerpt(rows=ROWS, tokens=64), probe.model.source_vocabulary - 1)
    taps = [f"{name}.{tap}" for name in layers for tap in ("queries", "keys", "values", "weights", "mixed")]
    with watch(probe.model, *taps) as seen:
        probe.how.answer_batch(probe.model, batch)
    told, worst = batch.source_mask[:, :, None, None, :], 0.0
    for name, layer in layers.items():
        q, k, v = (seen[f"{name}.{tap}"] for tap in ("queries", "keys", "values"))
        compare = definitions.SIMILARITIES[layer.spec.similarity.kind]
        weights = definitions.attention_weights(compare(learnt(layer), q, k), told)
        asking = batch.padding_mask[:, :, None, :, None]
        for what, expected in (("weights", weights), ("mixed", weights @ v.double())):
            found, some = seen[f"{name}.{what}"], asking.expand_as(expected)
            off = difference(found[some].double(), expected[some], of=expected)
            if not off <= TINY:
                shown = "weights" if what == "weights" else "weights times values"
                return failed(off, f"the {shown} of {name} are off by {off:.2g} of their spread from the definition")
            worst = max(worst, off)
    return passed(worst, f"what looks at the source is what its definition says, within {worst:.1g} of the spread")


@audit("model", rests_on=("finite", "determinism"))
def first_state(probe: Probe) -> Outcome:
    """A recurrent decoder begins with what the encoder's recurrences end with, after the last token and not padding.

    What flows into each recurrence of the encoder is watched while sources of a training batch are read, cut to many
    lengths and padded. Their states after the last token (and, of those that read from the end, after the first) are
    computed again by the formulas of the papers, one row at a time and without padding, and mapped by tanh(W s + b): a
    thousandth of the spread is allowed for rounding. When it fails, the decoder begins somewhere else: after the
    padding, with another row's state, or with that of one direction only.
    """
    model = probe.model
    if not isinstance(model, EncoderDecoder) or model.first_states is None:
        raise DoesNotApply("nothing passes from an encoder to a decoder but by attention")
    if not isinstance(model.first_states, FirstStates):
        raise DoesNotApply("no definition is known of how this decoder begins")
    reading = [one for one in model.encoder.mixers if isinstance(one, Recurrence)]
    if any(one.spec.kind not in definitions.RECURRENCES for one in reading):
        raise DoesNotApply("no definition is known of what the encoder is made of")
    batch = of_unlike_lengths(probe.excerpt(rows=ROWS, tokens=64), probe.model.source_vocabulary - 1)
    given: dict[Recurrence, Tensor] = {}
    with ExitStack() as hooks:
        for one in reading:
            hooks.callback(one.register_forward_pre_hook(_kept(given)).remove)
        state = model.read(batch.sources, batch.source_mask)
    weight, bias = (p[0].double() for p in (model.first_states.map.weight, model.first_states.map.bias))  # pyright: ignore
    expected, found = [], []
    for row in range(batch.sources.shape[1]):
        told = batch.source_mask[0, row]
        left = [part for one in given for part in _left(one, given[one][0, row, told])]
        expected.append((weight @ torch.cat(left) + bias).tanh())
        states = [mixer.carried(own) for mixer, (own, _) in zip(model.mixers, state.layers, strict=True)]
        found.append(torch.cat([part[0, row] for parts in states for part in parts.values()]))
    off = difference(torch.stack(found).double(), torch.stack(expected))
    if not off <= TINY:
        return failed(
            off, f"what the decoder begins with is not what the source leaves: off by {off:.2g} of its spread"
        )
    return passed(off, f"the decoder begins with what the source leaves behind, within {off:.1g} of the spread")


def _looking(probe: Probe) -> dict[str, Attention]:
    """The layers that look at the source, by what their taps' names begin with."""
    if not isinstance(probe.model, EncoderDecoder):
        raise DoesNotApply("there is no attention from one sequence to another")
    names = {tap: name.rpartition(".")[0] for name, tap in named_taps(probe.model).items()}
    found = {names[one.weights]: one for one in probe.model.crossing if isinstance(one, Attention)}
    known = {name: one for name, one in found.items() if one.spec.similarity.kind in definitions.SIMILARITIES}
    if not known:
        raise DoesNotApply("no definition is known of what looks at the source")
    return known


def _kept(given: dict[Recurrence, Tensor]) -> Callable[[Any, Any], None]:
    return lambda module, inputs: given.__setitem__(module, inputs[0])


def _left(layer: Recurrence, x: Tensor) -> list[Tensor]:
    """The state after one row [T, D] without padding, part by part, in either direction."""
    return [
        part
        for direction, row in ((layer.along, x), (layer.against, x.flip(0)))
        if direction is not None
        for part in definitions.recurrence(layer.spec, _parameters(direction), row, _nothing(layer, direction), None)[1]
    ]


def _nothing(layer: Recurrence, direction: Direction) -> definitions.State:
    return tuple(next(direction.parameters()).new_zeros(layer.units) for _ in direction.parts)


def _parameters(direction: Direction) -> definitions.Parameters:
    return {name: p[0] for name, p in direction.named_parameters()}


OF_CROSSING = (crossing, first_state)
