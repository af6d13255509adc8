"""What running text gives to the audits of data, baselines, training and scores."""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from headway.audit.audit import Audit, Baseline, Report, run_audits
from headway.audit.baselines import language_baselines
from headway.audit.data.batches import READ_AUDITS, ReadInTraining, TextPlaces
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.evidence import Evidence
from headway.audit.running.recount import TextRecount, another_train, text_of
from headway.data.tokenizers import Tokenizer
from headway.data.tokens import Tokens
from headway.scoring.metrics import PERPLEXITY

SPLITS_KEPT, LETTERS_KEPT = 4, 1 << 24
"""Cache of tokenized texts: how many, and the maximum length of each in characters."""


class TextEvidence(Evidence):
    """`task`: language modelling, `headway.tasks.language_modelling.LanguageModelling`."""

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        return [(TextSet(self.task.data.texts), TEXT_AUDITS), *super().looked_at()]

    def reading(self) -> Report:
        if not self.task.is_stock("sampler"):
            why = "this task has its own sampler"
            return Report(not_run={one.name: why for one in READ_AUDITS})
        sampler, ids = self.task.sampler([self.recipe.seed], "cpu"), self.task.data.split("train").ids
        spec, find = self.recipe.data.batches, TextPlaces(ids)
        everywhere, size = find.everywhere(self.recipe.segment + 1), f"{len(ids):,} tokens"
        given = ReadInTraining(sampler, find, everywhere, size, spec.by_seed, spec.rows_go_on)
        return run_audits(READ_AUDITS, given)

    def measure_baselines(self) -> Sequence[Baseline]:
        recipe, data, splits = self.recipe, self.task.data, self.task.scored_splits
        ids = {split: tokens.ids for split, tokens in data.splits.items()}
        found = language_baselines(ids, splits, data.tokenizer.size, recipe.reading, data.tokenizer.kind)
        return [baseline for of_split in found.values() for baseline in of_split]

    def beside(self, split: str) -> dict[str, Any]:
        scored = f"{split}.{PERPLEXITY.name}"
        unigram, counting = (math.log(b.score.value) for b in self.baselines if b.score.name == scored)
        return {"chance": unigram, "chance_is": "token frequencies", "counting": counting}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split)) - 1

    def recount(self, split: str) -> TextRecount:
        data, text = self.task.data, text_of(self.task, split)
        cut = _cut_again if len(text) <= LETTERS_KEPT else _cut_again.__wrapped__
        return TextRecount(text, cut(data.tokenizer.to_json(), text), data.split(split), *self.recipe.reading)

    @cached_property
    def train_again(self) -> str | None:
        return another_train(self.task)


@lru_cache(SPLITS_KEPT)
def _cut_again(tokenizer: str, text: str) -> Tokens:
    """A text tokenized by a serialised tokenizer. Cached because the runs of a study share their texts, and tokenizing
    takes as long as auditing a small model."""
    return Tokenizer.from_json(tokenizer).encode(text)
