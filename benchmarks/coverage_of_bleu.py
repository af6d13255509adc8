"""Does the interval of a paired bootstrap with seeds hold what it promises? Simulated test sets and trainings, of two
recipes that are equally good.

    python -m benchmarks.coverage_of_bleu [studies]

One JSON line per figure: of how many studies the 95 % interval of the difference in corpus BLEU holds the truth, which
is 0. Some sentences suit one recipe and some the other (`taste`), some trainings come out better (`luck`), and within
each the n-grams that are right are drawn. Beside the interval for other sentences and seeds stand those that forget one
of them: over sentences alone, for given models (Koehn 2004), and over seeds alone, for a given test set; and the one
that draws both anew and takes the seeds for all there are.
"""

import json
import math
import sys

import numpy as np
from scipy import special

from headway.scoring.bleu import of_sums
from headway.scoring.metrics import BLEU
from headway.stats.resampled import paired

SENTENCES = 200
WORLDS = {"luck": (0.02, 0.05), "taste": (0.003, 0.25), "both": (0.012, 0.2)}
"""How far seeds and sentences spread, in the share of words that are right."""


def counts(rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
    """`[S, N, 10]`: of sentences of 5 to 24 words, each right at its rate; runs of words, at powers of it."""
    lengths = np.broadcast_to(5 + np.arange(rate.shape[1]) % 20, rate.shape)
    right = [rng.binomial(lengths - n, np.clip(rate, 0.02, 0.98) ** (n + 1)) for n in range(4)]
    return np.stack([lengths, lengths, *right, *(lengths - n for n in range(4))], -1).astype(float)


def held(seeds: int, luck: float, taste: float, studies: int) -> dict[str, float]:
    rng, found = np.random.default_rng(seeds), np.zeros(4)
    score = of_sums(BLEU)
    assert score is not None
    for _ in range(studies):
        hard = rng.normal(0, 0.12, SENTENCES)
        systems = [
            counts(rng, 0.6 + hard + rng.normal(0, taste, SENTENCES) + rng.normal(0, luck, (seeds, 1)))
            for _ in range(2)
        ]
        both = paired(systems[0], systems[1], score)
        reach = special.stdtrit(seeds - 1, 0.975) * both.differences.std(ddof=1) / math.sqrt(seeds)
        alone = (both.effect - reach, both.effect + reach)
        between = [both.contrast(range(seeds), 1.0).interval(), both.over_rows, alone, both.over_both]
        found += [low <= 0 <= high for low, high in between]
    names = "sentences and seeds", "sentences alone", "seeds alone", "both drawn"
    return dict(zip(names, (found / studies).round(3).tolist(), strict=True))


if __name__ == "__main__":
    studies = int(sys.argv[1]) if sys.argv[1:] else 1000
    for name, (luck, taste) in WORLDS.items():
        for seeds in (2, 3, 5, 8):
            print(json.dumps({"spread": name, "seeds": seeds, **held(seeds, luck, taste, studies)}), flush=True)
