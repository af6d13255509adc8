# quick:  1 CPU core 5 seconds
# full:   1 CPU core 27 seconds
"""Gradients through a deep ReLU chain and through a sigmoid RNN: are the bounds right, and are they ever attained?"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

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
    share,
)
from headway.core import random
from headway.draw.charts import Curve, line_chart
from headway.solve.chains import (
    RELU,
    SIGMOID,
    TANH,
    Activation,
    Factors,
    exactly,
    is_at_most,
    lstm,
    norms,
    product,
    recurrence,
    relu_chain,
    with_norm,
)
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure

WIDTHS = (1, 3)
DEPTHS = (2, 4, 8)
"""Layers of a ReLU chain, and states n of an RNN (which takes n − 1 steps)."""
NORM = Fraction(1, 4)
"""σ_max(W) of the sigmoid RNN."""
ATTAINED = 1 - 1e-9
"""The share of a bound from which it counts as attained."""


class Chains(NamedTuple):
    """Random instances: the Jacobians of their steps, and a bound on the norm of each instance's product."""

    factors: Factors
    bounds: Sequence[Fraction]

    @property
    def shares(self) -> Tensor:
        """The norm of each product as a share of its bound."""
        return norms(product(self.factors)) / torch.tensor([float(bound) for bound in self.bounds], dtype=torch.float64)

    @property
    def certified(self) -> int:
        """How many are within their bound, in exact arithmetic."""
        one_by_one = zip(*self.factors, strict=True)
        return sum(is_at_most(exactly(one), bound) for one, bound in zip(one_by_one, self.bounds, strict=True))


def relu_chains(instances: int, width: int, depth: int) -> list[Tensor]:
    """Gaussian weights of N chains with standard deviation √(2/width), which preserves the scale of activations."""
    drawn = random.generator("exercise", "D1", "relu", width, depth)
    size = (depth, instances, width, width)
    return list(math.sqrt(2 / width) * torch.randn(size, generator=drawn, dtype=torch.float64))


def product_of_norms(weights: Sequence[Tensor]) -> list[Fraction]:
    """∏‖W_i‖ of each chain, rounded up in the 14th digit."""
    return [Fraction(float(bound) * (1 + 1e-14)) for bound in torch.stack([norms(W) for W in weights]).prod(0)]


def chain_keeps_to(instances: int, bound: Callable[[Sequence[Tensor]], list[Fraction]] = product_of_norms) -> Ruling:
    rows, lost = [], 0
    for width in WIDTHS:
        for depth in DEPTHS:
            weights = relu_chains(instances, width, depth)
            drawn = random.generator("exercise", "D1", "x", width, depth)
            x = torch.randn(instances, width, generator=drawn, dtype=torch.float64)
            chains = Chains(relu_chain(weights, x), bound(weights))
            shares, certified = chains.shares, chains.certified
            lost += instances - certified
            of = f"width {width}, {depth} layers"
            rows.append(Reach("ReLU chain: within the bound", of, instances, "all", share(certified, instances), "all"))
            rows.append(
                Reach("ReLU chain: exactly 0", of, instances, "≥ 0", share(int((shares == 0).sum()), instances), "yes")
            )
            met = f"{share(int((shares >= ATTAINED).sum()), instances)}{_between(shares)}"
            rows.append(Reach("ReLU chain: attains the bound", of, instances, "≤ 1", met, "yes"))
    rows.sort(key=lambda row: row.quantity, reverse=True)
    return Ruling(
        status="does not hold" if lost else "holds",
        why=f"the Jacobian is W_n·D_{{n−1}}·W_{{n−1}} … D_1·W_1 with diagonal D_i of zeros and ones, whose norm is at "
        "most 1, so its norm is at most ∏‖W_i‖. In exact arithmetic "
        f"{_bounded(lost, len(rows) // 3 * instances, 'random chains')}. Both ends are attained. In a chain of single "
        "units there is nothing in between: the gradient is either 0 or the product itself",
        reached=rows,
        derivation=[
            "A chain of single units: f(x) = w_n·relu(… relu(w_1·x)).",
            "Each relu either passes its input on (slope 1) or is off (slope 0).",
            "If one is off, the gradient is 0; if none is, it is w_n·…·w_1, and its absolute value is the bound.",
            "With random signs all n − 1 are on with probability 2^−(n−1): 50 %, 12.5 % and 0.8 % for n = 2, 4, 8.",
        ],
    )


def sigmoid_rnns(instances: int, width: int, states: int, norm: float = float(NORM)) -> Factors:
    """x_{t+1} = σ(W·x_t + b_t) from a Gaussian x_1; b_t is zero for half of them and Gaussian for the others."""
    drawn = random.generator("exercise", "D1", "sigmoid", width, states)

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn, dtype=torch.float64)

    W = with_norm(gaussian(instances, width, width), norm)
    driven = (torch.arange(instances) % 2)[:, None]
    inputs = [gaussian(instances, width) * driven for _ in range(states - 1)]
    return recurrence(SIGMOID, W, gaussian(instances, width), inputs)


def rnn_keeps_to(instances: int, step: Fraction = SIGMOID.steepest * NORM) -> Ruling:
    rows, lost, closest = [], 0, 0.0
    for width in WIDTHS:
        for states in DEPTHS:
            factors = sigmoid_rnns(instances, width, states)
            chains = Chains(factors, [step ** (states - 1)] * instances)
            certified, largest = chains.certified, float(chains.shares.max())
            lost, closest = lost + instances - certified, max(closest, largest)
            of = f"width {width}, n = {states}"
            rows.append(Reach("RNN: within the bound", of, instances, "all", share(certified, instances), "all"))
            rows.append(Reach("RNN: largest share of the bound", of, instances, "≤ 1", f"{largest:.3f}", "1"))
    rows.sort(key=lambda row: row.quantity, reverse=True)
    return Ruling(
        status="does not hold" if lost else "holds",
        why="the slope σ' = σ·(1 − σ) is at most 1/4, with equality only at 0. With σ_max(W) = 1/4 the Jacobian of a "
        "step, diag(σ')·W, has norm at most 1/16, and from x_1 to x_n there are n − 1 steps: the bound is right. "
        f"In exact arithmetic {_bounded(lost, len(rows) // 2 * instances, 'random RNNs')}. They stay below it because "
        "their arguments are not 0, and because W maps the direction it stretches most to directions it stretches less",
        reached=rows,
        derivation=[
            "x_{t+1} = σ(W·x_t + b_t), so ∂x_{t+1}/∂x_t = diag(σ'(W·x_t + b_t))·W.",
            "‖diag(σ')‖ = max σ' ≤ 1/4 and ‖W‖ = σ_max(W) = 1/4, so each step has norm ≤ 1/16.",
            "∂x_n/∂x_1 is a product of n − 1 such steps: ‖∂x_n/∂x_1‖ ≤ (1/16)^(n−1).",
            "For n = 10 that is 1.5e−11. The 1/4 of the sigmoid alone would need σ_max(W) ≥ 4 for a bound of 1.",
        ],
    )


# --- when they are attained ------------------------------------------------------------------------------------------


def attained(instances: int) -> ExerciseFinding:
    n = 8
    half, away = Fraction(1, 2), np.array([[1, -1], [-1, 1]], dtype=object)
    W = away * Fraction(1, 8)  # (1/4)·v·vᵀ with v = (1, −1)/√2
    at_rest = torch.tensor([half, half], dtype=torch.float64)[None]
    matrix = torch.tensor(W.astype(float))[None]
    steps = recurrence(SIGMOID, matrix, at_rest, [torch.zeros_like(at_rest)] * (n - 1))
    pair = float(norms(product(steps))[0]) * 16 ** (n - 1)
    one = torch.full((1, 1, 1), 0.25, dtype=torch.float64)
    start = torch.full((1, 1), 0.5, dtype=torch.float64)
    single = recurrence(SIGMOID, one, start, [torch.full((1, 1), -0.125, dtype=torch.float64)] * (n - 1))
    shifted = float(norms(product(single))[0]) * 16 ** (n - 1)
    plain = recurrence(SIGMOID, one, start, [torch.zeros(1, 1, dtype=torch.float64)] * (n - 1))
    nilpotent = torch.tensor([[[0.0, 0.25], [0.0, 0.0]]], dtype=torch.float64)
    nothing = recurrence(SIGMOID, nilpotent, at_rest, [torch.zeros_like(at_rest)] * 2)
    identity = [torch.eye(4, dtype=torch.float64)[None] * 3] * n
    open_ = norms(product(relu_chain(identity, torch.ones(1, 4, dtype=torch.float64)))) / 3**n
    closed = norms(product(relu_chain(identity, -torch.ones(1, 4, dtype=torch.float64))))
    of = f"n = {n}"
    unbiased, gone = float(norms(product(plain))[0]) * 16 ** (n - 1), float(norms(product(nothing))[0])
    return ExerciseFinding(
        why="ReLU: the upper bound is attained if no unit on the way is off and the singular directions of successive "
        "layers align (single units that are on; multiples of one orthogonal matrix), the lower bound if a layer is "
        "off. Sigmoid: the upper bound needs an argument of 0 at every step, although every state is positive. Two "
        "units can do this: W = (1/8)·[[1, −1], [−1, 1]] has σ_max = 1/4 and maps (½, ½) to 0, so (½, ½) is a fixed "
        "point and each step has norm 1/16. One unit without a bias cannot (w·x_t > 0); with the bias −1/8 it can. "
        "The lower bound 0 is attained by W = [[0, 1/4], [0, 0]]: two steps give exactly 0",
        reached=[
            Reach("share of the bound", f"sigmoid, 2 units at rest, {of}", 1, "≤ 1", f"{pair:.12g}", "1"),
            Reach("share of the bound", f"sigmoid, 1 unit, bias −1/8, {of}", 1, "≤ 1", f"{shifted:.12g}", "1"),
            Reach("share of the bound", f"sigmoid, 1 unit, no bias, {of}", 1, "≤ 1", f"{unbiased:.3f}", "< 1"),
            Reach("share of the bound", "sigmoid, W = [[0, ¼], [0, 0]], n = 3", 1, "≥ 0", f"{gone:g}", "0"),
            Reach("share of the bound", f"ReLU, W = 3·I, x > 0, {of}", 1, "≤ 1", f"{float(open_[0]):.12g}", "1"),
            Reach("share of the bound", f"ReLU, W = 3·I, x < 0, {of}", 1, "≥ 0", f"{float(closed[0]):g}", "0"),
        ],
    )


# --- other recurrences -----------------------------------------------------------------------------------------------


def orthogonal(instances: int, width: int, drawn: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(instances, width, width, generator=drawn, dtype=torch.float64))
    return q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[:, None]


def others(instances: int) -> ExerciseFinding:
    width, steps = 16, 24
    instances = min(instances, 400)

    def gaussian(of: str, *shape: int) -> Tensor:
        drawn = random.generator("exercise", "D1", of)
        return torch.randn(*shape, generator=drawn, dtype=torch.float64)

    inputs = list(gaussian("inputs", steps, instances, width))
    W, start = orthogonal(instances, width, random.generator("exercise", "D1", "W")), gaussian("x", instances, width)

    def plain(activation: Activation, norm: float, drive: float = 1.0) -> list[Tensor]:
        return _running(recurrence(activation, norm * W, start, [drive * b for b in inputs]))

    def gated(forget: float) -> list[Tensor]:
        weights = gaussian("lstm", instances, 4 * width, width) / math.sqrt(width)
        bias = torch.zeros(instances, 4 * width, dtype=torch.float64)
        bias[:, width : 2 * width] = forget
        given = list(gaussian("gates", steps, instances, 4 * width))
        return _running(lstm(weights, bias, torch.zeros(instances, 2 * width, dtype=torch.float64), given))

    found = {
        "sigmoid, ‖W‖ = ¼": (plain(SIGMOID, 0.25), "bound 1/16"),
        "sigmoid, ‖W‖ = 4": (plain(SIGMOID, 4.0), "bound 1"),
        "ReLU, orthogonal": (plain(RELU, 1.0), "bound 1"),
        "tanh, orthogonal": (plain(TANH, 1.0), "bound 1"),
        "tanh, small inputs": (plain(TANH, 1.0, 0.1), "bound 1"),
        "LSTM, forget bias 1": (gated(1.0), "no bound"),
        "LSTM, forget bias 5": (gated(5.0), "no bound"),
    }
    rows = []
    for name, (measured, bound) in found.items():
        factor = (measured[-1].median() / measured[0].median()).item() ** (1 / (steps - 1))
        rows.append(Reach("factor per step", name, instances, "–", f"{factor:.3g}", bound))
    caption = (
        f"‖∂x_n/∂x_1‖ by n, in {instances} random recurrences of {width} units with Gaussian inputs: the median, and "
        "the band between the 10th and 90th percentile."
    )
    bound = [16.0**-n for n in range(1, steps + 1)]
    curves = [Curve("(1/16)^(n−1)", list(range(2, steps + 2)), bound, bound, bound)]
    curves += [_curve(name, measured) for name, (measured, _) in found.items()]
    return ExerciseFinding(
        why="whether gradients vanish depends on the slopes and on W. With an orthogonal W (all singular values 1) "
        "tanh and ReLU have a bound of 1 per step instead of 1/16, but slopes below 1 and units that are off still "
        "reduce the gradient at every step; with small inputs tanh keeps almost all of it. A sigmoid would need ‖W‖ ≥ "
        "4 for a bound of 1, and then its slopes stay far below 1/4. An LSTM multiplies its cell by a forget gate, "
        "which is near 1 if the bias is large, and so the factor on the gradient is near 1 too: W does not bound it, "
        "and it may also grow",
        reached=rows,
        figures=[Figure(line_chart(curves, "n", "‖∂x_n/∂x_1‖", caption, logarithmic=True), caption)],
    )


def _running(factors: Factors) -> list[Tensor]:
    """The norm of the product after one step, after two, …"""
    found, so_far = [], None
    for factor in factors:
        so_far = factor if so_far is None else factor @ so_far
        found.append(norms(so_far))
    return found


def _curve(name: str, measured: list[Tensor]) -> Curve:
    low, middle, high = ([float(at.quantile(q)) for at in measured] for q in (0.1, 0.5, 0.9))
    return Curve(name, list(range(2, len(measured) + 2)), middle, low, high)


def _bounded(lost: int, of: int, what: str) -> str:
    return f"all {of:,} {what} are within the bound" if not lost else f"{lost:,} of {of:,} {what} exceed the bound"


def _between(shares: Tensor) -> str:
    between = shares[(shares > 0) & (shares < ATTAINED)]
    return f"; the others above 0 reach {between.median():.2g} of it (median)" if len(between) else "; all others are 0"


EXERCISE = Exercise(
    title="How large can a gradient through many layers or steps be?",
    about="Bound the gradient of a deep chain of ReLU layers, and of an RNN x_{t+1} = σ(W·x_t) with a sigmoid and "
    "σ_max(W) = 1/4, from x_1 to x_n. Norms are spectral. Each bound is checked on random instances of width 1 and 3: "
    "the Jacobian is computed and compared with the bound in exact arithmetic.",
    answered="0 ≤ ‖∂f/∂x‖ ≤ ∏‖w_i‖ for the chain; ‖∂x_n/∂x_1‖ ≤ (1/16)^(n−1) for the RNN.",
    reported=Reported(conclusion="gradients of a ReLU chain lie between 0 and ∏‖w_i‖, of the RNN below (1/16)^(n−1)"),
    claims=(
        ExerciseClaim("the gradient of a deep ReLU chain lies between 0 and ∏‖w_i‖", chain_keeps_to),
        ExerciseClaim("with a sigmoid and σ_max(W) = 1/4 it is at most (1/16)^(n−1)", rnn_keeps_to),
    ),
    questions=(
        ExerciseQuestion("When is each bound attained?", attained),
        ExerciseQuestion("What changes with tanh, ReLU, an orthogonal W, or an LSTM?", others),
    ),
)
