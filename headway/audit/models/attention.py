"""Audits of attention itself: whom it looks at, how firmly it looks away, and whether the kernel does what it should.

Who may be seen is written down here once more, apart from the masks the model uses: a check that asks the model's own
mask would agree with its mistakes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import TINY, Probe, difference, larger
from headway.nn.attention import Attention
from headway.nn.taps import intervene, named_taps, watch

ROUNDING = 1e-5
"""Sums of up to a hundred weights, in float32."""
LARGE = 1e6
"""Makes of ordinary scores such as no sane training reaches, still far from the limits of float32."""


@audit("model", rests_on=("finite",))
def attention_rows(probe: Probe) -> Outcome:
    """Each row of attention sums to 1 over what may be seen, and is exactly 0 elsewhere.

    The weights of every layer and head are watched while sentences with padding are answered, and compared with what
    the recipe says may be seen: real tokens, in a decoder none that come later, in a window none that are far. Sums
    may be off by rounding, 1e-5; a weight outside must be exactly 0, and a query that may look nowhere gets zeros. In a
    fresh model, which has no preferences yet (one that starts with borrowed weights has), everything that may be seen
    must also get some weight. When it fails, the mask is not the one the recipe describes.
    """
    rows = probe.padded()
    seen_by = {name: may_see_in(probe, layer, rows.padding_mask)[:, :, None] for name, layer in layers_of(probe)}
    asking_in = {name: may.any(-1) & rows.padding_mask[:, :, None] for name, may in seen_by.items()}  # [1, rows, 1, T]
    worst_outside, worst_sum, where = 0.0, 0.0, ""
    for (_, name), weights in watched(probe, ("weights",), rows.ids, rows.padding_mask).items():
        may_see, asking = seen_by[name], asking_in[name]  # may_see: [1, rows, 1, T, T]
        outside = weights.masked_fill(may_see, 0).abs().max().item()
        off = (weights.sum(-1) - 1).abs().masked_fill(~asking, 0).max().item()
        if not (outside <= worst_outside and off <= worst_sum):
            where = name
        worst_outside, worst_sum = larger(worst_outside, outside), larger(worst_sum, off)
    if worst_outside != 0:
        return failed(worst_outside, f"{where} gives up to {worst_outside:.2g} to slots that may not be seen")
    if not worst_sum <= ROUNDING:
        return failed(worst_sum, f"rows of {where} sum to 1 only within {worst_sum:.2g}")
    if not probe.recipe.model.starts_random:
        return passed(worst_sum, f"rows of attention sum to 1 over what may be seen, within {worst_sum:.1g}")
    unspoilt = replace(probe, model=probe.start)
    for (_, name), weights in watched(unspoilt, ("weights",), rows.ids, rows.padding_mask).items():
        may_see, asking = seen_by[name], asking_in[name]
        unseen = (weights == 0) & may_see & asking[..., None]
        if unseen.any():
            share = (unseen.sum() / may_see.expand_as(weights).sum()).item()
            return failed(share, f"{share:.1%} of what {name} may see gets no weight even in a fresh model")
    return passed(worst_sum, f"rows of attention sum to 1 over what may be seen, within {worst_sum:.1g}; 0 elsewhere")


@audit("model", rests_on=("finite", "determinism"))
def hard_mask(probe: Probe) -> Outcome:
    """What is masked stays masked, however large the scores grow.

    The queries of every layer are multiplied by a million, and the keys and values of slots that nobody may see are
    changed: padding, and in a decoder the last token, which is not there for those before it. What the heads gather
    must stay. A mask that adds a finite number such as -10,000 passes every test at the start of training and leaks
    once the scores have grown; minus infinity, or a weight set to zero, does not. When it fails, mask with `-inf`, or
    multiply the weights by the mask.
    """
    rows = probe.padded()
    real = rows.padding_mask
    if probe.how.looks_ahead:  # of many scores one is large, and hides what a finite mask lets through: leave one token
        real = real & (real.cumsum(-1) == 1)
    last = real & (real.cumsum(-1) == rows.begun.shape[-1])
    names = [name for name, _ in layers_of(probe)]
    probes = [(~real, real, names)]
    if not probe.how.looks_ahead:  # deeper layers hear of the last token from itself
        probes.append((last, real & ~last, names[:1]))
    worst = 0.0
    for size in (LARGE, -LARGE):
        with _hooked(probe, "queries", lambda q, size=size: size * q):
            before = watched(probe, ("mixed",), rows.ids, real)
            for hidden, asking, among in probes:
                change = partial(_changed, where=hidden)
                with _hooked(probe, "keys", change), _hooked(probe, "values", change):
                    after = watched(probe, ("mixed",), rows.ids, real)
                for key in (("mixed", name) for name in among):
                    heads = asking[:, :, None, :, None].expand_as(before[key])
                    worst = larger(worst, difference(after[key][heads], before[key][heads], of=before[key]))
    if not worst <= TINY:
        return failed(worst, f"when scores grow large, masked slots move what heads see by {worst:.2g} of its spread")
    return passed(worst, f"masked slots stay masked when scores are a million times as large (change {worst:.1g})")


@audit("model", rests_on=("finite", "determinism"))
def kernel(probe: Probe) -> Outcome:
    """What the kernel computes is what the definition says: weights times values.

    In every layer the weights are computed again from queries and keys, plainly, and multiplied by the values; the
    heads that came out of the kernel must agree within a thousandth of their spread, with padding and without, in
    evaluation and in training. (Where training drops weights, the same are dropped here: which they are is a function
    of the step.) When it fails, the kernel uses another mask, bias or scale, and every attention map shown for this
    model is a map of something else: choose mixer.backend=plain.
    """
    rows = probe.padded()

    def compared() -> tuple[float, str]:
        worst, where = 0.0, ""
        for ids, padding_mask in ((rows.begun, None), (rows.ids, rows.padding_mask)):
            seen = watched(probe, ("weights", "values", "mixed"), ids, padding_mask)
            asking = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
            for name, layer in layers_of(probe):
                plain = layer.drop(seen["weights", name]) @ seen["values", name]
                heads = asking[:, :, None, :, None].expand_as(plain)
                off = difference(seen["mixed", name][heads], plain[heads], of=plain)
                if not off <= worst:
                    worst, where = off, f"{layer.backend.name} in {name}"
        return worst, where

    worst = 0.0
    for mode, (off, where) in probe.in_both_modes(compared).items():
        if not off <= TINY:
            return failed(
                off, f"the kernel {where} is off by {off:.2g} of the spread from weights times values, in {mode}"
            )
        worst = max(worst, off)
    return passed(worst, f"the kernel gives weights times values, within {worst:.1g} of the spread")


def layers_of(probe: Probe) -> list[tuple[str, Attention]]:
    """Every attention layer of the sequence that is probed, and what its taps' names begin with."""
    apart = {part for module in probe.how.apart(probe.model) for part in module.modules()}
    names = {tap: name.rpartition(".")[0] for name, tap in named_taps(probe.model).items()}
    layers = (module for module in probe.model.modules() if isinstance(module, Attention) and module not in apart)
    found = [(names[layer.weights], layer) for layer in layers]
    if not found:
        raise DoesNotApply("there is no attention in this model")
    return found


def watched(
    probe: Probe, what: Sequence[str], ids: Tensor, padding_mask: Tensor | None
) -> dict[tuple[str, str], Tensor]:
    """What flows by these taps of every attention layer, by (tap, name of the layer)."""
    taps = {f"{name}.{tap}": (tap, name) for name, _ in layers_of(probe) for tap in what}
    with watch(probe.model, *taps) as seen:
        probe.how.run(probe.model, ids, padding_mask)
    return {taps[place]: tensor for place, tensor in seen.items()}


def _hooked(probe: Probe, what: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Change what flows by this tap of every attention layer."""
    return intervene(probe.model, {f"{name}.{what}": change for name, _ in layers_of(probe)})


def _changed(x: Tensor, where: Tensor) -> Tensor:
    """Heads [1, rows, H, T, d], moved by three times their spread in these slots."""
    return torch.where(where[:, :, None, :, None], x + 3 * x.std(), x)


def may_see_in(probe: Probe, layer: Attention, padding_mask: Tensor) -> Tensor:
    """[1, rows, T, T]: the recipe's words, not the model's masks."""
    T = padding_mask.shape[-1]
    query, key = torch.arange(T, device=padding_mask.device)[:, None], torch.arange(T, device=padding_mask.device)
    may = padding_mask[:, :, None, :].expand(-1, -1, T, -1)
    if not probe.how.looks_ahead:
        may = may & (key <= query)
    if (window := layer.spec.window) is not None:
        may = may & ((query - key).abs() < window)
    return may


ABOUT_ATTENTION = (attention_rows, hard_mask, kernel)
