"""Audits of the interface between encoder and decoder, compared with the formulas of the papers
(`models/definitions.py`): cross-attention, and the initial state of a recurrent decoder.
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
"""Number of sources from a training batch, short and long ones."""


@audit("model", rests_on=("finite", "determinism"))
def crossing(probe: Probe) -> Outcome:
    """Cross-attention agrees with its definition: the weights, and weights times values.

    In every layer, for sources of a training batch that are cut to many lengths and padded, the cross-attention weights
    are computed again from queries and keys in float64 (softmax of q·k/√d, or of v·tanh(q + k), over the tokens of the
    source) and multiplied by the values; a thousandth of the standard deviation is allowed for rounding. If it fails,
    every cross-attention map shows something else than what the decoder uses: compare the formula with the named layer.
    """
    layers = _looking(probe)
    batch = of_unlike_lengths(probe.excerpt(rows=ROWS, tokens=64), probe.model.source_vocabulary - 1)
    taps = [f"{name}.{tap}" for name in layers for tap in ("queries", "keys", "values", "weights", "mixed")]
    with watch(probe.model, *taps) as seen:
        probe.how.answer_batch(probe.model, batch)
    real, worst = batch.source_mask[:, :, None, None, :], 0.0
    for name, layer in layers.items():
        q, k, v = (seen[f"{name}.{tap}"] for tap in ("queries", "keys", "values"))
        compare = definitions.SIMILARITIES[layer.spec.similarity.kind]
        weights = definitions.attention_weights(compare(learnt(layer), q, k), real)
        asking = batch.padding_mask[:, :, None, :, None]
        for what, expected in (("weights", weights), ("mixed", weights @ v.double())):
            found, some = seen[f"{name}.{what}"], asking.expand_as(expected)
            off = difference(found[some].double(), expected[some], of=expected)
            if not off <= TINY:
                shown = "weights" if what == "weights" else "weights times values"
                return failed(
                    off, f"the {shown} of {name} are off by {off:.2g} standard deviations from the definition"
                )
            worst = max(worst, off)
    return passed(worst, f"cross-attention agrees with its definition, within {worst:.1g} standard deviations")


@audit("model", rests_on=("finite", "determinism"))
def first_state(probe: Probe) -> Outcome:
    """A recurrent decoder starts from the final state of the encoder's recurrences, after the last real token.

    The input of each recurrence of the encoder is recorded while sources of a training batch, cut to many lengths and
    padded, are read. The states after the last token (of backward recurrences, after the first) are computed again by
    the formulas of the papers, one row at a time and without padding, and mapped by tanh(W s + b); a thousandth of the
    standard deviation is allowed for rounding. If it fails, the decoder starts from another state: that after the
    padding, that of another row, or that of one direction only.
    """
    model = probe.model
    if not isinstance(model, EncoderDecoder) or model.first_states is None:
        raise DoesNotApply("attention is the only connection from the encoder to the decoder")
    if not isinstance(model.first_states, FirstStates):
        raise DoesNotApply("the initial state of this decoder has no definition to compare with")
    reading = [one for one in model.encoder.mixers if isinstance(one, Recurrence)]
    if any(one.spec.kind not in definitions.RECURRENCES for one in reading):
        raise DoesNotApply("a recurrence of the encoder has no definition to compare with")
    batch = of_unlike_lengths(probe.excerpt(rows=ROWS, tokens=64), probe.model.source_vocabulary - 1)
    given: dict[Recurrence, Tensor] = {}
    with ExitStack() as hooks:
        for one in reading:
            hooks.callback(one.register_forward_pre_hook(_kept(given)).remove)
        state = model.read(batch.sources, batch.source_mask)
    weight, bias = (p[0].double() for p in (model.first_states.map.weight, model.first_states.map.bias))  # pyright: ignore
    expected, found = [], []
    for row in range(batch.sources.shape[1]):
        real = batch.source_mask[0, row]
        left = [part for one in given for part in _left(one, given[one][0, row, real])]
        expected.append((weight @ torch.cat(left) + bias).tanh())
        both = zip(model.mixers, state.layers, strict=True)
        states = [mixer.carried(own) for mixer, (own, _) in both if own is not None]  # None: attention begins empty
        found.append(torch.cat([part[0, row] for parts in states for part in parts.values()]))
    off = difference(torch.stack(found).double(), torch.stack(expected))
    if not off <= TINY:
        return failed(
            off, f"the decoder's initial state is not the encoder's final one: off by {off:.2g} standard deviations"
        )
    return passed(off, f"the decoder starts from the encoder's final state, within {off:.1g} standard deviations")


def _looking(probe: Probe) -> dict[str, Attention]:
    """The cross-attention layers, by the prefix of their taps' names."""
    if not isinstance(probe.model, EncoderDecoder):
        raise DoesNotApply("this model has no cross-attention")
    names = {tap: name.rpartition(".")[0] for name, tap in named_taps(probe.model).items()}
    found = {names[one.weights]: one for one in probe.model.crossing if isinstance(one, Attention)}
    known = {name: one for name, one in found.items() if one.spec.similarity.kind in definitions.SIMILARITIES}
    if not known:
        raise DoesNotApply("the cross-attention has no definition to compare with")
    return known


def _kept(given: dict[Recurrence, Tensor]) -> Callable[[Any, Any], None]:
    return lambda module, inputs: given.__setitem__(module, inputs[0])


def _left(layer: Recurrence, x: Tensor) -> list[Tensor]:
    """The final state for one row [T, D] without padding, part by part, in each direction."""
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
