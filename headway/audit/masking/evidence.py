"""What running text gives to the audits of masked language models; and their baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from headway.audit import ngram
from headway.audit.audit import Audit, Baseline, DoesNotApply, Report, run_audits
from headway.audit.baselines import MOST_TOKENS, ORDER
from headway.audit.data.batches import READ_AUDITS, ReadInTraining
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.evidence import Evidence
from headway.audit.masking.batches import MASKING_AUDITS, RestoredLines, RestoredPlaces, looked_at
from headway.audit.masking.recount import MaskedRecount, chosen
from headway.audit.running.recount import another_train, text_of
from headway.data.running.rows import TextRows
from headway.data.tokenizers import Tokenizer
from headway.scoring.metrics import MASKED_ACCURACY, PSEUDO_PERPLEXITY
from headway.scoring.score import Score


class MaskedEvidence(Evidence):
    """`task`: masked language modelling, `headway.tasks.masked.MaskedModelling`."""

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        return [(TextSet(self.task.data.texts), TEXT_AUDITS), *super().looked_at()]

    def reading(self) -> Report:
        train, batches = self.task.data.split("train"), self.recipe.data.batches
        tokenizer, seeds = self.task.data.tokenizer, [self.recipe.seed]
        sampler = self.task.sampler(seeds, "cpu")
        if batches.by_line:
            find, everywhere, size = RestoredLines(train, tokenizer.marks), (), f"{len(train):,} lines"
        else:
            find = RestoredPlaces(train.ids, tokenizer.marks)
            everywhere, size = find.everywhere(self.task.longest), f"{len(train.ids):,} tokens"
        read = ReadInTraining(sampler, find, everywhere, size, batches.by_seed, goes_on=False)
        try:
            hidden = looked_at(sampler, self._changed(train).sampler(seeds, "cpu"), *self._masking)
        except DoesNotApply as reason:
            return run_audits(READ_AUDITS, read) + Report(not_run={one.name: str(reason) for one in MASKING_AUDITS})
        return run_audits(READ_AUDITS, read) + run_audits(MASKING_AUDITS, hidden)

    @property
    def _masking(self) -> tuple[Any, ...]:
        tokenizer = self.task.data.tokenizer
        return self.recipe.model.masking, tokenizer.marks, tokenizer.words

    def _changed(self, train: TextRows) -> Any:
        """The same task on a text in which every token is replaced by another."""
        data, words = self.task.data, self.task.data.tokenizer.words
        number = np.searchsorted(words, train.ids)
        other = len(words) - 1 - number  # reversed, so that nothing that depends on their order stays the same
        other = words[np.where(other == number, (number + 1) % len(words), other)].astype(train.ids.dtype)
        return replace(self.task, data=replace(data, splits={**data.splits, "train": replace(train, ids=other)}))

    @property
    def baselines_depend_on(self) -> Sequence[Any]:
        return [self.recipe.model.masking.share]

    def measure_baselines(self) -> Sequence[Baseline]:
        data, share = self.task.data, self.recipe.model.masking.share
        splits = {split: data.split(split) for split in self.task.scored_splits}
        return guessed_cheaply(data.split("train").ids, splits, data.tokenizer, share)

    def beside(self, split: str) -> dict[str, Any]:
        scored = f"{split}.{PSEUDO_PERPLEXITY.name}"
        unigram, counting = (math.log(b.score.value) for b in self.baselines if b.score.name == scored)
        return {"chance": unigram, "chance_is": "token frequencies", "counting": counting}

    def size(self, split: str) -> int:
        rows = self.task.data.split(split)
        share = self.recipe.model.masking.share
        return sum(min(max(1, round(share * n)), n) for n in rows.lengths.tolist())

    def recount(self, split: str) -> MaskedRecount:
        data, text = self.task.data, text_of(self.task, split)
        longest, by_line = self.task.longest, self.recipe.data.batches.by_line
        return MaskedRecount(text, data.tokenizer, data.split(split), longest, by_line, self.recipe.model.masking.share)

    @cached_property
    def train_again(self) -> str | None:
        return another_train(self.task)


def guessed_cheaply(
    train: np.ndarray, splits: Mapping[str, TextRows], tokenizer: Tokenizer, share: float
) -> list[Baseline]:
    """Baselines on the tokens that are masked in scoring: token frequencies, the commonest token, and the four tokens
    before each, without later ones."""
    train, words, vocabulary, marks = train[:MOST_TOKENS], tokenizer.words, tokenizer.size, tokenizer.marks
    assert marks is not None
    counts = np.bincount(train, minlength=vocabulary)
    nats = -np.log((counts + 1) / (counts[words].sum() + len(words)))  # add-one smoothing
    counted, commonest = ngram.fit(train, vocabulary, ORDER), int(counts.argmax())
    fitted, found = f"fitted on {len(train):,} train tokens", []
    for split, rows in splits.items():
        begins = rows.ends - rows.lengths
        inside = [np.array(chosen(k, int(n), rows.longest, share, marks)) for k, n in enumerate(rows.lengths)]
        places = np.concatenate([begin + own for begin, own in zip(begins, inside, strict=True)])
        targets = rows.ids[places]
        before = np.minimum(np.concatenate([np.arange(n) for n in rows.lengths])[1:], ORDER - 1)
        by_counting = np.concatenate(([nats[rows.ids[0]]], counted.losses(rows.ids, before)))[places]
        how = f"{split} · {len(places):,} hidden tokens"
        scored = f"{split}.{PSEUDO_PERPLEXITY.name}"
        found += [
            Baseline(
                "unigram",
                Score(scored, math.exp(nats[targets].mean()), f"exp of nats by token frequencies, {fitted} · {how}"),
            ),
            Baseline(
                f"{ORDER}-gram",
                Score(
                    scored,
                    math.exp(by_counting.mean()),
                    f"exp of nats by the {ORDER - 1} tokens before, unmasked, and none after, {fitted} · {how}",
                ),
            ),
            Baseline(
                "majority",
                Score(
                    f"{split}.{MASKED_ACCURACY.name}",
                    float((targets == commonest).mean()),
                    f"share of hidden tokens that are the commonest of train · {how}",
                ),
            ),
        ]
    return found
