"""Attention as a matrix: M with vec(Y) = M·vec(X) + c, and whether a fixed layer could take attention's place.

For one input, attention is Y = Σ_h A_h X P_h + constant, where A_h are head h's weights (T × T) and P_h = W_V W_O is what it
does to a token (D × D). Stacked into one vector, token after token (rows) or channel after channel (columns), that is

    rows      M = Σ_h A_h ⊗ P_hᵀ        for Y = AX:  A ⊗ I_D
    columns   M = Σ_h P_hᵀ ⊗ A_h        for Y = AX:  I_D ⊗ A

M is a TD × TD matrix and not A. It depends on X through A. A fully connected layer is fixed, so it can take attention's
place only where A does not depend on X; anywhere else three inputs on a line refute every fixed layer at once:

    ‖f(½(X₁ + X₂)) − ½(f(X₁) + f(X₂))‖ = 2g   ⇒   every fixed layer is wrong by g or more on one of the three.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from headway import noise
from headway.errors import UserError
from headway.nn.attention import Attention, AttentionSpec, SelfProjection
from headway.nn.backends import Needs
from headway.nn.heads import Fusion
from headway.nn.masks import Everything, Mask
from headway.nn.positions import Positions
from headway.nn.scene import Scene
from headway.solve.given import checked_distribution, checked_keys
from headway.solve.words import number

Stacking = Literal["rows", "columns"]
Tokens = Float[Tensor, "T D"]


def stacked(weights: ArrayLike, width: int, stacking: Stacking) -> Float[Tensor, "TD TD"]:
    """M for Y = AX with `width` channels: A ⊗ I if the tokens are stacked (rows), I ⊗ A if the channels are (columns)."""
    A = checked_keys(weights)
    if A.shape[0] != A.shape[1]:
        raise UserError(f"attention weights are square, one row per query; these are {A.shape[0]} × {A.shape[1]}")
    if width < 1:
        raise UserError(f"width = {width}; it must be 1 or more")
    A = torch.from_numpy(np.stack([checked_distribution(row, len(A)) for row in A]))
    return _kron(A[None], torch.eye(width, dtype=A.dtype)[None], stacking)


def matrix_derivation(tokens: int, width: int, rows: Tensor, columns: Tensor) -> list[str]:
    """What `stacked` gives, said in words and checked on a random X."""
    size = tokens * width
    x = torch.randn(tokens, width, generator=noise.generator(0, "solve"), dtype=torch.float64)
    y = rows[::width, ::width] @ x  # every width-th row and column of A ⊗ I is A itself
    misfit = max(float((m @ _vec(x, s) - _vec(y, s)).abs().max()) for m, s in ((rows, "rows"), (columns, "columns")))
    return [
        f"Y = AX with {tokens} tokens of width {width}: X and Y have {size} numbers, so M is {size} × {size}; A is {tokens} × {tokens}.",
        f"Tokens one after the other: M = A ⊗ I_{width}. Channels one after the other: M = I_{width} ⊗ A.",
        f"Of M's {size**2:,} entries {tokens**2 * width:,} may differ from 0, and they hold {tokens**2:,} numbers, {width} times each; "
        f"a fully connected layer has {size**2:,} free ones, and they do not change with X.",
        f"Checked on a random X: at most {number(misfit)} from AX.",
    ]


@dataclass(frozen=True, eq=False)
class AttentionMatrix:
    """What a layer does to one input, written as a matrix."""

    x: Tokens
    y: Tokens
    weights: Float[Tensor, "H T T"]
    matrix: Float[Tensor, "TD TD"]
    constant: Float[Tensor, "TD"]
    jacobian: Float[Tensor, "TD TD"]
    """∂vec(Y)/∂vec(X) of the true layer, stacked the same way. It is M only if the weights do not move with X."""
    stacking: Stacking

    @property
    def misfit(self) -> float:
        """|M·vec(X) + c − vec(Y)|: rounding."""
        return float(
            (self.matrix @ _vec(self.x, self.stacking) + self.constant - _vec(self.y, self.stacking)).abs().max()
        )

    @property
    def moved(self) -> float:
        """The share of the Jacobian that M leaves out: how the weights answer to X, in Frobenius norms."""
        return float((self.jacobian - self.matrix).norm() / self.jacobian.norm().clamp(min=1e-300))


def as_matrix(
    layer: Attention,
    x: Tokens,
    positions: Positions | None = None,
    mask: Mask | None = None,
    stacking: Stacking = "rows",
) -> AttentionMatrix:
    """A self-attention layer at the input x: its matrix, its constant, and the Jacobian of what it truly computes."""
    project, output = _checked(layer), layer.output
    D, H = x.shape[1], project.heads
    scene = _scene(x, H, positions or Positions(), mask or Everything())
    seen: list[Tensor] = []
    handle = layer.weights.register_forward_hook(lambda module, given, out: seen.append(out[0, 0].detach()))
    y = _run(layer, x, scene).detach()
    handle.remove()
    A = seen[0].double()
    P, from_bias = _values_to_output(layer)
    constant = torch.einsum("hqk,hd->qd", A, from_bias)
    if output.bias is not None:
        constant = constant + output.bias[0].detach().double()
    grad = torch.autograd.functional.jacobian(lambda inp: _run(layer, inp, scene), x.detach())  # [T, D, T, D]
    order = (0, 1, 2, 3) if stacking == "rows" else (1, 0, 3, 2)
    jacobian = grad.permute(*order).reshape(y.numel(), D * len(x)).double()
    return AttentionMatrix(
        x.double(), y.double(), A, _kron(A, P, stacking), _vec(constant, stacking), jacobian, stacking
    )


@dataclass(frozen=True, eq=False)
class FixedLayerAnswer:
    """Whether one fully connected layer, the same for all inputs, computes what the attention layer computes."""

    verdict: Literal["replaceable", "irreplaceable", "undecided"]
    reason: str
    tokens: int
    width: int
    heads: int
    here: AttentionMatrix
    """The layer at a first random input; the fixed layer itself, where it can be replaced."""
    matrix_change: float
    """The largest entry of M(X₁) − M(X₂), for two random inputs."""
    inputs: tuple[Tokens, Tokens]
    gap: float
    """No fixed layer is nearer than this (largest entry) on X₁, X₂ and the point halfway; 0 if it can be replaced."""
    parameters: dict[str, int]

    @cached_property
    def derivation(self) -> list[str]:
        T, D, size = self.tokens, self.width, self.tokens * self.width
        counts = self.parameters
        lines = [
            f"{T} tokens of width {D}, {self.heads} head{'s' if self.heads > 1 else ''}: vec(Y) = M·vec(X) + c with M of "
            f"{size} × {size}, M = Σ_h A_h ⊗ P_hᵀ (tokens stacked); off by {number(self.here.misfit)} at X₁.",
            f"Free parameters: {counts['attention']:,} in the layer, whatever the length; {counts['fully_connected']:,} in a "
            f"fully connected layer of that size, {counts['fully_connected'] / max(counts['attention'], 1):.1f} times as many.",
            f"Of the Jacobian ∂vec(Y)/∂vec(X) at X₁, M leaves out {self.here.moved:.1%}: the part that goes through the softmax.",
            f"Between two random inputs, an entry of M changes by up to {number(self.matrix_change)}.",
            self.reason,
        ]
        if self.verdict == "irreplaceable":
            lines.append(
                "f(½(X₁ + X₂)) and ½(f(X₁) + f(X₂)) would be equal for any fixed layer; here they differ by "
                f"{number(2 * self.gap)}. So every fixed layer, whatever its weights, is wrong by {number(self.gap)} or more "
                "on one of the three."
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
    """Can a fixed layer take the place of this self-attention layer, for sequences of this length? With the proof."""
    positions, mask = positions or Positions(), mask or Everything()
    project = _checked(layer)
    D = project.together.weight.shape[-1]
    dtype = project.together.weight.dtype
    if tokens < 1:
        raise UserError(f"tokens = {tokens}; it must be 1 or more")
    pairs = [
        tuple(size * torch.randn(2, tokens, D, generator=noise.generator(seed, "solve", trial), dtype=dtype))
        for trial, size in enumerate((1.0, 1.0, 1.0, 1.0, 10.0, 10.0, 0.1))
    ]
    scene = _scene(pairs[0][0], project.heads, positions, mask)
    bends = [_bend(layer, scene, *pair) for pair in pairs]
    shown = next((k for k, bend in enumerate(bends) if bend > 0), None)
    one, two = pairs[shown or 0]
    here, there = (as_matrix(layer, x, positions, mask) for x in (one, two))
    why = _why_fixed(layer, positions, scene)
    if why is not None:
        verdict, reason, gap = "replaceable", f"Replaceable: {why}, so M and c are the same for every input.", 0.0
    elif shown is not None:
        verdict, reason, gap = "irreplaceable", "Not replaceable: the weights follow the input.", bends[shown] / 2
    else:
        reason = f"Undecided: the weights may follow the input, but on {len(pairs)} pairs of inputs nothing shows in Y."
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
    """A layer with random weights of some size, in float64; `blind`: with W_Q = 0, so that it does not look at its input."""
    spec = AttentionSpec(heads=heads, backend="plain")
    if width < 1 or heads < 1 or spec.problems_with(width):
        raise UserError(f"a width of {width} cannot be divided among {heads} heads")
    layer = spec.build(1, width, 1.0, Needs()).double()
    for name, p in layer.named_parameters():
        p.normal_(0, 1 / width**0.5, generator=noise.generator(seed, "solve", name))
    if blind:
        layer.project.together.weight[0, :width] = 0
        layer.project.together.bias[0, :width] = 0
    return layer


@torch.no_grad()
def _why_fixed(layer: Attention, positions: Positions, scene: Scene) -> str | None:
    """Why the output is an affine function of the input, if it is plain to see; else None.

    Up to what softmax ignores, head h scores token j for query i by x_iᵀG x_j + g·x_j with G = W_QᵀW_K and g = W_Kᵀb_Q.
    With two tokens or more that is independent of x only if G = 0 and g = 0.
    """
    allowed = scene.allowed
    if len(scene.keys) == 1 or (allowed is not None and bool((allowed.sum(-1) <= 1).all())):
        return "every query sees one token at most"
    project = _checked(layer)
    W, H = project.together.weight[0].double(), project.heads
    Q, K, _ = (part.unflatten(0, (H, -1)) for part in W.chunk(3))  # [H, d, D]
    bias = torch.zeros(len(W)) if project.together.bias is None else project.together.bias[0]
    b = bias.double().chunk(3)[0].unflatten(0, (H, -1))
    G, g = torch.einsum("hed,hef->hdf", Q, K), torch.einsum("hed,he->hd", K, b)
    silent = _values_to_output(layer)[0].abs().amax((1, 2)) == 0
    size = 1e-12 * K.abs().amax().clamp(min=1e-300) * max(float(Q.abs().max()), float(b.abs().max()), 1e-300)
    blind = (G.abs().amax((1, 2)) <= size) & (g.abs().amax(1) <= size)
    if bool(silent.all()):
        return "no head's values reach the output (W_V W_O = 0)"
    turned = type(positions).rotate is not Positions.rotate  # then G differs from place to place
    if bool((blind | silent).all()) and not turned:
        return "the scores do not depend on the input (W_QᵀW_K = 0 and W_Kᵀb_Q = 0 in every head whose values are used)"
    return None


@torch.no_grad()
def _bend(layer: Attention, scene: Scene, one: Tokens, two: Tokens) -> float:
    """How far the layer is from affine between two inputs: the largest entry at the point halfway; 0 if it is rounding."""
    ends = [_run(layer, x, scene) for x in (one, two)]
    bend = float((_run(layer, (one + two) / 2, scene) - (ends[0] + ends[1]) / 2).abs().max())
    size = max(1.0, *(float(y.abs().max()) for y in ends))
    return bend if bend > 1e3 * torch.finfo(one.dtype).eps * size else 0.0


def _values_to_output(layer: Attention) -> tuple[Float[Tensor, "H D D"], Float[Tensor, "H D"]]:
    """P_h, with Y = Σ_h A_h X P_h, and what the bias of the values comes to."""
    project = _checked(layer)
    V = project.together.weight[0].detach().double().chunk(3)[2].unflatten(0, (project.heads, -1))  # [H, d, D]
    O = layer.output.weight[0].detach().double().unflatten(1, (project.heads, -1))  # [D, H, d]  # noqa: E741
    P = torch.einsum("hed,ohe->hdo", V, O)
    if project.together.bias is None:
        return P, torch.zeros(project.heads, len(O), dtype=P.dtype)
    b = project.together.bias[0].detach().double().chunk(3)[2].unflatten(0, (project.heads, -1))  # [H, d]
    return P, torch.einsum("he,ohe->ho", b, O)


def _checked(layer: Attention) -> SelfProjection:
    if not isinstance(layer.project, SelfProjection) or len(layer.output.weight) > 1:
        raise UserError("the layer must be self-attention with one replica")
    if type(layer.fusion) is not Fusion:
        raise UserError("the layer must lay its heads side by side (fusion: concat) to be written as a sum over heads")
    return layer.project


def _scene(x: Tokens, heads: int, positions: Positions, mask: Mask) -> Scene:
    slots = torch.arange(len(x))
    return Scene((1, 1, heads), positions, mask, slots, slots)


def _run(layer: Attention, x: Tokens, scene: Scene) -> Tokens:
    return layer(x[None, None], scene)[0][0, 0]


def _vec(x: Tokens, stacking: Stacking) -> Float[Tensor, "TD"]:
    return (x if stacking == "rows" else x.mT).reshape(-1)


def _kron(A: Float[Tensor, "H T T"], P: Float[Tensor, "H D D"], stacking: Stacking) -> Float[Tensor, "TD TD"]:
    pairs = [(a, p.mT) if stacking == "rows" else (p.mT, a) for a, p in zip(A, P, strict=True)]
    return torch.stack([torch.kron(one.contiguous(), two.contiguous()) for one, two in pairs]).sum(0)
