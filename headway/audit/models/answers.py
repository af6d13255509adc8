"""Audits of a model as a black box: which inputs may an output depend on?

Each audit changes something that must not matter (later tokens, padding, the other rows of a batch, a cache) and checks
that the outputs stay the same. Differences are given in standard deviations of the outputs over positions, so that a
fresh model, whose outputs are small, is judged as strictly as a trained one.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.populations.members import OneOrMember
from headway.audit.probe import TINY, Cut, Probe, difference, larger, unit_of
from headway.nn.taps import watch

LEAK = 1e-6
"""Two passes of one shape do the same sums in the same order, so any larger difference is a real dependence."""


@audit("model", asked="of each")
def finite(probe: OneOrMember) -> Outcome:
    """All weights, outputs and gradients are finite numbers.

    First all weights are checked; then the model reads sentences with padding on both sides, and the gradient of its
    outputs is taken. Padding before a sentence creates queries that may attend to nothing: a softmax over nothing is
    0/0, the classic source of NaN, and of NaN gradients even where the NaN itself is masked out later. There is no
    threshold: one such number is too many. If weights are not finite, training diverged: lower the learning rate, or
    clip. If only outputs or gradients are, a mask creates empty rows and the softmax does not handle them.
    """
    if not probe.is_whole:
        broken = {name: count for name, count in probe.share(_lost_weights).items() if count}
        name, count = next(iter(broken.items()))
        return failed(count, f"{sum(broken.values()):,} weights are not finite; the first are in {name}")
    answers_off, gradients_off = probe.share(_lost_on_padding)
    if answers_off or gradients_off:
        what = f"{answers_off:,} outputs for padded sentences and {gradients_off:,} values of their gradient"
        return failed(answers_off + gradients_off, f"{what} are not finite")
    return passed(0, "all weights are finite, and so are the outputs for padded sentences and their gradients")


def _lost_weights(everyone: Probe) -> list[dict[str, int]]:
    """For each replica and parameter, by name, the number of weights that are not finite."""
    names = [name for name, _ in everyone.model.named_parameters()]
    lost = torch.stack(
        [(~p.isfinite()).reshape(len(p), -1).sum(1) for p in everyone.model.parameters()], 1
    )  # [R, names]
    return [dict(zip(names, own, strict=True)) for own in lost.tolist()]


def _lost_on_padding(everyone: Probe) -> list[list[int]]:
    """For each replica, how many outputs for padded sentences and values of their gradient are not finite."""
    rows = everyone.padded()
    with torch.enable_grad(), watch(everyone.model, "embedded") as seen:
        answers = everyone.answer(rows.ids, rows.padding_mask)
        selected = answers[rows.padding_mask] if everyone.how.per_token else answers
        (gradient,) = torch.autograd.grad(selected.sum(), seen["embedded"])
    lost = [(~numbers.isfinite()).reshape(len(answers), -1).sum(1) for numbers in (selected, gradient)]
    return torch.stack(lost, 1).tolist()


@audit("model")
def determinism(probe: Probe) -> Outcome:
    """Evaluation has no randomness, and that of training depends only on the step: two passes give the same numbers.

    In evaluation the two passes are made at different steps, in training at the same one. Nothing is rounded
    differently, so there is no tolerance. If it fails in evaluation, dropout (or other noise) is active there, and
    every score is a random draw; if it fails in training, a run can neither be reproduced nor resumed. Audits that
    compare two passes are then not run.
    """
    clock = probe.model.clock
    step = int(clock.step)

    def change(later: int) -> float:
        clock.set(step)
        first = probe.answer(probe.sentences) if probe.model.training else probe.answers
        clock.set(step + later)
        second = probe.answer(probe.sentences)
        clock.set(step)
        return 0.0 if torch.equal(first, second) else difference(second, first)

    found = probe.in_both_modes(lambda: change(later=0 if probe.model.training else 1))
    if found["evaluation"] != 0:
        off = found["evaluation"]
        return failed(off, f"two evaluations of the same sentences differ by {off:.2g} standard deviations")
    if found["training"] != 0:
        off = found["training"]
        return failed(
            off,
            f"two passes of the same training step differ by {off:.2g} standard deviations: its noise does not depend "
            "on the step alone",
        )
    return passed(0, "two evaluations give the same numbers, bit for bit, and so do two passes of one training step")


@audit("model", rests_on=("determinism",))
def causality(probe: Probe) -> Outcome:
    """No output depends on a later token.

    In sentences as long as those of training, and as those of scoring, all tokens after a position are replaced by
    others. This is done for every position or, where that would take long, for many (the first and the last, around
    powers of two, at the borders of windows and segments, and some random ones). The outputs up to that position must
    not change, in evaluation and in training mode (with the same dropout in both passes); nor in a batch with as many
    rows as those of training, late in training. Both passes do the same sums, so anything above a millionth of the
    change of later outputs is a dependence. A model that fails has seen what it should predict: its perplexity means
    nothing. Look for a mask that is off by one or missing, perhaps at some positions, lengths or rows only, and for
    statistics (norms, means) taken over the whole sequence.
    """
    _needs_a_future(probe)

    def leak(cuts: Iterable[Cut]) -> _Leak:
        worst = _Leak(0.0, 0, 0)
        for ids, behind, later in cuts:
            moved = probe.answer(ids).sub_(probe.answer(probe.exchanged(ids, later))).abs_().amax(-1)[0]  # [rows, T]
            leaks = moved.masked_fill(later[0], 0).amax(-1) / _at_least_tiny(moved[later[0]].max())
            row = int(leaks.argmax())
            if not leaks[row] <= worst.size:
                worst = _Leak(leaks[row].item(), int(behind[row]), ids.shape[2])
        return worst

    found = probe.in_both_modes(lambda: leak(probe.cuts()))
    with probe.late_in_training():
        found["training"] = max(found["training"], leak(probe.as_in_training()))
    mode = max(found, key=lambda mode: found[mode].size)
    worst, at, length = found[mode]
    if not worst <= LEAK:
        only = f", in {mode} mode" if min(leak.size for leak in found.values()) <= LEAK else ""
        return failed(
            worst,
            f"sees the future: replacing the tokens after position {at} of {length} changes the outputs up to there, "
            f"by {worst:.2g} of the change of later outputs{only}",
            "sees the future",
        )
    return passed(worst, f"replacing later tokens changes no earlier output (largest relative change {worst:.1g})")


@audit("model")
def causal_gradient(probe: Probe) -> Outcome:
    """The gradient of an output with respect to every later token is exactly zero.

    All outputs up to a position are summed with random signs and differentiated with respect to the embeddings after
    it. A masked connection multiplies by exactly zero in every kernel, so the threshold is zero itself: this finds
    leaks that are far too small to change an output in float32, such as those of a fresh model. Sentences, positions
    and modes are those of `causality`, with fewer positions where there are too many for all. If only this audit fails,
    and not `causality`, the leak is still small; training would exploit it.
    """
    _needs_a_future(probe)

    def leak() -> _Leak:
        worst = _Leak(0.0, 0, 0)
        for ids, behind, later in probe.cuts(share=0.25):
            with torch.enable_grad(), watch(probe.model, "embedded") as seen:
                answers = probe.answer(ids)  # [1, rows, T, V]
                place, token = (torch.arange(n, device=probe.device) for n in answers.shape[2:])
                signs = 1 - 2 * ((5 * place[:, None] + 7 * token) % 11 % 2)
                total = (answers * signs).sum(-1).masked_fill(later, 0).sum()
                (gradient,) = torch.autograd.grad(total, seen["embedded"])
            sizes = gradient.abs().amax(-1)  # [1, rows, T]
            leaks = sizes.masked_fill(~later, 0).amax(-1)[0] / _at_least_tiny(sizes.max())
            row = int(leaks.argmax())
            if not leaks[row] <= worst.size:
                worst = _Leak(leaks[row].item(), int(behind[row]), ids.shape[2])
        return worst

    worst, at, length = max(probe.in_both_modes(leak).values(), key=lambda leak: leak.size)
    if worst > 0:
        return failed(
            worst,
            f"sees the future: tokens after position {at} of {length} get a gradient from the outputs up to there, "
            f"{worst:.2g} of the largest; it should be exactly zero",
            "sees the future",
        )
    return passed(worst, "the gradient of every tested output with respect to later tokens is exactly zero")


class _Leak(NamedTuple):
    size: float
    at: int
    length: int


def _needs_a_future(probe: Probe) -> None:
    if probe.how.looks_ahead:
        raise DoesNotApply("an encoder may look ahead")
    if probe.length < 2:
        raise DoesNotApply("sequences of one token have no later tokens")


@audit("model", rests_on=("finite", "determinism"))
def padding(probe: Probe) -> Outcome:
    """Padding changes no output, wherever it is and however much there is.

    Sentences are read without padding, and again with 0 to 8 slots of padding before them and the rest behind, filled
    once with one token and once with random ones. Outputs may differ by rounding only: a thousandth of their standard
    deviation. A model that fails gives a text different outputs in different batches. Look for padding that is attended
    to or averaged into a pool or a norm, and for positions that count padding.
    """
    plain = probe.answer(probe.padded().begun)
    unit = unit_of(plain)
    worst, how = 0.0, ""
    for filling in ("token 0", "random tokens"):
        rows = probe.padded(random=filling == "random tokens")
        answers = probe.answer(rows.ids, rows.padding_mask)
        if probe.how.per_token:
            answers = answers[rows.padding_mask].view(plain.shape)
        for row, before in enumerate(rows.before):
            change = (answers[:, row] - plain[:, row]).abs().max().item() / unit
            if not change <= worst:
                worst, how = change, f"{before} slots before and {rows.room - before} after, filled with {filling}"
    if not worst <= TINY:
        return failed(worst, f"padding changes the outputs by {worst:.2g} standard deviations ({how})")
    return passed(worst, f"padding changes no output (largest change {worst:.1g} standard deviations)")


@audit("model", rests_on=("determinism",))
def batch_invariance(probe: Probe) -> Outcome:
    """A row gets the same output alone, in a batch, and at another index of the batch.

    Sentences are read together, in reverse order, and the first and last alone. Matrix products of other sizes add in
    another order, so a thousandth of the standard deviation is allowed. A model that fails mixes rows: look for a norm
    or a mean over the batch axis, and for reshapes that swap axes.
    """
    ids = probe.sentences
    together = probe.answers
    worst = difference(probe.answer(ids.flip(1)).flip(1), together)
    for row in (0, ids.shape[1] - 1):
        worst = larger(worst, difference(probe.answer(ids[:, row : row + 1]), together[:, row : row + 1], of=together))
    if not worst <= TINY:
        return failed(worst, f"the other rows of a batch change a row's outputs by {worst:.2g} standard deviations")
    return passed(worst, f"a row's outputs do not depend on the rest of the batch (largest change {worst:.1g})")


@audit("model", rests_on=("determinism",))
def cache(probe: Probe) -> Outcome:
    """Outputs computed token by token, with a KV cache, equal those computed at once.

    Sentences are read in pieces of 1, 1, 3, a half of them, 1 and the rest except the last two tokens, which come one
    by one. Each piece gets the state of the one before, and the outputs are compared with those of a single pass. The
    sums have other shapes, so a thousandth of the standard deviation is allowed. A model that fails generates text from
    other probabilities than those it is scored by: look for positions that restart with every piece, and for keys that
    enter the cache late or twice, or are lost.
    """
    ids = probe.sentences
    pieces, state, first = [], None, 0
    begun = [1, 1, 3, probe.length // 2, 1]
    for size in (*begun, max(0, probe.length - sum(begun) - 2), 1, 1, probe.length):
        piece = ids[:, :, first : first + size]
        if piece.shape[-1]:
            answers, state = probe.how.go_on(probe.model, piece, state)
            pieces.append(answers)
        first += size
    worst = difference(torch.cat(pieces, 2), probe.answers)
    if not worst <= TINY:
        return failed(
            worst, f"outputs computed token by token differ by {worst:.2g} standard deviations from those of one pass"
        )
    return passed(worst, f"outputs token by token equal those of one pass (largest difference {worst:.1g})")


def _at_least_tiny(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(torch.float32).tiny)


ABOUT_ANSWERS = (finite, determinism, causality, causal_gradient, padding, batch_invariance, cache)
