"""Minimise the summed Huber loss of L(N, D) = E + A/N^α + B/D^β on log L, from many starts at once.

Each start and each resample is a row of one array: log A, α, log B, β, log E. The rows are minimised together by
Newton's method with a separate damping per row. (L-BFGS from one start after the other finds the same minimum;
`tests/stats/test_scaling.py` compares the two.)
"""

import itertools

import numpy as np

CORNER = 1e-3
"""δ of the Huber loss, in nats of log L."""
_EXACTLY = (400, 1e-10)  # maximal number of steps, and the relative improvement a step must make
_ROWS = 256  # rows at once, so that they stay in the CPU cache


def minimise(
    starts: np.ndarray,
    n: np.ndarray,
    d: np.ndarray,
    loss: np.ndarray,
    weights: np.ndarray,
    steps: int = _EXACTLY[0],
    gain: float = _EXACTLY[1],
) -> tuple[np.ndarray, np.ndarray]:
    """From starts `[S, 5]` and weights `[S or 1, points]` to the minima `[S, 5]` and their objectives. n, d and loss
    are logarithms. A row has converged when several steps in a row improved it by less than `gain`."""
    centre = np.array([n.mean(), d.mean()])
    n, d = n - centre[0], d - centre[1]  # otherwise log A and α would be almost collinear
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
    """Newton's method on the points within the corner of the Huber loss, damped by the matrix of iteratively reweighted
    least squares on all points. With much damping a step is one of reweighted least squares, which is robust; with
    little damping it converges quickly. A step that does not improve a row is rejected, and its damping grows."""
    slopes = _SlopesOfLaw(n, d)
    ends, values = rows.copy(), np.empty(len(rows))
    left = np.arange(len(rows))  # rows that have not converged
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
    """`np.where` with a single type, because type checkers are slow on its overloads within a loop."""
    return np.where(chosen, one, other)


def _terms(rows: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The logarithms of A/N^α, B/D^β and E, `[3, S, points]`."""
    a, alpha, b, beta, e = (rows[:, k, None] for k in range(5))
    return np.stack([a - alpha * n, b - beta * d, np.broadcast_to(e, (len(rows), len(n)))])


def residuals_of(rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Predicted minus measured log L, `[S, points]`."""
    return np.logaddexp.reduce(_terms(rows, n, d)) - loss


def _objective(
    rows: np.ndarray, n: np.ndarray, d: np.ndarray, loss: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The summed Huber loss `[S]`, the residuals `[S, points]`, and each term's share of the predicted loss."""
    terms = _terms(rows, n, d)
    largest = terms.max(0)
    shares = np.exp(terms - largest)
    total = shares.sum(0)
    residuals = largest + np.log(total) - loss
    size = np.abs(residuals)
    huber = np.where(size <= CORNER, 0.5 * residuals**2, CORNER * (size - 0.5 * CORNER))
    return (weights * huber).sum(1), residuals, shares / total


class _SlopesOfLaw:
    """The derivatives of log L with respect to the five numbers: a term's share times (1, −n, 1, −d, 1). Sums over
    points of products of two derivatives are computed as matrix products with constant factors."""

    def __init__(self, n: np.ndarray, d: np.ndarray):
        ones = np.ones_like(n)
        self.of = [(0, ones), (0, -n), (1, ones), (1, -d), (2, ones)]

    def gradient(self, pulls: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The gradient `[S, 5]` from weighted residuals `[S, points]`."""
        return np.stack([(pulls * shares[term]) @ factor for term, factor in self.of], 1)

    def products(self, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The weighted sums of products of two derivatives, `[S, 5, 5]`."""
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
