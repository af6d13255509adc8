"""A step of AdamW as one GPU kernel, for all replicas of a parameter at once (`fused.py` says why)."""

import torch
from jaxtyping import Float
from torch import Tensor

from headway.nn.kernels import launching
from headway.nn.kernels.trusted import difference, sample_values, trusted

COUNTS = 1504, 1501, 1
"""Parameter sizes to check: Triton compiles different kernels for multiples of 16, for other sizes, and for 1."""


def adamw(
    weights: Float[Tensor, "R n"],
    gradient: Float[Tensor, "R n"],
    mean: Float[Tensor, "R n"],
    square: Float[Tensor, "R n"],
    scale: Float[Tensor, "R 1"],
    rates: Float[Tensor, "R 1"],
    decays: Float[Tensor, "R 1"],
    filled: tuple[Float[Tensor, ""], Float[Tensor, ""]],
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Update one parameter and its moments in place, for all replicas. Call only if `can_step` says so. `filled`: the
    bias corrections of the mean and of the root of the square."""
    R, n = weights.shape
    launching.kernels().adamw[(launching.ceil_div(n, 1024), R)](
        weights, gradient.contiguous(), mean, square, scale, rates, decays, *filled, n, *betas, epsilon, True, 1024
    )


def can_step(weights: Tensor) -> bool:
    if not launching.available(weights) or weights.dtype != torch.float32:
        return False
    verdicts = [trusted("adamw", weights.device, check_adamw, count) for count in COUNTS]  # ask for each of them
    return all(verdicts)


def plain_adamw(
    weights: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, scale: Tensor, rates: Tensor, decays: Tensor,
    filled: tuple[Tensor, Tensor], betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    gradient = torch.where(scale > 0, gradient * scale, 0)
    mean.lerp_(gradient, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    size = square.sqrt() / filled[1] + epsilon
    weights.mul_(1 - rates * decays).sub_(mean / size * (rates / filled[0]))


def check_adamw(device, count) -> float:
    """Compare one step of a parameter with `count` elements."""
    given = [sample_values((2, count), device, seed) for seed in range(4)]
    given[3].abs_()
    pairs = (0.5, 0.0), (1e-2, 0.0), (0.1, 0.2)
    scale, rates, decays = (torch.tensor(pair, device=device)[:, None] for pair in pairs)
    filled = torch.tensor(0.2, device=device), torch.tensor(0.15, device=device)
    results = []
    for step in (adamw, plain_adamw):
        weights, gradient, mean, square = (t.clone() for t in given)
        step(weights, gradient, mean, square, scale, rates, decays, filled, (0.9, 0.99), 1e-8)
        results.append([weights - given[0], mean, square])
    return difference(*results)
