"""Train a ladder on a GPU: five budgets over two decades, five or six sizes each, two seeds as a population, on
characters of WikiText-2.

    HEADWAY_DATA=… python -m benchmarks.scaling_gpu FOLDER [--minutes 7] [--kept OUT] [--audits]

The learning rate of the narrowest model is tuned first (six rates as one population) and transferred to the others by
the rule of the ladder. FOLDER is the study: the same command resumes it after its time limit or another interruption.
points.csv is updated after every population, in --kept as well. At the end --kept gets everything except the weights,
which is enough for `headway scaling fit` and for the report. Audits of thirty populations take longer than their
training and are only made with --audits.
"""

import argparse
import shutil
import time
from pathlib import Path

from headway.audit.audit import Report
from headway.core.events import Ended, Event
from headway.experiment import train as training
from headway.recipe.recipe import load
from headway.study.design.study import Study, load_study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.execution.ladder_plan import TOKENS_PER_PARAMETER, Climb, Expected, check_ladder, doubts, lay_out
from headway.study.execution.tuned_rate import tune_rate
from headway.study.results.ladder_points import points_of, write_points
from headway.study.results.results import read_results
from headway.training.interrupts import stopping_after

BASE = "wikitext-2"
SHAPE = {"width_per_layer": 32, "head_width": 16, "rate_power": -0.5}
BUDGETS = [1e12, 3.2e12, 1e13, 3.2e13, 1e14]
CHANGES = [
    "data.tokenizer=char",
    "model.context=128",
    "model.dropout=0",
    "training.batch=16",
    "training.optimizer.learning_rate=4e-3",
    "training.schedule.warmup=50 steps",
    "training.evaluate_every=500 steps",
    "training.evaluate_tokens=20000",
    "training.checkpoint_every=100000 steps",
    "training.compile=off",
    "scoring.splits=[valid]",
]
LIGHT = ("study.yaml", "budget.json", "points.csv", "events.jsonl")
LIGHT_OF_RUN = ("run.json", "recipe.yaml", "environment.json", "scores.json", "audit.json", "metrics.jsonl")


def expected(climb: Climb) -> Expected:
    return climb.by_ratio(TOKENS_PER_PARAMETER)


def the_study(folder: Path) -> Study:
    """The study in the folder, or a new one with a tuned learning rate."""
    if (folder / "study.yaml").exists():
        return load_study(folder / "study.yaml")
    study = lay_out(load(BASE, CHANGES), BUDGETS, 6, 2, expected, **SHAPE)
    rungs = check_ladder(study, expected)
    for rung in rungs:
        sizes = ", ".join(f"{size.width}×{size.layers} {size.parameters:,}" for size in rung.sizes)
        print(f"{rung.flops:.3g} FLOPs: {sizes}; passes {rung.passes[0]:.2g} to {rung.passes[-1]:.2g}", flush=True)
    for doubt in doubts(rungs):
        print(f"note: {doubt}", flush=True)
    began = time.perf_counter()
    tuned = tune_rate(study, folder.with_name(f"{folder.name}-rates"))
    tried = ", ".join(f"{rate:g} {loss:.4f}" for rate, loss in sorted(tuned.losses.items()))
    print(f"rate {tuned.rate:g} of {tried} ({time.perf_counter() - began:.0f} s)", flush=True)
    return tuned.study


class Points:
    """A listener that writes and prints the points after every population."""

    def __init__(self, study: Study, folder: Path, kept: Path | None):
        self.study, self.folder, self.kept, self.began, self.told = study, folder, kept, time.perf_counter(), set()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Ended) or not event.of[0].endswith(f"seed-{self.study.seeds[-1]}"):
            return
        rows = points_of(read_results(self.folder, self.study))
        write_points(self.folder, rows)
        if self.kept is not None:
            write_points(self.kept, rows)
        for row in rows:
            if (name := f"{row['arm']}.seed-{row['seed']}") not in self.told:
                self.told.add(name)
                print(
                    f"{time.perf_counter() - self.began:6.1f} s  {name:20} N {row['parameters']:>9,}  D "
                    f"{row['tokens']:>11,}  loss {row['loss']:.4f} ± {row['loss_error']:.4f}  {row['seconds']:.1f} s",
                    flush=True,
                )


def keep(folder: Path, kept: Path) -> None:
    """Copy everything except weights."""
    runs = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    files = [folder / name for name in LIGHT] + [run / name for run in runs for name in LIGHT_OF_RUN]
    for file in files:
        if file.exists():
            place = kept / folder.name / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)


def main(folder: Path, minutes: float, kept: Path | None) -> None:
    began, interrupted = time.perf_counter(), True
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    try:
        with stopping_after(60 * minutes):
            ladder = the_study(folder)
            interrupted = execute(ladder, folder, InProcess(), [Points(ladder, folder, kept)]).interrupted
    except KeyboardInterrupt:
        pass
    if kept is not None and folder.exists():
        keep(folder, kept)
    how = "stopped before the end; the same command continues" if interrupted else "complete"
    print(f"{how}: {time.perf_counter() - began:.0f} s; headway scaling fit {folder}/points.csv")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--minutes", type=float, default=7.0)
    options.add_argument("--kept", type=Path)
    options.add_argument("--audits", action="store_true")
    given = options.parse_args()
    if not given.audits:
        training.audit_runs = lambda members, task: [Report() for _ in members]  # pyright: ignore
    main(given.folder, given.minutes, given.kept)
