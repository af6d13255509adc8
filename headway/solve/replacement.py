"""Can a fixed layer replace attention? Only if the attention weights do not depend on the input.

A fully connected layer on the stacked input is one matrix for all inputs; the matrix of attention (`kronecker.py`)
depends on the input through the attention weights. If they are constant, M is the fixed layer. If not, three inputs on
a line refute every fixed layer at once:

    |f(½(X₁ + X₂)) − ½(f(X₁) + f(X₂))| = 2g   ⇒   every fixed layer is wrong by g or more on one of the three,

because this would be 0 for a fixed layer, and the difference between the two layers enters at the three inputs with
weights 1, ½, ½.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from headway.core import random
from headway.core.errors import UserError
from headway.nn.attention import Attention, AttentionSpec
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.masks import Everything, Mask
from headway.nn.positions import Positions
from headway.solve.construction import attention_layer
from headway.solve.derivation import at_most, number
from headway.solve.kronecker import (
    AttentionMatrix,
    Tokens,
    as_matrix,
    check_size,
    context_of,
    run_layer,
    self_projection,
    values_to_output,
)

PARTS = ("queries", "keys", "values", "output")


@dataclass(frozen=True, eq=False)
class FixedLayerAnswer:
    """Whether a single fully connected layer computes the same as the attention layer for all inputs."""

    verdict: Literal["replaceable", "irreplaceable", "undecided"]
    reason: str
    tokens: int
    width: int
    heads: int
    here: AttentionMatrix
    """The layer at a first random input; if it is replaceable, the fixed layer itself."""
    matrix_change: float
    """The largest entry of M(X₁) − M(X₂), for two random inputs."""
    inputs: tuple[Tokens, Tokens]
    gap: float
    """Every fixed layer is off by at least this (largest entry) on X₁, X₂ or their midpoint; 0 if it is replaceable."""
    parameters: dict[str, int]

    @cached_property
    def derivation(self) -> list[str]:
        T, D, size = self.tokens, self.width, self.tokens * self.width
        counts = self.parameters
        lines = [
            f"{T} token{'s' if T > 1 else ''} of width {D}, {self.heads} head{'s' if self.heads > 1 else ''}: "
            f"vec(Y) = M·vec(X) + c, M of {size} × {size}, M = Σ_h A_h ⊗ P_hᵀ (tokens stacked). At X₁ this "
            f"differs from the layer's output by {at_most(self.here.misfit)}.",
            f"Free parameters: {counts['attention']:,} in the layer for any length; "
            f"{counts['fully_connected']:,} in a fully connected layer of that size, "
            f"{counts['fully_connected'] / max(counts['attention'], 1):.1f} times as many.",
            f"M leaves out {self.here.moved:.1%} of the Jacobian ∂vec(Y)/∂vec(X) at X₁: the part that "
            "goes through the softmax.",
            f"Between two random inputs, the entries of M change by up to {number(self.matrix_change)}.",
            self.reason,
        ]
        if self.verdict == "irreplaceable":
            lines.append(
                "f(½(X₁ + X₂)) and ½(f(X₁) + f(X₂)) would be equal for any fixed layer; here they differ by "
                f"{number(2 * self.gap)}. So every fixed layer, whatever its weights, is wrong by at least "
                f"{number(self.gap)} on one of the three inputs."
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "tokens": self.tokens,
            "width": self.width,
            "heads": self.heads,
            "parameters": self.parameters,
            "misfit": self.here.misfit,
            "moved": self.here.moved,
            "matrix_change": self.matrix_change,
            "gap": self.gap,
            "inputs": [x.tolist() for x in self.inputs],
            "matrix": self.here.matrix.tolist(),
            "constant": self.here.constant.tolist(),
            "derivation": self.derivation,
        }


def fixed_layer(
    layer: Attention, tokens: int, positions: Positions | None = None, mask: Mask | None = None, seed: int = 0
) -> FixedLayerAnswer:
    """Decide, with a proof, whether a fixed layer can replace this self-attention layer for this sequence length."""
    positions, mask = positions or Positions(), mask or Everything()
    project = self_projection(layer)
    D = project.together.weight.shape[-1]
    dtype = project.together.weight.dtype
    if tokens < 1:
        raise UserError(f"tokens = {tokens}; it must be 1 or more")
    check_size(tokens, D)
    pairs = [
        tuple(size * torch.randn(2, tokens, D, generator=random.generator(seed, "solve", trial), dtype=dtype))
        for trial, size in enumerate((1.0, 1.0, 1.0, 1.0, 10.0, 10.0, 0.1))
    ]
    context = context_of(pairs[0][0], positions, mask)
    bends = [_bend(layer, context, *pair) for pair in pairs]
    shown = next((k for k, bend in enumerate(bends) if bend > 0), None)
    one, two = pairs[shown or 0]
    here, there = (as_matrix(layer, x, positions, mask) for x in (one, two))
    why = _why_fixed(layer, positions, context)
    if why is not None:
        verdict, reason, gap = "replaceable", f"Replaceable: {why}, so M and c are the same for every input.", 0.0
    elif shown is not None:
        verdict, reason, gap = "irreplaceable", "Not replaceable: the weights depend on the input.", bends[shown] / 2
    else:
        reason = (
            f"Undecided: the weights may depend on the input, but Y shows no effect on {len(pairs)} pairs of inputs."
        )
        verdict, gap = "undecided", 0.0
    size = tokens * D
    return FixedLayerAnswer(
        verdict=verdict,
        reason=reason,
        tokens=tokens,
        width=D,
        heads=project.heads,
        here=here,
        matrix_change=float((here.matrix - there.matrix).abs().max()),
        inputs=(one, two),
        gap=gap,
        parameters={"attention": sum(p.numel() for p in layer.parameters()), "fully_connected": size * size + size},
    )


@torch.no_grad()
def random_layer(width: int, heads: int, seed: int = 0, blind: bool = False) -> Attention:
    """A layer with random weights in float64; `blind`: with W_Q = 0, so that the weights ignore the input."""
    if width < 1 or heads < 1 or width % heads:
        raise UserError(f"a width of {width} cannot be divided among {heads} heads")
    check_size(1, width)
    layer = AttentionSpec(heads=heads, backend="plain").build(1, width, 1.0, Needs()).double()
    for name, p in layer.named_parameters():
        p.normal_(0, 1 / width**0.5, generator=random.generator(seed, "solve", name))
        if blind and name.startswith("project.together"):
            p[0, :width] = 0  # the queries' rows
    return layer


def layer_of(matrices: Mapping[str, ArrayLike], heads: int) -> Attention:
    """A layer with these matrices and no biases: queries, keys, values and output, each as in W·x; those not given are
    the identity."""
    given = {name: np.asarray(matrix, dtype=np.float64) for name, matrix in matrices.items()}
    width = len(next(iter(given.values())))
    for name, matrix in given.items():
        if matrix.shape != (width, width) or not np.isfinite(matrix).all():
            shape = " × ".join(map(str, matrix.shape))
            raise UserError(f"{name}: a matrix of {shape}; each must consist of {width} × {width} finite numbers")
    if heads < 1 or width % heads:
        raise UserError(f"a width of {width} cannot be divided among {heads} heads")
    identity = torch.eye(width, dtype=torch.float64)
    W = {name: torch.from_numpy(given[name]) if name in given else identity for name in PARTS}
    return attention_layer(width, heads, values=W["values"], output=W["output"], queries=W["queries"], keys=W["keys"])


@torch.no_grad()
def _why_fixed(layer: Attention, positions: Positions, context: Context) -> str | None:
    """Why the output is an affine function of the input, if that can be seen from the weights; else None.

    Up to constants that softmax ignores, head h scores token j for query i by x_iᵀG x_j + g·x_j with G = W_QᵀW_K and
    g = W_Kᵀb_Q. With two or more tokens this is independent of x only if G = 0 and g = 0. Rotary positions give a
    different G for every distance: then queries or keys must be 0.
    """
    allowed = context.for_heads(self_projection(layer).heads, layer.mask).allowed
    if len(context.keys) == 1 or (allowed is not None and bool((allowed.sum(-1) <= 1).all())):
        return "every query sees at most one token"
    silent = values_to_output(layer)[0].abs().amax((1, 2)) == 0
    if bool(silent.all()):
        return "no head's values reach the output (W_V W_O = 0)"
    together, H = self_projection(layer).together, self_projection(layer).heads
    W = together.weight[0].double()
    b = torch.zeros(len(W), dtype=W.dtype) if together.bias is None else together.bias[0].double()
    (Q, K, _), (b_q, b_k, _) = (tuple(part.unflatten(0, (H, -1)) for part in whole.chunk(3)) for whole in (W, b))
    if _turns(positions):
        blind = torch.minimum(Q.abs().sum((1, 2)) + b_q.abs().sum(1), K.abs().sum((1, 2)) + b_k.abs().sum(1)) == 0
        if bool((blind | silent).all()):
            return "the queries or the keys are 0 in every head whose values are used"
        return None
    G, g = torch.einsum("hed,hef->hdf", Q, K), torch.einsum("hed,he->hd", K, b_q)
    # Zero up to the rounding of its own products, entry by entry: relative to other entries a small one may seem zero.
    terms = torch.einsum("hed,hef->hdf", Q.abs(), K.abs()), torch.einsum("hed,he->hd", K.abs(), b_q.abs())
    rounding = Q.shape[1] * 2.0**-52
    blind = (G.abs() <= rounding * terms[0]).all(-1).all(-1) & (g.abs() <= rounding * terms[1]).all(-1)
    if bool((blind | silent).all()):
        return "the scores do not depend on the input (W_QᵀW_K = 0 and W_Kᵀb_Q = 0 in every head whose values are used)"
    return None


@torch.no_grad()
def _bend(layer: Attention, context: Context, one: Tokens, two: Tokens) -> float:
    """How far the layer is from affine: the largest deviation halfway between two inputs; 0 if it is only rounding."""
    ends = [run_layer(layer, x, context) for x in (one, two)]
    bend = float((run_layer(layer, (one + two) / 2, context) - (ends[0] + ends[1]) / 2).abs().max())
    size = max(1.0, *(float(y.abs().max()) for y in ends))
    precision = torch.finfo(torch.float32 if _turns(context.positions) else one.dtype).eps  # rotary turns in float32
    return bend if bend > 1e3 * precision * size else 0.0


def _turns(positions: Positions) -> bool:
    return type(positions).rotate is not Positions.rotate
