"""The backends that compute attention. Before a model is built, each says whether it supports it, and if not, why.

`plain` is the reference implementation; the others must agree with it. Queries, keys and values have the shape
`[R, B, H, T, d]`. Fused kernels have no replica axis, so R is folded into their batch axis.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.core.errors import UserError
from headway.nn.context import AttentionContext
from headway.nn.kernels.trusted import difference_with_gradients, sample_values, trusted
from headway.nn.masks import Everything
from headway.nn.replicated import Dropout
from headway.nn.similarity import Similarity, scaled_dot

Heads = Float[Tensor, "R B H T d"]
BackendName = Literal["auto", "plain", "sdpa", "flex"]


@dataclass(frozen=True)
class Needs:
    """What a model needs from its backend."""

    device: str = "cpu"
    positions: str = "none"
    weight_dropout: bool = False
    products: bool = True
    """Whether queries and keys are compared by q·k / √d."""


def scores(
    queries: Float[Tensor, "R B H Q d"],
    keys: Float[Tensor, "R B H K d"],
    bias: Float[Tensor, "#R #B #H Q K"] | None = None,
    similarity: Similarity = scaled_dot,
) -> Float[Tensor, "R B H Q K"]:
    """The score of each key for each query, before masking."""
    found = similarity(queries, keys)
    return found if bias is None else found + bias


def weights(
    queries: Float[Tensor, "R B H Q d"],
    keys: Float[Tensor, "R B H K d"],
    allowed: Bool[Tensor, "#R #B #H Q K"] | None = None,
    bias: Float[Tensor, "#R #B #H Q K"] | None = None,
    similarity: Similarity = scaled_dot,
) -> Float[Tensor, "R B H Q K"]:
    """The attention weights: each row sums to 1, or is all zeros if every key is masked."""
    found = scores(queries, keys, bias, similarity)
    if allowed is None:
        return found.softmax(-1)
    # Masked scores are the lowest finite number, and their weights exactly zero, even if the whole row is masked.
    return found.masked_fill(~allowed, torch.finfo(found.dtype).min).softmax(-1) * allowed


class Backend:
    """One way to compute attention."""

    name: str
    similarity: Similarity = staticmethod(scaled_dot)
    """How queries and keys are compared; fused kernels support only scaled dot products."""
    compiles_bias: bool = False
    """Whether the position bias is computed index by index inside a compiled kernel, where no tap can read it."""

    def why_not(self, needs: Needs) -> str | None:
        """Why this backend cannot be used, or None if it can."""
        return None

    def prepare(self, context: AttentionContext) -> None:
        """Compute in advance what `attend` needs from this context; layers share it."""

    def attend(self, q: Heads, k: Heads, v: Heads, context: AttentionContext, drop: Dropout) -> Heads:
        raise NotImplementedError


class Plain(Backend):
    """Scores, softmax and weighted sum in plain torch. Slow, needs T² memory, supports everything."""

    name = "plain"

    def __init__(self, similarity: Similarity = scaled_dot):
        self.similarity = similarity

    def prepare(self, context):
        _ = context.allowed, context.bias

    def attend(self, q, k, v, context, drop):
        return drop(weights(q, k, context.allowed, context.bias, self.similarity)).to(v.dtype) @ v


class Sdpa(Backend):
    """torch's scaled_dot_product_attention, which picks a flash or memory-efficient kernel where it can."""

    name = "sdpa"

    def why_not(self, needs):
        if needs.weight_dropout:
            return "fused kernels use one random stream for all replicas' dropout; use plain, or mixer.dropout = 0"
        return _why_not_fused(needs)

    def prepare(self, context):
        self.addend(context)

    def addend(self, context: AttentionContext) -> Tensor | None:
        """The mask and bias tensor for the kernel; None if its built-in causal mask is enough."""
        return None if context.is_plainly_causal and context.bias is None else context.addend

    def attend(self, q, k, v, context, drop):
        if is_few(q, k):
            return weights(q, k, context.allowed, context.bias).to(v.dtype) @ v
        addend = self.addend(context)
        by_cudnn = addend is None and context.is_plainly_causal and _can_use_cudnn(q)
        with _trusted_kernels(q.device, by_cudnn):
            heads = F.scaled_dot_product_attention(
                q.flatten(0, 1),
                k.flatten(0, 1),
                v.flatten(0, 1),
                attn_mask=None if addend is None else _fold(addend, q.shape, q.dtype),
                is_causal=context.is_plainly_causal and addend is None,
            )
        heads = heads.unflatten(0, q.shape[:2])
        return _GradientInHeadLayout.apply(heads) if by_cudnn else heads  # pyright: ignore[reportReturnType]


FEW_QUERIES = 8


def is_few(queries: Float[Tensor, "R B H Q d"], keys: Float[Tensor, "R B H K d"]) -> bool:
    """Whether there are only a few queries and more keys, on a CPU, as when decoding with a KV cache. torch's fused
    kernel is made for many queries and is slower than plain attention there (docs/log.md)."""
    Q, K = queries.shape[3], keys.shape[3]
    return Q <= FEW_QUERIES and Q < K and queries.device.type == "cpu"


class Flex(Backend):
    """FlexAttention (https://arxiv.org/abs/2412.05496): mask and bias are compiled into the kernel, index by index."""

    name = "flex"
    compiles_bias = True

    def why_not(self, needs):
        if not needs.device.startswith("cuda"):
            return f"it has no backward pass on {needs.device}; use sdpa or plain"
        if needs.weight_dropout:
            return "it cannot drop attention weights; use plain, or mixer.dropout = 0"
        return _why_not_fused(needs)

    def attend(self, q, k, v, context, drop):
        from torch.nn.attention.flex_attention import create_block_mask

        B = q.shape[1]
        queries, keys, positions, mask = context.queries, context.keys, context.positions, context.mask

        def may_look(row, head, i, j):
            return mask.allows(row, queries[i], keys[j])

        def biased(score, row, head, i, j):
            return score + positions.bias(row // B, head, queries[i], keys[j])

        rows = q.shape[0] * B
        block_mask = None
        if not isinstance(mask, Everything):
            block_mask = create_block_mask(may_look, rows, None, len(queries), len(keys), device=str(q.device))
        heads = _compiled_flex()(
            q.flatten(0, 1).contiguous(),
            k.flatten(0, 1).contiguous(),
            v.flatten(0, 1).contiguous(),
            score_mod=biased if positions.has_bias else None,
            block_mask=block_mask,
        )
        return heads.unflatten(0, q.shape[:2])


def _why_not_fused(needs: Needs) -> str | None:
    return None if needs.products else "fused kernels support only q·k/√d; use plain, or similarity: scaled-dot"


BACKENDS: dict[str, Backend] = {"plain": Plain(), "sdpa": Sdpa(), "flex": Flex()}


def choose_backend(name: BackendName, needs: Needs) -> Backend:
    """The backend of that name, or for "auto" the fastest that supports `needs`; a UserError if it does not."""
    if name == "auto":
        return next(b for b in (BACKENDS["sdpa"], BACKENDS["plain"]) if b.why_not(needs) is None)
    backend = BACKENDS[name]
    why_not = backend.why_not(needs)
    if why_not:
        raise UserError(f"{needs.positions} positions with the {name} backend on {needs.device}: {why_not}")
    return backend


def _fold(addend: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """[#R, #B, #H, Q, K] for fused kernels: R and B folded into one axis, or broadcast if all rows are the same."""
    R, B = shape[:2]
    if addend.dtype != torch.bool:
        addend = addend.to(dtype)
    if addend.shape[0] == addend.shape[1] == 1:
        return addend[0]
    return addend.expand(R, B, -1, -1, -1).flatten(0, 1)


def _trusted_kernels(device: torch.device, by_cudnn: bool) -> AbstractContextManager[object]:
    """Only cuDNN's kernel, or all but cuDNN's: the flash and memory-efficient kernels agree with plain attention."""
    if device.type != "cuda":
        return nullcontext()
    if by_cudnn:
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION])
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


# --- cuDNN's kernel --------------------------------------------------------------------------------------------------
# On Hopper it is the fastest kernel for long segments. But in bf16 (torch 2.11) its gradients are silently wrong if the
# incoming gradient has another memory layout than the output (docs/log.md). So we convert the gradient to that layout,
# and use the kernel only for shapes at which a check found it correct.

CUDNN_MIN_LENGTH = 256
"""It is no faster for shorter segments."""
_choosing = threading.Lock()
"""Kernels are checked in several threads, but torch's choice of an attention kernel is one for the whole process."""
_cudnn: dict[tuple[int, int, int], bool] = {}
"""Whether it can be used, by (heads, slots, head width), for torch.compile: there an unknown shape counts as no."""


def _can_use_cudnn(q: Heads) -> bool:
    H, T, d = q.shape[2:]
    if not q.is_cuda or q.dtype != torch.bfloat16 or T < CUDNN_MIN_LENGTH or d % 8 or d > 128:
        return False
    if torch.compiler.is_compiling():
        return _cudnn.get((H, T, d), False)
    hopper = torch.cuda.get_device_capability(q.device) >= (9, 0)
    _cudnn[H, T, d] = hopper and trusted("cuDNN's attention", q.device, check_cudnn, H, T, d, q.dtype)
    return _cudnn[H, T, d]


class _GradientInHeadLayout(torch.autograd.Function):
    """The identity, whose gradient has the memory layout of the heads: those of a token are contiguous."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> Tensor:
        return heads.view_as(heads)

    @staticmethod
    def backward(ctx: Any, d: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return d.transpose(2, 3).contiguous().transpose(2, 3)


def check_cudnn(device: torch.device, H: int, T: int, d: int, dtype: torch.dtype) -> float:
    """Compare forward and backward with plain attention, with an incoming gradient of another memory layout."""

    def attended(together: Tensor, by_cudnn: bool) -> Tensor:
        q, k, v = (part.unflatten(-1, (H, d)).transpose(2, 3) for part in together.chunk(3, -1))
        if not by_cudnn:
            return (weights(q, k, torch.ones(T, T, dtype=torch.bool, device=device).tril()) @ v).roll(1, 2)
        with _trusted_kernels(device, by_cudnn):
            heads = F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), is_causal=True)
        return _GradientInHeadLayout.apply(heads.unflatten(0, q.shape[:2])).roll(1, 2)  # pyright: ignore

    together = sample_values((1, 2, T, 3 * H * d), device, 1, dtype)
    with _choosing:
        return difference_with_gradients(
            lambda x: attended(x, True), lambda x: attended(x.float(), False).to(dtype), (together,)
        )


@cache
def _compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
