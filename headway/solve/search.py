"""Search for a query in one frame of coordinates. The result is not trusted: `queries.py` verifies it exactly.

1. proportions   a q₀ with q₀·k_i = log w_i + c on the wanted keys: linear equations
2. face          the keys that no direction separates from the wanted ones, and a direction away from all others
3. scale         q = q₀ + s·u with the smallest s whose error is at most ε, if the face is only the wanted keys
4. otherwise     the q of least KL(w ‖ p) on the face: either within ε, or its p is the certificate
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from headway.solve.exact import Rationals
from headway.solve.frames import Face, Frame, Frames
from headway.solve.geometry import max_entropy, softmax, total_variation, widest_margin
from headway.solve.inputs import Vector, Weights

Method = Literal["proportions", "margin", "angle", "nearest"]


@dataclass(frozen=True)
class Found:
    query: Vector | Rationals
    method: Method
    direction: Vector | Rationals | None
    """Gives the wanted keys equal scores and every other key a score lower by at least one, if there is such a
    query."""
    changes: Iterator[Weights]
    """Changes of the wanted weights that keep the mean key: towards the weights of highest entropy with that mean, and
    the first one found. Each may be a certificate. Computed lazily; empty if there is a query."""


class Separation(NamedTuple):
    face: Face
    frame: Frame
    outwards: Vector
    """Its score is 0 on the face and at most −1 on all other keys."""
    widest: bool
    hidden: Weights
    """A mixture of other keys that lies in the span of the wanted ones, if there is one."""


def search(frames: Frames, w: Weights, ε: float) -> Found:
    on = w > 0
    frame = frames(on)
    z = _proportions(frame, w, ε)
    apart = _separation(frames, frame, on)
    alone = bool((apart.face == on).all())
    direction = frame.lift(apart.outwards) if alone and not on.all() else None
    if z is not None:
        if alone:
            method = "proportions" if on.all() else "margin" if apart.widest and frame.true_lengths else "angle"
            return Found(frame.lift(_away(apart, z, ε)), method, direction, iter(()))
        if total_variation(softmax(frame.points @ z), w) <= ε:  # not separable, but the others get almost nothing
            return Found(frame.lift(z), "proportions", None, iter(()))
    frame, face = apart.frame, apart.face
    even = max_entropy(frame.inside[face], w[face])
    z, room = _shortest_as_good(frame.inside[face], w[face], even.path, ε)
    change = np.zeros(len(w))
    change[face] = even.mixture - w[face]
    z = _away(apart, np.append(z, np.zeros(frame.points.shape[1] - frame.rank)), room)
    return Found(frame.lift(z), "nearest", direction, _changes(frame, w, change, apart.hidden))


def _changes(frame: Frame, w: Weights, even: Weights, hidden: Weights) -> Iterator[Weights]:
    yield frame.balance(even, w)
    if hidden.any():
        simple = frame.balance(w[w > 0].min() * 2.0**-20 * hidden, w)
        lost = float(np.max(-simple[w > 0] / w[w > 0], initial=0.0))
        yield simple * 2.0 ** np.floor(-np.log2(lost) - 1) if lost > 0 else simple  # at most half of a wanted weight


def _proportions(frame: Frame, w: Weights, ε: float) -> Vector | None:
    """The shortest z that gives the wanted keys the scores log w_i + c, if there is one.

    Each equation is divided by the length of its row, so that short rows are not neglected.
    """
    rows, ratios = frame.inside[w > 0], np.log(w[w > 0] / w.max())
    sizes = np.linalg.norm(rows, axis=1)
    sizes[sizes == 0] = 1.0
    z = np.linalg.lstsq(rows / sizes[:, None], ratios / sizes, rcond=1e-11)[0]
    misfit = float(np.abs(rows @ z - ratios).max())
    return np.append(z, np.zeros(frame.points.shape[1] - frame.rank)) if misfit <= min(1e-9, ε / 4) else None


def _separation(frames: Frames, frame: Frame, on: Face) -> Separation:
    """The smallest face that contains the wanted keys, and a direction that separates it from all others.

    As long as no direction separates the others, a mixture of some of them lies in the span of the face, so these are
    added to it.
    """
    face, hidden = on, np.zeros(len(on))
    while True:
        level = ~frame.beyond.any(1)
        if (level & ~face).any():  # in the span of the face: no direction separates them
            if not hidden.any():
                hidden[np.flatnonzero(level & ~face)[0]] = 1.0
            face = face | level
            frame = frames(face)
        rest, z = ~face, np.zeros(frame.points.shape[1])
        if not rest.any():
            return Separation(face, frame, z, True, hidden)
        found = widest_margin(-frame.beyond[rest], frame.sizes[rest], frame.flat)
        if found.direction is not None:
            z[frame.rank :] = found.direction
            return Separation(face, frame, z, found.widest, hidden)
        face = face.copy()
        face[np.flatnonzero(rest)[found.mixture > 0]] = True
        if (face != rest).all():  # neither found because of rounding: all remaining keys may be on the face
            face[:] = True
        elif not hidden.any():
            hidden[rest] = found.mixture / found.mixture.max()
        frame = frames(face)


def _away(apart: Separation, z: Vector, ε: float) -> Vector:
    """z + s · outwards with the smallest s ≥ 0 for which the keys outside the face get at most ε of the weight."""
    rest = apart.frame.points[~apart.face]
    if not len(rest):
        return z
    allowed = np.log(ε) - np.log1p(-ε) - 1e-9 + np.logaddexp.reduce(apart.frame.points[apart.face] @ z)
    rounding = 2.0**-50 * np.abs(rest)
    start, slope = rest @ z + rounding @ np.abs(z), rest @ apart.outwards + rounding @ np.abs(apart.outwards)

    def over(s: float) -> bool:
        return float(np.logaddexp.reduce(start + s * slope)) > allowed

    if not over(0.0):
        return z
    low, high = 0.0, 1.0
    while over(high) and high < 1e300:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    return z + high * apart.outwards


def _shortest_as_good(points: np.ndarray, w: Weights, path: list[Vector], ε: float) -> tuple[Vector, float]:
    """The first query on the path that is within ε, or otherwise as good as the last one to within ε/2; and how much
    attention may still be lost to keys outside the face."""
    errors = [total_variation(softmax(points @ z), w) for z in path]
    aim = max(ε / 2, errors[-1] + ε / 4)
    first = next(k for k, error in enumerate(errors) if error <= aim)
    return path[first], (ε - errors[first]) / 2 if errors[first] < ε else ε / 4
