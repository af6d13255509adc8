"""Audits of attention: which tokens it attends to, how hard its mask is, and what the kernel computes.

What a query may see is written down here a second time, apart from the masks the model uses: a check that asked the
model's own mask would share its mistakes.
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
"""Tolerance for sums of up to a hundred weights in float32."""
LARGE = 1e6
"""Makes ordinary scores larger than any sane training does, still far from the limits of float32."""


@audit("model", rests_on=("finite",))
def attention_rows(probe: Probe) -> Outcome:
    """Each attention row sums to 1 over the tokens it may see, and is exactly 0 elsewhere.

    The weights of every layer and head are recorded while sentences with padding are read, and compared with what the
    recipe says each query may see: real tokens, in a decoder no later ones, in a window no distant ones. Sums may be
    off by 1e-5 (rounding); a weight outside must be exactly 0, and a query that may see nothing gets zeros. In a fresh
    model, which has no preferences yet (imported weights do), every token that may be seen must also get some weight.
    If it fails, the mask is not the one the recipe describes.
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
        return failed(worst_outside, f"{where} gives weights up to {worst_outside:.2g} to tokens that may not be seen")
    if not worst_sum <= ROUNDING:
        return failed(worst_sum, f"attention rows of {where} do not sum to 1: off by {worst_sum:.2g}")
    if not probe.recipe.model.starts_random:
        return passed(worst_sum, f"attention rows sum to 1 over the tokens they may see, within {worst_sum:.1g}")
    unspoilt = replace(probe, model=probe.start)
    for (_, name), weights in watched(unspoilt, ("weights",), rows.ids, rows.padding_mask).items():
        may_see, asking = seen_by[name], asking_in[name]
        unseen = (weights == 0) & may_see & asking[..., None]
        if unseen.any():
            share = (unseen.sum() / may_see.expand_as(weights).sum()).item()
            return failed(share, f"{share:.1%} of the tokens that {name} may see get no weight even in a fresh model")
    return passed(worst_sum, f"attention rows sum to 1 over what they may see, within {worst_sum:.1g}; 0 elsewhere")


@audit("model", rests_on=("finite", "determinism"))
def hard_mask(probe: Probe) -> Outcome:
    """Masked tokens stay masked, however large the scores grow.

    The queries of every layer are multiplied by a million, and the keys and values of slots that nothing may see are
    changed: padding, and in a decoder the last token, which earlier ones may not see. The outputs of the heads must
    stay the same. A mask that adds a finite number such as -10,000 passes every test at the start of training and leaks
    once the scores have grown; minus infinity, or a weight set to zero, does not. If it fails, mask with `-inf`, or
    multiply the weights by the mask.
    """
    rows = probe.padded()
    real = rows.padding_mask
    if probe.how.looks_ahead:  # one large score among many hides what a finite mask lets through: leave one token
        real = real & (real.cumsum(-1) == 1)
    last = real & (real.cumsum(-1) == rows.begun.shape[-1])
    names = [name for name, _ in layers_of(probe)]
    probes = [(~real, real, names)]
    if not probe.how.looks_ahead:  # in deeper layers the last token's own stream carries the change
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
        return failed(worst, f"with large scores, masked tokens change the heads by {worst:.2g} standard deviations")
    return passed(worst, f"masked tokens stay masked when scores are a million times as large (change {worst:.1g})")


@audit("model", rests_on=("finite", "determinism"))
def kernel(probe: Probe) -> Outcome:
    """The attention kernel agrees with its definition: weights times values.

    In every layer the weights are computed again from queries and keys, in plain operations, and multiplied by the
    values. The kernel's heads must agree within a thousandth of their standard deviation, with padding and without, in
    evaluation and in training. (Where training drops attention weights, the same ones are dropped here, since dropout
    is a function of the step.) If it fails, the kernel uses another mask, bias or scale, and every attention map shown
    for this model is wrong: use mixer.backend=plain.
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
                off, f"the kernel {where} is off by {off:.2g} standard deviations from weights times values, in {mode}"
            )
        worst = max(worst, off)
    return passed(worst, f"the kernel computes weights times values, within {worst:.1g} standard deviations")


def layers_of(probe: Probe) -> list[tuple[str, Attention]]:
    """Every attention layer of the sequence that is probed, with the prefix of its taps' names."""
    apart = {part for module in probe.how.apart(probe.model) for part in module.modules()}
    names = {tap: name.rpartition(".")[0] for name, tap in named_taps(probe.model).items()}
    layers = (module for module in probe.model.modules() if isinstance(module, Attention) and module not in apart)
    found = [(names[layer.weights], layer) for layer in layers]
    if not found:
        raise DoesNotApply("this model has no attention")
    return found


def watched(
    probe: Probe, what: Sequence[str], ids: Tensor, padding_mask: Tensor | None
) -> dict[tuple[str, str], Tensor]:
    """The tensors at these taps of every attention layer, by (tap, name of the layer)."""
    taps = {f"{name}.{tap}": (tap, name) for name, _ in layers_of(probe) for tap in what}
    with watch(probe.model, *taps) as seen:
        probe.how.run(probe.model, ids, padding_mask)
    return {taps[place]: tensor for place, tensor in seen.items()}


def _hooked(probe: Probe, what: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Context manager: change the tensor at this tap of every attention layer."""
    return intervene(probe.model, {f"{name}.{what}": change for name, _ in layers_of(probe)})


def _changed(x: Tensor, where: Tensor) -> Tensor:
    """Heads [1, rows, H, T, d], shifted by three standard deviations in these slots."""
    return torch.where(where[:, :, None, :, None], x + 3 * x.std(), x)


def may_see_in(probe: Probe, layer: Attention, padding_mask: Tensor) -> Tensor:
    """[1, rows, T, T]: what each query may see by the recipe, independent of the model's masks."""
    T = padding_mask.shape[-1]
    query, key = torch.arange(T, device=padding_mask.device)[:, None], torch.arange(T, device=padding_mask.device)
    may = padding_mask[:, :, None, :].expand(-1, -1, T, -1)
    if not probe.how.looks_ahead:
        may = may & (key <= query)
    if (window := layer.spec.window) is not None:
        may = may & ((query - key).abs() < window)
    return may


ABOUT_ATTENTION = (attention_rows, hard_mask, kernel)
