# quick:  1 CPU core 9 seconds
# full:   1 CPU core 25 seconds
"""Attention as a matrix: vec(Y) = M·vec(X), and whether a fully connected layer could replace it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headway.cases.exercise import (
    Exercise,
    ExerciseClaim,
    ExerciseFinding,
    ExerciseQuestion,
    Reach,
    Ruling,
    drawn_by,
    picture,
    share,
)
from headway.core import random
from headway.nn.attention import Attention
from headway.solve.draw import draw_fixed_layer, draw_matrices
from headway.solve.kronecker import Stacking, as_matrix, stacked, stacked_derivation
from headway.solve.replacement import fixed_layer, random_layer
from headway.study.design.claims import Reported
from headway.study.verdicts.wording import large

SHAPES = ((3, 1), (3, 2), (6, 4))
"""Tokens and width."""

Matrix = Callable[[Tensor, int], Tensor]
"""From attention weights A and a width to M."""


def as_reported(A: Tensor, width: int) -> Tensor:
    return A


def misfit(matrix: Matrix, A: Tensor, x: Tensor, stacking: Stacking = "columns") -> float:
    """The largest entry of M·vec(X) − vec(AX); infinite if M cannot be multiplied with vec(X)."""

    def stack(tokens: Tensor) -> Tensor:
        return (tokens.T if stacking == "columns" else tokens).reshape(-1)

    M = matrix(A, x.shape[1])
    if M.shape != (x.numel(), x.numel()):
        return float("inf")
    return float((M @ stack(x) - stack(A @ x)).abs().max())


def instance(tokens: int, width: int, k: int) -> tuple[Tensor, Tensor]:
    drawn = random.generator("exercise", "E1", tokens, width, k)
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
    matrices = {"A": A, "I ⊗ A (columns)": stacked(A, 2, "columns"), "A ⊗ I (tokens)": stacked(A, 2, "rows")}
    return Ruling(
        status="holds" if worst < 1e-12 else "does not hold",
        why="for T tokens of width d, vec(X) has T·d numbers and A is T × T, which only fits a width of 1. With the "
        "columns of X stacked, M = I_d ⊗ A, a block A for every channel; with the tokens concatenated, M = A ⊗ I_d",
        reached=rows,
        derivation=stacked_derivation(A, 2),
        figures=[
            picture(
                lambda path: draw_matrices(matrices, path),
                "A, and the matrices that act on the stacked input, for 3 tokens of width 2.",
            )
        ],
    )


def bend(layer: Attention, ends: tuple[Tensor, Tensor]) -> float:
    """The deviation of the layer's output halfway between two inputs from the mean of its outputs; 0 for a fixed
    layer."""
    one, two = (as_matrix(layer, x).y for x in ends)
    return float((as_matrix(layer, (ends[0] + ends[1]) / 2).y - (one + two) / 2).abs().max())


def can_be_replaced(instances: int, blind: bool = False) -> Ruling:
    """`blind`: use layers whose attention weights do not depend on the input; for these the claim is true."""
    some = min(instances, max(100, instances // 10))  # each needs one or two Jacobians
    refuted, gaps = 0, []
    for k in range(some):
        rng = drawn_by("E1", "layer", k)
        tokens, heads = int(rng.integers(2, 7)), int(rng.integers(1, 3))
        layer = random_layer(heads * int(rng.integers(1, 4)), heads, seed=k, blind=blind)
        answer = fixed_layer(layer, tokens, seed=k)
        refuted += answer.gap > 1e-9 and bend(layer, answer.inputs) > 1.99 * answer.gap
        gaps.append(answer.gap / float(answer.here.y.abs().max()))
    shown = fixed_layer(random_layer(4, 2), 4)
    return Ruling(
        status="does not hold" if refuted else "holds",
        why=f"M depends on X through the attention weights. Of {some} random layers, {refuted} are refuted by three "
        "inputs on a line: halfway between two inputs the output of every fixed layer is the mean of its outputs at "
        "the two, and that of attention is not. So every fixed layer, whatever its weights, is wrong on one of the "
        f"three, in the median by at least {100 * np.median(gaps):.0f} % of the largest output. At the input that M "
        "is computed for, it is exact",
        reached=[
            Reach(
                "replaceable", "random layers", some, "all", share(some - refuted, some), f"{some - refuted or 'none'}"
            ),
            where_blind(some),
            at_one_input(some),
        ],
        derivation=shown.derivation,
        figures=[
            picture(
                lambda path: draw_fixed_layer(shown, path),
                "M, and the Jacobian of the true layer, at one input. The difference is how the weights depend on it.",
            )
        ],
    )


def where_blind(some: int) -> Reach:
    answers = [fixed_layer(random_layer(4, 2, seed=k, blind=True), 4, seed=k) for k in range(some)]
    kept = sum(answer.verdict == "replaceable" for answer in answers)
    return Reach("replaceable", "layers with W_Q = 0", some, "all", share(kept, some), "all")


def at_one_input(some: int) -> Reach:
    found = [as_matrix(random_layer(4, 2, seed=k), instance(4, 4, k)[1]).misfit for k in range(some)]
    return Reach("largest error of M", "at its own input", some, "–", f"{max(found):.1g}", "0")


def what_it_costs(instances: int) -> ExerciseFinding:
    rows, times = [], 0.0
    for tokens, width in ((8, 16), (32, 64), (512, 768)):
        attention = sum(p.numel() for p in random_layer(width, 1).parameters())
        connected = (tokens * width) ** 2 + tokens * width
        rows.append(Reach("parameters", f"{tokens} tokens, width {width}", 1, large(connected), large(attention), "–"))
        times = connected / attention
    return ExerciseFinding(
        why="a fully connected layer for T tokens of width d has (T·d)² + T·d parameters and fits only one length; "
        f"attention has 4d² + 4d for all lengths. For 512 tokens of width 768 that is {times:,.0f} times as many",
        reached=rows,
    )


EXERCISE = Exercise(
    title="Is attention a matrix, and could a fully connected layer replace it?",
    about="Attention is Y = AX. Write it as vec(Y) = M·vec(X), and discuss whether a fully connected layer could do "
    "the same. M is checked on random attention weights and inputs, with the columns of X stacked. Replacement is "
    "tested on random layers of headway.nn with 1 or 2 heads and projected values, for 2 to 6 tokens.",
    answered="M = A. Since this is a matrix, a fully connected layer can replace attention.",
    reported=Reported(conclusion="vec(Y) = A·vec(X), so attention can be replaced by a fully connected layer"),
    claims=(
        ExerciseClaim("the matrix M of vec(Y) = M·vec(X) is A", is_the_matrix),
        ExerciseClaim("attention can be replaced by a fully connected layer", can_be_replaced),
    ),
    questions=(ExerciseQuestion("How many parameters would such a fully connected layer have?", what_it_costs),),
)
