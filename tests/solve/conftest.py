"""Checks that share no code with the solvers: plain formulas of a few lines each."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest


@pytest.fixture(scope="session")
def attention() -> Callable[..., np.ndarray]:
    """softmax(scale · q Kᵀ), written plainly."""

    def attention(query, keys, scale=1.0):
        scores = scale * np.asarray(keys) @ np.asarray(query)
        e = np.exp(scores - scores.max())
        return e / e.sum()

    return attention


@pytest.fixture(scope="session")
def exactly() -> Callable[..., np.ndarray]:
    """The same without rounding: scores as fractions, and only the exponentials rounded."""

    def exactly(query, keys, scale=1.0):
        q = [Fraction(x) for x in query]
        scores = [Fraction(scale) * sum(a * Fraction(b) for a, b in zip(q, key, strict=True)) for key in keys]
        e = np.array([math.exp(max(score - max(scores), -1000)) for score in scores])
        return e / e.sum()

    return exactly


@pytest.fixture(scope="session")
def refutes() -> Callable[..., bool]:
    """Whether a change of the weights proves that no query comes within ε of the wanted ones."""

    def refutes(keys, wanted, change, within) -> bool:
        ν = [Fraction(x) for x in change]
        assert abs(sum(ν)) <= Fraction(1, 10**14) * max(map(abs, ν))
        assert all(Fraction(w) + x >= -Fraction(1, 10**17) for w, x in zip(wanted, ν, strict=True))
        assert any(_keeps_the_mean(keys, ν, i) for i in range(len(ν)) if ν[i])
        # For every query, Σ ν log p = 0. Is that possible with only ε of the weight misplaced?
        more, less = np.maximum(-change, 0), np.maximum(change, 0)
        taken = min(m * np.log(max(w - within, 1e-300) / w) for m, w in zip(more, wanted, strict=True) if m > 0)
        low, high = 0.0, 1e40  # the level up to which ε fills `less`
        for _ in range(300):
            height = (low + high) / 2
            low, high = (height, high) if np.maximum(height * less - wanted, 0).sum() < within else (low, height)
        raised = [m * np.log(max(high * m, w)) for m, w in zip(less, wanted, strict=True) if m > 1e-30]
        return sum(m * np.log(w) for m, w in zip(more, wanted, strict=True) if m > 0) + taken > sum(raised)

    return refutes


def _keeps_the_mean(keys, ν, i) -> bool:
    """Up to four units in the last place of the largest numbers of the keys; key i balances the sum of the others."""
    ν = [x - sum(ν) if j == i else x for j, x in enumerate(ν)]
    moved = [abs(sum(x * Fraction(k) for x, k in zip(ν, column, strict=True))) for column in keys.T]
    return max(moved) <= Fraction(4, 2**52) * sum(
        abs(x) * Fraction(k) for x, k in zip(ν, np.abs(keys).max(1), strict=True)
    )


@pytest.fixture(scope="session")
def judge(attention, exactly, refutes) -> Callable[..., None]:
    """Checks an answer: its query reaches the weights, or its certificate proves that none can."""

    def judge(answer) -> None:
        K, w, ε = answer.keys, answer.wanted, answer.within
        error = np.maximum(exactly(answer.query, K, answer.scale) - w, 0).sum()
        assert abs(error - answer.error) <= 1e-12
        plain = np.maximum(attention(answer.query, K, answer.scale) - w, 0).sum()
        assert abs(plain - error) <= answer.rounding + 1e-12
        if answer.verdict == "reached":
            assert error <= ε * (1 + 1e-9) and answer.certificate is None
        elif answer.verdict == "unrepresentable":
            assert np.maximum(exactly(answer.digits, K, answer.scale) - w, 0).sum() <= ε * (1 + 1e-9) < error
        elif answer.verdict == "impossible":
            assert refutes(K, w, answer.certificate.change, ε)
            assert ε < answer.certificate.floor <= error + 1e-9
        else:  # ε lies between what is proved and what was found
            assert error > ε and (answer.certificate is None or answer.certificate.floor <= ε)

    return judge
