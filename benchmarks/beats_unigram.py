"""Do all position schemes and head fusions learn? WikiText-2, word level, 200 steps, compared with the unigram model.

    HEADWAY_DATA=… python -m benchmarks.beats_unigram [seeds]

One JSON line per combination: perplexity per token on the whole validation split, one value per seed. The unigram model
counts the words of train; its perplexity is the best that a model without context can reach.
"""

import json
import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from headway import tasks
from headway.experiment.train import train
from headway.recipe.recipe import load
from headway.recipe.sweep import varied

POSITIONS = ("none", "learned", "sinusoidal", "alibi", "alibi-symmetric", "rotary", "t5")
FUSIONS = ("concat", "shuffle", "{kind: shuffle, drawn: every-step}", "shift", "reweight", "reweight-causal")
CHANGES = ["training.duration=200 steps", "training.schedule.warmup=20 steps", "training.evaluate_on=[]"]
CHANGES += ["scoring.splits=[valid]", "training.compile=off"]


def unigram_perplexity(train_ids: np.ndarray, valid_ids: np.ndarray, vocabulary: int) -> float:
    """The perplexity by add-one smoothed counts of train, on the tokens that models are scored on (all but the
    first)."""
    counts = np.bincount(train_ids, minlength=vocabulary) + 1
    nats = -np.log(counts[valid_ids[1:]] / counts.sum())
    return math.exp(nats.mean())


def main(seeds: int) -> None:
    corpus = tasks.load(load("wikitext-2")).data
    unigram = unigram_perplexity(corpus.split("train").ids, corpus.split("valid").ids, corpus.tokenizer.size)
    print(json.dumps({"benchmark": "unigram perplexity, wikitext-2 valid", "value": round(unigram, 2)}), flush=True)
    beaten = 0
    for positions in POSITIONS:
        for fusion in FUSIONS:
            base = load("wikitext-2", [*CHANGES, f"model.positions={positions}", f"model.mixer.fusion={fusion}"])
            names, recipes = varied(base, "run", [f"seed=0..{seeds - 1}"])
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                runs = train(recipes, names, Path(folder))
                values = [next(s.value for s in run.scores() if s.name == "valid.perplexity") for run in runs]
            beaten += max(values) < unigram
            line = {
                "benchmark": "perplexity after 200 steps, wikitext-2 valid",
                "positions": positions,
                "fusion": fusion,
                "values": [round(v, 1) for v in values],
                "beats unigram": max(values) < unigram,
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(json.dumps(line), flush=True)
    total = len(POSITIONS) * len(FUSIONS)
    print(json.dumps({"benchmark": "combinations that beat the unigram model", "value": beaten, "of": total}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
