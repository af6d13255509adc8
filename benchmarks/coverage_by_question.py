"""Coverage and error rates for every kind of question, with 20,000 simulated studies each.

    python -m benchmarks.coverage_by_question [studies]

One JSON line per figure, in %. The computations of verdicts are done here for all studies at once; a test compares some
of them with complete verdicts. Scores are normally distributed unless stated otherwise.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special

from headway.core import random as noise
from headway.stats.intervals import LEVEL
from headway.stats.skew import is_skewed
from headway.stats.stopping import ANY_TIME, FIXED_SEEDS, Stopping
from headway.stats.tests import picked_among

STRONG = "skewness 6"
Interval = tuple[np.ndarray, np.ndarray]


def draw(random: np.random.Generator, shape: tuple[int, ...], skew: str = "") -> np.ndarray:
    """Random values with mean 0 and standard deviation 1."""
    values = random.standard_normal(shape)
    return (np.exp(values) - np.e**0.5) / (np.e**2 - np.e) ** 0.5 if skew == STRONG else values


def paired(differences: np.ndarray, level: float = LEVEL, stopping: Stopping = FIXED_SEEDS) -> Interval:
    """The interval of paired differences `[..., seeds]`."""
    n = differences.shape[-1]
    reach = stopping.reach(n - 1, level) * differences.std(-1, ddof=1) / n**0.5
    return differences.mean(-1) - reach, differences.mean(-1) + reach


def welch(first: np.ndarray, second: np.ndarray) -> Interval:
    parts = [a.var(-1, ddof=1) / a.shape[-1] for a in (first, second)]
    squares = sum(part**2 / (a.shape[-1] - 1) for part, a in zip(parts, (first, second), strict=True))
    freedom, error = sum(parts) ** 2 / squares, np.sqrt(sum(parts))
    reach = special.stdtrit(freedom, 1 - LEVEL / 2) * error
    middle = first.mean(-1) - second.mean(-1)
    return middle - reach, middle + reach


def holds(interval: Interval, truth: np.ndarray | float) -> float:
    return float(((interval[0] <= truth) & (truth <= interval[1])).mean())


def better(random: np.random.Generator, studies: int, seeds: int) -> dict[str, float]:
    truth = 0.5
    return {
        "paired": holds(paired(truth + draw(random, (studies, seeds))), truth),
        "unpaired, spreads 1 and 3": holds(
            welch(truth + draw(random, (studies, seeds)), 3 * draw(random, (studies, seeds))), truth
        ),
        f"paired, {STRONG}": holds(paired(truth + draw(random, (studies, seeds), STRONG)), truth),
        f"unpaired, {STRONG}, thrice the seeds": holds(
            welch(truth + draw(random, (studies, seeds), STRONG), draw(random, (studies, 3 * seeds), STRONG)), truth
        ),
    }


def within(random: np.random.Generator, studies: int, seeds: int) -> dict[str, float]:
    """Claims of "no difference, within 1" if the truth is 0.6, and how often the difference is significant."""
    low, high = paired(0.6 + draw(random, (studies, seeds)))
    inside, outside = (low >= -1) & (high <= 1), (low > 1) | (high < -1)
    found = {"holds": inside, "does not hold": outside, "not shown": ~inside & ~outside, "significant": low > 0}
    return {f"within 1, truth 0.6: {name}": float(is_so.mean()) for name, is_so in found.items()}


def best(random: np.random.Generator, studies: int, seeds: int) -> dict[str, float]:
    """The lead of the best over the closest among four arms, two of which are equally good."""
    truth = np.array([0.0, 0.0, -0.5, -1.0])
    values = truth[:, None] + draw(random, (studies, 4, seeds))
    first = values.mean(-1).argmax(1)
    rows = np.arange(studies)
    differences = values[rows, first][:, None] - values
    error = differences.std(-1, ddof=1)
    t = np.divide(differences.mean(-1), error, out=np.full(error.shape, np.inf), where=error > 0)
    closest = t.argmin(1)
    low, high = paired(differences[rows, closest], LEVEL / picked_among(4))
    lead = truth[first] - truth[closest]
    return {
        "lead over the closest of 4": holds((low, high), lead),
        "one of two equal arms called best": float((low > 0).mean()),
    }


def ordered(random: np.random.Generator, studies: int, seeds: int) -> dict[str, float]:
    """Three scores of one arm, so two steps."""
    scores = draw(random, (studies, 3, seeds))
    steps = scores[:, :-1] - scores[:, 1:]
    t = steps.mean(-1) / steps.std(-1, ddof=1)
    narrowest = steps[np.arange(studies), t.argmin(1)]
    found = {
        "one step": holds(paired(0.5 + steps[:, 0]), 0.5),
        "narrowest of 2 equal steps": holds(paired(narrowest), 0.0),
    }
    in_order = (paired(steps)[0] > 0).all(1)
    return {**found, "equal scores said to be in order": float(in_order.mean())}


def depends(random: np.random.Generator, studies: int, seeds: int) -> dict[str, float]:
    found = {}
    for levels in (2, 3):
        cells = draw(random, (studies, levels, levels, seeds))
        pairs = list(itertools.combinations(range(levels), 2))
        tetrads = [
            cells[:, a, c] - cells[:, a, d] - cells[:, b, c] + cells[:, b, d] for a, b in pairs for c, d in pairs
        ]
        intervals = [paired(one, LEVEL / len(tetrads)) for one in tetrads]
        every = np.all([(low <= 0) & (high >= 0) for low, high in intervals], axis=0)
        found[f"{levels} × {levels}, all differences at once"] = float(every.mean())
    return found


def peeking(random: np.random.Generator, studies: int) -> dict[str, float]:
    """How often an effect is found at any look, if you look after every seed from 3 to 20 and there is none."""
    values = draw(random, (studies, 20))

    def alarmed(stopping: Stopping, looks: range) -> np.ndarray:
        intervals = [paired(values[:, :n], stopping=stopping) for n in looks]
        return np.any([(low > 0) | (high < 0) for low, high in intervals], axis=0)

    first = alarmed(FIXED_SEEDS, range(8, 9))
    return {
        "t": float(alarmed(FIXED_SEEDS, range(3, 21)).mean()),
        "confidence sequence": float(alarmed(ANY_TIME, range(3, 21)).mean()),
        "t at 8 seeds, then the sequence after every seed to 20": float(
            (first | alarmed(ANY_TIME, range(9, 21))).mean()
        ),
    }


def warned(random: np.random.Generator, studies: int, arms: int, seeds: int) -> dict[str, float]:
    """How often a study is called skewed."""
    shapes = {"bell-shaped": "", STRONG: STRONG}
    return {
        name: float(np.mean([is_skewed(list(draw(random, (arms, seeds), skew))) for _ in range(studies)]))
        for name, skew in shapes.items()
    }


def figures(studies: int) -> Iterator[dict[str, Any]]:
    for question in (better, within, best, ordered, depends):
        for seeds in (3, 5, 8, 16):
            random = np.random.default_rng(noise.key("by question", question.__name__, seeds))
            yield {"question": question.__name__, "seeds": seeds, **question(random, studies, seeds)}
    yield {"question": "peeking", **peeking(np.random.default_rng(noise.key("peeking")), studies)}
    for arms, seeds in ((2, 4), (2, 8), (4, 8), (4, 16)):
        random = np.random.default_rng(noise.key("skew", arms, seeds))
        yield {
            "question": "said to be skewed",
            "arms": arms,
            "seeds": seeds,
            **warned(random, studies // 10, arms, seeds),
        }


def main(studies: int) -> None:
    for line in figures(studies):
        shown = {name: round(100 * value, 1) if isinstance(value, float) else value for name, value in line.items()}
        print(json.dumps(shown, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
