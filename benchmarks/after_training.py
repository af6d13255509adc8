"""The cost of a population after its last step, by number of members: torch operations and CPU seconds.

    python -m benchmarks.after_training [--recipe demo] [--members 8 32] [KEY=VALUE …]

On a GPU the cost of small models is launch overhead, so the number of operations shows where time is spent, even
without a GPU. For each function of Headway, the operations within it are split into a constant part and a part per
member (from two population sizes). The model is narrow, so that overhead dominates on a CPU as well. While operations
are counted, scoring uses batches as large as on a GPU.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import headway
from headway.experiment.train import Training, train
from headway.recipe.recipe import load
from headway.scoring.likelihood import MAX_ELEMENTS

NARROW = ("model.width=32", "training.duration=20 steps")
HOME = str(Path(headway.__file__).parent)


class Counted(TorchDispatchMode):
    """Counts the torch operations within each function of Headway."""

    def __init__(self) -> None:
        super().__init__()
        self.within: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame, names = sys._getframe(1), {"all"}
        while frame is not None:
            code, frame = frame.f_code, frame.f_back
            if code.co_filename.startswith(HOME):
                names.add(f"{code.co_filename[len(HOME) + 1 :]} {code.co_qualname}")
        self.within.update(names)
        return func(*args, **(kwargs or {}))


def after_training(recipe: str, changes: list[str], members: int, counted: Counted | None) -> float:
    """CPU seconds from the last step to the end; counting operations makes them longer."""
    base, took, finish = load(recipe, [*NARROW, *changes]), [], Training.finish

    def watched(self: Training) -> None:
        began = time.process_time()
        if counted is None:
            finish(self)
        else:
            with counted, patch.dict(MAX_ELEMENTS, cpu=MAX_ELEMENTS["cuda"]):
                finish(self)
        took.append(time.process_time() - began)

    Training.finish = watched
    try:
        with tempfile.TemporaryDirectory() as runs:
            recipes = [base.model_copy(update={"seed": seed}) for seed in range(members)]
            train(recipes, [f"seed-{seed}" for seed in range(members)], Path(runs))
    finally:
        Training.finish = finish
    return took[0]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--recipe", default="demo")
    asked.add_argument("--members", type=int, nargs=2, default=(8, 32))
    asked.add_argument("--rows", type=int, default=40, help="rows of the table")
    asked.add_argument("changes", nargs="*")
    given = asked.parse_args()
    torch.set_num_threads(1)
    few, many = given.members
    found = {}
    for members in (few, many):
        seconds = after_training(given.recipe, given.changes, members, None)
        counted = Counted()
        after_training(given.recipe, given.changes, members, counted)
        found[members] = counted.within
        print(f"{members} members: {counted.within['all']:,} operations, {seconds:.1f} s of CPU", flush=True)
    each = {name: (found[many][name] - found[few][name]) / (many - few) for name in found[few] | found[many]}
    print("\n for each  once for all")
    for name in sorted(each, key=lambda name: -found[many][name])[: given.rows]:
        print(f"{each[name]:9,.0f} {found[few][name] - few * each[name]:13,.0f}  {name}")


if __name__ == "__main__":
    main()
