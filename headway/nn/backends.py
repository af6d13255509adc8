"""The kernels that compute attention. Each says what it cannot do, in words, before anything is built.

`plain` is the definition, written out; the others must agree with it. Queries, keys and values come as
`[R, B, H, T, d]`; fused kernels know nothing of replicas, so R is folded into their batch.
"""

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
from headway.nn.kernels.trusted import numbers, there_and_back, trusted
from headway.nn.masks import Everything
from headway.nn.replicated import Dropout
from headway.nn.similarity import Similarity, scaled_dot

Heads = Float[Tensor, "R B H T d"]
BackendName = Literal["auto", "plain", "sdpa", "flex"]


@dataclass(frozen=True)
class Needs:
    """What a model asks of its kernel."""

    device: str = "cpu"
    positions: str = "none"
    weight_dropout: bool = False
    products: bool = True
    """Queries and keys are compared by q·k / √d."""


def scores(
    queries: Float[Tensor, "R B H Q d"],
    keys: Float[Tensor, "R B H K d"],
    bias: Float[Tensor, "#R #B #H Q K"] | None = None,
    similarity: Similarity = scaled_dot,
) -> Float[Tensor, "R B H Q K"]:
    """How well each key suits each query, before any mask."""
    found = similarity(queries, keys)
    return found if bias is None else found + bias


def weights(
    queries: Float[Tensor, "R B H Q d"],
    keys: Float[Tensor, "R B H K d"],
    allowed: Bool[Tensor, "#R #B #H Q K"] | None = None,
    bias: Float[Tensor, "#R #B #H Q K"] | None = None,
    similarity: Similarity = scaled_dot,
) -> Float[Tensor, "R B H Q K"]:
    """The attention weights: each row sums to 1, or is all zeros where nothing may be seen."""
    found = scores(queries, keys, bias, similarity)
    if allowed is None:
        return found.softmax(-1)
    # A forbidden score is the lowest number there is, and its weight exactly zero: also in a row of nothing else.
    return found.masked_fill(~allowed, torch.finfo(found.dtype).min).softmax(-1) * allowed


class Backend:
    """One way to compute attention."""

    name: str
    similarity: Similarity = staticmethod(scaled_dot)
    """How queries and keys are compared; fused kernels know no other way."""
    compiles_bias: bool = False
    """Whether positions are asked for their bias index by index, inside a compiled kernel: nobody can listen there."""

    def why_not(self, needs: Needs) -> str | None:
        """What stands in the way, or None."""
        return None

    def prepare(self, context: AttentionContext) -> None:
        """Compute what `attend` will ask this context for, which layers share."""

    def attend(self, q: Heads, k: Heads, v: Heads, context: AttentionContext, drop: Dropout) -> Heads:
        raise NotImplementedError


class Plain(Backend):
    """Written out: scores, softmax, weighted sum. Slow, needs T² memory, can do everything."""

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
            return "fused kernels draw dropout from one stream for all replicas; use plain, or mixer.dropout = 0"
        return _why_not_fused(needs)

    def prepare(self, context):
        self.addend(context)

    def addend(self, context: AttentionContext) -> Tensor | None:
        """None: the kernel knows by itself who may look where."""
        return None if context.is_plainly_causal and context.bias is None else context.addend

    def attend(self, q, k, v, context, drop):
        if is_few(q, k):
            return weights(q, k, context.allowed, context.bias).to(v.dtype) @ v
        addend = self.addend(context)
        by_cudnn = addend is None and context.is_plainly_causal and _by_cudnn(q)
        with _trusted_kernels(q.device, by_cudnn):
            heads = F.scaled_dot_product_attention(
                q.flatten(0, 1),
                k.flatten(0, 1),
                v.flatten(0, 1),
                attn_mask=None if addend is None else _fold(addend, q.shape, q.dtype),
                is_causal=context.is_plainly_causal and addend is None,
            )
        heads = heads.unflatten(0, q.shape[:2])
        return _UsualGradient.apply(heads) if by_cudnn else heads  # pyright: ignore[reportReturnType]


FEW = 8


def is_few(queries: Float[Tensor, "R B H Q d"], keys: Float[Tensor, "R B H K d"]) -> bool:
    """Whether a text goes on by a token or a few of many, on a CPU. torch's kernel is made for many queries, and slower
    than the plain lines there (docs/log.md)."""
    Q, K = queries.shape[3], keys.shape[3]
    return Q <= FEW and Q < K and queries.device.type == "cpu"


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
    return None if needs.products else "fused kernels compare by q·k/√d alone; use plain, or similarity: scaled-dot"


BACKENDS: dict[str, Backend] = {"plain": Plain(), "sdpa": Sdpa(), "flex": Flex()}


def choose_backend(name: BackendName, needs: Needs) -> Backend:
    """The backend of that name, or the fastest that can; a UserError in words where it cannot."""
    if name == "auto":
        return next(b for b in (BACKENDS["sdpa"], BACKENDS["plain"]) if b.why_not(needs) is None)
    backend = BACKENDS[name]
    why_not = backend.why_not(needs)
    if why_not:
        raise UserError(f"{needs.positions} positions with the {name} backend on {needs.device}: {why_not}")
    return backend


def _fold(addend: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """[#R, #B, #H, Q, K] as fused kernels want it: rows folded, broadcast without a copy where nothing differs."""
    R, B = shape[:2]
    if addend.dtype != torch.bool:
        addend = addend.to(dtype)
    if addend.shape[0] == addend.shape[1] == 1:
        return addend[0]
    return addend.expand(R, B, -1, -1, -1).flatten(0, 1)


def _trusted_kernels(device: torch.device, by_cudnn: bool) -> AbstractContextManager[object]:
    """cuDNN's kernel, or any but that: the flash and memory-efficient kernels agree with the plain one."""
    if device.type != "cuda":
        return nullcontext()
    if by_cudnn:
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION])
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


# --- cuDNN's kernel --------------------------------------------------------------------------------------------------
# On Hopper it is the fastest there is for long segments, but in bf16 (torch 2.11) its gradients are wrong where the
# gradient it is given lies in memory in another order than the heads it gave, and nothing says so (docs/log.md). So it
# is given one that lies as they do, and is used only where it has been found right.

CUDNN_FROM = 256
"""Shorter segments are no faster by it."""
_cudnn: dict[tuple[int, int, int], bool] = {}
"""By heads, slots and head width. Asked while a compiler looks on, what is not known counts as no."""


def _by_cudnn(q: Heads) -> bool:
    H, T, d = q.shape[2:]
    if not q.is_cuda or q.dtype != torch.bfloat16 or T < CUDNN_FROM or d % 8 or d > 128:
        return False
    if torch.compiler.is_compiling():
        return _cudnn.get((H, T, d), False)
    if (H, T, d) not in _cudnn and not torch.cuda.is_current_stream_capturing():
        hopper = torch.cuda.get_device_capability(q.device) >= (9, 0)
        _cudnn[H, T, d] = hopper and trusted("cuDNN's attention", q.device, check_cudnn, H, T, d, q.dtype)
    return _cudnn.get((H, T, d), False)


class _UsualGradient(torch.autograd.Function):
    """Heads as they are; what comes back lies in memory as they do, the heads of a token together."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> Tensor:
        return heads.view_as(heads)

    @staticmethod
    def backward(ctx: Any, d: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return d.transpose(2, 3).contiguous().transpose(2, 3)


def check_cudnn(device: torch.device, H: int, T: int, d: int, dtype: torch.dtype) -> float:
    """There and back, beside scores, softmax and sum written out; with a gradient that comes in another order."""

    def attended(together: Tensor, by_cudnn: bool) -> Tensor:
        q, k, v = (part.unflatten(-1, (H, d)).transpose(2, 3) for part in together.chunk(3, -1))
        if not by_cudnn:
            return (weights(q, k, torch.ones(T, T, dtype=torch.bool, device=device).tril()) @ v).roll(1, 2)
        with _trusted_kernels(device, by_cudnn):
            heads = F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), is_causal=True)
        return _UsualGradient.apply(heads.unflatten(0, q.shape[:2])).roll(1, 2)  # pyright: ignore

    together = numbers((1, 2, T, 3 * H * d), device, 1, dtype)
    return there_and_back(lambda x: attended(x, True), lambda x: attended(x.float(), False).to(dtype), (together,))


@cache
def _compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
