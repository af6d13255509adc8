"""What translation pairs give to the audits of data, baselines, training and scores."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headway.audit import ngram
from headway.audit.audit import Audit, Baseline, Report, of_plugins, run_audits
from headway.audit.data.batches import READ_AUDITS, ReadInTraining
from headway.audit.data.pair_batches import BATCH_AUDITS, PairsRead
from headway.audit.data.pairs import PAIR_AUDITS, PairSet
from headway.audit.data.tokens import TOKEN_AUDITS, TokenSet
from headway.audit.evidence import Evidence
from headway.audit.translation.baselines import copied, remembered
from headway.audit.translation.recount import PairRecount, pairs_again
from headway.audit.translation.written import WRITTEN_AUDITS, Written

ORDER = 5
"""Order of the n-gram model of targets with which a translator is compared; it reads no source."""


class PairEvidence(Evidence):
    """`task`: a translation task, `headway.tasks.translation.Translating`."""

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        data = self.task.data
        ours, theirs = data.tokenizer, data.target_tokenizer
        # Two vocabularies are audited as one: the token ids of targets follow those of sources.
        shift = 0 if data.is_joint else ours.size
        ids = {}
        for split, pairs in data.splits.items():
            behind = pairs.target.ids.astype(np.int64) + shift
            if theirs.unknown is not None and shift:
                behind[pairs.target.ids == theirs.unknown] = ours.unknown if ours.unknown is not None else behind.max()
            ids[split] = np.concatenate((pairs.source.ids, behind))

        def show(tokens: list[int]) -> list[str]:
            return [(ours.pieces([k]) if k < ours.size else theirs.pieces([k - shift]))[0] for k in tokens]

        pairs = PairSet(self.used, self.task.pairs.is_exact, data.files)
        tokens = TokenSet(ids, theirs.size + shift, ours.unknown, show)
        return [(pairs, PAIR_AUDITS), (tokens, [*TOKEN_AUDITS, *of_plugins("data")])]

    @property
    def used(self) -> dict[str, list[tuple[str, str]]]:
        """The pairs of every split, as they are used for training and scoring."""
        return {
            split: list(zip(pairs.source.texts, pairs.target.texts, strict=True))
            for split, pairs in self.task.data.splits.items()
        }

    def reading(self) -> Report:
        sampler, spec = self.task.sampler([self.recipe.seed], "cpu"), self.task.pairs.batches
        pairs = PairsRead(sampler, self.task.data.split("train"), self.recipe.segment, spec.each_once)
        # Steps contain pairs of certain lengths only, which may be anywhere in train: `every-pair` checks coverage.
        read = ReadInTraining(sampler, pairs.find, (), f"{len(pairs.kept):,} pairs", spec.by_seed, goes_on=False)
        return run_audits(READ_AUDITS, read) + run_audits(BATCH_AUDITS, pairs)

    def audit_answers(self, scored: Any) -> Report:
        if self.judged is None:
            return Report(not_run={one.name: "no held-out split was scored" for one in WRITTEN_AUDITS})
        return run_audits(WRITTEN_AUDITS, Written.of(scored, self.judged))

    @property
    def baselines_depend_on(self) -> Sequence[Any]:
        return self.task.pairs.is_exact, self.recipe.scoring.bleu_tokenizer

    def measure_baselines(self) -> Sequence[Baseline]:
        exact, tokenizer = self.task.pairs.is_exact, self.recipe.scoring.bleu_tokenizer
        train, found = self.task.data.split("train"), []
        for split in self.task.scored_splits:
            pairs = self.task.data.split(split)
            found += copied(split, pairs, exact, tokenizer) + remembered(split, train, pairs, exact, tokenizer)
        return found

    def beside(self, split: str) -> dict[str, Any]:
        """The losses of two models that read no source: token frequencies and 5-grams of the train targets."""
        held_out, (nats, counted) = _stream(self.task.data.split(split).target), self._target_models
        by_counting = counted.losses(held_out, np.arange(1, len(held_out)))
        return {
            "chance": float(nats[held_out[1:]].mean()),
            "chance_is": "token frequencies",
            "unread": float(by_counting.mean()),
        }

    @cached_property
    def _target_models(self) -> tuple[np.ndarray, ngram.NGramModel]:
        """For the targets of train: the loss of every token by its frequency, and the n-gram model."""
        target = self.task.data.split("train").target
        stream, vocabulary = _stream(target), target.end + 1
        counts = np.bincount(stream[1:], minlength=vocabulary) + 0.5
        return math.log(counts.sum()) - np.log(counts), ngram.fit(stream, vocabulary, ORDER)

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))

    def recount(self, split: str) -> PairRecount:
        data, spec = self.task.data, self.task.pairs
        used = self.used
        rows = used[split]
        if self.task.is_stock("load"):
            rows = pairs_again(spec.source, spec.path, spec.sides, split, used)
        how, context = self.recipe.scoring.decoding, self.recipe.model.context
        tokenizers, ends = (data.tokenizer, data.target_tokenizer), self.recipe.model.limit is not None
        words, trained_on = (
            self.recipe.scoring.bleu_tokenizer,
            {" ".join(source.split()) for source, _ in used["train"]},
        )
        begin = getattr(self.recipe.model, "begin", None)
        never = () if begin is None else (begin,)
        return PairRecount(rows, data.split(split), *tokenizers, context, how, ends, words, trained_on, never)


def _stream(side: Any) -> np.ndarray:
    """All texts concatenated, with END before the first and after each."""
    return np.concatenate(([side.end], np.insert(side.ids, side.ends, side.end))).astype(np.int64)
