"""A study on a GPU as populations, compared with the same runs one after another.

    HEADWAY_DATA=… python -m benchmarks.study_gpu [FOLDER]

Case A4: four position schemes × eight seeds of the speeches classifier, each run trained, scored and audited. The same
32 runs are made in three ways: as the study does it (four populations of eight), one after another in one process, and
by calling `headway train` for each (measured on one run per arm, times eight). One JSON line each, in seconds of wall
time. The start-up time of a process on the GPU has a separate line; it is part of every call.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway.cases.catalogue import load_case
from headway.recipe.recipe import load
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.results.results import read_results


def main(folder: Path) -> None:
    study = load_case("A4", quick=False)
    assert isinstance(study, Study)
    began = time.perf_counter()
    short = [*study.changes, "training.duration=5 steps", "training.evaluate_every=5 steps"]
    execute(
        Study(title="start", base=load("speeches-classifier"), changes=short, arms={"learned": []}), folder / "start"
    )
    seconds = {"start": time.perf_counter() - began}
    print(json.dumps({"way": "start: five steps", "seconds": seconds["start"]}), flush=True)
    for way, place in {"populations": InProcess(), "one after another": InProcess(together=1)}.items():
        began = time.perf_counter()
        done = execute(study, folder / way, place)
        seconds[way] = time.perf_counter() - began
        results = read_results(folder / way)
        scores = {arm: sum(t.values()) / len(t) for arm, t in results.table("test.accuracy").items()}
        print(json.dumps({"way": way, "seconds": seconds[way], "runs": done.done, "test.accuracy": scores}), flush=True)
    began = time.perf_counter()
    for arm in study.arms:
        command = [sys.executable, "-m", "headway.cli", "train", "speeches-classifier", *study.changes, *arm.changes]
        subprocess.run([*command, "--name", arm.name, "--runs", str(folder / "calls")], check=True, capture_output=True)
    seconds["calls"] = (time.perf_counter() - began) * len(study.seeds)
    print(json.dumps({"way": "a call of headway train for each", "seconds": seconds["calls"]}), flush=True)
    ratios = {way: seconds[way] / seconds["populations"] for way in ("one after another", "calls")}
    ratios["calls, with the start"] = seconds["calls"] / (seconds["start"] + seconds["populations"])
    print(json.dumps({"times the populations": ratios}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
