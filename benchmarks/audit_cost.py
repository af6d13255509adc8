"""What audits cost: all of them, of one run, against the training that they are about.

    python -m benchmarks.audit_cost [size …]

Each size is a few steps of a recipe, trained and audited as `headway train` does it; the training time is that of the
recipe's own number of steps at the speed of these. Seconds, one thread, with an empty cache: what audits find
about the data is kept for the next run, which `again` shows. One JSON line per size.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from headway import tasks
from headway.audit.audit import Report
from headway.experiment import train
from headway.experiment.audit import audit_runs
from headway.recipe.recipe import load

SIZES = {
    "demo": ["demo"],
    "shakespeare-char-cpu": ["shakespeare-char-cpu", "data.source=python-docs"],
    "10 million": ["demo", "model.layers=6", "model.width=384", "model.mixer.heads=6", "training.duration=2000 steps"],
}
STEPS = 20


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        whole = load(SIZES[name][0], SIZES[name][1:])
        few = whole.with_changes([f"training.duration={STEPS} steps", "training.evaluate_on=[]"])
        with tempfile.TemporaryDirectory() as home:
            os.environ["HEADWAY_CACHE"] = f"{home}/cache"
            task, seconds = tasks.load(few), []
            train.audit_runs = lambda runs, task: [Report()] * len(runs)  # timed below, not here
            (run,) = train.train([few], ["run"], Path(home))
            audits = 0
            for _ in range(2):
                began = time.perf_counter()
                audits = len(audit_runs([run], task)[0].findings)
                seconds.append(time.perf_counter() - began)
            per_step = run.facts["seconds"] / STEPS
        planned = whole.training.duration.in_steps(task.sampler([0], "cpu").steps_per_epoch, task.tokens_per_step)
        training = per_step * planned
        line = {
            "size": name,
            "parameters": sum(p.numel() for p in task.build([0], "cpu").parameters()),
            "audits": audits,
            "seconds": round(seconds[0], 2),
            "again": round(seconds[1], 2),
            "training": round(training, 1),
            "share": round(seconds[0] / training, 4),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SIZES))
