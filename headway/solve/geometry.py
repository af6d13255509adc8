"""The two convex problems behind all questions about queries. The dual of each gives the certificate.

`widest_margin`   the shortest u with D·u ≥ 1 in every row; if there is none, a mixture of D's rows is zero.
`max_entropy`       among the distributions over points with a given mean, the one with the largest entropy; it is a
                  softmax of scores that are linear in the points, or a limit of such.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from headway.solve.exact import BeyondFloat64Error, finite

Rows = Float64[np.ndarray, "m d"]
Direction = Float64[np.ndarray, "d"]
Mixture = Float64[np.ndarray, "m"]


class Margin(NamedTuple):
    direction: Direction | None
    """u, with D·u ≥ 1 in every row; None if there is no such u."""
    widest: bool
    """Whether it is the shortest such u. If not, it is the one with the smallest maximal angle to the rows."""
    mixture: Mixture
    """A mixture of the rows with active constraints; if there is no u, a mixture of rows that is zero."""


def widest_margin(D: Rows, sizes: Mixture, flat: float = 1e-9) -> Margin:
    """The shortest u with D·u ≥ 1, whose length is one over the margin.

    Each row is scaled by its size (its length before projection): whether some u has an acute angle with all rows does
    not depend on their lengths, which may range from 1e-12 to 1e12. If they differ so much that the shortest u is
    numerically orthogonal to the long rows, the u of smallest angle is used. A u that is orthogonal to some row up to
    `flat` is rejected.
    """
    rows, least = D / sizes[:, None], sizes.min() / sizes
    mixture = np.zeros(len(D))
    for bounds in (least, np.ones(len(rows))):
        u, mixture = _shortest(rows, bounds)
        if u is not None and (rows @ u).min() >= flat * np.linalg.norm(u):
            return Margin(u / sizes.min(), bounds is least, mixture / sizes)
    return Margin(None, False, mixture / sizes)


def _shortest(rows: Rows, bounds: Mixture) -> tuple[Direction | None, Mixture]:
    """The shortest u with rows·u ≥ bounds, where 0 < bounds ≤ 1.

    Lawson and Hanson's least-distance programming (their chapter 23): find the y ≥ 0 closest to rowsᵀy = 0, bounds·y =
    1. The residual is zero if a mixture of the rows vanishes; otherwise u is proportional to it.
    """
    from scipy.optimize import nnls

    system = np.vstack([rows.T, bounds])
    system /= (norms := np.linalg.norm(system, axis=0))
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    try:
        mixture, _ = nnls(finite(system), target, maxiter=50 * len(rows))
    except RuntimeError as error:  # it cycles
        raise BeyondFloat64Error from error
    touching = mixture > 0
    # Active constraints hold with equality: solve them again for full precision.
    u = np.linalg.lstsq(rows[touching], bounds[touching], rcond=1e-13)[0]
    reached = float((rows @ u / bounds).min())
    return (u / reached if reached > 0 else None), mixture / norms


class MaxEntropy(NamedTuple):
    mixture: Mixture
    """The distribution of largest entropy over the points with the wanted mean."""
    path: list[Direction]
    """The iterates of the query; the last one gives the mixture."""


def max_entropy(points: Rows, wanted: Mixture, steps: int = 300) -> MaxEntropy:
    """Newton's method on q ↦ log Σ exp(q·k_j) − q·k̄, where k̄ is the wanted mean.

    The function is convex, and its gradient is the mean of the softmax minus k̄, so at the minimum the softmax has the
    wanted mean. Newton's method is independent of the coordinates; each step is computed with the coordinates scaled to
    equal curvature, because they can differ by a factor of 1e9. If k̄ is on the boundary of the hull, the minimum is at
    infinity, and each step reduces the weights that have to vanish by a factor e.
    """
    units = np.abs(points).max(0, initial=0.0)
    units[units == 0] = 1.0
    Z = points / units
    z = np.zeros(Z.shape[1])
    value, p = _objective(Z, wanted, z)
    path, least = [z], np.inf
    for _ in range(steps):
        gradient = (p - wanted) @ Z
        around = Z - p @ Z
        curvature = (around * p[:, None]).T @ around
        unit = np.sqrt(np.maximum(np.diag(curvature), 1e-150))
        bends, axes = np.linalg.eigh(finite(curvature / unit / unit[:, None]))
        along = (gradient / unit) @ axes
        step = -(axes @ (along / np.maximum(bends, 1e-14))) / unit
        left = -float(gradient @ step)  # twice the distance of the function from its minimum
        if left <= 1e-28 or (least < 1e-14 and left > least / 4):  # converged, or only rounding is left
            break
        least = min(least, left)
        share, found = 1.0, _objective(Z, wanted, z + step)
        while found[0] > value - 1e-4 * share * left + 1e-15 and share > 1e-30:
            share /= 2
            found = _objective(Z, wanted, z + share * step)
        if share <= 1e-30:
            break
        z, (value, p) = z + share * step, found
        path.append(z / units)
    return MaxEntropy(p, path)


def _objective(points: Rows, wanted: Mixture, z: Direction) -> tuple[float, Mixture]:
    scores = points @ z
    value, p = _log_sum_exp(scores)
    return value - float(wanted @ scores), p


def length(v: Direction) -> float:
    """The Euclidean norm, without overflow or underflow."""
    size = float(np.abs(v).max(initial=0.0))
    return size * float(np.linalg.norm(v / size)) if size else 0.0


def entropy(weights: Mixture) -> float:
    """The entropy in nats; 0·log 0 = 0."""
    some = weights[weights > 0]
    return float(-(some * np.log(some)).sum())


def total_variation(weights: Mixture, wanted: Mixture) -> float:
    """The weight that is in the wrong place. (Half the sum of absolute differences is the same, but rounds worse.)"""
    return float(np.maximum(weights - wanted, 0).sum())


def total_variation_at_most(weights: Mixture, wanted: Mixture) -> float:
    """An upper bound if each weight may have been rounded down, by a few units in the last place plus the rounding of
    the exponential, which grows with the distance of the score from the best one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = np.where(weights > 0, 2.0**-52 * weights * (8 - np.log(weights)), 0.0)
    return total_variation(np.minimum(weights + rounding, 1), wanted)


def softmax(scores: Mixture) -> Mixture:
    return _log_sum_exp(scores)[1]


def _log_sum_exp(scores: Mixture) -> tuple[float, Mixture]:
    top = float(scores.max())
    weights = np.exp(scores - top)
    total = float(weights.sum())
    return top + float(np.log(total)), weights / total
