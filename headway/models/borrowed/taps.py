"""Taps into a module run by `transformers`: what flows inside it, under our names.

Where attention goes through a kernel that can be chosen, ours is chosen: queries, keys and values flow by taps, and
weights are computed again from them. An architecture that has attention of its own shows the weights that it has
computed; one that has none, or one layer many times, shows what it can.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.nn.mixer import Mixer
from headway.nn.taps import Display, Tap

KERNEL = "headway"
"""What transformers knows our attention function by."""
_TAPS = "headway_taps"
_TRIED = 4  # tokens
_SAME = 1e-4  # of the largest number: two kernels may round differently


class LayerTaps(nn.Module):
    """What flows by in one layer of the borrowed module."""

    def __init__(self):
        super().__init__()
        self.attention = AttentionTaps()
        self.stream = Tap()


class AttentionTaps(Mixer):
    """Of a mixer it has what audits ask: the tokens' order is known, by whatever scheme the architecture has."""

    knows_order = True

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.weights = Display()
        self.mixed = Tap()


def layers_in(module: nn.Module, count: int) -> str:
    """Where the list of layers stands in a module; empty = there is none of so many."""
    lists = [name for name, one in module.named_modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    return lists[0] if lists else ""


@torch.no_grad()
def wired(module: Any, layers: nn.ModuleList) -> bool:
    """Let what flows in the module's layers flow by ours; gives whether attention does, too. Which is tried: not every
    architecture asks for the kernel that it was told to use, or leaves all to it, and some have one layer many times.
    Layers in which no attention is found have no taps for it afterwards."""
    path, seen = layers_in(module, len(layers)), set()
    module.eval()
    if path:
        for taps, layer in zip(layers, module.get_submodule(path), strict=True):
            hook(layer, taps.stream)  # pyright: ignore
            for part in layer.modules():
                object.__setattr__(part, _TAPS, taps.attention)
        watching = [
            taps.attention.mixed.register_forward_hook(lambda *_, n=n: seen.add(n))  # pyright: ignore
            for n, taps in enumerate(layers)
        ]
        try:
            by_ours = _tried(module)[0]
        except UserError:  # it wants something of its kernel that ours does not have
            seen.clear()
        for one in watching:
            one.remove()
    module.config._attn_implementation, chosen = "eager", module.config._attn_implementation  # its masks go by it, too
    plain = _tried(module, output_attentions=True)
    is_ours = bool(seen) and torch.allclose(by_ours, plain[0], atol=_SAME * float(plain[0].abs().max()))  # pyright: ignore
    if is_ours:
        module.config._attn_implementation = chosen
    else:
        shown = getattr(plain, "attentions", None) or ()
        seen = {n for n, one in enumerate(shown) if _is_map(one)} if len(shown) == len(layers) else set()
    for n, taps in enumerate(layers):
        if n not in seen:
            del taps.attention
    module.train()  # as all that was just built: a model is told only if it, as a whole, is not in training
    return is_ours


def _tried(module: Any, **asked: Any) -> Any:
    weights = {name: p.squeeze(0) for name, p in module.named_parameters()}
    try:
        ids = torch.arange(_TRIED)[None] % module.get_input_embeddings().weight.shape[-2]
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict": True, **asked}
        return torch.func.functional_call(module, weights, kwargs=given)
    except Exception as problem:  # transformers raises whatever it stumbles over
        what = f"transformers cannot run the '{module.config.model_type}' of config.json"
        raise UserError(f"{what}: {type(problem).__name__}: {str(problem).partition(chr(10))[0]}") from None


def _is_map(weights: Any) -> bool:
    return isinstance(weights, Tensor) and weights.ndim == 4 and weights.shape[-2:] == (_TRIED, _TRIED)


def hook(module: nn.Module, tap: Any) -> None:
    def through(module: nn.Module, given: tuple, out: Any) -> Any:
        if isinstance(out, Tensor):
            return tap(out[None])[0]
        return type(out)((tap(out[0][None])[0], *out[1:]))  # a tuple, or a list

    module.register_forward_hook(through)


def register(transformers: Any) -> None:
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    transformers.AttentionInterface.register(KERNEL, attend)
    AttentionMaskInterface.register(KERNEL, sdpa_mask)


def attend(
    module: nn.Module,
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B K S d"],
    value: Float[Tensor, "B K S v"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "B T H v"], None]:
    """As transformers asks for attention: by the fused kernel where that can do it, with taps around it. `softcap`:
    scores are bent towards ± this; `s_aux`: a score of each head for nothing at all, which takes its share."""
    taps = getattr(module, _TAPS, None)
    if key.shape[1] != query.shape[1]:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    T, S = query.shape[2], key.shape[2]
    if attention_mask is None and T > 1 and (getattr(module, "is_causal", False) if is_causal is None else is_causal):
        attention_mask = torch.ones(T, S, dtype=torch.bool, device=query.device).tril(S - T)
    if taps is not None:
        query, key, value = taps.queries(query[None])[0], taps.keys(key[None])[0], taps.values(value[None])[0]

    def weights() -> Float[Tensor, "B H T S"]:
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if softcap is None else (scores / softcap).tanh() * softcap
        scores = scores if position_bias is None else scores + position_bias
        if attention_mask is not None:
            may = attention_mask.dtype == torch.bool
            scores = scores.masked_fill(~attention_mask, -torch.inf) if may else scores + attention_mask
        if s_aux is not None:
            scores = torch.cat((scores, s_aux.view(1, -1, 1, 1).expand(len(scores), -1, T, 1)), -1)
        return scores.softmax(-1).nan_to_num(0.0)[..., :S]

    is_plain = softcap is None and s_aux is None and position_bias is None
    if taps is not None and taps.weights.is_watched:
        taps.weights(weights()[None])
    if is_plain:
        mixed = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    else:
        mixed = weights() @ value
    mixed = mixed if taps is None else taps.mixed(mixed[None])[0]
    return mixed.transpose(1, 2).contiguous(), None
