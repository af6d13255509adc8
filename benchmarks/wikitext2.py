"""Perplexity of language models on WikiText-2 (words), each a population of seeds, compared with published figures.

    HEADWAY_DATA=… python -m benchmarks.wikitext2 FOLDER [MODEL …] [--seeds 3] [--times 1.0] [--change KEY=VALUE …]

Every model is trained and scored on test as one stream with carried state, and its seeds are also scored as an ensemble
(the mean of their probabilities). `--times 0.1` trains a tenth as long, for a quick test. One JSON line per model, also
in FOLDER/wikitext2.jsonl. Audits are omitted: `headway train` with the recipe in the line makes them.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from scipy import special

from headway import tasks
from headway.audit.audit import Report
from headway.experiment import train as training
from headway.recipe.recipe import Recipe, load
from headway.run.folder import Run
from headway.scoring.likelihood import losses_going_on
from headway.training.population import load_weights

PLAIN = ("model.positions=none", "model.norm=none", "model.feedforward=none", "data.batches=contiguous-shifted")
"""A plain stack of recurrent layers, on contiguous text."""
WITHOUT_MOMENTUM = (
    "training.optimizer.beta1=0.0",
    "training.optimizer.beta2=0.999",
    "training.optimizer.weight_decay=0.02",
)
"""Adam as used for LSTMs in https://arxiv.org/abs/1707.05589. This has the largest effect here: docs/log.md."""
ANNEALED = (
    "training.schedule.final=0.02",
    "training.averaging=tail",
    "training.averaging.last=0.1",
    "training.clip=0.25",
    "training.checkpoint_every=1000 epochs",
    "training.evaluate_every=5 epochs",
    "training.evaluate_tokens=20000",
    "scoring.splits=[]",
)


def lstm(layers: int, width: int, segment: int, batch: int, epochs: int, rate: float, **noise: float) -> list[str]:
    """An LSTM with dropout as in AWD-LSTM (https://arxiv.org/abs/1708.02182)."""
    rates = {"dropout": "dropout", "weights": "mixer.weight_dropout"}
    return [
        *PLAIN,
        *ANNEALED,
        f"model.layers={layers}",
        f"model.width={width}",
        "model.mixer=lstm",
        "model.noise=locked",
        *(f"model.{rates.get(name, f'noise.{name}')}={value}" for name, value in noise.items()),
        f"data.segment={segment}",
        f"training.batch={batch}",
        f"training.duration={epochs} epochs",
        f"training.optimizer.learning_rate={rate}",
        "training.schedule.warmup=1000 steps",
        *WITHOUT_MOMENTUM,
    ]


def lstm_by_sgd(layers: int, width: int, batch: int, epochs: int, dropout: float, *changes: str) -> list[str]:
    """An LSTM trained as in https://github.com/pytorch/examples (a learning rate of 20, gradients clipped to 0.25,
    plain dropout), except for a linearly decaying rate, and weights averaged over the last quarter, as in averaged
    SGD."""
    return [
        *PLAIN,
        *ANNEALED,
        f"model.layers={layers}",
        f"model.width={width}",
        "model.mixer=lstm",
        f"model.dropout={dropout}",
        "model.embedding_std=0.058",
        "data.segment=35",
        f"training.batch={batch}",
        f"training.duration={epochs} epochs",
        "training.optimizer={kind: sgd, learning_rate: 20, momentum: 0}",
        "training.schedule={kind: linear, warmup: null, final: 0.02}",
        "training.averaging.last=0.25",
        *changes,
    ]


def stream(mixer: str, segment: int, batch: int, epochs: int, rate: float, *changes: str) -> list[str]:
    """Pre-norm layers with a residual stream, and Adam with momentum, as usual for attention."""
    return [
        *ANNEALED,
        "data.batches=contiguous-shifted",
        f"model.mixer={mixer}",
        "model.noise=locked",
        "model.noise.words=0.1",
        f"model.context={segment}",
        f"data.segment={segment}",
        f"training.batch={batch}",
        f"training.duration={epochs} epochs",
        f"training.optimizer.learning_rate={rate}",
        "training.schedule.warmup=1000 steps",
        *changes,
    ]


PUNISHED = (
    "training.optimizer={kind: adam, learning_rate: 3e-3, beta1: 0.75, beta2: 0.99, weight_decay: 2e-6}",
    "training.schedule={kind: linear, warmup: 1500 steps, final: 0.0}",
    "training.clip=0.12",
    "model.penalty={size: 3, change: 0.9}",
)
"""An L2 term, which Adam makes strong for rare words, and penalties on the output of the last layer, as in the AWD-LSTM
of https://github.com/sgugger/Adam-experiments. (There the change is taken before dropout with a weight of 1.5. Dropout
of 0.4 makes it 1/(1 - 0.4) times as large on average, so 0.9 here is the same.)"""

REMEMBERING = "{kind: attention, heads: 7, memory: 128}"

MODELS: dict[str, tuple[str, list[str]]] = {
    "lstm-2x200": (
        "100.3: 2×200, tied",
        lstm(2, 200, 35, 20, 30, 5e-3, dropout=0.28, weights=0.1),
    ),
    "lstm-2x640": (
        "86.7–86.9: 2×650, tied",
        [
            *lstm(2, 640, 35, 40, 40, 3e-3, dropout=0.55, weights=0.3, words=0.05),
            "model.embedding_std=0.1",
        ],
    ),
    "lstm-2x640-sgd": ("86.7–86.9: 2×650, tied", lstm_by_sgd(2, 640, 20, 24, 0.5)),
    "transformer-5x448": (
        "no more parameters than the LSTM 2×640",
        stream(REMEMBERING, 128, 32, 12, 1e-3, "model.layers=5", "model.width=448", "model.dropout=0.5"),
    ),
    "hybrid-4x448": (
        "two layers of LSTM, then two of attention; no more parameters than the LSTM 2×640",
        stream(
            f"[lstm, lstm, {REMEMBERING}, {REMEMBERING}]",
            *(128, 32, 12, 1e-3),
            *("model.layers=4", "model.width=448", "model.dropout=0.5", "model.positions=none"),
        ),
    ),
    "awd-lstm": (
        "65.8: AWD-LSTM, 33M parameters, 750 epochs; 65.5 by Adam after 90",
        [
            *lstm(3, 400, 70, 128, 66, 3e-3, dropout=0.2, input=0.6, output=0.4, weights=0.5, words=0.1),
            *PUNISHED,
            "model.mixer.hidden=1152",
            "model.embedding_std=0.058",
            "model.output_bias=true",
            "training.compile=off",
        ],
    ),
}


def main(folder: Path, names: list[str], seeds: int, times: float, changed: list[str], varied: list[str]) -> None:
    training.audit_runs = lambda members, task: [Report() for _ in members]  # pyright: ignore
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        published, changes = MODELS[name]
        changes = [*changes, *changed]
        recipe = load("wikitext-2", changes)
        duration = recipe.training.duration
        if times != 1:
            recipe = recipe.with_changes([f"training.duration={duration.amount * times} {duration.unit}"])
        told = {"model": name, "published": published, **measured(recipe, name, seeds, folder, varied)}
        told["recipe"] = ["wikitext-2", *changes]
        print(json.dumps(told), flush=True)
        with (folder / "wikitext2.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def measured(recipe: Recipe, name: str, seeds: int, folder: Path, varied: list[str]) -> dict[str, Any]:
    own = [varied[k % len(varied)].split() if varied else [] for k in range(seeds)]
    recipes = [recipe.with_changes([f"seed={seed}", *changes]) for seed, changes in enumerate(own)]
    began = time.perf_counter()
    runs = training.train(recipes, [f"{name}.seed-{seed}" for seed in range(seeds)], folder / "runs", listeners=[show])
    trained = max(run.facts["seconds"] for run in runs)
    nats = test_nats(runs)  # [R, N]
    losses = nats.mean(1).tolist()
    mean = sum(losses) / len(losses)
    together = -(torch.logsumexp(-nats, 0) - math.log(len(nats))).mean().item()
    reach = 0.0
    if len(losses) > 1:
        reach = special.stdtrit(len(losses) - 1, 0.975) * torch.tensor(losses).std().item() / math.sqrt(len(losses))
    return {
        "parameters": runs[0].facts["parameters"],
        "test perplexity of each": [round(math.exp(loss), 2) for loss in losses],
        "test perplexity, of the mean loss": round(math.exp(mean), 2),
        "its 95 % interval": [round(math.exp(mean + sign * reach), 2) for sign in (-1, 1)] if reach else None,
        "test perplexity of the ensemble": round(math.exp(together), 2),
        "seconds of training, all seeds at once": trained,
        "seconds of everything": round(time.perf_counter() - began, 1),
        "tokens": nats.shape[1],
        "varied": varied,
    }


@torch.no_grad()
def test_nats(runs: list[Run]) -> torch.Tensor:
    """The nats of every token of test for every run, in one pass."""
    recipe = runs[0].recipe
    task = tasks.load(recipe)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = task.build([run.recipe.seed for run in runs], device)
    for r, run in enumerate(runs):
        load_weights(model, r, run.checkpoint("auto").weights)
    ids = torch.as_tensor(task.data.split("test").ids)
    return losses_going_on(model.eval(), ids, recipe.segment).double().cpu()


def show(event: Any) -> None:
    """Print the learning curve during training."""
    if type(event).__name__ == "Scored":
        perplexity = math.exp(min(20.0, event.scores["valid.loss"]))
        print(f"{time.strftime('%H:%M:%S')} {event.of[0]} step {event.step}: valid {perplexity:.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument(
        "--change", action="append", default=[], help="a change of the recipe for all seeds; may be repeated"
    )
    parser.add_argument(
        "--varied", action="append", default=[], help="changes of one seed, as a string; may be repeated"
    )
    given = parser.parse_args()
    main(given.folder, given.models, given.seeds, given.times, given.change, given.varied)
