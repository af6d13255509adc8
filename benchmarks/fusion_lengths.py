"""Cases B3 to B7: head fusions and positions of gpt-nano, by the length of what is read, with seeds.

    HEADWAY_DATA=… python -m benchmarks.fusion_lengths [seeds] [arm …]

Every arm is trained as one population on WikiText-2 (block 1024, as reported) and then scored on the valid split, cut
into segments of 1024 down to 16 tokens, and on single sentences of it: as they are ("normal"), with their words in
random order ("weird"), and eight joined together ("long"). One JSON line per arm: mean and deviation over the seeds.
"""

import itertools
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from headway.data.corpus import Corpus
from headway.experiment import load_model, train
from headway.models.language_model import LanguageModel
from headway.recipe import load
from headway.rescore import audited
from headway.run import Run
from headway.scoring.perplexity import surprise, token_losses
from headway.tasks import load as load_task

ARMS = {
    "B3 learned, concat": [],
    "B4 sinusoidal": ["model.positions=sinusoidal"],
    "B5 shuffle": ["model.mixer.fusion=shuffle"],
    "B6 shift": ["model.mixer.fusion=shift"],
    "B7 reweight, share of the norms": ["model.mixer.fusion=reweight"],
    "B7 reweight, raw norms": ["model.mixer.fusion.kind=reweight", "model.mixer.fusion.scale=raw"],
    "B7 reweight-causal, share": ["model.mixer.fusion=reweight-causal"],
    "B7 reweight-causal, raw": ["model.mixer.fusion.kind=reweight-causal", "model.mixer.fusion.scale=raw"],
}
SEGMENTS = (1024, 256, 64, 16)
SENTENCES = 100


def main(seeds: int, names: list[str]) -> None:
    for name in names:
        recipes = [load("gpt-nano", [*ARMS[name], f"seed={seed}", "scoring.splits=[valid]"]) for seed in range(seeds)]
        with tempfile.TemporaryDirectory() as home:
            runs = train(recipes, [f"seed-{seed}" for seed in range(seeds)], Path(home))
            corpus = load_task(recipes[0]).data
            found = [measured(run, corpus) for run in runs]
            failed = sorted({f.audit for run in runs for f in audited(run).failures})
        line = {"arm": name, "seeds": seeds, "device": "cuda" if torch.cuda.is_available() else "cpu"}
        line["failed audits"] = failed
        for key in found[0]:
            values = [one[key] for one in found]
            line[key] = [_short(statistics.mean(values)), _short(statistics.stdev(values) if seeds > 1 else math.nan)]
        print(json.dumps(line), flush=True)


def measured(run: Run, corpus: Corpus) -> dict[str, float]:
    model, _ = load_model(run)
    assert isinstance(model, LanguageModel)
    valid, kind = corpus.split("valid"), corpus.tokenizer.kind
    found = {"train loss, last 100 steps": statistics.mean(m["loss"] for m in run.metrics()[-100:] if "loss" in m)}
    for segment in SEGMENTS:
        (one,) = surprise(model, valid, segment, segment, kind, at_most=65_536)
        found[f"valid, segments of {segment}"] = math.exp(min(one.nats / one.tokens, 700))
    for kind_of, texts in sentences(corpus).items():
        nats = [losses(model, ids) for ids in texts]
        found[f"{kind_of} sentences"] = math.exp(min(sum(map(sum, nats)) / sum(map(len, nats)), 700))
    return found


def sentences(corpus: Corpus) -> dict[str, list[torch.Tensor]]:
    ids = torch.as_tensor(corpus.split("valid").ids).long()
    (stop,) = corpus.tokenizer.encode(".").ids.tolist()
    ends = (ids == stop).nonzero().flatten().tolist()
    between = [ids[a + 1 : b + 1] for a, b in itertools.pairwise(ends)]
    normal = [s for s in between if 10 <= len(s) <= 40][:SENTENCES]
    shuffle = random.Random(0)
    weird = [s[torch.tensor(shuffle.sample(range(len(s)), len(s)))] for s in normal]
    long = [torch.cat(normal[k : k + 8]) for k in range(0, len(normal) - 7, 8)]
    return {"normal": normal, "weird": weird, "long": long}


@torch.no_grad()
def losses(model: LanguageModel, ids: torch.Tensor) -> list[float]:
    return token_losses(model, ids, 1024, 1024)[0].tolist()


def _short(x: float) -> float | None:
    return None if math.isnan(x) else float(f"{x:.5g}")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]) if words else 8, words[1:] or list(ARMS))
