"""What labelled texts give to the audits of data, baselines, training and scores."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.audit.audit import Audit, Baseline, DoesNotApply, Report, run_audits
from headway.audit.baselines import bag_of_words, majority, one_word
from headway.audit.data.batches import LABEL_AUDITS, READ_AUDITS, LabelledBatches, ReadInTraining, RowPlaces
from headway.audit.data.rows import ROW_AUDITS, RowSet
from headway.audit.evidence import Evidence
from headway.audit.labelled.recount import RowRecount, rows_again
from headway.data.labelled.tables import Row


class RowEvidence(Evidence):
    """`task`: a classification task, `headway.tasks.classification.Classification`."""

    @cached_property
    def rows(self) -> RowSet:
        data = self.task.data
        rows = {split: texts.texts for split, texts in data.splits.items()}
        labels = {split: [data.classes[k] for k in texts.labels] for split, texts in data.splits.items()}
        return RowSet(rows, labels, data.classes)

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        return [(self.rows, ROW_AUDITS), *super().looked_at()]

    def reading(self) -> Report:
        sampler = self.task.sampler([self.recipe.seed], "cpu")
        batches, train = [sampler.at(step) for step in range(3)], self.task.data.split("train")
        labels = run_audits(LABEL_AUDITS, LabelledBatches(batches, train, self.recipe.segment))
        find, drawn = RowPlaces(train, self.recipe.segment), self.recipe.data.batches.by_seed
        read = ReadInTraining(sampler, find, find.everywhere, f"{len(train):,} rows", drawn, goes_on=False)
        return run_audits(READ_AUDITS, read) + labels

    def measure_baselines(self) -> Sequence[Baseline]:
        rows, labels, splits = self.rows.rows, self.rows.labels, self.task.scored_splits
        found = [majority(labels, split) for split in splits]
        try:
            found += one_word(rows, labels, splits)
            by_split = bag_of_words(rows, labels, splits)
        except DoesNotApply:  # only one class, or no words
            return found
        return found + [baseline for of_split in by_split.values() for baseline in of_split]

    def beside(self, split: str) -> dict[str, Any]:
        """The loss of predicting the class frequencies of train, whatever the text."""
        train, held_out = Counter(self.rows.labels["train"]), self.rows.labels[split]
        nats = [math.log(train.total() / train[label]) for label in held_out]
        return {"chance": sum(nats) / len(nats), "chance_is": "class frequencies"}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))

    def recount(self, split: str) -> RowRecount:
        data, context = self.task.data, self.recipe.model.context
        rows = self._again(split)
        return RowRecount(rows, self.rows.rows["train"], data.split(split), data.classes, data.tokenizer, context)

    @cached_property
    def train_again(self) -> str | None:
        used, again = Counter(self._used["train"]), Counter(self._again("train"))
        return None if used == again else f"{used.total():,} rows; the source has {again.total():,}"

    @cached_property
    def _used(self) -> dict[str, list[Row]]:
        by_split = self.rows.labels.items()
        return {split: [Row(*row) for row in zip(self.rows.rows[split], of, strict=True)] for split, of in by_split}

    def _again(self, split: str) -> list[Row]:
        """The rows as the source has them; tasks with their own loader are taken as they are."""
        spec = self.recipe.data
        if not self.task.is_stock("load"):
            return self._used[split]
        return rows_again(spec.source, spec.path, spec.columns, split, self._used)
