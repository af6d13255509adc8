"""A step of AdamW as one kernel for a GPU, for all replicas of a parameter at once (`fused.py` says what for)."""

import torch
from jaxtyping import Float
from torch import Tensor

from headway.nn.kernels import launching
from headway.nn.kernels.trusted import difference, numbers, trusted

COUNTS = 1504, 1501, 1
"""Of numbers in a parameter: Triton compiles a kernel anew for a multiple of 16, for any other number, and for one."""


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
    """One parameter, and what is remembered of it, one step on, for all replicas. Only for whoever has asked
    `can_step`. `filled`: how much of the mean, and of the root of the square, has been filled so far."""
    R, n = weights.shape
    launching.kernels().adamw[(launching.parts(n, 1024), R)](
        weights, gradient.contiguous(), mean, square, scale, rates, decays, *filled, n, *betas, epsilon, True, 1024
    )


def can_step(weights: Tensor) -> bool:
    if not launching.available(weights) or weights.dtype != torch.float32:
        return False
    return all(trusted("adamw", weights.device, check_adamw, count) for count in COUNTS)


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
    """A parameter of so many numbers."""
    given = [numbers((2, count), device, seed) for seed in range(4)]
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
