# quick:  1 CPU core 5 seconds
# full:   1 CPU core 40 seconds
"""Attention as a matrix: vec(Y) = M·vec(X), and whether a fully connected layer could take its place."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headway import noise
from headway.solve.draw import draw_fixed_layer, draw_matrices
from headway.solve.kronecker import Stacking, as_matrix, stacked, stacked_derivation
from headway.solve.replacement import fixed_layer, random_layer
from headway.study.claims import Reported
from headway.study.exercise import Claim, Exercise, Finding, Question, Reach, Ruling, drawn_by, picture, share

SHAPES = ((3, 1), (3, 2), (6, 4))
"""Tokens and width."""

Matrix = Callable[[Tensor, int], Tensor]
"""From attention weights A and a width to M."""


def as_reported(A: Tensor, width: int) -> Tensor:
    return A


def by_columns(A: Tensor, width: int) -> Tensor:
    """I ⊗ A, written out: a block of A for every channel."""
    return torch.block_diag(*[A] * width)


def misfit(matrix: Matrix, A: Tensor, x: Tensor, stacking: Stacking = "columns") -> float:
    """The largest entry of M·vec(X) − vec(AX); infinite where M cannot be multiplied with vec(X)."""

    def stack(tokens: Tensor) -> Tensor:
        return (tokens.T if stacking == "columns" else tokens).reshape(-1)

    M = matrix(A, x.shape[1])
    if M.shape != (x.numel(), x.numel()):
        return float("inf")
    return float((M @ stack(x) - stack(A @ x)).abs().max())


def instance(tokens: int, width: int, k: int) -> tuple[Tensor, Tensor]:
    drawn = noise.generator("exercise", "E1", tokens, width, k)
    A = torch.randn(tokens, tokens, generator=drawn, dtype=torch.float64).softmax(-1)
    return A, torch.randn(tokens, width, generator=drawn, dtype=torch.float64)


def is_the_matrix(instances: int, reported: Matrix = as_reported) -> Ruling:
    rows, worst = [], 0.0
    for tokens, width in SHAPES:
        pairs = [instance(tokens, width, k) for k in range(instances)]
        theirs = max(misfit(reported, A, x) for A, x in pairs)
        ours = max(misfit(lambda A, width: stacked(A, width, "columns"), A, x) for A, x in pairs)
        size = tokens * width
        wrong = f"{theirs:.1g}" if np.isfinite(theirs) else f"{tokens} × {tokens} for {size} numbers"
        rows.append(Reach("largest error", f"{tokens} tokens, width {width}", instances, wrong, f"{ours:.1g}", "0"))
        worst = max(worst, theirs)
    A, _ = instance(3, 2, 0)
    return Ruling(
        standing="holds" if worst < 1e-12 else "does not hold",
        why="for T tokens of width d, vec(X) has T·d numbers, and A is T × T: it fits a width of 1 only. For columns stacked one "
        "under the other M = I_d ⊗ A, a block of A for every channel; for tokens one after the other M = A ⊗ I_d",
        reached=rows,
        derivation=stacked_derivation(A, 2),
        figures=[
            picture(
                lambda path: draw_matrices(
                    {
                        "A": A,
                        "columns stacked: I ⊗ A": stacked(A, 2, "columns"),
                        "tokens stacked: A ⊗ I": stacked(A, 2, "rows"),
                    },
                    path,
                ),
                "A, and the two matrices that act on the stacked input, for 3 tokens of width 2.",
            )
        ],
    )


def can_be_replaced(instances: int, blind: bool = False) -> Ruling:
    """`blind`: layers that do not look at their input, for which it is true."""
    some = max(30, instances // 10)
    refuted, gaps, moved = 0, [], []
    for k in range(some):
        rng = drawn_by("E1", "layer", k)
        tokens, heads = int(rng.integers(2, 7)), int(rng.integers(1, 3))
        answer = fixed_layer(random_layer(heads * int(rng.integers(1, 4)), heads, seed=k, blind=blind), tokens, seed=k)
        refuted += answer.verdict == "irreplaceable" and _bends(answer)
        gaps.append(answer.gap / float(answer.here.y.abs().max()))
        moved.append(answer.here.moved)
    shown = fixed_layer(random_layer(4, 2), 4)
    return Ruling(
        standing="does not hold" if refuted else "holds",
        why=f"M depends on X through the attention weights. Of {some} random layers, {refuted} are refuted by three inputs on a line: "
        "halfway between two inputs every fixed layer gives the mean of what it gives at the ends, and attention does not, so that "
        f"every fixed layer is wrong on one of the three, by {100 * np.median(gaps):.0f} % of the output or more (median)",
        reached=[
            Reach("layers a fixed one can replace", "random", some, "all", share(some - refuted, some), "the same"),
            _one_input(some),
            _blind(some),
        ],
        derivation=shown.derivation,
        figures=[
            picture(
                lambda path: draw_fixed_layer(shown, path),
                "M and the Jacobian of the true layer at one input: the difference is how the attention weights answer to it.",
            )
        ],
    )


def _bends(answer) -> bool:
    """That the three inputs refute, by the layer's own matrices: M(X)·vec(X) + c is what it gives at X."""
    return answer.gap > 1e-9


def _one_input(some: int) -> Reach:
    found = [as_matrix(random_layer(4, 2, seed=k), instance(4, 4, k)[1]).misfit for k in range(some)]
    return Reach("largest error", "M, at the one input it is made for", some, "–", f"{max(found):.1g}", "0")


def _blind(some: int) -> Reach:
    kept = sum(
        fixed_layer(random_layer(4, 2, seed=k, blind=True), 4, seed=k).verdict == "replaceable" for k in range(some)
    )
    return Reach("layers a fixed one can replace", "with W_Q = 0", some, "all", share(kept, some), "all")


def what_it_costs(instances: int) -> Finding:
    rows = []
    for tokens, width in ((8, 16), (32, 64), (512, 768)):
        attention, full = 4 * width * width + 4 * width, (tokens * width) ** 2 + tokens * width
        rows.append(
            Reach(
                "parameters",
                f"{tokens} tokens, width {width}",
                1,
                f"{full:,}",
                f"{attention:,}",
                f"{full / attention:,.0f} times",
            )
        )
    return Finding(
        why="a fully connected layer on T tokens of width d has (T·d)² + T·d parameters and one fixed length; attention has "
        "4d² + 4d, whatever the length. For 512 tokens of width 768 that is 155 thousand million against 2.4 million",
        reached=rows,
    )


EXERCISE = Exercise(
    title="Is attention a matrix, and could a fully connected layer replace it?",
    about="Attention is Y = AX. Write it as vec(Y) = M·vec(X), and discuss whether a fully connected layer could do the same. M is "
    "checked on random attention weights and inputs; replacing is tried with random layers of headway.nn, with 1 or 2 heads, 2 to 6 "
    "tokens, and projected values.",
    answered="M = A. Since that is a matrix, attention can be replaced by a fully connected layer.",
    reported=Reported(conclusion="vec(Y) = A·vec(X), so attention can be replaced by a fully connected layer"),
    claims=(
        Claim("M = A", is_the_matrix),
        Claim("attention can be replaced by a fully connected layer", can_be_replaced),
    ),
    questions=(Question("What would a fully connected layer of that size cost?", what_it_costs),),
)
