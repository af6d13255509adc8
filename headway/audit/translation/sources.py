"""Audits of translators: is the source read, all of it, and nothing of the target that is to be written?

What holds of a target token by token (no answer depends on a later token, nor on padding) the audits of all models see
to, with one source for all rows. Here is what is about sources.
"""

import math
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
"""Nats per token that the right source must save beside another's: less is none."""


@audit("model", rests_on=("finite", "determinism"))
def source_padding(probe: Probe) -> Outcome:
    """Padding behind a source changes nothing, whatever it is filled with.

    Sources of a training batch, cut such that each is of another length, are answered one at a time and without any
    padding; and together, with six more slots than the longest takes, filled with one token and with random ones.
    Answers may differ by rounding, a thousandth of their spread. A translator that fails translates a sentence
    otherwise in another batch. Look for a mask that the encoder or cross attention does not get, or gets of another
    row.
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
    told, worst = torch.nn.functional.pad(batch.source_mask, (0, 6)), 0.0
    for filling in (
        room,
        (torch.arange(6, device=room.device) * 7 % (probe.model.source_vocabulary - 1)).expand_as(room),
    ):
        sources = torch.cat((batch.sources, filling), 2)
        sources = torch.where(told, sources, filling[..., :1])
        found = probe.how.answer(probe.model, batch.inputs, some, sources, told)  # pyright: ignore
        worst = max(worst, difference(found[some], plain[some], of=plain))
    if not worst <= TINY:
        return failed(worst, f"padding behind sources moves the answers by {worst:.2g} of their spread")
    return passed(worst, f"padding behind sources moves no answer (largest change {worst:.1g} of the spread)")


@audit("model", rests_on=("determinism",))
def source_reaches_all(probe: Probe) -> Outcome:
    """Every token of the source can reach every answer, the first one and the last one too.

    One token of the source after another is exchanged, in a row of its own, and all answers must move, by more than the
    millionth that rounding explains. (Of a stack of recurrences alone the first answers are asked: what is long ago
    fades there until nothing is left of it.) Of a source as long as the context, up to 256, each token must move some
    answer; where that would take long, the last one and some others are asked. What moves none is not read: look for a
    source that is cut, a mask that is causal where nothing comes later, or an encoder whose output nobody looks at.
    """
    ids = probe.sentences[:, :1]
    if isinstance(probe.model, DecoderOnly) and all(math.isinf(one.remembers) for one in probe.recipe.model.mixers):
        ids = ids[..., :FIRST_ANSWERS]
    rows, length = _exchanged(probe)
    found = probe.how.answer(probe.model, ids.expand(-1, length + 1, -1), None, rows)  # pyright: ignore[reportCallIssue]
    moved = _moved(found)  # [length, T]
    least = moved.min().item()
    if not least > 1e-7:
        token, at = divmod(int(moved.argmin()), moved.shape[1])
        sentence = f"token {token} of a source of {length} does not reach the answer at {at}: it moves by {least:.1g}"
        return failed(least, sentence, "does not read its source")
    if (unread := _unread(probe, ids)) is not None:
        sentence = f"token {unread} of a source of {probe.recipe.model.context - 1} moves no answer at all"
        return failed(0, sentence, "does not read its source")
    return passed(least, f"every token of a source moves every answer, by {least:.1g} of their spread at least")


@audit("model", rests_on=("finite", "determinism"))
def source_ahead(probe: Probe) -> Outcome:
    """Tokens of the source see those that follow them where the recipe says so, and nowhere else.

    One token of a source after another is exchanged, and what the layers that read make of the token before it is set
    beside what they made of it before. In an encoder, and under a prefix mask, it must move; under a causal mask, and
    in recurrences of one direction, it may not, by more than the millionth that rounding explains. A translator that
    fails is another than its recipe says, and trains all the same: look at the mask with which sources are read.
    """
    stack, prefix, ahead = _reads(probe)
    sources, length = _exchanged(probe)
    with watch(probe.model, *(f"{prefix}layers.{n}.stream" for n in range(len(stack.layers)))) as seen:
        probe.model.read(sources)
    first = sources.shape[2] - length - (1 if prefix else 0)  # where no encoder is, the source stands at the right end
    moved = torch.stack([_moved(vectors) for vectors in seen.values()]).amax(0)  # in the layer that shows it most
    before = moved.diagonal(first - 1)[-(length - 1) :]  # the token before each that is exchanged
    least, most = before.min().item(), before.max().item()
    if ahead and not least > ROUNDING / 10:
        at = int(before.argmin())
        return failed(least, f"token {at} of a source of {length} does not see the next one: it moves by {least:.1g}")
    if not ahead and not most <= ROUNDING / 10:
        at = int(before.argmax())
        return failed(most, f"token {at} of a source of {length} sees the next one: it moves by {most:.1g}")
    see = "see" if ahead else "do not see"
    return passed(least if ahead else most, f"tokens of a source {see} those that follow them")


@audit("model", rests_on=("finite",))
def cross_attention_rows(probe: Probe) -> Outcome:
    """Each row of cross attention, and of the encoder's, sums to 1 over the source, and is 0 on its padding.

    The weights are watched while a training batch is answered, whose sources are cut to many lengths. Sums may be off
    by rounding, 1e-5; a weight on padding must be exactly 0. When it fails, what is read depends on the batch a
    sentence stands in.
    """
    apart = [
        part for module in probe.how.apart(probe.model) for part in module.modules() if isinstance(part, Attention)
    ]
    if not apart:
        raise DoesNotApply("there is no encoder, and no attention from one sequence to another")
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
            return failed(off, f"rows of {name} sum to 1 only within {off:.2g}")
        worst = max(worst, off)
    return passed(worst, f"attention to the source sums to 1 over its tokens, within {worst:.1g}, and is 0 on padding")


@audit("model", rests_on=("determinism", "loss"), asked="of each alone")
def source_matters(probe: Probe) -> Outcome:
    """Targets are likelier behind their own source than behind another's.

    Sources of a training batch are exchanged between its rows, and the loss must rise: by a fiftieth of a nat per token
    at least, else what is written has little to do with what is read, and the translator is a language model of its
    targets. (A trained one loses one to five nats.) Fails below zero; warns below a fiftieth. A model that was not
    trained yet is not asked.
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
    says = f"behind another's source a target token takes {other:.3f} nats, behind its own {own:.3f}"
    if not worth > 0:
        return failed(worth, f"the source is ignored: {says}", "ignores the source")
    return (passed if worth >= WORTH else warned)(worth, says)


def of_unlike_lengths(batch: Any, end: int) -> Any:
    """The same rows with sources of many lengths, where those of a batch may all have the same: the first is cut to an
    equal share of itself, the second to two …"""
    rows, slots = batch.sources.shape[1], torch.arange(batch.sources.shape[2], device=batch.sources.device)
    share = torch.arange(1, rows + 1, device=slots.device) / rows
    words = ((batch.source_mask.sum(2) - 1) * share).ceil().long()[..., None]  # [R, B, 1], without END
    sources = torch.where(slots == words, end, batch.sources.masked_fill(slots > words, 0))
    return replace(batch, sources=sources, source_mask=slots <= words)


def _moved(found: Float[Tensor, "1 rows T D"]) -> Float[Tensor, "n T"]:
    """By how much of their spread vectors of each row differ from those of the last."""
    return (found[:, :-1] - found[:, -1:]).abs().amax(-1)[0] / found.std().clamp(min=1e-12)


def _exchanged(probe: Probe) -> tuple[Tensor, int]:
    """Rows of one source, in each of which another token is exchanged, in the last none; and its length without END."""
    length = min(12, probe.recipe.model.context) - 1
    return _with_others(probe, length, range(length)), length


def _with_others(probe: Probe, length: int, places: Sequence[int]) -> Tensor:
    """A source of this length as often as there are places, at one of which each has another token; and as it is."""
    vocabulary, device = probe.model.source_vocabulary, probe.sentences.device
    if vocabulary < 3:
        raise DoesNotApply("there is only one kind of token, and nothing to exchange it for")
    source = torch.arange(length, device=device) * 5 % (vocabulary - 1)
    rows = torch.cat((source, source.new_full((1,), vocabulary - 1))).expand(1, len(places) + 1, -1).clone()
    for row, place in enumerate(places):
        rows[0, row, place] = (rows[0, row, place] + 1) % (vocabulary - 1)
    return rows


def _unread(probe: Probe, ids: Tensor) -> int | None:
    """A token of a source as long as can be, which no answer depends on; None = there is none, or none can be told."""
    length = min(LONGEST, probe.recipe.model.context) - 1
    goes_by = isinstance(probe.model, DecoderOnly) and (probe.reach or any(one.knows_order for one in probe.mixers))
    if length < 12 or goes_by:  # what one stack read long ago is out of its window, or forgotten
        return None
    places = probe.some_places(length, probe.affordable(length + ids.shape[2]))
    rows = _with_others(probe, length, places)
    found = probe.how.answer(probe.model, ids.expand(-1, len(rows[0]), -1), None, rows)  # pyright: ignore[reportCallIssue]
    unread = _moved(found).amax(1) <= 0
    return places[int(unread.int().argmax())] if unread.any() else None


def _reads(probe: Probe) -> tuple[Backbone, str, bool]:
    """The stack that reads sources, what the names of its taps begin with, and whether it is to look ahead."""
    model, spec = probe.model, probe.recipe.model
    if isinstance(model, EncoderDecoder):
        stack, prefix, mixers, allowed = model.encoder, "encoder.", spec.encoder.mixers, True
    elif isinstance(model, DecoderOnly):
        stack, prefix, mixers, allowed = model, "", spec.mixers, spec.mask == "prefix"
    else:
        raise DoesNotApply("nothing is known of how this translator reads its source")
    if spec.context < 3:
        raise DoesNotApply("sources have one token, which no other follows")
    if not allowed and any(one.why_not_causal for one in mixers):
        raise DoesNotApply("some of its layers see the future behind any mask")
    return stack, prefix, allowed and any(one.looks_ahead and getattr(one, "window", None) != 1 for one in mixers)


def _nats(probe: Probe, batch: object, sources: Tensor, source_mask: Tensor) -> float:
    changed = replace(batch, sources=sources, source_mask=source_mask)  # pyright: ignore[reportArgumentType]
    return probe.how.loss(probe.how.answer_batch(probe.model, changed), changed).item()


OF_TRANSLATORS = (source_padding, source_reaches_all, source_ahead, cross_attention_rows, source_matters)
