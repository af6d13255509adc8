"""Run cases at full size on a GPU: as populations, one case after the other in one process.

    HEADWAY_DATA=… python -m benchmarks.cases_gpu FOLDER D4 D5
    HEADWAY_DATA=… python -m benchmarks.cases_gpu FOLDER C1 C2 C3 C4         # each reuses runs of the one before
    HEADWAY_DATA=… python -m benchmarks.cases_gpu FOLDER E2 E4 E5 E3 E6      # E5 reuses runs of E2 and E4

Each case is a study in FOLDER/studies: an interrupted study is resumed, and runs that another of these studies has
already made are reused. One JSON line per case gives the time it took, the scores of its arms, and the status of each
claim; the lines are also written to FOLDER/cases.jsonl. `headway cases --table --studies FOLDER/studies` makes a table.
With --quick as the last word, the quick sizes are run, to try it on a CPU; with --workers=2, two processes share the
GPU.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from headway.cases.catalogue import folder_of, load_case
from headway.cli.board import for_this_terminal
from headway.core.errors import UserError
from headway.study.conclude import conclude
from headway.study.design.study import Study
from headway.study.execution.execute import execute, executor_named


def main(home: Path, names: list[str], quick: bool, workers: int | None) -> None:
    studies = home / "studies"
    studies.mkdir(parents=True, exist_ok=True)
    cases = {name: load_case(name, quick) for name in names}  # report a wrong name before anything is trained
    for name, study in cases.items():
        if not isinstance(study, Study):
            raise UserError(f"case {name} is an exercise and needs no GPU: run headway case {name}")
    for name, study in cases.items():
        assert isinstance(study, Study)
        folder = studies / folder_of(name, quick)
        others = [studies / folder_of(other, quick) for other in names if other != name]
        began = time.perf_counter()
        there = [other for other in others if other.is_dir()]
        done = execute(study, folder, executor_named(None, workers, study), [for_this_terminal()], there)
        trained = time.perf_counter() - began
        found = conclude(folder)
        told = {
            "case": name,
            "seconds": round(time.perf_counter() - began, 1),
            "of which training, audits and scores": round(trained, 1),
            "runs": done.done,
            "failed": list(done.failed),
            "scores": {score: _means(found, score) for score in found.results.score_names},
            "claims": [one.as_json() for one in found.judgements],
            "verdicts": [verdict.as_json() for verdict in found.verdicts],
        }
        line = json.dumps(told)
        print(line, flush=True)
        with (home / "cases.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")


def _means(found: Any, score: str) -> dict[str, list[float]]:
    return {arm: [round(value, 4) for value in seeds.values()] for arm, seeds in found.results.table(score).items()}


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    shared = [int(word.partition("=")[2]) for word in sys.argv[1:] if word.startswith("--workers=")]
    if len(words) < 2:
        sys.exit(__doc__)
    try:
        main(Path(words[0]), words[1:], "--quick" in sys.argv, shared[0] if shared else None)
    except UserError as problem:
        sys.exit(str(problem))
