"""Do the intervals of a scaling law have their nominal coverage? Twenty planted laws with repeated noise.

    python -m benchmarks.coverage_of_scaling [repetitions]

One JSON line per ladder and method: the share of ladders in which the 95 % interval covers each of the five parameters,
and the exponent with which the parameters of the best model grow, by the law and by parabolas. The noise resembles
small language models: the log loss varies by 0.2 to 1 % between runs, with heavy tails (Student's t with five degrees
of freedom), and one run in a hundred is off by 3 to 10 %. The method in use (percentiles over random weights) is
compared with other ways to resample and to form intervals.
"""

import json
import sys
from dataclasses import replace

import numpy as np
from scipy import special

from headway.stats.isoflop import budgets_of, isoflop
from headway.stats.law_minima import minimise
from headway.stats.scaling import Cost, Law, Points, fit_law, grid_of_starts, optimum, optimum_exponents

LADDERS = {"8 budgets × 9 sizes × 3 seeds": (1e13, 1e16, 8, 9, 3, 8.0), "5 × 6 × 2": (1e13, 1e15, 5, 6, 2, 6.0)}
"""Smallest and largest FLOPs, number of budgets, sizes per budget, seeds, and the range of sizes around the best."""
LAWS = 20
RESAMPLES = 300
FEW = grid_of_starts()[::45]


def planted(rng: np.random.Generator, flops: float) -> Law:
    """A law with random exponents, floor, and best tokens per parameter at this budget."""
    alpha, beta = rng.uniform(0.2, 0.6, 2)
    floor, above, per_parameter = (
        rng.uniform(0.5, 2.5),
        rng.uniform(0.1, 0.6),
        np.exp(rng.uniform(np.log(5), np.log(50))),
    )
    n = np.sqrt(flops / 6 / per_parameter)
    a = above * floor * beta / (alpha + beta) * n**alpha
    b = above * floor * alpha / (alpha + beta) * (per_parameter * n) ** beta
    return Law(floor, a, b, alpha, beta)


def ladder(law: Law, low: float, high: float, budgets: int, sizes: int, seeds: int, reach: float) -> Points:
    flops = np.repeat(np.geomspace(low, high, budgets), sizes * seeds)
    n = optimum(law.row, Cost(), flops)[0] * np.tile(np.repeat(np.geomspace(1 / reach, reach, sizes), seeds), budgets)
    d = flops / (6 * n)
    return Points(n, d, flops, law.loss(n, d))


def noise(rng: np.random.Generator, n: int, spread: float) -> np.ndarray:
    usual = spread * rng.standard_t(5, n) / np.sqrt(5 / 3)
    return usual + (rng.random(n) < 0.01) * rng.uniform(0.03, 0.1, n)


def drawn_weights(rng: np.random.Generator, groups: list[np.ndarray], n: int) -> dict[str, np.ndarray]:
    within = np.zeros((RESAMPLES, n))
    for group in groups:
        within[:, group] = rng.multinomial(len(group), np.full(len(group), 1 / len(group)), RESAMPLES)
    points = rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(float)
    return {"points drawn": points, "points drawn within budgets": within}


def intervals(row: np.ndarray, drawn: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Different intervals from resamples `[resamples, k]` of an estimate `[k]`."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    below = special.ndtri(np.clip((drawn < row).mean(0), 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    moved = special.ndtr(2 * below + special.ndtri(np.array([[0.025], [0.975]])))
    corrected = [np.array([np.quantile(drawn[:, k], p[k]) for k in range(len(row))]) for p in moved]
    reach = 1.96 * drawn.std(0, ddof=1)
    return {
        "percentiles": (low, high),
        "basic": (2 * row - high, 2 * row - low),
        "normal": (row - reach, row + reach),
        "bias-corrected": (corrected[0], corrected[1]),
    }


def held(name: str, repetitions: int) -> list[dict[str, object]]:
    rng, shape = np.random.default_rng(1), LADDERS[name]
    hits: dict[tuple[str, str], list[np.ndarray]] = {}
    curves: list[bool] = []
    for _ in range(LAWS):
        law, spread = planted(rng, np.sqrt(shape[0] * shape[1])), rng.uniform(0.002, 0.01)
        clean = ladder(law, *shape)
        groups, (power, _) = budgets_of(clean), optimum_exponents(law.row, Cost())
        truth = np.append(law.row, power)
        for _ in range(repetitions):
            points = replace(clean, loss=clean.loss * np.exp(noise(rng, len(clean), spread)))
            found = fit_law(points, RESAMPLES, FEW)
            ways = {"random weights": found.resamples}
            for way, weights in drawn_weights(rng, groups, len(points)).items():
                ways[way] = minimise(np.tile(found.minima[0], (RESAMPLES, 1)), *points.logs, weights)[0]
            row = _with_power(found.law.row)
            for way, rows in ways.items():
                for read, (low, high) in intervals(row, _with_power(rows)).items():
                    hits.setdefault((way, read), []).append((low <= truth) & (truth <= high))
            line = isoflop(points, groups, RESAMPLES).parameters
            if line is not None:
                low, high = line.exponent_interval
                curves.append(bool(low <= power <= high))
    names = ["log A", "alpha", "log B", "beta", "log E", "power of N"]
    answers = []
    for (way, read), found in hits.items():
        shares = np.mean(found, 0).round(3).tolist()
        by_law = np.array(found)[:, :5].reshape(LAWS, -1).mean(1)
        about: dict[str, object] = {"ladder": name, "resampled": way, "interval": read}
        answers.append({**about, **dict(zip(names, shares, strict=True)), "worst law": round(by_law.min(), 3)})
    answers.append({"ladder": name, "interval": "parabolas", "power of N": round(float(np.mean(curves)), 3)})
    return answers


def _with_power(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, optimum_exponents(rows, Cost())[0][..., None]], -1)


if __name__ == "__main__":
    repetitions = int(sys.argv[1]) if sys.argv[1:] else 25
    for name in LADDERS:
        for answer in held(name, repetitions):
            print(json.dumps({**answer, "repetitions": LAWS * repetitions}, ensure_ascii=False), flush=True)
