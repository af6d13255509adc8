"""Two convex problems behind all questions about queries. Each has a dual, and the dual is the certificate.

`widest_margin`   the shortest u with D·u ≥ 1 in every row; where there is none, a mixture of D's rows is zero.
`most_even`       among the distributions over points that have a given mean, the one of largest entropy; it is a
                  softmax of scores that are linear in the points, or a limit of such.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

Rows = Float64[np.ndarray, "m d"]
Direction = Float64[np.ndarray, "d"]
Mixture = Float64[np.ndarray, "m"]


class Margin(NamedTuple):
    direction: Direction | None
    """u, with D·u ≥ 1 in every row; None if there is no such u."""
    widest: bool
    """Whether it is the shortest such u. If not, it is the one that makes the least angle with all rows."""
    touching: Bool[np.ndarray, "m"]
    """The rows that hold u in place; where there is none, rows of which a mixture is zero."""


def widest_margin(D: Rows, sizes: Mixture, flat: float = 1e-9) -> Margin:
    """The shortest u with D·u ≥ 1, whose length is one over the margin.

    Each row is looked at in units of its size (its length, before anything was taken off it): whether some u is at an
    acute angle with all of them does not depend on their lengths, which may be 1e-12 and 1e12. Where they differ so
    much that the shortest u stands across the long rows, to all digits, the u of least angle is taken. A u that is
    level with some row, to within the angle `flat`, is none.
    """
    rows, least = D / sizes[:, None], sizes.min() / sizes
    touching = np.zeros(len(D), dtype=bool)
    for bounds in (least, np.ones(len(rows))):
        u, touching = _shortest(rows, bounds)
        if u is not None and (rows @ u).min() >= flat * np.linalg.norm(u):
            return Margin(u / sizes.min(), bounds is least, touching)
    return Margin(None, False, touching)


def _shortest(rows: Rows, bounds: Mixture) -> tuple[Direction | None, Bool[np.ndarray, "m"]]:
    """The shortest u with rows·u ≥ bounds > 0, none of them above 1.

    Lawson and Hanson's least-distance programme: with y ≥ 0 nearest to rowsᵀy = 0, bounds·y = 1, the residual is zero
    when a mixture of the rows vanishes, and otherwise u is in proportion to it (their chapter 23).
    """
    from scipy.optimize import nnls

    system = np.vstack([rows.T, bounds])
    system /= np.linalg.norm(system, axis=0)
    mixture, _ = nnls(system, np.append(np.zeros(rows.shape[1]), 1.0), maxiter=50 * len(rows))
    touching = mixture > 0
    # The rows that hold u in place are met with equality: solved once more, to the last digits.
    u = np.linalg.lstsq(rows[touching], bounds[touching], rcond=1e-13)[0]
    reached = float((rows @ u / bounds).min())
    return (u / reached if reached > 0 else None), touching


class Even(NamedTuple):
    mixture: Mixture
    """The most even distribution over the points with the wanted mean."""
    path: list[Direction]
    """The queries on the way there; the last one gives the mixture."""


def most_even(points: Rows, wanted: Mixture, steps: int = 300) -> Even:
    """Newton's method on q ↦ log Σ exp(q·(k_j − k̄)), where k̄ is the wanted mean.

    The function is convex, and its gradient is the mean of the softmax minus k̄: at the minimum the softmax has the
    wanted mean. Where k̄ lies on the border of the hull the minimum is at infinity; each step then takes a factor e
    off the weights that have to vanish, so that a few dozen steps reach the last digit.
    """
    centred = points - wanted @ points
    size = float(np.abs(centred).max(initial=0.0))
    if size == 0:
        return Even(np.full(len(points), 1 / len(points)), [np.zeros(points.shape[1])])
    U, s, Vt = np.linalg.svd(centred / size, full_matrices=False)
    rank = int((s > 1e-13 * s[0]).sum())
    Z = U[:, :rank] * np.sqrt(len(points))  # the same points in coordinates where they are round
    back = Vt[:rank].T / s[:rank] * np.sqrt(len(points)) / size
    z = np.zeros(rank)
    value, p = _log_sum_exp(Z @ z)
    path, nearest = [np.zeros(points.shape[1])], np.inf
    for _ in range(steps):
        gradient = p @ Z
        distance = float(np.abs((gradient * s[:rank]) @ Vt[:rank]).max(initial=0.0))
        if distance < 1e-15 or (nearest < 1e-12 and distance > nearest / 2):  # there, or nothing left but rounding
            break
        nearest = min(nearest, distance)
        around = Z - gradient
        curvature, axes = np.linalg.eigh((around * p[:, None]).T @ around)
        step = -axes @ ((gradient @ axes) / np.maximum(curvature, 1e-15 * curvature[-1]))
        step *= min(1.0, 1e7 / max(float(np.abs(Z @ step).max()), 1e-300))  # where all is flat, not to infinity
        length, slope = 1.0, float(gradient @ step)
        new_value, new_p = _log_sum_exp(Z @ (z + step))
        while new_value > value + 1e-4 * length * slope + 1e-15 and length > 1e-6:
            length /= 2
            new_value, new_p = _log_sum_exp(Z @ (z + length * step))
        z, value, p = z + length * step, new_value, new_p
        path.append(back @ z)
    return Even(p, path)


def length(v: Direction) -> float:
    """The Euclidean norm, of huge and tiny vectors too."""
    size = float(np.abs(v).max(initial=0.0))
    return size * float(np.linalg.norm(v / size)) if size else 0.0


def entropy(weights: Mixture) -> float:
    """In nats; 0·log 0 = 0."""
    some = weights[weights > 0]
    return float(-(some * np.log(some)).sum())


def total_variation(weights: Mixture, wanted: Mixture) -> float:
    """How much weight is where it is not wanted. (Half the sum of all differences is the same, but rounds worse.)"""
    return float(np.maximum(weights - wanted, 0).sum())


def softmax(scores: Mixture) -> Mixture:
    return _log_sum_exp(scores)[1]


def _log_sum_exp(scores: Mixture) -> tuple[float, Mixture]:
    top = float(scores.max())
    weights = np.exp(scores - top)
    total = float(weights.sum())
    return top + float(np.log(total)), weights / total
