"""Minima of the summed Huber loss of L(N, D) = E + A/N^α + B/D^β on log L, from many starts at once.

Each start, and each resample, is a row of one array, log A, α, log B, β, log E: Newton's method with a damping of its
own per row, whose steps are five numbers each. (L-BFGS from one start after the other finds the same minimum;
`tests/stats/test_scaling.py` holds the two against each other.)
"""

import itertools

import numpy as np

CORNER = 1e-3
"""δ of the Huber loss, in nats of log L."""
_EXACTLY = (400, 1e-10)  # steps at most, and what a step must gain, as a share
_ROWS = 256  # at once: as many as stay in a cache


def minimise(
    starts: np.ndarray,
    n: np.ndarray,
    d: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray,
    steps: int = _EXACTLY[0],
    gain: float = _EXACTLY[1],
) -> tuple[np.ndarray, np.ndarray]:
    """From starts `[S, 5]` and weights `[S or 1, points]`: the minima `[S, 5]`, and the objective there. n, d and loss
    are logarithms. A row has arrived when several steps in turn gained less than this share."""
    centre = np.array([n.mean(), d.mean()])
    n, d = n - centre[0], d - centre[1]  # else log A and α could hardly be told apart
    rows = starts.astype(np.float64)
    rows[:, [0, 2]] -= rows[:, [1, 3]] * centre
    objectives = np.empty(len(rows))
    for first in range(0, len(rows), _ROWS):
        part = slice(first, first + _ROWS)
        own = weights if len(weights) == 1 else weights[part]
        rows[part], objectives[part] = _minimise(rows[part], n, d, loss, own, steps, gain)
    rows[:, [0, 2]] += rows[:, [1, 3]] * centre
    return rows, objectives


def _minimise(
    rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray, weights: np.ndarray, steps: int, gain: float
) -> tuple[np.ndarray, np.ndarray]:
    """Newton's method on the points within the corner, damped by the matrix of reweighted least squares on all. With
    much damping a step is one of the latter, which never fails for long; with little the end is reached at once. A step
    that does not help is not taken, and the damping grows."""
    slopes = _SlopesOfLaw(n, d)
    ends, values = rows.copy(), np.empty(len(rows))
    left = np.arange(len(rows))  # rows that are still on their way
    value, residuals, shares = _objective(rows, n, d, loss, weights)
    damping, calm = np.ones(len(rows)), np.zeros(len(rows), dtype=int)
    for step in range(steps):
        size = np.abs(residuals)
        soft = weights * np.minimum(1.0, CORNER / np.maximum(size, 1e-300))
        gradient = slopes.gradient(soft * residuals, shares)
        least_squares, newton = slopes.products(soft, shares), slopes.products(weights * (size <= CORNER), shares)
        diagonal = np.einsum("sii->si", least_squares)
        ridge = (1e-9 * diagonal.max(1) * (1 + damping) + 1e-300)[:, None, None] * np.eye(5)
        matrix = newton + damping[:, None, None] * least_squares + ridge
        move = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
        move *= np.minimum(1.0, 3.0 / np.maximum(np.abs(move).max(1, keepdims=True), 1e-300))
        new = rows + move
        new_value, new_residuals, new_shares = _objective(new, n, d, loss, weights)
        better = new_value < value
        calm = _either(better & (value - new_value > gain * value), np.zeros_like(calm), calm + 1)
        rows = _either(better[:, None], new, rows)
        residuals = _either(better[:, None], new_residuals, residuals)
        shares = _either(better[:, None], new_shares, shares)
        value = _either(better, new_value, value)
        damping = _either(better, np.maximum(0.3 * damping, 1e-4), np.minimum(5.0 * damping, 1e8))
        on = calm < 8 if step < steps - 1 else np.zeros(len(rows), dtype=bool)
        if not on.all():
            ends[left[~on]], values[left[~on]] = rows[~on], value[~on]
            left, rows, value, damping, calm = left[on], rows[on], value[on], damping[on], calm[on]
            residuals, shares = residuals[on], shares[:, on]
            weights = weights if len(weights) == 1 else weights[on]
            if not len(left):
                break
    return ends, values


def _either(chosen: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """`np.where`, of one type: whoever checks types would try its overloads anew for each variable of a loop."""
    return np.where(chosen, one, other)


def _terms(rows: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """`[3, S, points]`: the logarithms of A/N^α, B/D^β and E."""
    a, alpha, b, beta, e = (rows[:, k, None] for k in range(5))
    return np.stack([a - alpha * n, b - beta * d, np.broadcast_to(e, (len(rows), len(n)))])


def residuals_of(rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """`[S, points]`: what laws say of log L, less what was measured."""
    return np.logaddexp.reduce(_terms(rows, n, d)) - loss


def _objective(
    rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The summed Huber loss `[S]`, residuals `[S, points]`, and each term's share of what the law says."""
    terms = _terms(rows, n, d)
    largest = terms.max(0)
    shares = np.exp(terms - largest)
    total = shares.sum(0)
    residuals = largest + np.log(total) - loss
    size = np.abs(residuals)
    huber = np.where(size <= CORNER, 0.5 * residuals**2, CORNER * (size - 0.5 * CORNER))
    return (weights * huber).sum(1), residuals, shares / total


class _SlopesOfLaw:
    """What log L changes by, with each of the five numbers: its term's share times (1, −n, 1, −d, 1). Sums over points
    of products of two of them are matrix products with what does not change."""

    def __init__(self, n: np.ndarray, d: np.ndarray):
        ones = np.ones_like(n)
        self.of = [(0, ones), (0, -n), (1, ones), (1, -d), (2, ones)]

    def gradient(self, pulls: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """`[S, 5]`, of pulls `[S, points]`."""
        return np.stack([(pulls * shares[term]) @ factor for term, factor in self.of], 1)

    def products(self, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """`[S, 5, 5]`."""
        found = np.empty((shares.shape[1], 5, 5))
        for first, second in itertools.combinations_with_replacement(range(3), 2):
            both = weights * shares[first] * shares[second]
            rows = [k for k, (term, _) in enumerate(self.of) if term == first]
            columns = [k for k, (term, _) in enumerate(self.of) if term == second]
            factors = np.stack([self.of[i][1] * self.of[j][1] for i in rows for j in columns], 1)
            block = (both @ factors).reshape(-1, len(rows), len(columns))
            found[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = block
            found[:, columns[0] : columns[-1] + 1, rows[0] : rows[-1] + 1] = block.swapaxes(1, 2)
        return found
