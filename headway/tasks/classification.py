"""Classification: texts, each of one of a few classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from headway.core.errors import UserError
from headway.data.labelled import dataset
from headway.data.labelled.dataset import LabelledSet
from headway.data.spec import Labelled
from headway.models.classifier import Classifier, ClassifierSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.accuracy import predict, spread_out
from headway.scoring.cost import forward_flops_per_row
from headway.scoring.score import Score
from headway.tasks.task import Task
from headway.training.update import Sampler


@dataclass(frozen=True)
class Classification(Task):
    quantities = ("loss", "accuracy", "accuracy_seen", "accuracy_unseen", "precision", "recall", "f1")

    data: LabelledSet

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        data = _data(recipe)
        made = dataset.load(data.source, data.path, data.columns, data.valid_fraction, data.tokenizer)
        return cls(recipe, made)

    @classmethod
    def rebuild(cls, run: Run, device: str) -> Classifier:
        return _spec(run.recipe).build(run.tokenizer.size, len(classes_of(run)), [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> Classifier:
        return _spec(self.recipe).build(self.data.tokenizer.size, len(self.data.classes), seeds, device)

    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        train, batch = self.data.split("train"), self.recipe.training.batch
        table, lengths = train.padded(self.recipe.segment)
        return _data(self.recipe).batches.build(table, lengths, train.labels, batch, seeds, device)

    @property
    def tokens_per_step(self) -> int:
        """On average: texts have different lengths."""
        lengths = self.data.split("train").lengths.clip(max=self.recipe.segment)
        return max(1, round(self.recipe.training.batch * lengths.mean()))

    @property
    def flops_per_step(self) -> int:
        """Every row counts as filled up to the context, whether or not the device computes the padding."""
        per_row = forward_flops_per_row(_spec(self.recipe), len(self.data.classes), self.recipe.segment)
        return 3 * self.recipe.training.batch * per_row

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split)) * self.recipe.segment

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "classes": list(self.data.classes)}

    def check_split(self, split: str) -> None:
        self.data.split(split)  # which has texts: tables without any are refused

    def evaluate(self, model: Classifier) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        for split in self.recipe.training.evaluate_on:
            texts = spread_out(self.data.split(split), self.recipe.training.evaluate_tokens)
            for scores, one in zip(found, predict(model, texts, self.data.classes), strict=True):
                scores |= {f"{split}.loss": one.nats, f"{split}.accuracy": float(one.correct.mean())}
        return found

    def score(self, model: Classifier, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            for scores, one in zip(per_replica, predict(model, self.data.split(split), self.data.classes), strict=True):
                scores += one.scores(split)
        return per_replica

    def title(self, model: Classifier) -> list[str]:
        train, kind = self.data.split("train"), self.data.tokenizer.kind
        what = (
            f"{len(train):,} texts of {model.classes} classes to train on, {model.vocabulary:,} kinds of {kind} tokens"
        )
        lines = [f"{self.data.name}: {what}"]
        if cut := int((train.lengths > self.recipe.segment).sum()):
            lines.append(f"{cut:,} of them are longer than {self.recipe.segment} tokens (model.context), and are cut")
        if self.data.held_out:
            share, n = _data(self.recipe).valid_fraction, len(self.data.split("valid"))
            lines.append(f"valid: {n:,} texts, {share:.0%} of train held out, for the set has no valid of its own")
        return lines


def classes_of(run: Run) -> tuple[str, ...]:
    """The names of the classes that a run's model tells apart."""
    classes = run.facts.get("classes")
    if not classes:
        raise UserError(f"{run.folder / 'run.json'} does not say which classes the model tells apart")
    return tuple(classes)


def _data(recipe: Recipe) -> Labelled:
    assert isinstance(recipe.data, Labelled)
    return recipe.data


def _spec(recipe: Recipe) -> ClassifierSpec:
    assert isinstance(recipe.model, ClassifierSpec)
    return recipe.model
