"""Coordinates in which some of the keys, a face, lie in the first few dimensions and the rest extend beyond them.

Softmax does not depend on the coordinates of the keys, but rounding does. There are two kinds of frames:

`orthogonal_frame`   rotated axes: lengths are preserved, and keys that differ only by rounding count as equal.
`key_frame`          keys as combinations of some of the keys, computed exactly. Lengths are lost, but keys at distances
                     1e-12 and 1e12 get coordinates that float64 can handle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from jaxtyping import Bool, Float64

from headway.solve.exact import Basis, ExactKeys, Rationals, as_floats, finite, fixed_point, shortest_solution
from headway.solve.inputs import Keys, Vector, Weights

Face = Bool[np.ndarray, "n"]


@dataclass(frozen=True)
class Frame:
    points: Float64[np.ndarray, "n c"]
    """The keys relative to one of them, which is 0."""
    rank: int
    """Keys of the face have zeros from this coordinate on."""
    sizes: Weights
    """The length used for each key outside the face when directions are compared with it."""
    true_lengths: bool
    """Whether lengths are those of the given keys, so that the widest margin here is the widest for them."""
    flat: float
    """A direction whose cosine with some key is below this counts as orthogonal to it."""
    lift: Callable[[Vector], Vector | Rationals]
    """From z to the query whose scores for the given keys are points · z."""
    balance: Callable[[Weights, Weights], Weights]
    """Corrects a change of the weights (given with the weights) so that it leaves the mean key unchanged."""

    @property
    def inside(self) -> Float64[np.ndarray, "n r"]:
        return self.points[:, : self.rank]

    @property
    def beyond(self) -> Float64[np.ndarray, "n b"]:
        return self.points[:, self.rank :]


Frames = Callable[[Face], Frame]
"""A frame for every face."""


def orthogonal_frames(exact: ExactKeys, X: Keys, unit: float) -> Frames:
    """`X` are the keys relative to one of them; a query of length one for X has length 1/unit for the keys."""
    lengths = np.linalg.norm(X, axis=1)

    def frame(face: Face) -> Frame:
        some = face & (lengths > 0)
        rows = X[some] / lengths[some, None]
        _, s, Vt = np.linalg.svd(rows, full_matrices=True)
        rank = int((s > 1e-11).sum())
        points = X @ Vt.T
        level = np.linalg.norm(points[:, rank:], axis=1) <= 1e-11 * lengths
        points[level, rank:] = 0

        def balance(change: Weights, wanted: Weights) -> Weights:
            change, root = change.copy(), np.sqrt(wanted + change)
            for _ in range(3):  # iterative refinement: exact residual, approximate correction
                change[np.abs(change) < 1e-15 * np.abs(change).max()] = 0.0  # nothing but rounding
                i = exact.counterweight(change)
                system = (root * (change != 0))[:, None] * (X - X[i])
                left = finite(as_floats(exact.mean(change)) / unit * exact.scale)
                change -= root * np.linalg.lstsq(system.T, left, rcond=1e-11)[0]
                change[i] -= change.sum()
            return np.maximum(change, -wanted)

        return Frame(points, rank, lengths, True, 1e-9, lambda z: Vt.T @ z / unit, balance)

    return frame


def key_frames(exact: ExactKeys) -> Frames:
    def frame(face: Face) -> Frame:
        basis = Basis(exact.around)
        basis.extend(np.flatnonzero(face))
        rank = len(basis.rows)
        basis.extend(np.flatnonzero(~face))
        points = as_floats(basis.table, basis.divisor)

        def lift(z: Vector) -> Rationals:
            unit = exact.unit * Fraction(exact.scale)
            return [part / unit for part in shortest_solution(exact.around[basis.rows], z)]

        sizes = np.linalg.norm(points[:, rank:], axis=1)
        return Frame(points, rank, sizes, False, 1e-13, lift, partial(_balanced, exact))

    return frame


def _balanced(exact: ExactKeys, change: Weights, wanted: Weights) -> Weights:
    """Correct the change exactly: keep it for all keys except a basis, and solve for the basis keys.

    The basis consists of the keys with the largest weights in the mixture, so that a small correction does not make
    their weights negative. A key whose weight would become negative is set to 0, and the rest is balanced again.
    """
    for _ in range(8):
        mixture = wanted + change
        some = mixture > 1e-60
        change = np.where(some, change, -wanted)
        some[exact.origin] = False
        powers = np.frexp(np.where(some, mixture, 1.0))[1]
        basis = Basis(exact.around << (powers - powers.min()).astype(object)[:, None])
        basis.extend(np.flatnonzero(some))
        change[[*basis.rows, exact.origin]] = 0.0
        whole, exponent = fixed_point(change * 2.0**-powers)
        unit = Fraction(2) ** exponent / int(basis.divisor)
        asked = [unit * int(v) for v in whole @ basis.table]
        parts = [-a * Fraction(2) ** int(p) for a, p in zip(asked, powers[basis.rows], strict=True)]
        change[[exact.origin, *basis.rows]] = as_floats([-(sum(parts) + sum(map(Fraction, change.tolist()))), *parts])
        if (wanted + change >= 0).all():
            break
    return change
