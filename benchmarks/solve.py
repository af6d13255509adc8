"""Correctness and speed of `headway.solve` on random and degenerate instances, verified by independent code.

    python -m benchmarks.solve [instances per kind]

One JSON line per kind of question: how many were reached, refuted, left undecided, and wrong. The checks share no code
with the solvers and use exact fractions of the float64 keys and queries. A query counts as reached if softmax(qKᵀ) is
within ε = 1e-6 of the wanted weights; as refuted if its certificate proves that none can be, for keys known to four
units in the last place; as unrepresentable if it is within ε when written with more digits.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

from headway.solve import average, convolution, find_key, find_query, fixed_layer, max_pool, mean_pool, select, shift
from headway.solve.replacement import random_layer

KEYS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "plain": lambda rng, K: K,
    "repeated": lambda rng, K: K[rng.integers(0, len(K), len(K))],
    "collinear": lambda rng, K: np.outer(K[:, 0], rng.normal(size=K.shape[1])) + rng.normal(size=K.shape[1]),
    "zeros": lambda rng, K: K * (rng.random((len(K), 1)) < 0.5) * (rng.random() < 0.9),
    "huge": lambda rng, K: K * 10.0 ** rng.integers(3, 150),
    "tiny": lambda rng, K: K / 10.0 ** rng.integers(3, 150),
    "integers": lambda rng, K: np.round(K * 1.5),
    "far away": lambda rng, K: K + 1e6 * rng.normal(size=K.shape[1]),
    "on a face": lambda rng, K: np.vstack([K[1:3].mean(0) if len(K) > 2 else K[0], K[1:]]),
}
MIXED: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "norms 1e-12 to 1e12": lambda rng, K: K * _powers(rng, len(K), 1),
    "distances 1e-12 to 1e12": lambda rng, K: K * _powers(rng, len(K), 1) * (np.arange(len(K)) > 0)[:, None] + K[0],
    "columns 1e-12 to 1e12": lambda rng, K: K * _powers(rng, 1, K.shape[1]),
    "distances 1 and 6e-8": lambda rng, K: K * np.where(rng.random((len(K), 1)) < 0.5, 1, 6e-8),
    "integers of many sizes": lambda rng, K: np.round(1.5 * K) * 2.0 ** rng.integers(-40, 41, size=(len(K), 1)),
    "clusters of 1e-10": lambda rng, K: K[rng.integers(0, max(1, len(K) // 4), len(K))] + 1e-10 * K,
}
WANTED: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "select one key": lambda rng, K: select(int(rng.integers(len(K))) if rng.random() < 0.7 else 0, len(K)),
    "average a subset": lambda rng, K: average(rng.permutation(len(K))[: rng.integers(1, len(K) + 1)].tolist(), len(K)),
    "average all": lambda rng, K: average(None, len(K)),
    "any distribution": lambda rng, K: rng.dirichlet(np.ones(len(K))),
    "a few keys, unevenly": lambda rng, K: np.append(rng.dirichlet(np.ones(min(3, len(K)))), np.zeros(len(K)))[
        : len(K)
    ],
    "what some query gives": lambda rng, K: plainly(rng.normal(size=K.shape[1]) / max(np.abs(K).max(), 1e-300), K),
}


def plainly(q: np.ndarray, K: np.ndarray) -> np.ndarray:
    e = np.exp(K @ q - (K @ q).max())
    return e / e.sum()


def exactly(q: Iterable, K: np.ndarray) -> np.ndarray:
    """The softmax with exact scores: only the exponentials are rounded."""
    scores = [sum((Fraction(a) * Fraction(b) for a, b in zip(q, key, strict=True)), Fraction(0)) for key in K]
    e = np.exp([float(max(score - max(scores), -1000)) for score in scores])
    return e / e.sum()


def misplaced(p: np.ndarray, w: np.ndarray) -> float:
    return float(np.maximum(p - w, 0).sum())


def refuted(K: np.ndarray, w: np.ndarray, change: np.ndarray, within: float) -> bool:
    """Check a certificate: the change keeps the mean key, so Σ change · log p = 0 for every query. Is that impossible
    with only ε in the wrong place?"""
    ν = [Fraction(x) for x in change]
    over = sum(ν)  # rounding, which is attributed to one key
    mean = [sum(x * Fraction(k) for x, k in zip(ν, column, strict=True)) for column in K.T]
    room = Fraction(4, 2**52) * sum(abs(x) * Fraction(k) for x, k in zip(ν, np.abs(K).max(1), strict=True))
    stays = any(all(abs(m - over * Fraction(k)) <= room for m, k in zip(mean, key, strict=True)) for key in K)
    if not stays or abs(over) > 1e-15 or (w + change).min() < 0:
        return False
    more, less = np.maximum(-change, 0), np.maximum(change, 0)
    on, up = more > 0, less > 1e-30
    if within >= w[on].min():
        return False
    low, high = 0.0, 1e40
    while high - low > 1e-13 * high:
        height = (low + high) / 2
        low, high = (height, high) if np.maximum(height * less - w, 0).sum() < within else (low, height)
    raised = less[up] @ np.log(np.maximum(high * less, w)[up])
    return more[on] @ np.log(w[on]) + (more[on] * np.log1p(-within / w[on])).min() > raised


def queries(goals: list[str], families: dict, count: int) -> dict:
    rng = np.random.default_rng(len(goals[0]))
    found, worst, nearly = Counter(), 0.0, 1 + 1e-9
    for instance in range(count):
        family, goal = list(families)[instance % len(families)], goals[instance % len(goals)]
        K = families[family](rng, rng.normal(size=(rng.integers(1, 65), rng.integers(1, 17))))
        w = WANTED[goal](rng, K)
        answer = find_query(K, w)
        w = answer.wanted  # whose sum is 1
        error = misplaced(exactly(answer.query, K), w)
        right = error > answer.within
        if answer.verdict == "reached":
            right = error <= answer.within * nearly
            plain = misplaced(plainly(answer.query, K), w)
            right &= plain <= error + answer.rounding + 1e-12
            worst = max(worst, error)
            found["reached, but for rounding of plain float64"] += plain > answer.within * nearly
        elif answer.certificate is not None and answer.verdict == "impossible":
            right = refuted(K, w, answer.certificate.change, answer.within)
        elif answer.digits is not None:
            right = misplaced(exactly(answer.digits, K), w) <= answer.within * nearly
        found[answer.verdict] += 1
        found["wrong"] += not right
    return {**_counts(found), "largest error": float(f"{worst:.3g}")}


def keys(count: int) -> dict:
    """Compare the best key with 50 random ones. In half of the questions the norms of keys range from 1e-12 to 1e12."""
    rng = np.random.default_rng(1)
    found = Counter()
    for instance in range(count):
        K = rng.normal(size=(rng.integers(1, 65), rng.integers(2, 17)))
        K *= _powers(rng, len(K), 1) if instance % 2 else 1
        q, j = rng.normal(size=K.shape[1]) * rng.choice([0.3, 3, 30]), int(rng.integers(len(K)))
        goal = rng.choice(["select one key", "average a subset", "any distribution"])
        w = select(j, len(K)) if goal == "select one key" else WANTED[goal](rng, K)
        norm = None if rng.random() < 0.5 else float(rng.exponential(3) + 0.01)
        answer = find_key(q, K, j, w, norm)

        def error(key: np.ndarray, K=K, q=q, j=j, w=w) -> float:
            K = K.copy()
            K[j] = key
            return misplaced(plainly(q, K), w)

        others = rng.normal(size=(50, K.shape[1])) * rng.choice([0.1, 1, 10], size=(50, 1))
        others = others if norm is None else norm * others / np.linalg.norm(others, axis=1, keepdims=True)
        claimed = misplaced(exactly(q, answer.keys), w)
        right = abs(claimed - answer.error) < 1e-12 and (claimed <= 1e-6) == (answer.verdict == "reached")
        right &= norm is None or abs(np.linalg.norm(answer.key) - norm) < 1e-9 * norm
        rounding = 1e-12 + 1e-14 * float(np.abs(K @ q).max())
        right &= all(error(key) >= answer.least_error - rounding for key in others)
        found[answer.verdict] += 1
        found["wrong"] += not right
    return _counts(found)


def constructions(count: int) -> dict:
    """Compare random kernels and windows with torch's conv1d and pooling on random sequences."""
    rng = np.random.default_rng(2)
    found, worst = Counter(), 0.0
    for instance in range(count):
        width, channels, length = int(rng.integers(1, 8)), int(rng.integers(1, 4)), int(rng.integers(1, 20))
        centre = int(rng.integers(width))
        x = torch.from_numpy(rng.normal(size=(length, channels)) * 10.0 ** rng.integers(-2, 3))
        padded = F.pad(x.T[:, None], (centre, width - 1 - centre))
        inside = F.pad(torch.ones(1, 1, length), (centre, width - 1 - centre))
        kind = ("convolution", "mean", "maximum", "shift")[instance % 4]
        bound = 1e-12 * max(1.0, float(x.abs().max()))
        if kind == "convolution":
            taps = rng.choice([-2.0, -1.0, 0.0, 0.3, 1.0, 1 / 7], size=width)  # not all are float32 numbers
            taps[0] = taps[0] or 1.0
            got = convolution(taps.tolist(), centre, channels)(x)
            expected = F.conv1d(padded, torch.from_numpy(taps)[None, None])[:, 0].T
        elif kind == "mean":
            got = mean_pool(width, centre, channels)(x)
            sums = F.conv1d(padded, torch.ones(1, 1, width, dtype=x.dtype))
            expected = (sums / F.conv1d(inside, torch.ones(1, 1, width)))[:, 0].T
        elif kind == "maximum":
            got, bound = max_pool(width, centre, channels, within=1e-3)(x), 1e-3 * (1 + 1e-9) + bound
            windows = torch.where(inside > 0, padded, -torch.inf)
            expected = F.max_pool1d(windows, width, 1)[:, 0].T
        else:
            by = int(rng.integers(-5, 6))
            got, expected = shift(by, channels)(x), torch.zeros_like(x)
            for i in range(length):
                expected[i] = x[i - by] if 0 <= i - by < length else 0
        error = float((got - expected).abs().max())
        worst = max(worst, error / bound)
        found["right" if error <= bound else "wrong"] += 1
    return {**_counts(found), "largest error over its bound": round(worst, 4)}


def layers(count: int) -> dict:
    """Compare M·vec(X) + c with the layer; blind layers are replaceable, others are refuted by three points."""
    rng = np.random.default_rng(3)
    found = Counter()
    for instance in range(count):
        heads = int(rng.integers(1, 4))
        layer = random_layer(heads * int(rng.integers(1, 4)), heads, instance, blind=instance % 2 == 0)
        answer = fixed_layer(layer, int(rng.integers(2, 6)), seed=instance)
        found[answer.verdict] += 1
        found["wrong"] += answer.here.misfit > 1e-12 or (answer.verdict == "replaceable") != (instance % 2 == 0)
    return _counts(found)


def seconds(goal: str, shaped: Callable = KEYS["plain"], count: int = 200) -> dict:
    """The time per question for n = 64 and d = 16."""
    rng = np.random.default_rng(4)
    times = {"reached": [], "impossible": [], "undecided": [], "unrepresentable": []}
    for _ in range(count):
        K = shaped(rng, rng.normal(size=(64, 16)))
        w = WANTED[goal](rng, K)
        began = time.perf_counter()
        answer = find_query(K, w)
        times[answer.verdict].append(1000 * (time.perf_counter() - began))
    every = [t for some in times.values() for t in some]
    split = {f"median ms, {v}": round(statistics.median(t), 2) for v, t in times.items() if t}
    return {"median ms": round(statistics.median(every), 2), "largest ms": round(max(every), 2), **split}


def _powers(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return 10.0 ** rng.integers(-12, 13, size=(rows, columns))


def _counts(found: Counter) -> dict:
    verdicts = ("reached", "impossible", "undecided", "unrepresentable", "replaceable", "irreplaceable", "right")
    return {"instances": sum(found[v] for v in verdicts), **found}


def main(count: int) -> None:
    for goal in WANTED:
        print(json.dumps({"benchmark": f"query: {goal}", **queries([goal], KEYS, count)}), flush=True)
    for family in MIXED:
        hard = [goal for goal in WANTED if goal not in ("average all", "what some query gives")]
        found = queries(hard, {family: MIXED[family]}, count)
        print(json.dumps({"benchmark": f"query: {family}", **found}), flush=True)
    print(json.dumps({"benchmark": "key", **keys(count)}), flush=True)
    print(json.dumps({"benchmark": "convolution, pooling, shift", **constructions(count)}), flush=True)
    print(json.dumps({"benchmark": "fixed layer", **layers(count)}), flush=True)
    for goal in WANTED:
        print(json.dumps({"benchmark": f"time, n = 64, d = 16: {goal}", **seconds(goal)}), flush=True)
    mixed, goal = "norms 1e-12 to 1e12", "average a subset"
    print(json.dumps({"benchmark": f"time: {goal}, {mixed}", **seconds(goal, MIXED[mixed])}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
