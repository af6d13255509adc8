"""The exact scores of every packaged recipe, to check that a change to the code changed no number.

    python -m benchmarks.same_scores > before.json        # on the code as it was
    python -m benchmarks.same_scores --against before.json   # on the code as it is

Each recipe is trained for a few steps with two seeds as one population, only through the command line, so that the same
script works with any version. Corpora under HEADWAY_DATA are used if present; recipes without their corpus are listed
as missing. The embedded recipes take a minute on two cores, all seven three.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECIPES = {
    "demo": "40 steps",
    "python-modules": "1 epoch",
    "shakespeare-char-cpu": "40 steps",
    "speeches-classifier": "1 epoch",
    "speeches-lm": "40 steps",
    "wikitext-2": "10 steps",
    "gpt-nano": "4 steps",
}


def scores_of(name: str, duration: str, runs: Path) -> dict[str, Any]:
    """Loss curves and scores of both seeds, or under `missing` the reason why there are none."""
    changes = [f"training.duration={duration}", "training.evaluate_every=1000 steps", "training.device=cpu"]
    scored = ["scoring.splits=[valid]"] if name in ("wikitext-2", "gpt-nano") else []
    words = ["train", name, *changes, *scored, "--vary", "seed=0..1", "--runs", str(runs), "--json"]
    done = subprocess.run([sys.executable, "-m", "headway.cli", *words], capture_output=True, text=True)
    if done.returncode == 2 and "HEADWAY_DATA" in done.stderr:
        return {"missing": done.stderr.strip().splitlines()[-1]}
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    found = {}
    for run in json.loads(done.stdout)["runs"]:
        folder = Path(run["run"])
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        audits = {one["audit"]: one["verdict"] for one in run["audits"]["findings"]}
        values = {score: one["value"] for score, one in run["scores"].items()}
        found[folder.name] = {
            "losses": [one["loss"] for one in lines if "loss" in one],
            "scores": values,
            "audits": audits,
        }
    return found


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """The places where two trees of numbers differ in any digit."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in sorted({*before, *after})
            for line in differences(before.get(key), after.get(key), f"{where}/{key}")
        ]
    return [] if before == after else [f"{where}: {before} → {after}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="what this printed before")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: scores_of(name, duration, Path(folder)) for name, duration in RECIPES.items()}
    if given.against is None:
        print(json.dumps(found, indent=1))
        return
    changed = differences(json.loads(given.against.read_text()), found)
    print(
        "\n".join(changed) or f"the same to the last digit: {', '.join(n for n in found if 'missing' not in found[n])}"
    )
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
