"""Audits of translators: is all of the source read, and nothing of the target that is to be predicted?

The audits of all models check targets token by token (no output depends on a later token, or on padding), with one
source for all rows. The audits here are about sources.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.probe import LONGEST, TINY, Probe, difference
from headway.models.backbone import Backbone
from headway.models.decoder_only import DecoderOnly
from headway.models.encoder_decoder import EncoderDecoder
from headway.nn.attention import Attention
from headway.nn.taps import named_taps, watch

ROUNDING = 1e-5
FIRST_ANSWERS = 4
WORTH = 0.02
"""Nats per token that the right source must save compared with another's; less counts as nothing."""


@audit("model", rests_on=("finite", "determinism"))
def source_padding(probe: Probe) -> Outcome:
    """Padding after a source changes no output, whatever it is filled with.

    Sources of a training batch, cut to different lengths, are read one at a time without any padding; and together,
    with six more slots than the longest needs, filled with one token and with random ones. Outputs may differ by
    rounding, a thousandth of their standard deviation. A translator that fails translates a sentence differently in
    another batch. Look for a mask that the encoder or cross-attention does not get, or gets from another row.
    """
    batch = of_unlike_lengths(probe.excerpt(rows=8, tokens=64), probe.model.source_vocabulary - 1)
    lengths = batch.source_mask[0].sum(1).tolist()
    alone = [
        probe.how.answer(
            probe.model,
            batch.inputs[:, k : k + 1],
            batch.padding_mask[:, k : k + 1],
            batch.sources[:, k : k + 1, :length],  # pyright: ignore[reportCallIssue]
        )
        for k, length in enumerate(lengths)
    ]
    plain, some = torch.cat(alone, 1), batch.padding_mask
    room = batch.sources.new_zeros(*batch.sources.shape[:2], 6)
    real, worst = torch.nn.functional.pad(batch.source_mask, (0, 6)), 0.0
    for filling in (
        room,
        (torch.arange(6, device=room.device) * 7 % (probe.model.source_vocabulary - 1)).expand_as(room),
    ):
        sources = torch.cat((batch.sources, filling), 2)
        sources = torch.where(real, sources, filling[..., :1])
        found = probe.how.answer(probe.model, batch.inputs, some, sources, real)  # pyright: ignore
        worst = max(worst, difference(found[some], plain[some], of=plain))
    if not worst <= TINY:
        return failed(worst, f"padding after sources changes the outputs by {worst:.2g} standard deviations")
    return passed(worst, f"padding after sources changes no output (largest change {worst:.1g} standard deviations)")


@audit("model", rests_on=("determinism",))
def source_reaches_all(probe: Probe) -> Outcome:
    """Every token of the source can affect every output, including the first and the last.

    One source token after another is replaced, each in its own row, and all outputs must change by more than a
    millionth, which rounding could explain. (Of decoder-only stacks in which no layer reads everything only the first
    outputs are checked: old tokens fade from the state of a recurrence, and are out of reach of windows.) Of a source
    as long as the context, up to 256, each token must change some output; where that would take long, the last one and
    some others are checked. A token that changes none is not read: look for a source that is cut, a causal mask where
    nothing comes later, or an encoder whose output is not used.
    """
    rows, length = _exchanged(probe)
    ids = probe.sentences[:, :1, : _answers_in_reach(probe, length)]
    found = probe.how.answer(probe.model, ids.expand(-1, length + 1, -1), None, rows)  # pyright: ignore[reportCallIssue]
    moved = _moved(found)  # [length, T]
    least = moved.min().item()
    if not least > 1e-7:
        token, at = divmod(int(moved.argmin()), moved.shape[1])
        sentence = f"token {token} of a source of {length} does not reach the output at {at}: it changes by {least:.1g}"
        return failed(least, sentence, "does not read its source")
    if (unread := _unread(probe, ids)) is not None:
        sentence = f"token {unread} of a source of {probe.recipe.model.context - 1} changes no output at all"
        return failed(0, sentence, "does not read its source")
    return passed(least, f"every token of a source changes every output, by {least:.1g} standard deviations at least")


@audit("model", rests_on=("finite", "determinism"))
def source_ahead(probe: Probe) -> Outcome:
    """Source tokens see later source tokens where the recipe says so, and nowhere else.

    One source token after another is replaced, and the hidden vectors of the token before it are compared with what
    they were. In an encoder, and under a prefix mask, they must change; under a causal mask, and in recurrences of one
    direction, they must not, by more than a millionth, which rounding could explain. A translator that fails is not
    what its recipe says, but trains all the same: look at the mask with which sources are read.
    """
    stack, prefix, ahead = _reads(probe)
    sources, length = _exchanged(probe)
    with watch(probe.model, *(f"{prefix}layers.{n}.stream" for n in range(len(stack.layers)))) as seen:
        probe.model.read(sources)
    first = sources.shape[2] - length - (1 if prefix else 0)  # without an encoder, the source is right-aligned
    moved = torch.stack([_moved(vectors) for vectors in seen.values()]).amax(0)  # in the layer that shows it most
    before = moved.diagonal(first - 1)[-(length - 1) :]  # the token before each that is exchanged
    least, most = before.min().item(), before.max().item()
    if ahead and not least > ROUNDING / 10:
        at = int(before.argmin())
        return failed(least, f"token {at} of a source of {length} does not see the next one: it changes by {least:.1g}")
    if not ahead and not most <= ROUNDING / 10:
        at = int(before.argmax())
        return failed(most, f"token {at} of a source of {length} sees the next one: it changes by {most:.1g}")
    see = "see" if ahead else "do not see"
    return passed(least if ahead else most, f"tokens of a source {see} later ones, as the recipe says")


@audit("model", rests_on=("finite",))
def cross_attention_rows(probe: Probe) -> Outcome:
    """Each row of cross-attention, and of the encoder's attention, sums to 1 over the source, and is 0 on its padding.

    The weights are recorded for a training batch whose sources are cut to many lengths. Sums may be off by 1e-5
    (rounding); a weight on padding must be exactly 0. If it fails, what is read depends on which batch a sentence is
    in.
    """
    apart = [
        part for module in probe.how.apart(probe.model) for part in module.modules() if isinstance(part, Attention)
    ]
    if not apart:
        raise DoesNotApply("there is no encoder and no cross-attention")
    batch = of_unlike_lengths(probe.excerpt(rows=8, tokens=64), probe.model.source_vocabulary - 1)
    names = {tap: name for name, tap in named_taps(probe.model).items()}
    worst = 0.0
    with watch(probe.model, *(names[layer.weights] for layer in apart)) as seen:
        probe.how.answer_batch(probe.model, batch)
    for name, weights in seen.items():
        padding = ~batch.source_mask[:, :, None, None, :]
        on_padding = weights.masked_fill(~padding, 0).abs().max().item()
        if on_padding != 0:
            return failed(on_padding, f"{name} gives up to {on_padding:.2g} to the padding of sources")
        asking = (
            batch.padding_mask if weights.shape[3] == batch.inputs.shape[2] and "cross" in name else batch.source_mask
        )
        off = ((weights.sum(-1) - 1).abs() * asking[:, :, None]).max().item()
        if not off <= ROUNDING:
            return failed(off, f"rows of {name} do not sum to 1: off by {off:.2g}")
        worst = max(worst, off)
    return passed(worst, f"attention to the source sums to 1 over its tokens, within {worst:.1g}, and is 0 on padding")


@audit("model", rests_on=("determinism", "loss"), asked="of each alone")
def source_matters(probe: Probe) -> Outcome:
    """Targets are likelier given their own source than given another's.

    The sources of a training batch are swapped between its rows, and the loss must rise by at least 0.02 nats per
    token. Otherwise the output has little to do with the source, and the translator is a language model of its targets.
    (For a trained one the loss rises by one to five nats.) Fails below zero; warns below 0.02. Does not apply to an
    untrained model.
    """
    if not probe.trained:
        raise DoesNotApply("these weights have not been trained on pairs")
    batch = probe.excerpt(rows=64, tokens=256)
    if batch.inputs.shape[1] < 2:
        raise DoesNotApply("a batch of one row has no other source")
    if (batch.sources == batch.sources[:, :1]).all():
        raise DoesNotApply("all rows of a batch have the same source")
    own = _nats(probe, batch, batch.sources, batch.source_mask)
    other = _nats(probe, batch, batch.sources.roll(1, 1), batch.source_mask.roll(1, 1))
    worth = other - own
    says = f"with another row's source the loss is {other:.3f} nats per target token, with its own {own:.3f}"
    if not worth > 0:
        return failed(worth, f"the source is ignored: {says}", "ignores the source")
    return (passed if worth >= WORTH else warned)(worth, says)


def of_unlike_lengths(batch: Any, end: int) -> Any:
    """The same rows with sources of different lengths, in case those of the batch are all equal: of n rows the first
    keeps 1/n of its source, the second 2/n …"""
    rows, slots = batch.sources.shape[1], torch.arange(batch.sources.shape[2], device=batch.sources.device)
    share = torch.arange(1, rows + 1, device=slots.device) / rows
    words = ((batch.source_mask.sum(2) - 1) * share).ceil().long()[..., None]  # [R, B, 1], without END
    sources = torch.where(slots == words, end, batch.sources.masked_fill(slots > words, 0))
    return replace(batch, sources=sources, source_mask=slots <= words)


def _moved(found: Float[Tensor, "1 rows T D"]) -> Float[Tensor, "n T"]:
    """How far the vectors of each row are from those of the last, in standard deviations."""
    return (found[:, :-1] - found[:, -1:]).abs().amax(-1)[0] / found.std().clamp(min=1e-12)


def _exchanged(probe: Probe) -> tuple[Tensor, int]:
    """Copies of one source, each with another token replaced and the last unchanged; and its length without END."""
    length = min(12, probe.recipe.model.context) - 1
    return _with_others(probe, length, range(length)), length


def _with_others(probe: Probe, length: int, places: Sequence[int]) -> Tensor:
    """Copies of a source of this length, each with the token at one of the places replaced; then the source itself."""
    vocabulary, device = probe.model.source_vocabulary, probe.sentences.device
    if vocabulary < 3:
        raise DoesNotApply("the vocabulary has only one token, so there is nothing to exchange it for")
    source = torch.arange(length, device=device) * 5 % (vocabulary - 1)
    rows = torch.cat((source, source.new_full((1,), vocabulary - 1))).expand(1, len(places) + 1, -1).clone()
    for row, place in enumerate(places):
        rows[0, row, place] = (rows[0, row, place] + 1) % (vocabulary - 1)
    return rows


def _unread(probe: Probe, ids: Tensor) -> int | None:
    """The place of a token that no output depends on, in a source of maximum length; None if there is none, or if the
    model may forget."""
    length = min(LONGEST, probe.recipe.model.context) - 1
    goes_by = isinstance(probe.model, DecoderOnly) and (probe.reach or any(one.knows_order for one in probe.mixers))
    if length < 12 or goes_by:  # a decoder-only stack may have early tokens out of its window, or forgotten
        return None
    places = probe.some_places(length, probe.affordable(length + ids.shape[2]))
    rows = _with_others(probe, length, places)
    found = probe.how.answer(probe.model, ids.expand(-1, len(rows[0]), -1), None, rows)  # pyright: ignore[reportCallIssue]
    unread = _moved(found).amax(1) <= 0
    return places[int(unread.int().argmax())] if unread.any() else None


def _answers_in_reach(probe: Probe, length: int) -> int:
    """The number of outputs that every token of a source of this length can reach."""
    mixers, most = probe.mixers, probe.sentences.shape[2]
    if not isinstance(probe.model, DecoderOnly) or any(not one.knows_order and not one.reach for one in mixers):
        return most
    if any(one.knows_order for one in mixers):
        return min(most, FIRST_ANSWERS)
    back = sum(one.reach - 1 for one in mixers if one.reach)
    if back < length + 2:  # from the first output to the first token, past the two marks between them
        raise DoesNotApply(f"its windows reach back {back} tokens in all, and sources are longer")
    return min(most, back - length - 1)


def _reads(probe: Probe) -> tuple[Backbone, str, bool]:
    """The stack that reads sources, the prefix of its taps' names, and whether it should look ahead."""
    model, spec = probe.model, probe.recipe.model
    if isinstance(model, EncoderDecoder):
        stack, prefix, mixers, allowed = model.encoder, "encoder.", spec.encoder.mixers, True
    elif isinstance(model, DecoderOnly):
        stack, prefix, mixers, allowed = model, "", spec.mixers, spec.mask == "prefix"
    else:
        raise DoesNotApply("how this translator reads its source is not known")
    if spec.context < 3:
        raise DoesNotApply("sources have only one token, so none is later")
    if not allowed and any(one.why_not_causal for one in mixers):
        raise DoesNotApply("some of its layers see later tokens under any mask")
    return stack, prefix, allowed and any(one.looks_ahead and getattr(one, "window", None) != 1 for one in mixers)


def _nats(probe: Probe, batch: object, sources: Tensor, source_mask: Tensor) -> float:
    changed = replace(batch, sources=sources, source_mask=source_mask)  # pyright: ignore[reportArgumentType]
    return probe.how.loss(probe.how.answer_batch(probe.model, changed), changed).item()


OF_TRANSLATORS = (source_padding, source_reaches_all, source_ahead, cross_attention_rows, source_matters)
