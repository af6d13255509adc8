"""What a task gives to the audits of data, baselines and training: its data, its cheap methods, a run's learning curve.

Findings that depend on the data alone are computed once, however many runs are audited, and cached on disk beside the
tokens, under a hash of everything they depend on: the data, and the sources of the audits, which word the findings.
"""

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.audit.audit import Audit, Baseline, DoesNotApply, Report, of_plugins, run_audits
from headway.audit.baselines import BASELINE_AUDITS, Comparison
from headway.audit.data.tokens import TOKEN_AUDITS, TokenSet
from headway.audit.models.definitions import rate_of
from headway.audit.scores.recount import Recount
from headway.audit.training import TRAINING_AUDITS
from headway.audit.training.curve import TrainingCurve
from headway.core import plugins
from headway.core.files import checksum_of_files
from headway.data import cache
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import LOSS

SOURCES = tuple(Path(__file__).parents[1] / part for part in ("audit", "data", "scoring"))
"""Folders whose code decides what is found in the same data, and in which words."""


class Evidence(ABC):
    """Base class; every kind of task has its own. It uses the task's `data`, `headline` and `cheap_methods`."""

    def __init__(self, task: Any):
        self.task, self.recipe = task, task.recipe
        self._read_again: dict[str, Recount] = {}

    @functools.cached_property
    def data(self) -> Report:
        """The findings of the data audits, and the baselines of every split that is scored."""
        recipe, of_users = self.recipe, [one.name for one in of_plugins("data")]
        digests = [plugin.digest for plugin in plugins.loaded()] if of_users else []
        audits = self._kept(self.audit_data, "audits", of_users, digests)
        measured = [self.task.scored_splits, *recipe.reading, *self.baselines_depend_on]
        return audits + self._kept(lambda: Report(baselines=tuple(self.measure_baselines())), "baselines", *measured)

    def _kept(self, make: Callable[[], Report], *depends_on: Any) -> Report:
        """The cached report on the same data, from this process or another; else made now and cached."""
        facts = [_checksum(*SOURCES), self.task.data.identity, *depends_on]
        entry = f"evidence-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
        kept = cache.fetch(entry)
        try:
            if kept is not None:
                return Report.from_json(json.loads(kept))
        except (KeyError, TypeError, ValueError):
            pass  # written by another version
        found = make()
        cache.store(entry, json.dumps(found.as_json()).encode())
        return found

    @property
    def baselines(self) -> Sequence[Baseline]:
        return self.data.baselines

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        """The data objects to audit (rows, text, tokens), each with its audits."""
        return [token_set(self.task.data)]

    def audit_data(self) -> Report:
        return sum((run_audits(audits, given) for given, audits in self.looked_at()), Report())

    @property
    def baselines_depend_on(self) -> Sequence[Any]:
        """What the baselines depend on besides the data, the splits, and the segment and stride of scoring."""
        return ()

    @abstractmethod
    def measure_baselines(self) -> Sequence[Baseline]: ...

    @abstractmethod
    def beside(self, split: str) -> dict[str, Any]:
        """Reference losses for the learning curve: fields of `TrainingCurve`."""

    @abstractmethod
    def size(self, split: str) -> int:
        """The number of tokens or rows that a score of this split is a mean over."""

    def recount(self, split: str) -> Recount:
        """This split, read again from its source, to be scored by plain definitions."""
        raise DoesNotApply(f"there is no second implementation of the scores of {self.task.models}")

    def read_again(self, split: str) -> Recount:
        """The same, cached for all runs that are scored on it."""
        if split not in self._read_again:
            self._read_again[split] = self.recount(split)
        return self._read_again[split]

    @functools.cached_property
    def train_again(self) -> str | None:
        """What differs, as a sentence, if the train split is not what its source holds when it is read again."""
        return None

    @property
    def judged(self) -> str | None:
        """The split whose score the audits use: the last one scored, which is `test` where there is one."""
        return next((split for split in reversed(self.task.scored_splits) if split != "train"), None)

    def audit_answers(self, scored: Any) -> Report:
        """The audits of a model's outputs (`scored` is a `ScoredRun`), for faults that the scores do not show."""
        return Report()

    def reading(self) -> Report:
        """The audits of the batches that training reads, where the model audits do not cover them."""
        return Report()

    def audit(self, run: Run, unaided: Callable[[], float | None] = lambda: None) -> Report:
        """Audit one run: its score against the baselines, and its learning curve. `unaided` measures the model's loss
        on text that is cut off right before each scored token."""
        report = self._compared(run)
        of_training = [*TRAINING_AUDITS, *of_plugins("training")]
        if metrics := run.metrics():
            return report + run_audits(of_training, replace(self.curve(run, metrics), unaided=unaided))
        return report + Report(not_run={one.name: "no training was recorded" for one in of_training})

    def curve(self, run: Run, metrics: Sequence[Mapping[str, Any]]) -> TrainingCurve:
        training, scores = run.recipe.training, {score.name: score.value for score in run.scores()}
        compared: dict[str, Any] = {}
        if self.judged is not None:
            compared = self.beside(self.judged) | {"scored": scores.get(f"{self.judged}.{LOSS.name}")}
        facts = _facts(run.recipe) | {"planned": self._planned(run)}
        return TrainingCurve.of(metrics, **compared, **facts, clip=training.clip)

    def _planned(self, run: Run) -> Callable[[int], float | None]:
        """The learning rate of each step by this run's recipe; None for steps before the run was continued."""
        training, before = run.recipe.training, int(run.facts.get("continued_from", {}).get("step", 0))
        epoch = self.task.sampler([run.recipe.seed], "cpu").steps_per_epoch
        whole, warmup = (
            0 if length is None else length.in_steps(epoch, self.task.tokens_per_step)
            for length in (training.duration, training.schedule.warmup)
        )

        def planned(step: int) -> float | None:
            share = rate_of(training.schedule, step - 1, warmup, whole) if step > before else None
            return None if share is None else share * training.optimizer.learning_rate

        return planned

    def _compared(self, run: Run) -> Report:
        name = f"{self.judged}.{self.task.headline_of(self.recipe).name}"
        score = next((score for score in run.scores() if score.name == name), None)
        if self.judged is None or score is None:
            return Report(not_run={one.name: "no held-out split was scored" for one in BASELINE_AUDITS})
        same = [baseline for baseline in self.baselines if baseline.score.name == name]
        comparison = Comparison(score, same, self.task.cheap_methods, self.size(self.judged))
        return run_audits([*BASELINE_AUDITS, *of_plugins("baselines")], comparison)


def token_set(data: Any) -> tuple[TokenSet, Sequence[Audit]]:
    """The tokens of any tokenized data, with their audits."""
    tokenizer = data.tokenizer
    ids = {split: tokens.ids for split, tokens in data.splits.items()}
    audits = [*TOKEN_AUDITS, *of_plugins("data")]
    return TokenSet(ids, tokenizer.size, tokenizer.unknown, tokenizer.pieces), audits


@functools.cache
def _checksum(*folders: Path) -> str:
    """Of all code in these folders, some milliseconds for 200 files. Planted faults are not part of any finding."""
    files = [(folder, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
    return checksum_of_files(*(path for folder, path in files if "plants" not in path.relative_to(folder).parts))


def _facts(recipe: Recipe) -> dict[str, Any]:
    """The parts of a recipe that decide how its learning curve is judged."""
    training = recipe.training
    selects = [key for key in ("keep_best", "patience") if getattr(training, key)]
    return {
        "evaluate_on": training.evaluate_on,
        "selects": selects,
        "best_by": training.best_by if training.keep_best else "loss",
        "post_norm": bool(recipe.model.needs_warmup),
        "by_length": training.optimizer.steps_by_length,
        "warms_up": training.schedule.warmup is not None,
        "harder_in_training": recipe.model.harder_in_training,
    }
