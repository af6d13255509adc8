"""Judges that share no code with the solvers: plain formulas, a few lines each."""

from collections.abc import Callable

import numpy as np
import pytest


@pytest.fixture(scope="session")
def attention() -> Callable[..., np.ndarray]:
    """softmax(scale · q Kᵀ), as anybody would write it."""

    def attention(query, keys, scale=1.0):
        scores = scale * np.asarray(keys) @ np.asarray(query)
        e = np.exp(scores - scores.max())
        return e / e.sum()

    return attention


@pytest.fixture(scope="session")
def refutes() -> Callable[..., bool]:
    """Whether a mixture of keys proves that no query comes within ε of the wanted weights."""

    def refutes(keys, wanted, mixture, within) -> bool:
        def entropy(w):
            return -sum(x * np.log(x) for x in w if x > 0)

        size = np.abs(keys - keys[0]).max()
        assert mixture.min() >= 0 and abs(mixture.sum() - 1) < 1e-12
        assert np.abs(mixture @ (keys - keys[0]) - wanted @ (keys - keys[0])).max() <= 1e-9 * size
        assert entropy(mixture) > entropy(wanted)
        # For every query, Σ (w - μ) log p = 0. Could that be, with only ε in the wrong place?
        more, less = np.maximum(wanted - mixture, 0), np.maximum(mixture - wanted, 0)
        taken = min(m * np.log(max(w - within, 0) / w) for m, w in zip(more, wanted, strict=True) if m > 0)
        low, high = 0.0, 1e9  # how high `less` is filled up with ε in all
        while high - low > 1e-13 * high:
            height = (low + high) / 2
            low, high = (height, high) if np.maximum(height * less - wanted, 0).sum() < within else (low, height)
        raised = [m * np.log(max(high * m, w)) for m, w in zip(less, wanted, strict=True) if m > 1e-30]
        return sum(m * np.log(w) for m, w in zip(more, wanted, strict=True) if m > 0) + taken > sum(raised)

    return refutes


@pytest.fixture(scope="session")
def judge(attention, refutes) -> Callable[..., None]:
    """An answer is right: the query does it, or the certificate proves that none can."""

    def judge(answer) -> None:
        given = attention(answer.query, answer.keys, answer.scale)
        error = np.abs(given - answer.wanted).sum() / 2
        assert abs(error - answer.error) <= answer.rounding + 1e-12
        if answer.verdict == "reached":
            assert error <= answer.within + answer.rounding
            assert answer.certificate is None
        elif answer.verdict == "undecided":  # ε lies between what is proved and what is found
            assert answer.certificate.floor <= answer.within < error < 100 * answer.within
        else:
            assert refutes(answer.keys, answer.wanted, answer.certificate.mixture, answer.within)
            assert answer.certificate.floor <= error + answer.rounding + 1e-12

    return judge
