"""Arms with random scores, and one question about them."""

import json
import math

import numpy as np

from headway.study.results.evidence import Circumstances, Measured
from headway.study.verdicts.analyse import analyse

SEEDS = np.random.default_rng(10).normal(0, 0.05, size=32)
RANDOM = np.random.default_rng(11)
PERPLEXITY, ACCURACY = "valid.perplexity", "valid.accuracy"


def draw_anew() -> None:
    """The same random numbers in every test, in any order of tests."""
    RANDOM.bit_generator.state = np.random.default_rng(11).bit_generator.state


def arm(gain=0.0, n=8, spread=0.01, level=5.0, first=0):
    """Perplexities around e^level, whose logarithm is lower by `gain`."""
    noise = RANDOM.normal(0, spread, size=n)
    return {first + s: math.exp(level - gain + SEEDS[first + s] + noise[s]) for s in range(n)}


def ask(question, table, about=None, test_scored=0):
    (verdict,) = analyse([question], Measured({question.on: table}, about or {}, test_scored))
    json.dumps(verdict.as_json(), allow_nan=False)
    return verdict


def grid(gains, n=8, **options):
    """Arms for a table of gains: rows are positions, columns are sizes."""
    table, about = {}, {}
    for i, row in enumerate(gains):
        for j, gain in enumerate(row):
            table[f"p{i}-s{j}"] = arm(gain, n, level=5 - j, **options)
            about[f"p{i}-s{j}"] = Circumstances(levels={"positions": f"p{i}", "size": f"s{j}"})
    return table, about
