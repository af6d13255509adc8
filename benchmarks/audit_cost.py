"""The cost of all audits of one run, relative to its training.

    python -m benchmarks.audit_cost [recipe …] [--seeds 2]

Each recipe is trained for a few steps and audited as by `headway train`; the training time is extrapolated to the
recipe's own number of steps. Times are CPU seconds of one core with an empty cache. Audit results about the data are
cached for the next run; `again` shows the time with the cache. One JSON line per recipe. `dearest` are the most
expensive single audits; the time between audits (building models, reading files) is included in the total.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from headway import tasks
from headway.audit import audit
from headway.audit.audit import Report
from headway.core.errors import UserError
from headway.experiment import assembly, train
from headway.experiment.audit import audit_runs
from headway.recipe.recipe import load
from headway.run.folder import Run
from headway.training.update import Update

SIZES = {
    "demo": ["demo"],
    "python-modules": ["python-modules"],
    "shakespeare-char-cpu": ["shakespeare-char-cpu"],
    "wikitext-2": ["wikitext-2"],
    "gpt-nano": ["gpt-nano", "scoring.splits=[valid]"],
    "10 million": ["demo", "model.layers=6", "model.width=384", "model.mixer.heads=6", "training.duration=2000 steps"],
}
TOKENS = 20_000
"""How many tokens are trained on: enough to measure the time per step."""


def main(names: list[str], seeds: int) -> None:
    torch.set_num_threads(1)
    audit.time = SimpleNamespace(perf_counter=time.process_time)  # pyright: ignore[reportAttributeAccessIssue]
    for name in names:
        try:
            print(json.dumps(measure(name, seeds)), flush=True)
        except UserError as error:  # a dataset that is not available
            print(json.dumps({"recipe": name, "not measured": str(error)}), flush=True)


def measure(name: str, seeds: int) -> dict[str, Any]:
    whole = load(SIZES[name][0], SIZES[name][1:])
    with tempfile.TemporaryDirectory() as home:
        os.environ["HEADWAY_CACHE"] = f"{home}/cache"
        task = tasks.load(whole)
        steps = max(4, TOKENS // task.tokens_per_step)
        few = whole.with_changes([f"training.duration={steps} steps", "training.evaluate_every=1000000 steps"])
        train.audit_runs = lambda runs, task: [Report()] * len(runs)  # timed below, not here
        recipes = [few.model_copy(update={"seed": seed}) for seed in range(seeds)]
        runs = train.train(recipes, [f"run-{seed}" for seed in range(seeds)], Path(home))
        planned = whole.training.duration.in_steps(task.sampler([0], "cpu").steps_per_epoch, task.tokens_per_step)
        per_step = _median_seconds(recipes, steps)
        first, report = _audited(runs, few)
        again, _ = _audited(runs, few)
    training = per_step * planned
    dear = sorted(report.findings, key=lambda finding: -finding.seconds)[:5]
    return {
        "recipe": name,
        "seeds": seeds,
        "parameters": sum(p.numel() for p in task.build([0], "cpu").parameters()),
        "training": round(training, 1),
        "audits": len(report.findings),
        "seconds": round(first, 2),
        "again": round(again, 2),
        "share": round(first / training, 4),
        "dearest": {finding.audit: round(finding.seconds, 2) for finding in dear},
    }


def _median_seconds(recipes: list[Any], steps: int) -> float:
    """The median time of a step of this population."""
    task = tasks.load(recipes[0])
    setting = train.settings.choose(recipes[0].training, recipes[0].model.width)
    population, sampler = assembly.assemble(recipes, task, setting)
    alive = torch.ones(len(recipes), dtype=torch.bool)
    update = Update(population.model, population.optimizer, sampler, recipes[0].training, setting, alive)
    population.model.train()
    found = []
    for step in range(max(steps, 8)):
        began = time.process_time()
        update(step, 1.0)
        found.append(time.process_time() - began)
    return sorted(found[2:])[len(found[2:]) // 2]


def _audited(runs: list[Run], recipe: Any) -> tuple[float, Report]:
    """The seconds of all audits, and the report of the first run."""
    task = tasks.load(recipe)
    began = time.process_time()
    reports = audit_runs(runs, task)
    return time.process_time() - began, reports[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recipes", nargs="*", default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    main(given.recipes, given.seeds)
