"""Building blocks shared by several faults of models."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from headway.audit.plants.planting import Patch
from headway.models.backbone import Backbone
from headway.nn import attention, backends, masks, positions

FUTURE = ("causality", "causal-gradient")


def written_out(patch: Patch) -> None:
    """Use plain attention whatever kernel the recipe asks for, so that faults of the definition show with any."""
    patch.setattr(backends.Sdpa, "attend", backends.Plain.attend)


def weighed(patch: Patch, weigh: Callable) -> None:
    """Compute attention weights differently from scores [R, B, H, Q, K] and the mask, in the kernel and in what the
    taps show."""

    def weights(queries: Any, keys: Any, allowed: Any = None, bias: Any = None, *similarity: Any) -> Any:
        scores = backends.scores(queries, keys, bias, *similarity)
        return scores.softmax(-1) if allowed is None else weigh(scores, allowed)

    replaced_weights(patch, weights)


def scaled(patch: Patch, scale: Callable) -> None:
    """Multiply scores by another factor, a function of the head width."""

    def weights(queries: Any, keys: Any, allowed: Any = None, bias: Any = None, *similarity: Any) -> Any:
        scores = queries @ keys.mT * scale(queries.shape[-1])
        scores = scores if bias is None else scores + bias
        if allowed is None:
            return scores.softmax(-1)
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1) * allowed

    replaced_weights(patch, weights)


def replaced_weights(patch: Patch, weights: Callable) -> None:
    written_out(patch)
    for module in (backends, attention):
        patch.setattr(module, "weights", weights)


def fused(mask: Callable = lambda context: context.addend, scale: float | None = None) -> Callable:
    """A fused kernel with another mask, or another scale."""

    def attend(self: Any, q: Any, k: Any, v: Any, context: Any, drop: Any) -> Any:
        given = mask(context)
        given = None if given is None else backends._fold(given, q.shape, q.dtype)  # pyright: ignore[reportPrivateUsage]
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given, scale=scale).unflatten(0, context.shape[:2])

    return attend


def causal_but(patch: Patch, leaks: Callable) -> None:
    """The causal mask, except where `leaks(i, j, length)` says so."""
    written_out(patch)

    def allows(self: Any, row: Any, i: Any, j: Any) -> Any:
        length = int(j.max()) + 1
        return (j <= i) | leaks(i, j, length)

    patch.setattr(masks.Causal, "allows", allows)


def norm_over(axis: int) -> Callable:
    def forward(self: Any, x: Any) -> Any:
        centred = x - x.mean(axis, keepdim=True)
        spread = centred.square().mean(axis, keepdim=True).add(1e-5).sqrt()
        return centred / spread * self.weight[:, None, None] + self.bias[:, None, None]

    return forward


def asked_elsewhere(patch: Patch, where: Callable) -> None:
    """The model asks its position scheme for other positions than the true ones."""
    honest = Backbone.hidden

    class Elsewhere(positions.Positions):
        def __init__(self, scheme: Any):
            super().__init__()
            self.scheme, self.has_bias = scheme, scheme.has_bias

        def embed(self, x: Any, at: Any) -> Any:
            return self.scheme.embed(x, where(at))

        def rotate(self, x: Any, at: Any) -> Any:
            return self.scheme.rotate(x, where(at))

    def hidden(self: Any, *given: Any, **named: Any) -> Any:
        scheme, self.positions = self.positions, Elsewhere(self.positions)
        try:
            return honest(self, *given, **named)
        finally:
            self.positions = scheme

    patch.setattr(Backbone, "hidden", hidden)


def frozen(patch: Patch, freeze: Callable) -> None:
    """Apply `freeze` to every model when it is built."""
    honest = Backbone.__init__

    def built(self: Any, *given: Any) -> None:
        honest(self, *given)
        freeze(self)

    patch.setattr(Backbone, "__init__", built)


def without_rows(first: int, last: int) -> Callable:
    """A gradient hook [R, rows, …] that zeroes a range of rows, given in thousandths."""

    def hook(gradient: Any) -> Any:
        gradient, rows = gradient.clone(), gradient.shape[1]
        gradient[:, rows * first // 1000 : rows * last // 1000] = 0
        return gradient

    return hook
