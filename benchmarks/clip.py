"""Retrieval between pictures and captions over seeds, and what such scores hide.

    python -m benchmarks.clip [--device cuda] [--seeds 5] [--arms scenes tiny-imagenet-10 …] [--out clip.json]

One JSON line per arm as soon as it is measured: for every score the mean over seeds with its 95 % interval (Student's
t), the training time of all seeds together, and for `scenes` the caption game of case D8: how many targets are picked
if all other pictures of a set differ in only one thing. The seeds form one population. tiny-imagenet-10 needs
HEADWAY_DATA. On an H200 all arms take two to three minutes; on one CPU thread the first two with `--seeds 1` take four.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from headway import tasks
from headway.cases.library import D8
from headway.data.embedded import scenes
from headway.experiment.load import load_model
from headway.experiment.testbeds import without_audits
from headway.experiment.train import train
from headway.recipe.recipe import load
from headway.run.folder import Run

ARMS: dict[str, tuple[str, list[str]]] = {
    "scenes": ("scenes", []),
    "tiny-imagenet-10": ("tiny-imagenet-10", []),
    "scenes, sigmoid": ("scenes", ["model.contrast=sigmoid"]),
    "scenes, 3,000 steps": ("scenes", ["training.duration=3000 steps"]),
    "scenes, patches of 6, 3,000 steps": ("scenes", ["model.picture.patch=6", "training.duration=3000 steps"]),
    "tiny-imagenet-10, patches of 8, 60 epochs": (
        "tiny-imagenet-10",
        ["model.picture.patch=8", "training.duration=60 epochs"],
    ),
}
GAMES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = []
    for arm in asked.arms:
        lines.append(measured(arm, asked.device, asked.seeds))
        print(json.dumps(lines[-1], ensure_ascii=False), flush=True)
        if asked.out is not None:
            asked.out.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", "utf-8")


def measured(arm: str, device: str, seeds: int) -> dict[str, Any]:
    name, changes = ARMS[arm]
    recipes = [load(name, [*changes, f"seed={seed}", f"training.device={device}"]) for seed in range(seeds)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, without_audits():
        runs = train(recipes, [f"seed-{seed}" for seed in range(seeds)], Path(folder))
        took = time.perf_counter() - began
        found: dict[str, list[float]] = {}
        for run in runs:
            for score in run.scores():
                if score.interval is not None and "_at_5" not in score.name:
                    found.setdefault(score.name, []).append(score.value)
            for what, share in (games(run) if name == "scenes" else {}).items():
                found.setdefault(what, []).append(share)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU thread(s)"
    return {
        "benchmark": arm,
        "device": where,
        "seeds": seeds,
        "seconds_of_training_and_scoring": round(took, 1),
        "scores": {what: _with_interval(values) for what, values in found.items()},
    }


def games(run: Run) -> dict[str, float]:
    """The share of targets picked in sets whose other pictures differ in only one thing."""
    task: Any = tasks.of(run.recipe)
    matcher = task.matcher(run, load_model(run)[0])
    held_out = scenes.splits()["test"]
    player = D8.Player(matcher, 0.0, "", held_out, torch.zeros(0))
    found = {}
    for what, (change, others) in D8.NEAR.items():
        hits, played = D8.near_misses(GAMES, change, others, player)
        found[f"picked where others differ {what}"] = hits / played
    return found


def _with_interval(values: list[float]) -> dict[str, Any]:
    told: dict[str, Any] = {"mean": round(statistics.fmean(values), 4), "values": [round(one, 4) for one in values]}
    if len(values) > 1:
        half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
        told["interval"] = [round(max(0.0, told["mean"] - half), 4), round(min(1.0, told["mean"] + half), 4)]
    return told


if __name__ == "__main__":
    main()
