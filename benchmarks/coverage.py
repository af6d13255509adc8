"""Do the intervals of verdicts have their nominal coverage? Simulated studies with a known truth.

    python -m benchmarks.coverage [studies]

One JSON line per figure: how often the 95 % interval covers the truth (t and bootstrap), by number of seeds and
distribution of the differences; how often a study without any effect finds one, after Holm's correction; how often
equal scores are called in order or not in order; how often the arms named as best include the truly best one.
"""

import json
import sys
from collections.abc import Callable

import numpy as np
from scipy import special

from headway.core import random as noise
from headway.stats.intervals import LEVEL, bootstrap_interval
from headway.study.design.questions import Best, Better, Depends, Ordered, Question
from headway.study.results.evidence import Circumstances, Measured
from headway.study.verdicts.analyse import analyse

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SHAPES: dict[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "skewed (gamma, skewness 0.7)": lambda random, shape: random.gamma(8, size=shape) / 8**0.5 - 8**0.5,
    "skewed (gamma, skewness 1)": lambda random, shape: random.gamma(4, size=shape) / 2 - 2,
    "strongly skewed (lognormal, skewness 6)": lambda random, shape: (
        (np.exp(random.standard_normal(shape)) - np.e**0.5) / (np.e**2 - np.e) ** 0.5
    ),
}
"""Differences of two arms, with mean 0 and standard deviation 1."""


def covered(shape: str, seeds: int, studies: int) -> dict[str, float]:
    """The share of studies whose interval covers the truth, for t and for the bootstrap."""
    random = np.random.default_rng(noise.key("coverage", shape, seeds))
    truth = 0.3
    differences = truth + SHAPES[shape](random, (studies, seeds))
    mean, error = differences.mean(1), differences.std(1, ddof=1) / seeds**0.5
    reach = special.stdtrit(seeds - 1, 1 - LEVEL / 2) * error
    resampled = bootstrap_interval(differences)
    intervals = {"t": (mean - reach, mean + reach), "bootstrap": (resampled[0], resampled[1])}
    return {name: float(((low <= truth) & (truth <= high)).mean()) for name, (low, high) in intervals.items()}


def study(random: np.random.Generator, shape: str, seeds: int, effects: dict[str, float]) -> Measured:
    """A complete 2 × 2 factorial study: perplexities around 100 whose logarithm varies with the seed and by chance."""
    of_seed = 0.05 * random.standard_normal(seeds)
    chance = 0.02 * SHAPES[shape](random, (len(effects), seeds))
    table = {
        arm: {seed: float(np.exp(4.6 - effect + of_seed[seed] + own[seed])) for seed in range(seeds)}
        for (arm, effect), own in zip(effects.items(), chance, strict=True)
    }
    levels = [{"positions": f"p{k // 2}", "size": f"s{k % 2}"} for k in range(len(effects))]
    about = {arm: Circumstances(levels=level) for arm, level in zip(effects, levels, strict=True)}
    return Measured({"valid.perplexity": table}, about)


QUESTIONS: list[Question] = [
    Better(arm="b", than="a"),
    Better(arm="c", than="a"),
    Better(arm="d", than="a"),
    Best(),
    Depends(effect="positions", on_factor="size"),
]


def covered_by_verdicts(seeds: int, studies: int) -> dict[str, float]:
    """The coverage of complete verdicts on perplexities: for the ratio, and for the difference in units."""
    random = np.random.default_rng(noise.key("whole verdicts", seeds))
    gain = 0.05
    ratio, difference = 1 - np.exp(-gain), np.exp(4.6) - np.exp(4.6 - gain)
    hits = {"ratio": 0, "units": 0}
    for _ in range(studies):
        (verdict,) = analyse([Better(arm="b", than="a")], study(random, "normal", seeds, {"a": 0.0, "b": gain}))
        assert verdict.interval and verdict.relative_interval
        hits["ratio"] += verdict.relative_interval[0] <= ratio <= verdict.relative_interval[1]
        hits["units"] += verdict.interval[0] <= difference <= verdict.interval[1]
    return {name: count / studies for name, count in hits.items()}


def false_alarms(shape: str, seeds: int, studies: int) -> float:
    """The share of studies without any effect in which one of five questions finds one."""
    random = np.random.default_rng(noise.key("null studies", shape, seeds))
    none = dict.fromkeys("abcd", 0.0)
    alarmed = 0
    for _ in range(studies):
        verdicts = analyse(QUESTIONS, study(random, shape, seeds, none))
        alarmed += any(verdict.outcome != "not distinguishable" for verdict in verdicts)
    return alarmed / studies


def false_orders(scores: int, seeds: int, studies: int) -> dict[str, float]:
    """How often scores that do not differ are called in order, or not in order."""
    random = np.random.default_rng(noise.key("equal scores", scores, seeds))
    names = [f"split{k}.perplexity" for k in range(scores)]
    found = {"in order": 0, "not in order": 0}
    for _ in range(studies):
        of_seed = 4.6 + 0.05 * random.standard_normal(seeds)
        values = {name: np.exp(of_seed + 0.02 * random.standard_normal(seeds)) for name in names}
        measured = Measured({name: {"a": dict(enumerate(of_name.tolist()))} for name, of_name in values.items()})
        (verdict,) = analyse([Ordered(arm="a", scores=names)], measured)
        if verdict.outcome in found:
            found[verdict.outcome] += 1
    return {outcome: count / studies for outcome, count in found.items()}


def best_is_named(seeds: int, studies: int) -> tuple[float, float]:
    """How often the best of four close arms is among those named, and how many are named on average."""
    random = np.random.default_rng(noise.key("best of four", seeds))
    close = {"a": 0.0, "b": 0.01, "c": 0.015, "d": 0.02}
    named = [analyse([Best()], study(random, "normal", seeds, close))[0].arms for _ in range(studies)]
    return sum("d" in arms for arms in named) / studies, sum(map(len, named)) / studies


def main(studies: int) -> None:
    for shape in SHAPES:
        for seeds in (3, 5, 8, 32):
            figures = {name: round(100 * share, 1) for name, share in covered(shape, seeds, studies).items()}
            line = {"benchmark": "95 % interval covers, % of studies", "differences": shape, "seeds": seeds, **figures}
            print(json.dumps(line), flush=True)
    for seeds in (3, 8, 32):
        figures = {name: round(100 * share, 1) for name, share in covered_by_verdicts(seeds, studies).items()}
        print(json.dumps({"benchmark": "verdict on perplexity covers, % of studies", "seeds": seeds, **figures}))
    for shape in list(SHAPES)[:3]:
        for seeds in (3, 8, 32):
            value = round(100 * false_alarms(shape, seeds, studies), 1)
            line = {"benchmark": "null study of 5 questions finds something, %", "noise": shape, "seeds": seeds}
            print(json.dumps({**line, "value": value}), flush=True)
    for scores, seeds in ((2, 3), (2, 8), (4, 3), (4, 8)):
        figures = {outcome: round(100 * share, 1) for outcome, share in false_orders(scores, seeds, studies).items()}
        line = {"benchmark": "equal scores are said to be, %", "scores": scores, "seeds": seeds}
        print(json.dumps({**line, **figures}), flush=True)
    for seeds in (3, 8, 32):
        share, named = best_is_named(seeds, studies)
        line = {"benchmark": "best of 4 close arms is among those named, %", "seeds": seeds}
        print(json.dumps({**line, "value": round(100 * share, 1), "named on average": round(named, 2)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
