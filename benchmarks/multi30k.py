"""BLEU of small Transformers on Multi30k, en→de, test_2016_flickr: a population of seeds, and its ensemble.

    HEADWAY_DATA=… python -m benchmarks.multi30k FOLDER [MODEL …] [--seeds 8] [--change "…" …] [--varied "…" …]

Every model is trained once, all seeds as one population, and translates valid and the test split by beam search: each
seed alone, and all as an ensemble (the mean of their probabilities, token by token). `lowercased` is trained on
lowercased texts, like the models whose lowercased tokenised BLEU is published; `cased` learns capitals, too.

"BLEU, lowercased tokenised" is sacreBLEU on lowercased texts, with ours and the references tokenised by its 13a;
published figures use Moses tokenisation, which differs in few places (hyphens, abbreviations). "BLEU, cased" uses the
texts as they are. Intervals are over seeds (Student's t). Choices are made on valid: with `--varied` each seed has its
own changes (learning rate, weight decay, dropout), and the line has the BLEU of each on valid; with several
`--decoding "{kind: beam, size: 8}"`, test is decoded only as was best on valid.

`--times 0.1` trains a tenth as long, and `--rows 50` translates at most 50 pairs, for a quick test. One JSON line per
model, also in FOLDER/multi30k.jsonl. Audits are omitted: `headway train` with the recipe in the line makes them.
"""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special

from headway import tasks
from headway.audit.audit import Report
from headway.core.errors import UserError
from headway.experiment import train as training
from headway.models.translator import Translator
from headway.recipe.recipe import Recipe, load
from headway.run.folder import Run
from headway.scoring import bleu
from headway.scoring.decoding import DecodingSpec
from headway.scoring.joint_translator import JointTranslator
from headway.scoring.metrics import BLEU, BLEU_LOWERCASED, CHRF, SENTENCE_BLEU
from headway.scoring.translation import Translated, translated
from headway.training.population import load_weights

TEST = "test_2016_flickr"
ROWS_AT_ONCE = 128
"""The batch size of decoding, per seed."""
NAMES = {
    BLEU_LOWERCASED: "BLEU, lowercased tokenised",
    BLEU: "BLEU, cased",
    CHRF: "chrF",
    SENTENCE_BLEU: "mean BLEU of sentences",
}
CHOSEN_BY = NAMES[BLEU_LOWERCASED]
MODELS: dict[str, list[str]] = {"lowercased": ["data.tokenizer.lower=true"], "cased": []}
PUBLISHED = "41.02: 4+4 layers of width 128, checkpoints averaged (arXiv 2105.14462); 42.5: the best without images"
ALWAYS = [
    "scoring.splits=[]",
    "training.checkpoint_every=1000 epochs",
    "training.evaluate_every=5 epochs",
    "training.compile=off",
]
"""Without compiling, because for four batch shapes it would take longer than training."""


def main(asked: argparse.Namespace) -> None:
    training.audit_runs = lambda members, task: [Report() for _ in members]  # pyright: ignore
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.models or ["lowercased"]:
        given = [*ALWAYS, *MODELS[name], *asked.change]
        recipe = load("multi30k", given)
        duration = recipe.training.duration
        if asked.times != 1:
            recipe = recipe.with_changes([f"training.duration={duration.amount * asked.times} {duration.unit}"])
        told = {"model": name, "published": PUBLISHED, **measured(recipe, name, asked)}
        told["recipe"] = ["multi30k", *given, f"training.duration={recipe.training.duration}"]
        print(json.dumps(told), flush=True)
        with (asked.folder / "multi30k.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def measured(recipe: Recipe, name: str, asked: argparse.Namespace) -> dict[str, Any]:
    seeds, folder, varied = asked.seeds, asked.folder, asked.varied
    own = [shlex.split(varied[k % len(varied)]) if varied else [] for k in range(seeds)]
    recipes = [recipe.with_changes([f"seed={seed}", *changes]) for seed, changes in enumerate(own)]
    began = time.perf_counter()
    runs = training.train(recipes, [f"{name}.seed-{seed}" for seed in range(seeds)], folder / "runs", listeners=[show])
    trained = max(run.facts["seconds"] for run in runs)
    told: dict[str, Any] = {
        "seeds": seeds,
        "parameters": runs[0].facts["parameters"],
        "lowest loss on valid, of each": [_lowest(run) for run in runs],
    }
    task = tasks.load(recipe)
    together = side_by_side(runs, task)
    ways = [recipe.with_changes([f"scoring.decoding={how}"]).scoring.decoding for how in asked.decoding]
    how = recipe.scoring.decoding
    if ways:
        told["valid, by decoding"] = {way.label: of_seeds(together, task, "valid", way, asked.rows) for way in ways}
        how = max(ways, key=lambda way: told["valid, by decoding"][way.label][CHOSEN_BY]["mean"])
    told["decoding"] = how.label
    for split in ("valid", TEST):
        since = time.perf_counter()
        told[split] = of_seeds(together, task, split, how, asked.rows)
        told[f"{split}, seconds of decoding, all seeds"] = round(time.perf_counter() - since, 1)
        if seeds > 1:
            as_one = written(JointTranslator([together]), task, split, how, asked.rows)[0]
            told[f"{split}, all seeds as one"] = scored(as_one)
            (folder / f"{name}.{split}.txt").write_text("\n".join(as_one.texts) + "\n", "utf-8")
    told |= {
        "seconds of training, all seeds at once": trained,
        "seconds of everything": round(time.perf_counter() - began, 1),
        "varied": varied,
    }
    return told


def side_by_side(runs: Sequence[Run], task: Any) -> Translator:
    """The trained members as one population, each with its saved weights."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = task.build([run.recipe.seed for run in runs], device)
    for r, run in enumerate(runs):
        load_weights(model, r, run.checkpoint("auto").weights)
    return model.eval()


def of_seeds(model: Any, task: Any, split: str, how: DecodingSpec, rows: int | None) -> dict[str, Any]:
    """Each score of a split: its mean over seeds, with the interval, and each seed's."""
    scores = [scored(one) for one in written(model, task, split, how, rows)]
    return {score: summary([own[score] for own in scores]) for score in scores[0]}


def written(model: Any, task: Any, split: str, how: DecodingSpec, rows: int | None) -> list[Translated]:
    """The translations of a split by every replica."""
    pairs = task.data.split(split)
    pairs = pairs.only(np.arange(len(pairs))[:rows])
    return translated(model, pairs, task.data.target_tokenizer, how, at_once=ROWS_AT_ONCE)


def scored(one: Translated) -> dict[str, float]:
    found = bleu.measured(one.texts, one.references)
    return {NAMES[score.metric]: round(score.value, 2) for score in found}


def summary(values: list[float]) -> dict[str, Any]:
    mean = sum(values) / len(values)
    interval = None
    if len(values) > 1:
        reach = special.stdtrit(len(values) - 1, 0.975) * torch.tensor(values).std().item() / math.sqrt(len(values))
        interval = [round(mean - reach, 2), round(mean + reach, 2)]
    return {"mean": round(mean, 2), "95 % interval": interval, "each": values}


def _lowest(run: Run) -> float:
    return round(min(line["scores"]["valid.loss"] for line in run.evaluations()), 4)


def show(event: Any) -> None:
    """Print the learning curve during training."""
    if type(event).__name__ == "Scored":
        loss, accuracy = event.scores["valid.loss"], event.scores["valid.token_accuracy"]
        told = f"{event.of[0]} step {event.step}: valid {loss:.3f}, {accuracy:.1%} of tokens"
        print(f"{time.strftime('%H:%M:%S')} {told}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=["lowercased"], help=", ".join(MODELS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument(
        "--change", action="append", default=[], help="a change of the recipe for all seeds; may be repeated"
    )
    parser.add_argument(
        "--varied", action="append", default=[], help="changes of one seed, as a string; may be repeated"
    )
    parser.add_argument(
        "--decoding", action="append", default=[], help="a scoring.decoding to choose from on valid; may be repeated"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.models if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]}; there are {', '.join(MODELS)}")
    try:
        main(given)
    except UserError as problem:
        sys.exit(str(problem))
