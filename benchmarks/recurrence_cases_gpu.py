"""Cases E2 to E6 at their whole size, on a GPU: populations, one case after the other in one process.

    HEADWAY_DATA=… python -m benchmarks.recurrence_cases_gpu FOLDER [E2 E3 …]

Each case is a study in FOLDER/studies: what was trained is kept, a study that was stopped goes on where it was, and E5
takes over the runs of E2 and E4. A line of JSON per case says the seconds it took, the scores of its arms, and how each
claim stands; all of it lies in FOLDER/cases.jsonl too. `headway cases --table --studies FOLDER/studies` makes a table.
With --quick as the last word, the quick sizes, to try it on a CPU.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from headway.cases.catalogue import folder_of, load_case
from headway.cli.board import for_this_terminal
from headway.study.conclude import conclude
from headway.study.design.study import Study
from headway.study.execution.execute import execute, executor_named

CASES = ("E2", "E4", "E5", "E3", "E6")
REUSES = {"E5": ("E2", "E4")}
"""Runs of other cases that are the same."""


def main(home: Path, names: list[str], quick: bool) -> None:
    studies = home / "studies"
    studies.mkdir(parents=True, exist_ok=True)
    for name in names:
        study, folder = load_case(name, quick), studies / folder_of(name, quick)
        assert isinstance(study, Study)
        others = [path for one in REUSES.get(name, ()) if (path := studies / folder_of(one, quick)).is_dir()]
        began = time.perf_counter()
        done = execute(study, folder, executor_named(None, None, study), [for_this_terminal()], others)
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
    return {arm: [round(value, 3) for value in seeds.values()] for arm, seeds in found.results.table(score).items()}


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--quick"]
    if not words:
        sys.exit(__doc__)
    main(Path(words[0]), words[1:] or list(CASES), "--quick" in sys.argv)
