"""False alarms of audits: on correct recipes, trained well, badly, briefly, as populations, on data of all kinds.

    python -m benchmarks.clean_audits [--only WORDS] [--json FILE]

Tiny models, each trained and audited as by `headway train`. Audits that rightly complain about too short a training run
are listed beforehand (`TOO_SHORT`), and recipes that are bad on purpose list their expected findings. Any other failure
is a false failure, any other warning a false warning. Datasets are only checked by the data audits.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.audit.audit import Finding, Report, read_report, run_audits
from headway.audit.data.row_set import RowSet
from headway.audit.data.rows import ROW_AUDITS
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.plants.data.clean import clean_rows, clean_texts, sums
from headway.core import random as noise
from headway.data.embedded import python_modules
from headway.data.running import sources
from headway.experiment.train import train
from headway.recipe.recipe import from_tree

TOO_SHORT = ("did-it-train", "beats-chance", "beats-counting", "still-improving", "underfitted", "collapsed-heads")
"""Audits that rightly complain after forty steps."""
TRUE_OF = {"modules": ("class-balance", "out-of-vocabulary"), "sums": ("class-balance", "out-of-vocabulary")}
"""Audits that rightly complain about small datasets with small classes, and vocabularies with only words of train."""
MODEL = {"layers": 2, "width": 32, "context": 32, "mixer": {"heads": 4}, "positions": "rotary"}
TRAINING: dict[str, Any] = {"batch": 8, "duration": "40 steps", "evaluate_every": "10 steps", "evaluate_tokens": 2000}
TRAINING |= {"optimizer": {"learning_rate": 3e-3}, "schedule": {"warmup": "5 steps"}}


@dataclass(frozen=True)
class Clean:
    """A correct recipe."""

    base: str
    """The data: language, docs, sums, modules."""
    changes: tuple[str, ...]
    rightly: tuple[str, ...] = TOO_SHORT
    """Audits that may fail or warn, because what they find is true."""
    seeds: int = 1

    def __str__(self) -> str:
        return " ".join((self.base, *self.changes, *([f"{self.seeds} seeds"] if self.seeds > 1 else [])))


def decoders() -> Iterator[Clean]:
    """Every position scheme, fusion, norm, kernel, tokenizer, optimizer … several times, in different combinations."""
    positions = ("none", "learned", "sinusoidal", "alibi", "rotary", "t5")
    fusions = ("concat", "shuffle", "{kind: shuffle, drawn: every-step}", "shift", "reweight-causal")
    norms = ("{kind: layer, placement: pre}", "{kind: rms, placement: pre}", "{kind: layer, placement: post}")
    kernels = ("auto", "plain", "sdpa")
    sizes = (("context=16",), ("context=96",), ("layers=1", "width=16"), ("layers=4",), ("width=64", "mixer.heads=8"))
    others = (
        ("model.dropout=0.1",),
        ("model.tied=false", "model.feedforward=swiglu"),
        ("model.mixer.window=6",),
        ("data.tokenizer={kind: bpe, size: 300}",),
        ("training.optimizer=sgd", "training.optimizer.learning_rate=0.1"),
        ("data.batches=contiguous", "training.accumulate=2"),
        ("training.keep_best=true", "scoring.segment=12", "scoring.stride=5"),
        ("training.optimizer=adagrad", "training.optimizer.learning_rate=0.05", "model.mixer.bias=false"),
    )
    for k in range(40):
        size = [f"model.{change}" for change in sizes[k % 5]]
        parts = (f"positions={positions[k % 6]}", f"mixer.fusion={fusions[(k + k // 6) % 5]}", f"norm={norms[k % 3]}")
        more = (f"mixer.backend={kernels[(k + k // 3) % 3]}",)
        made = [f"model.{part}" for part in (*parts, *more)]
        yield Clean("docs" if k % 4 == 0 else "language", (*made, *size, *others[(k + k // 8) % 8]))
    for mixer in ("rnn", "gru", "lstm", "mingru"):
        yield Clean("language", (f"model.mixer={mixer}", "model.positions=none"))


def encoders() -> Iterator[Clean]:
    positions = ("none", "learned", "sinusoidal", "alibi-symmetric", "rotary", "t5-symmetric")
    fusions, pools = ("concat", "shift", "reweight", "shuffle"), ("mean", "max", "first")
    others = ((), ("model.dropout=0.3",), ("training.keep_best=true",), ("model.context=8",), ("model.norm=rms",))
    for k in range(18):
        parts = (
            f"positions={positions[k % 6]}",
            f"mixer.fusion={fusions[(k + k // 4) % 4]}",
            f"pooling={pools[k % 3]}",
        )
        made = tuple(f"model.{part}" for part in parts)
        yield Clean("modules" if k % 4 == 0 else "sums", (*made, *others[k % 5]))


WELL = ("training.duration=500 steps", "training.evaluate_every=50 steps")
"""Long enough to learn these tasks; counting is hard to beat if the data follow a simple rule."""
IMPROVES = ("still-improving",)
"""True where expected: in 750 steps the loss of one falls from 0.45 to 0.36, of the other from 0.79 to 0.68."""
BADLY = (
    *TOO_SHORT,
    "diverged",
    "collapsed-answers",
    "learning-rate-too-high",
    "plateaued",
    "overfitted",
    "learning-rate-zero",
)


def courses() -> Iterator[Clean]:
    """Recipes trained well, and badly on purpose."""
    for change in ("model.positions=learned", "model.positions=alibi", "model.dropout=0.1", "model.norm=rms"):
        yield Clean("language", (change, *WELL), ("beats-counting",))
    for change in ("model.pooling=max", "model.positions=learned", "training.keep_best=true"):
        yield Clean("sums", (change, *WELL), ("beats-counting", "overfitted", *IMPROVES))
    yield Clean("language", ("training.schedule=constant", *WELL), ("beats-counting", *IMPROVES))
    for rate in ("0.1", "1", "1e-5"):
        yield Clean("language", (f"training.optimizer.learning_rate={rate}",), (*BADLY, "one-batch", "moved"))
        yield Clean("sums", (f"training.optimizer.learning_rate={rate}",), (*BADLY, "one-batch", "moved"))
    small = ("data.valid_fraction=0.9", "model.width=64", *WELL)
    yield Clean("language", small, (*BADLY,))
    yield Clean("sums", ("data.valid_fraction=0.9", *WELL), (*BADLY, "class-balance"))


def populations() -> Iterator[Clean]:
    for changes in (
        (),
        ("model.dropout=0.2", "data.batches=contiguous", "model.positions=alibi"),
        ("model.mixer.backend=plain", "training.optimizer=sgd", "model.norm=rms"),
        ("training.accumulate=2", "model.positions=learned"),
        ("training.keep_best=true", "model.positions=t5", "training.clip=0.1"),
    ):
        yield Clean("language", changes, seeds=3)
    yield Clean("sums", ("model.dropout=0.3", "model.pooling=max"), seeds=3)
    yield Clean("sums", ("training.optimizer=adagrad", "training.optimizer.learning_rate=0.05"), seeds=2)
    # More than four are checked in control groups.
    yield Clean("language", ("model.mixer.fusion=shuffle", "model.positions=t5"), seeds=6)
    yield Clean("sums", ("model.mixer.fusion=shuffle", "model.dropout=0.1"), (*TOO_SHORT, "overfitted"), seeds=5)


def sets_of_data() -> Iterator[tuple[str, Report]]:
    splits = python_modules.labelled_splits()
    rows, labels = ({split: [row[k] for row in part] for split, part in splits.items()} for k in (0, 1))
    for name, data in clean_rows(RowSet(rows, labels)).items():
        yield f"rows of python-modules, {name}", run_audits(ROW_AUDITS, data)
    for name, text in clean_texts(TextSet(sources.read_splits("python-docs", None, 0.1))).items():
        yield f"text of python-docs, {name}", run_audits(TEXT_AUDITS, text)


def made_up_language(words: int) -> str:
    """Lines of words that usually follow each other by a rule."""
    drawn = noise.integers(noise.stream_keys([0], "language"), 0, 40, words)[0].tolist()
    names, word, lines = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "rst"], 0, []
    for k, random in enumerate(drawn):
        word = random if k % 3 == 0 else (3 * word + 7) % 40
        lines.append(names[word] + ("\n" if k % 9 == 8 else " "))
    return "".join(lines)


def bases(home: Path) -> dict[str, dict[str, Any]]:
    (home / "language.txt").write_text(made_up_language(8000), "utf-8")
    table = sums()
    rows = [(text, label) for s in table.rows for text, label in zip(table.rows[s], table.labels[s], strict=True)]
    (home / "sums.tsv").write_text("\n".join("\t".join(row) for row in [("text", "label"), *rows]) + "\n", "utf-8")
    labelled: dict[str, Any] = {
        "kind": "labelled",
        "source": "files",
        "path": str(home / "sums.tsv"),
        "valid_fraction": 0.3,
    }
    encoder = {**MODEL, "kind": "classifier"}
    return {
        "language": {"data": {"source": "files", "path": str(home / "language.txt")}, "model": MODEL},
        "docs": {"data": {"source": "python-docs"}, "model": MODEL},
        "sums": {"data": labelled, "model": encoder},
        "modules": {"data": {"kind": "labelled", "source": "python-modules"}, "model": encoder},
    }


def reports(clean: Clean, home: Path, bases: dict[str, Any], number: int) -> list[Report]:
    tree = {**deepcopy(bases[clean.base]), "training": deepcopy(TRAINING)}
    recipe = from_tree(tree, str(clean), overrides=clean.changes)
    recipes = [recipe.model_copy(update={"seed": seed}) for seed in range(clean.seeds)]
    runs = train(recipes, [f"{number}-{seed}" for seed in range(clean.seeds)], home / "runs")
    return [report for run in runs if (report := read_report(run.folder)) is not None]


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", help="only recipes whose name contains this text")
    options.add_argument("--json", type=Path, help="a file for all alarms")
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    alarms, counted, began = [], {"recipes": 0, "sets of data": 0}, time.perf_counter()

    def note(name: str, findings: Sequence[Finding], rightly: Sequence[str]) -> None:
        wrong = [f for f in findings if f.verdict != "pass" and f.audit not in rightly]
        for one in {f.audit: f for f in wrong}.values():
            alarms.append({"of": name, "verdict": one.verdict, "audit": one.audit, "sentence": one.sentence})
            print(f"{name}: {one.verdict} {one.audit}: {one.sentence}", flush=True)

    with tempfile.TemporaryDirectory() as home:
        os.environ["HEADWAY_CACHE"] = f"{home}/cache"
        based = bases(Path(home))
        everything = [*decoders(), *encoders(), *courses(), *populations()]
        for number, clean in enumerate(everything):
            if given.only is None or given.only in str(clean):
                found = reports(clean, Path(home), based, number)
                counted["recipes"] += 1
                rightly = (*clean.rightly, *TRUE_OF.get(clean.base, ()))
                note(str(clean), [finding for report in found for finding in report.findings], rightly)
        for name, report in sets_of_data():
            if given.only is None or given.only in name:
                counted["sets of data"] += 1
                note(name, report.findings, ("class-balance",))  # these datasets do have small classes
    failed, warned = (sum(alarm["verdict"] == verdict for alarm in alarms) for verdict in ("fail", "warn"))
    seconds = time.perf_counter() - began
    what = " and ".join(f"{number} {kind}" for kind, number in counted.items())
    print(f"{what} without faults: {failed} false failures, {warned} false warnings ({seconds:.0f} s)")
    if given.json is not None:
        given.json.write_text(json.dumps({**counted, "alarms": alarms}, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
