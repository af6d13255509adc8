"""Audits of a model as a function, whatever is inside it: what may an answer depend on?

Each changes something that must not matter (later tokens, padding, the other rows of a batch, a cache) and looks
whether the answers notice. Differences are given in units of how much answers vary from place to place, so that a
fresh model, whose numbers are small, is judged as strictly as a trained one.
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
"""Two passes of one shape do the same sums in the same order: what is not zero here is a dependence."""


@audit("model", asked="of each")
def finite(probe: OneOrMember) -> Outcome:
    """All weights, answers and gradients are finite numbers.

    The weights are looked at one by one; then sentences with padding on both sides are answered and the answers'
    gradient is taken. Padding before a sentence makes queries that may look nowhere: a softmax over nothing is 0/0, the
    classic source of NaN, and of NaN gradients even where the NaN itself was covered up. There is no threshold: one
    such number is too many. When the weights are at fault, training diverged: lower the learning rate, or clip. When
    only answers or gradients are, a mask makes rows of nothing and the softmax does not expect them.
    """
    if not probe.is_whole:
        broken = {name: count for name, count in probe.share(_lost_weights).items() if count}
        name, count = next(iter(broken.items()))
        return failed(count, f"{sum(broken.values()):,} weights are not finite numbers; the first are in {name}")
    answers_off, gradients_off = probe.share(_lost_on_padding)
    if answers_off or gradients_off:
        what = f"{answers_off:,} answers to padded sentences and {gradients_off:,} numbers of their gradient"
        return failed(answers_off + gradients_off, f"{what} are not finite")
    return passed(0, "all weights are finite, and so are answers to padded sentences and their gradients")


def _lost_weights(everyone: Probe) -> list[dict[str, int]]:
    """Of each replica, by name: how many are no numbers."""
    names = [name for name, _ in everyone.model.named_parameters()]
    lost = torch.stack(
        [(~p.isfinite()).reshape(len(p), -1).sum(1) for p in everyone.model.parameters()], 1
    )  # [R, names]
    return [dict(zip(names, own, strict=True)) for own in lost.tolist()]


def _lost_on_padding(everyone: Probe) -> list[list[int]]:
    """Of each replica: answers to padded sentences that are no numbers, and numbers of their gradient."""
    rows = everyone.padded()
    with torch.enable_grad(), watch(everyone.model, "embedded") as seen:
        answers = everyone.answer(rows.ids, rows.padding_mask)
        told = answers[rows.padding_mask] if everyone.how.per_token else answers
        (gradient,) = torch.autograd.grad(told.sum(), seen["embedded"])
    lost = [(~numbers.isfinite()).reshape(len(answers), -1).sum(1) for numbers in (told, gradient)]
    return torch.stack(lost, 1).tolist()


@audit("model")
def determinism(probe: Probe) -> Outcome:
    """Evaluation has no noise, and that of training is a function of the step: two passes give the same numbers.

    In evaluation the two passes are made at different steps, in training at the same one. There is nothing to round
    differently, hence no tolerance. When it fails in evaluation, dropout (or another noise) is on there, and every
    score is a draw from a lottery; in training, a run can neither be repeated nor resumed. Where it fails, nothing can
    be said by comparing two passes, and audits that do so are silent.
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
        return failed(off, f"two evaluations of the same sentences differ by {off:.2g} of the spread")
    if found["training"] != 0:
        off = found["training"]
        return failed(
            off, f"two passes of one training step differ by {off:.2g} of the spread: its noise is not the step's"
        )
    return passed(0, "two evaluations give the same numbers, bit for bit, and so do two passes of one training step")


@audit("model", rests_on=("determinism",))
def causality(probe: Probe) -> Outcome:
    """No answer depends on a later token.

    In sentences as long as those of training, and as those of scoring, all tokens behind a position are exchanged for
    others: behind every position, or where that would take long, behind many (the first and the last, around powers of
    two, at the borders of windows and segments, and some that are drawn). What the model says up to that position must
    not change, in evaluation and in training mode (whose noise is the same in both passes); nor in a batch of as many
    rows as those of training, late in training. Both passes do the same sums, so anything above a millionth of what
    later answers move by is a dependence. A model that fails has seen what it is asked to predict: its perplexity means
    nothing. Look for a mask that is off by one or missing, at some positions, lengths or rows only, and for statistics
    (norms, means) taken over the whole sequence.
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
            f"sees the future: exchanging the tokens after position {at} of {length} moves what is said up to there by "
            f"{worst:.2g} of what it moves later answers{only}",
            "sees the future",
        )
    return passed(worst, f"exchanging later tokens moves no earlier answer (largest change {worst:.1g} of the spread)")


@audit("model")
def causal_gradient(probe: Probe) -> Outcome:
    """The gradient of an answer in every later token is exactly zero.

    All answers up to a position are summed with random signs and differentiated by the embeddings behind it. A
    forbidden connection multiplies by exactly zero in every kernel, so the threshold is zero itself: this sees leaks
    that are far too small to move an answer in float32, such as those of a fresh model. Sentences, positions and modes
    are those of `causality`; there are fewer positions where there are too many for all. When only this audit fails,
    and not `causality`, the leak is small today; training would find it.
    """
    _needs_a_future(probe)

    def leak() -> _Leak:
        worst = _Leak(0.0, 0, 0)
        for ids, behind, later in probe.cuts(share=0.25):
            with torch.enable_grad(), watch(probe.model, "embedded") as seen:
                answers = probe.answer(ids)  # [1, rows, T, V]
                place, token = (torch.arange(n, device=probe.device) for n in answers.shape[2:])
                signs = 1 - 2 * ((5 * place[:, None] + 7 * token) % 11 % 2)
                told = (answers * signs).sum(-1).masked_fill(later, 0).sum()
                (gradient,) = torch.autograd.grad(told, seen["embedded"])
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
            f"sees the future: tokens after position {at} of {length} get {worst:.2g} of the largest gradient of what "
            "is said up to there, and should get exactly none",
            "sees the future",
        )
    return passed(worst, "the gradient of every probed answer in later tokens is exactly zero")


class _Leak(NamedTuple):
    size: float
    at: int
    length: int


def _needs_a_future(probe: Probe) -> None:
    if probe.how.looks_ahead:
        raise DoesNotApply("an encoder may look ahead")
    if probe.length < 2:
        raise DoesNotApply("sequences of one token have no future")


@audit("model", rests_on=("finite", "determinism"))
def padding(probe: Probe) -> Outcome:
    """Padding changes nothing, wherever it stands and however much there is.

    Eight sentences are answered as they are, and again with 0 to 8 slots of padding before them and the rest behind,
    once filled with one token and once with random ones. Answers may differ by rounding only: a thousandth of their
    spread. A model that fails gives a text another answer in another batch. Look for padding that is attended to,
    averaged into a pool or a norm, and for positions that count padding.
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
                worst, how = change, f"{before} slots before and {rows.room - before} behind, filled with {filling}"
    if not worst <= TINY:
        return failed(worst, f"padding moves the answers by {worst:.2g} of their spread ({how})")
    return passed(worst, f"padding moves no answer (largest change {worst:.1g} of the spread)")


@audit("model", rests_on=("determinism",))
def batch_invariance(probe: Probe) -> Outcome:
    """A row gets the same answer alone, among others, and in another place among them.

    Eight sentences are answered together, in reverse order, and the first two alone. Other sizes of a matrix product
    add in another order, so a thousandth of the spread is allowed. A model that fails mixes rows: look for a norm or a
    mean over the batch axis, and for reshapes that swap axes.
    """
    ids = probe.sentences
    together = probe.answers
    worst = difference(probe.answer(ids.flip(1)).flip(1), together)
    for row in (0, ids.shape[1] - 1):
        worst = larger(worst, difference(probe.answer(ids[:, row : row + 1]), together[:, row : row + 1], of=together))
    if not worst <= TINY:
        return failed(worst, f"the other rows of a batch move a row's answer by {worst:.2g} of the spread")
    return passed(worst, f"a row's answer is its own, whoever stands beside it (largest change {worst:.1g})")


@audit("model", rests_on=("determinism",))
def cache(probe: Probe) -> Outcome:
    """Answers given token by token, with a cache, are those given at once.

    Sentences are read in pieces of 1, 1, 3, a half of them, 1 and the rest, but for the last two tokens, which come one
    by one, each with the state that the one before left, and compared with a single pass. The sums are done in other
    shapes, so a thousandth of the spread is allowed. A model that fails samples text it would not stand by: look for
    positions that start again with every piece, and for keys that join the cache late or twice, or are lost.
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
            worst, f"answers given token by token differ by {worst:.2g} of the spread from those given at once"
        )
    return passed(worst, f"token by token, the answers are those given at once (largest difference {worst:.1g})")


def _at_least_tiny(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(torch.float32).tiny)


ABOUT_ANSWERS = (finite, determinism, causality, causal_gradient, padding, batch_invariance, cache)
