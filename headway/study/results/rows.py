"""Which rows each run of a study got right, read off the run folders."""

import glob
from pathlib import Path

import numpy as np

from headway.run.folder import read_json
from headway.stats.paired import Correct


def correct_in(runs: Path) -> Correct:
    """From run folders named ARM.seed-N, of which each keeps which rows its model got right."""

    def correct(arm: str, score: str) -> dict[int, np.ndarray]:
        found = {}
        for path in runs.glob(f"{glob.escape(arm)}.seed-*/scores.json"):
            seed = path.parent.name.removeprefix(f"{arm}.seed-")
            rows = read_json(path).get(score, {}).get("rows") if seed.isdecimal() else None
            if rows is not None:
                found[int(seed)] = np.array([row == "1" for row in rows])
        return found

    return correct
