"""Taps into a module run by `transformers`: its internals, under our names.

If an architecture lets us choose the attention function, it gets ours: queries, keys and values pass through taps, and
attention weights are recomputed from them. An architecture with attention code of its own returns the weights that it
computed. One without attention, or with a single layer used many times, has only some of the taps.
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
"""The name of our attention function in transformers."""
_TAPS = "headway_taps"
_TRIAL_TOKENS = 4  # tokens
_TOLERANCE = 1e-4  # relative to the largest output: two kernels may round differently


class LayerTaps(nn.Module):
    """The taps of one layer of the borrowed module."""

    def __init__(self):
        super().__init__()
        self.attention = AttentionTaps()
        self.stream = Tap()


class AttentionTaps(Mixer):
    """The parts of a mixer that audits use. It knows the order of tokens by whatever scheme the architecture has."""

    knows_order = True

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.weights = Display()
        self.mixed = Tap()


def layers_in(module: nn.Module, count: int) -> str:
    """The path of the list of layers in a module; empty = there is no list with this number of layers."""
    lists = [name for name, one in module.named_modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    return lists[0] if lists else ""


@torch.no_grad()
def connect_taps(module: Any, layers: nn.ModuleList) -> bool:
    """Connect the module's layers to our taps; return whether attention passes through our function. That is found out
    by trying: some architectures ignore the chosen attention function, do more than it does, or use one layer many
    times. Layers in which no attention is found lose their attention taps."""
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
        except UserError:  # it needs a feature that our attention function lacks
            seen.clear()
        for one in watching:
            one.remove()
    module.config._attn_implementation, chosen = "eager", module.config._attn_implementation  # masks depend on it, too
    plain = _tried(module, output_attentions=True)
    is_ours = bool(seen) and torch.allclose(by_ours, plain[0], atol=_TOLERANCE * float(plain[0].abs().max()))  # pyright: ignore
    if is_ours:
        module.config._attn_implementation = chosen
    else:
        shown = getattr(plain, "attentions", None) or ()
        seen = {n for n, one in enumerate(shown) if _is_map(one)} if len(shown) == len(layers) else set()
    for n, taps in enumerate(layers):
        if n not in seen:
            del taps.attention
    module.train()  # as all new modules: train() is called on a model only if the model itself is in eval mode
    return is_ours


def _tried(module: Any, **asked: Any) -> Any:
    weights = {name: p.squeeze(0) for name, p in module.named_parameters()}
    try:
        ids = torch.arange(_TRIAL_TOKENS)[None] % module.get_input_embeddings().weight.shape[-2]
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict": True, **asked}
        return torch.func.functional_call(module, weights, kwargs=given)
    except Exception as problem:  # transformers can raise anything
        what = f"transformers cannot run the '{module.config.model_type}' of config.json"
        raise UserError(f"{what}: {type(problem).__name__}: {str(problem).partition(chr(10))[0]}") from None


def _is_map(weights: Any) -> bool:
    return isinstance(weights, Tensor) and weights.ndim == 4 and weights.shape[-2:] == (_TRIAL_TOKENS, _TRIAL_TOKENS)


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
    """Attention with the signature that transformers expects, with taps, by the fused kernel if that is possible.
    `softcap`: scores are squashed to ± this; `s_aux`: attention sinks, one extra score per head without a value."""
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
