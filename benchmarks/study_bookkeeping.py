"""The overhead of a study of 500 runs in addition to training: planning, bookkeeping, reading results and reporting.

    python -m benchmarks.study_bookkeeping

Fifty arms of fifty shapes with ten seeds each. Runs are not trained: each folder is a copy of one small run's.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headway.core.status import State, Status
from headway.experiment.train import train
from headway.study.design.study import PlannedRun, Study
from headway.study.execution.execute import execute
from headway.study.execution.executor import Log, Workforce
from headway.study.execution.plan import plan
from headway.study.report.report import write_report
from headway.study.results.results import read_results
from headway.study.verdicts.analyse import analyse

WIDTHS, LAYERS, POSITIONS = (8, 16, 24, 32, 40), (1, 2), ("none", "learned", "alibi", "sinusoidal", "t5")
CHANGES = ["training.duration=20 steps", "training.schedule.warmup=2 steps", "training.batch=4", "model.context=16"]


class Copies:
    """An executor that copies one finished run for every run."""

    def __init__(self, one: Path):
        self.one, self.seconds = one, 0.0

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        began = time.perf_counter()
        for run in runs:
            shutil.copytree(self.one, log.folder.runs / run.name)
        self.seconds = time.perf_counter() - began
        for run in runs:
            log.ended(run.name, Status(State.FINISHED))
        return False


def main() -> None:
    factors = {
        "width": {"key": "model.width", "values": list(WIDTHS)},
        "layers": {"key": "model.layers", "values": list(LAYERS)},
        "positions": {"key": "model.positions", "values": list(POSITIONS)},
    }
    given = {"title": "500 runs", "base": "demo", "changes": [*CHANGES, "model.mixer.heads=2"], "factors": factors}
    questions = [{"kind": "best"}, {"kind": "depends", "effect": "layers", "on_factor": "positions"}]
    found = {}

    def timed(what: str, began: float) -> None:
        found[what] = round(time.perf_counter() - began, 2)

    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "study"
        began = time.perf_counter()
        study = Study.model_validate({**given, "seeds": 10, "equal": "flops", "questions": questions})
        timed("design", began)
        train([study.runs()[0].recipe], ["one"], Path(home))
        began = time.perf_counter()
        plan(study, Workforce(processes=2))
        timed("plan", began)
        place, began = Copies(Path(home) / "one"), time.perf_counter()
        execute(study, folder, place)
        timed("execute", began + place.seconds)
        began = time.perf_counter()
        results = read_results(folder)
        timed("read", began)
        began = time.perf_counter()
        verdicts = analyse(study.asked, results)
        timed("verdicts", began)
        began = time.perf_counter()
        write_report(results, verdicts)
        timed("report", began)
    print(json.dumps({"runs": len(results.runs), "seconds": found, "in_all": round(sum(found.values()), 2)}))


if __name__ == "__main__":
    main()
