"""The classification task: each text belongs to one of a few classes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from headway.audit.baselines import CheapMethods
from headway.audit.labelled.evidence import RowEvidence
from headway.audit.models.definitions import cross_entropy
from headway.audit.models.learning import equal_chances
from headway.audit.probing import Probing
from headway.core.errors import UserError, did_you_mean
from headway.data.labelled import dataset
from headway.data.labelled.batches import RowSampler, RowTable
from headway.data.labelled.dataset import LabelledSet, Texts
from headway.data.labelled.sources import FILES, Columns
from headway.data.labelled.spec import Labelled
from headway.data.labelled.tables import Row, labelled_rows
from headway.data.marks import BETWEEN
from headway.look.gradient_rows import GradientRows, GradientSide, long_enough, rows_of, some_of
from headway.look.gradients import Explained, likeliest
from headway.look.token_losses import Losing, TokenLosses
from headway.models.classifier import Classifier, ClassifierSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.accuracy import Predictions, class_chances, predict, spread_out
from headway.scoring.ensemble import gain, mean_predictions
from headway.scoring.features import FeatureSampler, KeptFeatures
from headway.scoring.metrics import ACCURACY, ACCURACY_SEEN, ACCURACY_UNSEEN, F1, LOSS, PRECISION, RECALL
from headway.scoring.score import Score
from headway.tasks.abilities import (
    Classified,
    ClassifiedTexts,
    Classifies,
    FollowsGradients,
    GivenFile,
    JoinsOthers,
    ReadingWindow,
    ScoredTogether,
    ScoresFiles,
)
from headway.tasks.task import Task


class Classes(Probing):
    """The model predicts one class per row, and sees the whole row."""

    per_token, looks_ahead = False, True

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        return cross_entropy(answers, batch.targets)

    def clueless(self, model: Classifier) -> tuple[float, str]:
        return equal_chances(model.classes)


@dataclass(frozen=True)
class Classification(Task, JoinsOthers, Classifies, FollowsGradients, ScoresFiles):
    kind, models, example = "classifier", "classifiers", 'headway classify {run} "…"'
    metrics = (LOSS, ACCURACY, ACCURACY_SEEN, ACCURACY_UNSEEN, PRECISION, RECALL, F1)
    headline = ACCURACY
    cheap_methods = CheapMethods(
        "majority", "bag of words", ("one word",), counted_apart=(ACCURACY_SEEN.name, ACCURACY_UNSEEN.name)
    )
    probing = Classes()

    data: LabelledSet

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        return cls.load_again(recipe, None)

    @classmethod
    def load_again(cls, recipe: Recipe, known_as: str | None) -> Self:
        data = _data(recipe)
        return cls(recipe, dataset.load(data.source, data.path, data.columns, data.held_out, data.tokenizer, known_as))

    @classmethod
    def rebuild(cls, run: Run, device: str) -> Classifier:
        return _built(run.recipe, run.tokenizer.size, len(classes_of(run)), [run.recipe.seed], device, begins=False)

    def build(self, seeds: Sequence[int], device: str) -> Classifier:
        return _built(self.recipe, self.data.tokenizer.size, len(self.data.classes), seeds, device)

    def sampler(self, seeds: Sequence[int], device: str) -> RowSampler:
        train, batch = self.data.split("train"), self.recipe.training.batch
        table, lengths = train.padded(self.recipe.segment)
        texts = RowTable(table, lengths, train.labels, device)
        return _data(self.recipe).batches.build(texts, batch, seeds)

    def with_features(self, model: Classifier, sampler: Any, autocast: Callable[[], Any]) -> FeatureSampler:
        kept = model.kept = KeptFeatures(model)
        device = str(next(model.parameters()).device)
        return FeatureSampler(sampler, kept, self.data.split("train"), device, autocast)

    @property
    def tokens_per_step(self) -> int:
        """The mean, since texts have different lengths."""
        lengths = self.data.split("train").lengths.clip(max=self.recipe.segment)
        return max(1, round(self.recipe.training.batch * lengths.mean()))

    @property
    def flops_per_step(self) -> int:
        """Every row counts as padded to the context, whether or not the device computes the padding. Features that are
        computed once do not count."""
        spec, training = _spec(self.recipe), self.recipe.training
        head = spec.head.flops(spec.width, len(self.data.classes))
        below = spec.forward_flops_per_row(len(self.data.classes), self.recipe.segment) - head
        return round(training.batch * (3 * head + training.tuning.passes(spec.layers) * below))

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split)) * self.recipe.segment

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "classes": list(self.data.classes), **_spec(self.recipe).start.facts}

    def check_split(self, split: str) -> None:
        self.data.split(split)  # raises for an unknown split; empty tables were refused when they were read

    def evaluate(self, model: Classifier) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        for split in self.recipe.training.evaluate_on:
            for scores, one in zip(found, predict(model, self._evaluated[split], self.data.classes), strict=True):
                scores |= {f"{split}.loss": one.nats, f"{split}.accuracy": float(one.correct.mean())}
        return found

    @cached_property
    def _evaluated(self) -> dict[str, Texts]:
        """The part of each split that is evaluated during training."""
        training = self.recipe.training
        return {split: spread_out(self.data.split(split), training.evaluate_tokens) for split in training.evaluate_on}

    def score(self, model: Classifier, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            for scores, one in zip(per_replica, predict(model, self.data.split(split), self.data.classes), strict=True):
                scores += one.scores(split)
        return per_replica

    def title(self, model: Classifier) -> list[str]:
        train, kind = self.data.split("train"), self.data.tokenizer.kind
        what = f"{len(train):,} texts of {model.classes} classes to train on, vocabulary: {model.vocabulary:,} {kind}"
        lines = [f"{self.data.name}: {what}", *model.notes]
        if cut := int((train.lengths > self.recipe.segment).sum()):
            lines.append(f"{cut:,} of them are cut to {self.recipe.segment} tokens (model.context)")
        return [*lines, self.data.held_out] if self.data.held_out else lines

    def gather_evidence(self) -> RowEvidence:
        return RowEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        classes = classes_of(run)
        return likeliest(answer, lambda chosen: [classes[k] for k in chosen])

    def predict(self, model: Classifier, split: str) -> Predictions:
        return predict(model, self.data.split(split), self.data.classes)[0]

    def told(self, model: Classifier, split: str) -> list[Predictions]:
        return predict(model, self.data.split(split), self.data.classes)

    def together(self, split: str, told: Sequence[Predictions]) -> ScoredTogether:
        whole, what = mean_predictions(told), f"ensemble of {len(told)} runs, mean of their probabilities"
        scores = [replace(score, label=f"{what}: {score.label}") for score in whole.scores(split)]
        gains = [
            gain(f"{split}.{metric.name}", metric.unit, np.stack([of(one) for one in told]), of(whole), lower)
            for metric, of, lower in (
                (ACCURACY, lambda one: one.correct.astype(float), False),
                (LOSS, lambda one: one.nats_by_row, True),
            )
        ]
        return ScoredTogether(scores, [one.scores(split) for one in told], gains)

    def followed(self, split: str, most: int) -> GradientRows:
        """Texts that are long enough, truncated as in training."""
        whole = self.data.split(split)
        tokens, fit, ends = long_enough(whole.lengths, self.recipe.segment, f"texts of '{split}'")
        texts = whole.only(some_of(fit, most, f"texts of '{split}' with {tokens} tokens or more"))
        reaches = _spec(self.recipe).pooling.reaches
        return GradientRows(
            rows_of(torch.as_tensor(texts.padded(tokens)[0]).long()[None], torch.as_tensor(texts.labels)[None]),
            GradientSide(tokens),
            lambda model, row: model.losses(model(row.ids), row.target),
            loss="the label of the text",
            called=f"texts of {tokens} tokens",
            ends=ends,
            notes=(reaches,) if reaches else (),
        )

    @classmethod
    def losing(cls, run: Run, model: Classifier, text: str) -> Losing:
        def now() -> TokenLosses:
            found = cls.classify(run, model, text)
            nats = [-math.log(max(found.chances[name], 1e-45)) for name in classes_of(run)]
            return TokenLosses(list(classes_of(run)), [*nats], "of each class, if it were the right one")

        return now

    @classmethod
    def classify(cls, run: Run, model: Classifier, text: str) -> Classified:
        tokenizer, pairs = run.tokenizer, isinstance(_data(run.recipe).text, list)
        if pairs != (BETWEEN in text):
            reads = "several texts per row, but one was" if pairs else "one text per row, but several were"
            raise UserError(f"{run.name} reads {reads} given")
        tokens = tokenizer.encode_row(text)
        ids = torch.as_tensor(tokens.ids)
        if not tokens.bytes.any():
            raise UserError("the text is empty: there is nothing to classify")
        model.check_length(len(ids))
        chances = class_chances(model, ids[None], torch.tensor([len(ids)]))[0, 0].tolist()
        unknown = int((ids == tokenizer.unknown).sum()) if tokenizer.unknown is not None else 0
        notes = []
        if unknown == len(ids):
            notes.append(f"all {unknown} tokens are unknown words: the answer would be the same for any such text")
        elif unknown:
            notes.append(f"{unknown} of {len(ids)} tokens are unknown words")
        if len(ids) > (context := run.recipe.model.context):
            notes.append(f"the text has {len(ids)} tokens, more than the model was trained on ({context})")
        ranked = sorted(zip(classes_of(run), chances, strict=True), key=lambda pair: -pair[1])
        return Classified(dict(ranked), len(ids), unknown, notes)

    @classmethod
    def classify_texts(cls, run: Run, model: Classifier, texts: Sequence[str]) -> ClassifiedTexts:
        rows = _rows(run, [Row(text, "") for text in texts], np.zeros(len(texts), np.int64))
        (found,) = predict(model, rows, classes_of(run))
        unknown, begins = run.tokenizer.unknown, rows.ends - rows.lengths
        marked = 0 if run.tokenizer.marks is None else len(run.tokenizer.marks.all)
        strange = 0
        if unknown is not None and not marked:
            strange = int((np.add.reduceat(rows.ids != unknown, begins) == 0).sum())
        return ClassifiedTexts(found.classes, found.chances, found.cut, strange)

    @classmethod
    def score_file(cls, run: Run, model: Classifier, file: GivenFile, window: ReadingWindow) -> list[Score]:
        if any(window):
            raise UserError("labelled texts are scored whole: segment, stride and state do not apply")
        data, classes = _data(run.recipe), classes_of(run)
        columns = data.columns if data.source == FILES else Columns()
        asked = list(file.columns) if len(file.columns) > 1 else file.columns[0] if file.columns else columns.text
        label = columns.label if file.label is None else file.label
        header = columns.header if (asked, label) == (columns.text, columns.label) else None
        written = replace(columns.format, encoding=file.encoding or columns.format.encoding)
        rows = labelled_rows(file.path, asked, label, header, written, columns.empty, ("--column ", "--label "))
        place = {name: k for k, name in enumerate(classes)}
        if strange := [row.label for row in rows if row.label not in place]:
            raise UserError(
                f"{len(strange):,} of the {len(rows):,} rows of '{file.path.name}' have a class that {run.name} was "
                f"not trained on, such as '{strange[0]}'{did_you_mean(strange[0], classes)}"
            )
        (found,) = predict(model, _rows(run, rows, np.array([place[row.label] for row in rows])), classes)
        return found.scores(file.path.name)


def _rows(run: Run, rows: Sequence[Row], labels: np.ndarray) -> Texts:
    """Tokenise texts given by the user for a run's model. Whether they were in train is not known here."""
    pairs, texts = isinstance(_data(run.recipe).text, list), [row.text for row in rows]
    wrong = next((k for k, text in enumerate(texts) if pairs != (BETWEEN in text)), None)
    if wrong is not None:
        raise UserError(
            f"{run.name} reads {'several texts' if pairs else 'one text'} per row, but row {wrong + 1} is different"
        )
    ids = run.tokenizer.rows_of(texts)
    ends = np.cumsum([len(one) for one in ids], dtype=np.int64)
    marks = run.tokenizer.marks
    closing = 0 if marks is None else marks.behind
    return Texts(
        texts, labels, np.zeros(len(ids), np.bool_), np.concatenate(ids), ends, closing, marks if pairs else None
    )


def classes_of(run: Run) -> tuple[str, ...]:
    """The class names of a run."""
    classes = run.facts.get("classes")
    if not classes:
        raise UserError(f"{run.folder / 'run.json'} does not list the model's classes")
    return tuple(classes)


def _built(
    recipe: Recipe, vocabulary: int, classes: int, seeds: Sequence[int], device: str, begins: bool = True
) -> Classifier:
    """The model with the modules that tuning adds and, if training begins, with its initial weights."""
    spec = _spec(recipe)
    model = spec.build(vocabulary, classes, seeds, device)
    if begins:
        model.notes = spec.start.fill(model)
    return recipe.training.tuning.apply(model, seeds)


def _data(recipe: Recipe) -> Labelled:
    assert isinstance(recipe.data, Labelled)
    return recipe.data


def _spec(recipe: Recipe) -> ClassifierSpec:
    assert isinstance(recipe.model, ClassifierSpec)
    return recipe.model
