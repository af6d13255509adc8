"""What a task gives the audits of data, baselines and training: its data, cheap methods, the curve of a run.

What depends on the data alone is computed once, however many runs are audited, and kept between them beside the tokens,
under a name made of what it depends on.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from headway.audit.audit import Audit, Baseline, DoesNotApply, Report, of_plugins, run_audits
from headway.audit.baselines import BASELINE_AUDITS, Comparison
from headway.audit.data.tokens import TOKEN_AUDITS, TokenSet
from headway.audit.models.definitions import rate_of
from headway.audit.scores.recount import Recount
from headway.audit.training import TRAINING_AUDITS
from headway.audit.training.curve import TrainingCurve
from headway.core import plugins
from headway.data import cache
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import LOSS

_FORMAT = 8  # of what is kept; raise it when the same data give other findings than before


class Evidence(ABC):
    """Every kind of task has one of its own; what is asked of any task is here: `data`, `headline`, `cheap_methods`."""

    def __init__(self, task: Any):
        self.task, self.recipe = task, task.recipe
        self._read_again: dict[str, Recount] = {}

    @cached_property
    def data(self) -> Report:
        """The audits of the data, and the baselines of every split that is scored."""
        recipe, of_users = self.recipe, [one.name for one in of_plugins("data")]
        digests = [plugin.digest for plugin in plugins.loaded()] if of_users else []
        audits = self._kept(self.audit_data, "audits", of_users, digests)
        measured = [self.task.scored_splits, *recipe.reading, *self.baselines_depend_on]
        return audits + self._kept(lambda: Report(baselines=tuple(self.measure_baselines())), "baselines", *measured)

    def _kept(self, make: Callable[[], Report], *depends_on: Any) -> Report:
        """What was found of the same data before, in this process or another; or made now, and kept."""
        facts = [_FORMAT, self.task.data.identity, *depends_on]
        entry = f"evidence-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
        kept = cache.fetch(entry)
        try:
            if kept is not None:
                return Report.from_json(json.loads(kept))
        except (KeyError, TypeError, ValueError):
            pass  # some other version wrote it
        found = make()
        cache.store(entry, json.dumps(found.as_json()).encode())
        return found

    @property
    def baselines(self) -> Sequence[Baseline]:
        return self.data.baselines

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        """What the audits of the data are given, and which they are: rows, text, tokens."""
        return [token_set(self.task.data)]

    def audit_data(self) -> Report:
        return sum((run_audits(audits, given) for given, audits in self.looked_at()), Report())

    @property
    def baselines_depend_on(self) -> Sequence[Any]:
        """What else than the data, the splits and how they are read."""
        return ()

    @abstractmethod
    def measure_baselines(self) -> Sequence[Baseline]: ...

    @abstractmethod
    def beside(self, split: str) -> dict[str, Any]:
        """Losses to compare a training with: fields of `TrainingCurve`."""

    @abstractmethod
    def size(self, split: str) -> int:
        """How many tokens or rows a score of this split is a mean over."""

    def recount(self, split: str) -> Recount:
        """This split, read from its source again, to be scored by plain definitions."""
        raise DoesNotApply(f"nobody has defined the scores of {self.task.models} a second time")

    def read_again(self, split: str) -> Recount:
        """The same, once for all runs that are scored on it."""
        if split not in self._read_again:
            self._read_again[split] = self.recount(split)
        return self._read_again[split]

    @cached_property
    def train_again(self) -> str | None:
        """In words, where what was trained on is not what the source has under that name, read again."""
        return None

    @property
    def judged(self) -> str | None:
        """The split whose score the audits go by: the last that is scored, which is `test` where there is one."""
        return next((split for split in reversed(self.task.scored_splits) if split != "train"), None)

    def audit_answers(self, scored: Any) -> Report:
        """The audits of what a model (a `ScoredRun`) answers, where the scores themselves do not show it."""
        return Report()

    def reading(self) -> Report:
        """The audits of what training reads, batch by batch, where the model's own do not see to it."""
        return Report()

    def audit(self, run: Run, unaided: Callable[[], float | None] = lambda: None) -> Report:
        """Of one run: its score beside cheap methods, and the curve of its training. `unaided` measures what its model
        makes of text that ends where it is asked."""
        report = self._compared(run)
        of_training = [*TRAINING_AUDITS, *of_plugins("training")]
        if run.metrics():
            return report + run_audits(of_training, replace(self.curve(run), unaided=unaided))
        return report + Report(not_run={one.name: "no training was recorded" for one in of_training})

    def curve(self, run: Run) -> TrainingCurve:
        training, scores = run.recipe.training, {score.name: score.value for score in run.scores()}
        compared: dict[str, Any] = {}
        if self.judged is not None:
            compared = self.beside(self.judged) | {"scored": scores.get(f"{self.judged}.{LOSS.name}")}
        facts = _facts(run.recipe) | {"planned": self._planned(run)}
        return TrainingCurve.of(run.metrics(), **compared, **facts, clip=training.clip)

    def _planned(self, run: Run) -> Callable[[int], float | None]:
        """The learning rate of each step, as the recipe of a run says; before a run was continued, another's."""
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
    """Of any data that have tokens."""
    tokenizer = data.tokenizer
    ids = {split: tokens.ids for split, tokens in data.splits.items()}
    audits = [*TOKEN_AUDITS, *of_plugins("data")]
    return TokenSet(ids, tokenizer.size, tokenizer.unknown, tokenizer.pieces), audits


def _facts(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says about how a training is to be read."""
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
