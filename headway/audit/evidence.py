"""What a task gives the audits of data, baselines and training: rows or running text, cheap methods, a run's course.

What depends on the data alone is computed once, however many runs are audited, and kept between them beside the tokens,
under a name made of what it depends on.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from headway.audit.audit import Baseline, DoesNotApply, Report, run_audits
from headway.audit.baselines import BASELINE_AUDITS, Comparison, bag_of_words, language_baselines, majority
from headway.audit.curve import TrainingCurve
from headway.audit.labels import LABEL_AUDITS, LabelledBatches
from headway.audit.rows import ROW_AUDITS, RowSet
from headway.audit.text import TEXT_AUDITS, TOKEN_AUDITS, TextSet, TokenSet
from headway.audit.training import TRAINING_AUDITS
from headway.data import cache
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.tasks.classification import Classification
from headway.tasks.language_modelling import LanguageModelling
from headway.tasks.task import Task

_FORMAT = 2  # of what is kept; raise it when the same data give other findings than before


class Evidence(ABC):
    quantity: ClassVar[str]
    """Of the score that the audits of a training go by, and that cheap methods have as well."""
    cheap_methods: ClassVar[tuple[str, ...]]
    """By name: those whose score is measured."""

    def __init__(self, task: Any):
        self.task, self.recipe = task, task.recipe

    @cached_property
    def data(self) -> Report:
        """The audits of the data, and the baselines of every split that is scored."""
        recipe = self.recipe
        facts = [_FORMAT, self.task.data.identity, self.task.scored_splits, recipe.scoring_segment, recipe.stride]
        entry = f"evidence-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
        kept = cache.fetch(entry)
        try:
            if kept is not None:
                return Report.from_json(json.loads(kept))
        except (KeyError, TypeError, ValueError):
            pass  # some other version wrote it
        found = self.audit_data() + Report(baselines=tuple(self.measure_baselines()))
        cache.store(entry, json.dumps(found.as_json()).encode())
        return found

    @property
    def baselines(self) -> Sequence[Baseline]:
        return self.data.baselines

    @abstractmethod
    def audit_data(self) -> Report: ...

    @abstractmethod
    def measure_baselines(self) -> Sequence[Baseline]: ...

    @abstractmethod
    def beside(self, split: str) -> dict[str, Any]:
        """Losses to compare a training with: fields of `TrainingCurve`."""

    @abstractmethod
    def size(self, split: str) -> int:
        """How many tokens or rows a score of this split is a mean over."""

    @property
    def judged(self) -> str | None:
        """The split whose score the audits go by: the last that is scored, which is `test` where there is one."""
        return next((split for split in reversed(self.task.scored_splits) if split != "train"), None)

    def reading(self) -> Report:
        """The audits of what training reads, batch by batch, where the model's own do not see to it."""
        return Report()

    def audit(self, run: Run) -> Report:
        """Of one run: its score beside cheap methods, and the course of its training."""
        report = self._compared(run)
        if run.metrics():
            return report + run_audits(TRAINING_AUDITS, self.curve(run))
        return report + Report(not_run={one.name: "no training was recorded" for one in TRAINING_AUDITS})

    def curve(self, run: Run) -> TrainingCurve:
        training, scores = run.recipe.training, {score.name: score.value for score in run.scores()}
        compared: dict[str, Any] = {}
        if self.judged is not None:
            compared = self.beside(self.judged) | {"scored": scores.get(f"{self.judged}.loss")}
        return TrainingCurve.of(run.metrics(), **compared, **_facts(run.recipe), clip=training.clip)

    def _compared(self, run: Run) -> Report:
        name = f"{self.judged}.{self.quantity}"
        score = next((score for score in run.scores() if score.name == name), None)
        if self.judged is None or score is None:
            return Report(not_run={one.name: "no held-out split was scored" for one in BASELINE_AUDITS})
        same = [baseline for baseline in self.baselines if baseline.score.name == name]
        return run_audits(BASELINE_AUDITS, Comparison(score, same, self.size(self.judged)))


class TextEvidence(Evidence):
    task: LanguageModelling
    quantity = "perplexity"
    cheap_methods = ("unigram", "5-gram")

    def audit_data(self) -> Report:
        return run_audits(TEXT_AUDITS, TextSet(self.task.data.texts)) + _token_audits(self.task)

    def measure_baselines(self) -> Sequence[Baseline]:
        recipe, data, splits = self.recipe, self.task.data, self.task.scored_splits
        ids = {split: tokens.ids for split, tokens in data.splits.items()}
        window = recipe.scoring_segment, recipe.stride
        found = language_baselines(ids, splits, data.tokenizer.size, *window, data.tokenizer.kind)
        return [baseline for of_split in found.values() for baseline in of_split]

    def beside(self, split: str) -> dict[str, Any]:
        unigram, counting = (math.log(b.score.value) for b in self.baselines if b.score.name == f"{split}.perplexity")
        return {"chance": unigram, "chance_is": "token frequencies", "counting": counting}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split)) - 1


class RowEvidence(Evidence):
    task: Classification
    quantity = "accuracy"
    cheap_methods = ("majority", "bag of words")

    @cached_property
    def rows(self) -> RowSet:
        data = self.task.data
        rows = {split: texts.texts for split, texts in data.splits.items()}
        labels = {split: [data.classes[k] for k in texts.labels] for split, texts in data.splits.items()}
        return RowSet(rows, labels, data.classes)

    def audit_data(self) -> Report:
        return run_audits(ROW_AUDITS, self.rows) + _token_audits(self.task)

    def reading(self) -> Report:
        sampler = self.task.sampler([self.recipe.seed], "cpu")
        batches, train = [sampler.at(step) for step in range(3)], self.task.data.split("train")
        return run_audits(LABEL_AUDITS, LabelledBatches(batches, train, self.recipe.segment))

    def measure_baselines(self) -> Sequence[Baseline]:
        rows, labels, splits = self.rows.rows, self.rows.labels, self.task.scored_splits
        found = [majority(labels, split) for split in splits]
        try:
            by_split = bag_of_words(rows, labels, splits)
        except DoesNotApply:  # one class only, or no words
            return found
        return found + [baseline for of_split in by_split.values() for baseline in of_split]

    def beside(self, split: str) -> dict[str, Any]:
        """The loss of answering with the frequencies of the classes in train, whatever the text."""
        train, held_out = Counter(self.rows.labels["train"]), self.rows.labels[split]
        nats = [math.log(train.total() / train[label]) for label in held_out]
        return {"chance": sum(nats) / len(nats), "chance_is": "class frequencies"}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))


OF_TASK: dict[type[Task], type[Evidence]] = {LanguageModelling: TextEvidence, Classification: RowEvidence}


def evidence_of(task: Task) -> Evidence:
    return OF_TASK[type(task)](task)


def _token_audits(task: Any) -> Report:
    tokenizer = task.data.tokenizer
    ids = {split: tokens.ids for split, tokens in task.data.splits.items()}
    return run_audits(TOKEN_AUDITS, TokenSet(ids, tokenizer.size, tokenizer.unknown, tokenizer.pieces))


def _facts(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says about how a training is to be read."""
    training = recipe.training
    selects = [key for key in ("keep_best", "patience") if getattr(training, key)]
    return {
        "evaluate_on": training.evaluate_on,
        "selects": selects,
        "post_norm": recipe.model.norm.placement == "post",
        "warms_up": training.schedule.warmup is not None,
    }
