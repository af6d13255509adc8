"""Attention as a matrix: M with vec(Y) = M·vec(X) + c.

For one input, attention is Y = Σ_h A_h X P_h + constant, where A_h are the weights of head h (T × T) and P_h = W_V W_O
is its map on a token (D × D). Stacked into one vector, token by token (rows) or channel by channel (columns), that is

    rows      M = Σ_h A_h ⊗ P_hᵀ        for Y = AX:  A ⊗ I_D
    columns   M = Σ_h P_hᵀ ⊗ A_h        for Y = AX:  I_D ⊗ A

M is a TD × TD matrix, not A. It depends on X through A, so it is not the layer's Jacobian either.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from headway.core import random
from headway.core.errors import UserError
from headway.nn.attention import Attention, SelfProjection
from headway.nn.context import Context
from headway.nn.heads import Fusion
from headway.nn.masks import Everything, Mask
from headway.nn.positions import Positions
from headway.nn.taps import watch
from headway.solve.derivation import at_most
from headway.solve.inputs import checked_distribution

LARGEST = 4096
"""The largest size of the stacked input; M has the square of it: 128 MiB in float64."""

Stacking = Literal["rows", "columns"]
Tokens = Float[Tensor, "T D"]


def stacked(weights: ArrayLike, width: int, stacking: Stacking) -> Float[Tensor, "TD TD"]:
    """M for Y = AX with `width` channels: A ⊗ I for stacked tokens (rows), I ⊗ A for stacked channels (columns)."""
    A = np.asarray(weights, dtype=np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size:
        raise UserError(f"attention weights must be square, one row per query, not {' × '.join(map(str, A.shape))}")
    if width < 1:
        raise UserError(f"width = {width}; it must be 1 or more")
    check_size(len(A), width)
    A = torch.from_numpy(
        np.stack([checked_distribution(row, len(A), f"the weights of query {i}") for i, row in enumerate(A)])
    )
    return _kron(A[None], torch.eye(width, dtype=A.dtype)[None], stacking)


def stacked_derivation(weights: ArrayLike, width: int) -> list[str]:
    """An explanation of `stacked`, checked on a random X."""
    A = torch.as_tensor(weights, dtype=torch.float64)
    T, size = len(A), len(A) * width
    x = torch.randn(T, width, generator=random.generator(0, "solve"), dtype=torch.float64)
    misfits = [(stacked(A, width, way) @ _vec(x, way) - _vec(A @ x, way)).abs().max() for way in ("rows", "columns")]
    return [
        f"Y = AX with {T} tokens of width {width}: X has {size} numbers, so M is {size} × {size}; A is {T} × {T}.",
        f"With tokens stacked, M = A ⊗ I_{width}. With channels stacked, M = I_{width} ⊗ A.",
        f"Of M's {size**2:,} entries {T**2 * width:,} may differ from 0, and they are {T**2:,} numbers, "
        f"{width} times each; a fully connected layer has {size**2:,} free entries, and they do not change with X.",
        f"Checked on a random X: both differ from AX by {at_most(float(max(misfits)))}.",
    ]


@dataclass(frozen=True, eq=False)
class AttentionMatrix:
    """The action of a layer on one input, written as a matrix."""

    x: Tokens
    y: Tokens
    weights: Float[Tensor, "H T T"]
    matrix: Float[Tensor, "TD TD"]
    constant: Float[Tensor, "TD"]
    jacobian: Float[Tensor, "TD TD"]
    """∂vec(Y)/∂vec(X) of the true layer, stacked the same way. It equals M only if the weights do not depend on X."""
    stacking: Stacking

    @property
    def misfit(self) -> float:
        """The largest entry of |M·vec(X) + c − vec(Y)|, which is only rounding."""
        return float(
            (self.matrix @ _vec(self.x, self.stacking) + self.constant - _vec(self.y, self.stacking)).abs().max()
        )

    @property
    def moved(self) -> float:
        """The share of the Jacobian (Frobenius norm) that M leaves out: the dependence of the weights on X."""
        return float((self.jacobian - self.matrix).norm() / self.jacobian.norm().clamp(min=1e-300))


def as_matrix(
    layer: Attention,
    x: Tokens,
    positions: Positions | None = None,
    mask: Mask | None = None,
    stacking: Stacking = "rows",
) -> AttentionMatrix:
    """A self-attention layer at the input x: its matrix, its constant, and the Jacobian of the true layer."""
    _, output = self_projection(layer), layer.output
    D = x.shape[1]
    context = context_of(x, positions or Positions(), mask or Everything())
    check_size(len(x), D)
    with watch(layer, "weights") as seen:
        y = run_layer(layer, x, context).detach()
    A = seen["weights"][0, 0].detach().double()
    P, from_bias = values_to_output(layer)
    constant = torch.einsum("hqk,hd->qd", A, from_bias)
    if output.bias is not None:
        constant = constant + output.bias[0].detach().double()
    grad = torch.autograd.functional.jacobian(lambda inp: run_layer(layer, inp, context), x.detach())  # [T, D, T, D]
    order = (0, 1, 2, 3) if stacking == "rows" else (1, 0, 3, 2)
    jacobian = grad.permute(*order).reshape(y.numel(), D * len(x)).double()
    return AttentionMatrix(
        x.double(), y.double(), A, _kron(A, P, stacking), _vec(constant, stacking), jacobian, stacking
    )


def values_to_output(layer: Attention) -> tuple[Float[Tensor, "H D D"], Float[Tensor, "H D"]]:
    """P_h in Y = Σ_h A_h X P_h, and the contribution of the values' bias."""
    project = self_projection(layer)
    V = project.together.weight[0].detach().double().chunk(3)[2].unflatten(0, (project.heads, -1))  # [H, d, D]
    O = layer.output.weight[0].detach().double().unflatten(1, (project.heads, -1))  # [D, H, d]  # noqa: E741
    P = torch.einsum("hed,ohe->hdo", V, O)
    if project.together.bias is None:
        return P, torch.zeros(project.heads, len(O), dtype=P.dtype)
    b = project.together.bias[0].detach().double().chunk(3)[2].unflatten(0, (project.heads, -1))  # [H, d]
    return P, torch.einsum("he,ohe->ho", b, O)


def check_size(tokens: int, width: int) -> None:
    if tokens * width > LARGEST:
        raise UserError(
            f"{tokens:,} tokens of width {width:,} are {tokens * width:,} numbers, and M has as many rows and columns; "
            f"at most {LARGEST:,} are supported"
        )


def self_projection(layer: Attention) -> SelfProjection:
    if not isinstance(layer.project, SelfProjection) or len(layer.output.weight) > 1:
        raise UserError("the layer must be self-attention with one replica")
    if type(layer.fusion) is not Fusion:
        raise UserError("the layer must concatenate its heads (fusion: concat) to be written as a sum over heads")
    return layer.project


def context_of(x: Tokens, positions: Positions, mask: Mask) -> Context:
    slots = torch.arange(len(x))
    return Context((1, 1), positions, mask, slots, slots)


def run_layer(layer: Attention, x: Tokens, context: Context) -> Tokens:
    return layer(x[None, None], context)[0][0, 0]


def _vec(x: Tokens, stacking: Stacking) -> Float[Tensor, "TD"]:
    return (x if stacking == "rows" else x.mT).reshape(-1)


def _kron(A: Float[Tensor, "H T T"], P: Float[Tensor, "H D D"], stacking: Stacking) -> Float[Tensor, "TD TD"]:
    pairs = [(a, p.mT) if stacking == "rows" else (p.mT, a) for a, p in zip(A, P, strict=True)]
    return torch.stack([torch.kron(one.contiguous(), two.contiguous()) for one, two in pairs]).sum(0)
