"""Does the interval of the paired bootstrap with seeds have its nominal coverage? Simulated test sets and training runs
of two equally good recipes.

    python -m benchmarks.coverage_of_bleu [studies]

One JSON line per figure: the share of studies in which the 95 % interval of the difference in corpus BLEU covers the
truth, which is 0. Some sentences suit one recipe and some the other (`taste`), some training runs turn out better
(`luck`), and the matching n-grams are drawn at random. The interval for other sentences and seeds is compared with
those that ignore one source of variance: over sentences alone, for given models (Koehn 2004), and over seeds alone, for
a given test set; and with the bootstrap that resamples both.
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
"""The standard deviations of seeds and sentences, in the share of correct words."""


def counts(rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
    """BLEU counts `[S, N, 10]` of sentences of 5 to 24 words: words are correct at a rate, n-grams at its powers."""
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
