"""Fine-tuning MiniLM on SST-2: accuracy and speed.

    HEADWAY_DATA=… python -m benchmarks.fine_tuning scores --device cuda [FOLDER]
    HEADWAY_DATA=… python -m benchmarks.fine_tuning search --device cuda       # two minutes; only scores dev
    HEADWAY_DATA=… python -m benchmarks.fine_tuning speed [TURNS SENTENCES]

`scores`: all weights, only the head, and LoRA, with five seeds each as populations; dev and test with intervals over
seeds, compared with a regression on TF-IDF; then eight seeds of all weights as one population, and the same eight in
turn. `search`: accuracy on dev after each epoch, for a few changes of the recipe × four learning rates × two seeds,
eight at a time. `speed`, on this CPU: samples per second of an epoch over the same few hundred sentences, in turns in
one process, for Headway, transformers' Trainer in its usual configuration (rows in random order, padded to the longest
of their batch), and Trainer with rows grouped by length; also for five epochs of a head on frozen weights. Batch size,
precision, dropout, optimizer and clipping are the same. Set-up is not counted. One JSON line per figure, printed as
soon as it is measured; those of `scores` are also in FOLDER/fine_tuning.jsonl.
"""

import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.interleave import Turns, ratio, take_turns
from headway import tasks
from headway.audit.audit import read_report
from headway.data.labelled.batches import RowTable
from headway.experiment.assembly import assemble
from headway.experiment.testbeds import without_audits
from headway.experiment.train import train
from headway.recipe.recipe import Recipe, load
from headway.scoring.features import FeatureSampler, KeptFeatures
from headway.tasks.classification import Classification
from headway.training import schedule
from headway.training import setting as settings
from headway.training.update import Update

WAYS: dict[str, list[str]] = {
    "full": [],
    "frozen": ["training.tuning=frozen", "training.optimizer.learning_rate=3e-3", "training.duration=20 epochs"],
    "lora": [
        "training.tuning={kind: lora, rank: 8, alpha: 16, targets: [queries, keys, values, output, feedforward]}",
        "training.optimizer.learning_rate=1e-3",
        "training.duration=5 epochs",
    ],
}
"""The changes of each way to the recipe `sst2`."""
BATCH, RATE = 32, 5e-5
"""Batch size and learning rate of the speed comparison."""


def main(arguments: list[str]) -> None:
    what, *rest = arguments or ["?"]
    if what == "speed":
        speed(*map(int, rest)) if len(rest) == 2 else speed(5, 384)
    elif what in ("scores", "search"):
        device = rest[rest.index("--device") + 1] if "--device" in rest else "auto"
        named = [one for k, one in enumerate(rest) if one != "--device" and (k == 0 or rest[k - 1] != "--device")]
        with tempfile.TemporaryDirectory() as made:
            search(device) if what == "search" else scores(Path(named[0]) if named else Path(made), device)
    else:
        sys.exit(__doc__)


# --- accuracy --------------------------------------------------------------------------------------------------------


def scores(folder: Path, device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def tell(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)
        with (folder / "fine_tuning.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")

    tell({"beside them": "a regression on TF-IDF", **tf_idf()})
    for way, changes in WAYS.items():
        began = time.perf_counter()
        recipe = load("sst2", [f"training.device={device}", *changes])
        runs = train(_seeds(recipe, 5), [f"{way}-{seed}" for seed in range(5)], folder / "runs")
        found = {name: [_score(run, name) for run in runs] for name in ("valid.accuracy", "test.accuracy")}
        reports = [report for run in runs if (report := read_report(run.folder)) is not None]
        failed = sorted({finding.audit for report in reports for finding in report.failures})
        told = {name: {"mean": round(float(np.mean(v)), 4), **_interval(v), "seeds": v} for name, v in found.items()}
        seconds = {
            "training": runs[0].facts["seconds"],
            "with audits and scores": round(time.perf_counter() - began, 1),
        }
        tell({"way": way, **told, "seconds": seconds, "failed audits": failed})
    recipe = load("sst2", [f"training.device={device}", "scoring.splits=[valid]"])
    took = {}
    with without_audits():
        for way, groups in {"one population": [8], "in turn": [1] * 8}.items():
            recipes, began, seconds = _seeds(recipe, 8), time.perf_counter(), 0.0
            for k, size in enumerate(groups):
                some = recipes[k * size : (k + 1) * size]
                names = [f"{way.replace(' ', '-')}-{one.seed}" for one in some]
                seconds += float(train(some, names, folder / "runs")[0].facts["seconds"])
            took[way] = {"training": round(seconds, 1), "whole": round(time.perf_counter() - began, 1)}
            tell({"eight seeds of full fine-tuning": way, "seconds": took[way]})
    times = {what: round(took["in turn"][what] / took["one population"][what], 2) for what in ("training", "whole")}
    tell({"in turn takes so many times one population": times})


def tf_idf() -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    data = _task(load("sst2")).data
    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    x = {split: vectors.fit_transform(t.texts) if split == "train" else None for split, t in data.splits.items()}
    known = LogisticRegression(C=10, max_iter=1000).fit(x["train"], data.split("train").labels)
    of = {s: known.predict(vectors.transform(data.split(s).texts)) == data.split(s).labels for s in ("valid", "test")}
    return {f"{split}.accuracy": round(float(right.mean()), 4) for split, right in of.items()}


def _seeds(recipe: Recipe, count: int) -> list[Recipe]:
    return [recipe.model_copy(update={"seed": seed}) for seed in range(count)]


def _score(run: Any, name: str) -> float:
    return round(next(score.value for score in run.scores() if score.name == name), 4)


def _interval(values: Sequence[float]) -> dict[str, list[float]]:
    """The 95 % interval over seeds, by Student's t."""
    from scipy import stats

    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return {"interval": [round(float(low), 4), round(float(high), 4)]}


# --- search for better settings --------------------------------------------------------------------------------------


TRIED: dict[str, list[str]] = {
    "as it is": [],
    "one rate for all layers": ["training.tuning=full"],
    "decay 0.8": ["training.tuning={kind: layerwise, decay: 0.8}"],
    "first token": ["model.pooling=first"],
    "pooler": ["model.pooling=pooler"],
    "max": ["model.pooling=max"],
    "dropout 0.2": ["model.dropout=0.2", "model.head.dropout=0.2"],
    "batch 16": ["training.batch=16"],
    "six epochs": ["training.duration=6 epochs"],
    "averaged": ["training.averaging={kind: moving, decay: 0.99}"],
}
RATES = (5e-5, 1e-4, 2e-4, 4e-4)


def search(device: str) -> None:
    for what, changes in TRIED.items():
        began, recipe = time.perf_counter(), load("sst2", [f"training.device={device}", *changes])
        recipes = [
            recipe.with_changes([f"seed={seed}", f"training.optimizer.learning_rate={rate}"])
            for rate in RATES
            for seed in (0, 1)
        ]
        task, setting = _task(recipe), settings.choose(recipe.training, recipe.model.width)
        population, sampler = assemble(recipes, task, setting)
        alive = torch.ones(len(recipes), dtype=torch.bool, device=setting.device)
        model, training, averages = population.model, recipe.training, population.averages
        update = Update(model, population.optimizer, sampler, training, setting, alive, averages=averages)
        total = training.duration.in_steps(sampler.steps_per_epoch, task.tokens_per_step)
        found: list[list[float]] = []
        for step in range(total):
            update(step, schedule.factor(training.schedule, step, 60, total))
            if (step + 1) % sampler.steps_per_epoch == 0:
                model.eval()
                with averages.in_place() if averages else nullcontext(), torch.no_grad(), setting.autocast():
                    found.append([one["valid.accuracy"] for one in task.evaluate(model)])  # pyright: ignore
        table = np.array(found).reshape(len(found), len(RATES), 2).mean(2)  # [epochs, rates]
        told = {f"{rate:g}": [round(float(x), 4) for x in table[:, k]] for k, rate in enumerate(RATES)}
        best, seconds = round(float(table.max()), 4), round(time.perf_counter() - began, 1)
        print(json.dumps({"tried": what, "best": best, "dev after each epoch": told, "seconds": seconds}), flush=True)


# --- speed -----------------------------------------------------------------------------------------------------------


def speed(turns: int, sentences: int) -> None:
    for precision in ("bf16", "float32"):
        of_all = {
            "headway": headway_epochs(precision, 1, sentences, frozen=False),
            "Trainer": trainer_epochs(precision, 1, sentences, frozen=False, grouped=False),
            "Trainer, grouped by length": trainer_epochs(precision, 1, sentences, frozen=False, grouped=True),
        }
        _compare(f"full fine-tuning, {precision}", of_all, turns, 1, sentences)
        of_head = {
            "headway": headway_epochs(precision, 5, sentences, frozen=True),
            "Trainer": trainer_epochs(precision, 5, sentences, frozen=True, grouped=False),
            "Trainer, grouped by length": trainer_epochs(precision, 5, sentences, frozen=True, grouped=True),
        }
        _compare(f"a head on frozen weights, {precision}", of_head, turns, 5, sentences)


def _compare(what: str, ways: dict[str, Any], turns: int, epochs: int, sentences: int) -> None:
    times = take_turns(ways, turns, calls=1)
    told = {name: round(epochs * sentences / one.median, 1) for name, one in times.items()}
    others = {name: one for name, one in times.items() if name != "headway"}
    faster = {name: [round(x, 2) for x in ratio(times["headway"], one)] for name, one in others.items()}
    # If other processes use the machine, CPU time is more reliable than wall time.
    computed = {name: Turns(one.cpu, one.cpu) for name, one in times.items()}
    by_cpu = {name: round(ratio(computed["headway"], computed[name])[0], 2) for name in others}
    facts = {"turns": turns, "threads": torch.get_num_threads(), "torch": torch.__version__}
    line = {"benchmark": f"{what}, {epochs} epochs of {sentences} sentences", "samples/s": told}
    line |= {"times faster [median, quartiles]": faster, "times less CPU time": by_cpu}
    print(json.dumps({**line, **facts, "processor": platform.processor() or platform.machine()}), flush=True)


def _task(recipe: Recipe) -> Classification:
    found = tasks.load(recipe)
    assert isinstance(found, Classification)
    return found


def headway_epochs(precision: str, epochs: int, sentences: int, frozen: bool) -> Any:
    """A function that trains these epochs on the first sentences, from the current weights. Each call computes
    features."""
    changes = ["model.head={kind: linear, dropout: 0.1}", f"training.batch={BATCH}", "training.device=cpu"]
    changes += [f"training.precision={precision}", f"training.optimizer.learning_rate={RATE}", "model.pooling=pooler"]
    recipe = load("sst2", [*changes, f"training.tuning={'frozen' if frozen else 'full'}"])
    task = _task(recipe)
    few = task.data.split("train").only(np.arange(sentences))
    setting = settings.choose(recipe.training, recipe.model.width)

    population, _ = assemble([recipe], task, setting)
    rows = recipe.data.batches.build(RowTable(*few.padded(recipe.segment), few.labels, "cpu"), BATCH, [0])
    alive = torch.ones(1, dtype=torch.bool)

    def call() -> None:
        model, reads = population.model, rows
        if frozen:
            reads = FeatureSampler(rows, KeptFeatures(model), few, "cpu", setting.autocast)  # pyright: ignore
        update = Update(model, population.optimizer, reads, recipe.training, setting, alive)
        for step in range(epochs * sentences // BATCH):
            update(step, 1.0)

    return call


def trainer_epochs(precision: str, epochs: int, sentences: int, frozen: bool, grouped: bool) -> Any:
    """The same with transformers and its usual head for BERT: a linear layer on the pooler's output."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from headway.formats.packages import located

    folder = located("minilm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = _task(load("sst2")).data.split("train")
    rows = [
        {**tokenizer(text, truncation=True), "labels": int(label)}
        for text, label in zip(texts.texts[:sentences], texts.labels[:sentences], strict=True)
    ]
    home = tempfile.mkdtemp()
    arguments = TrainingArguments(
        home,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        weight_decay=0.01,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        bf16=precision == "bf16",
        use_cpu=True,
        train_sampling_strategy="group_by_length" if grouped else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )

    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.1
    )
    if frozen:
        model.base_model.requires_grad_(False)
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer))  # pyright: ignore

    def call() -> None:
        trainer.train()

    return call


if __name__ == "__main__":
    main(sys.argv[1:])
