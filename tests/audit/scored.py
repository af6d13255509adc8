"""Small trained and scored runs, for the tests of audits of scores and populations."""

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from tiny import TEXT

from headway import tasks
from headway.audit.audit import Report
from headway.audit.scores.scores import audit_scores
from headway.experiment.audit import scored_population
from headway.experiment.train import train
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import Run, open_run

CLASSIFIER = "model.kind=classifier"
MODEL = {"layers": 1, "width": 16, "context": 16, "mixer": {"heads": 2}}
TRAINING = {"batch": 4, "duration": "12 steps", "evaluate_every": "4 steps", "evaluate_tokens": 64}
TRAINING |= {"optimizer": {"learning_rate": 0.01}, "schedule": {"warmup": "2 steps"}, "checkpoint_every": "6 steps"}
WORDS = {"fish": "cod eel carp pike perch", "tree": "oak elm ash birch lime", "bird": "tit owl rook wren lark"}


class Ground:
    """A folder with data, in which each run is trained once and then copied."""

    def __init__(self, home: Path):
        self.home, self.count, self.trained = home, 0, {}
        (home / "tiny.txt").write_text(TEXT, "utf-8")
        lines, classes = ["text\tlabel"], list(WORDS)
        for k in range(120):
            name = classes[k * k % 7 % 3]
            word = WORDS[name].split()[k % 5] if k % 4 else "some"
            lines.append(f"{'the ' * (1 + k % 4)}{word} number {k % 50} is here\t{name}")
        (home / "rows.tsv").write_text("\n".join(lines) + "\n")

    def recipe(self, *changes: str) -> Recipe:
        data = {"source": "files", "path": str(self.home / "tiny.txt")}
        kind = "classifier" if CLASSIFIER in changes else "language-model"
        if CLASSIFIER in changes:
            data = {"kind": "labelled", "source": "files", "path": str(self.home / "rows.tsv"), "valid_fraction": 0.3}
        tree = {"data": data, "model": {"kind": kind, **MODEL}, "training": TRAINING}
        return from_tree(deepcopy(tree), "small", {}, [change for change in changes if change != CLASSIFIER])

    def train(self, *changes: str, seeds: int = 1) -> list[Run]:
        self.count += 1
        recipes = [self.recipe(*changes, f"seed={seed}") for seed in range(seeds)]
        return train(recipes, [f"run-{self.count}-{seed}" for seed in range(seeds)], self.home / "runs")

    def copy_of(self, *changes: str) -> Run:
        """A copy of the run of this recipe, which is trained if it does not exist yet."""
        if changes not in self.trained:
            (self.trained[changes],) = self.train(*changes)
        self.count += 1
        copied = shutil.copytree(self.trained[changes].folder, self.home / "copies" / f"copy-{self.count}")
        return open_run(str(copied))


def examined(run: Run, **changed: float) -> Report:
    """The report of the audits of scores alone."""
    with torch.no_grad():
        population = scored_population([run], tasks.load_for(run), [run.checkpoint("auto")])
        (scored,) = replace(population, **changed).members
        return audit_scores(scored)
