"""Language modelling: running text, whose next token is to be predicted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.audit.audit import Baseline, DoesNotApply, Report, run_audits
from headway.audit.baselines import ORDER, CheapMethods, language_baselines
from headway.audit.data.text import TEXT_AUDITS, TextSet
from headway.audit.evidence import Evidence, token_audits
from headway.audit.learning import OF_NEXT_TOKENS, equal_chances
from headway.audit.probe import Probing
from headway.audit.recount import TextRecount, text_again
from headway.core import random
from headway.core.errors import UserError
from headway.data.running import corpus as corpora
from headway.data.running.corpus import Corpus
from headway.data.running.sources import read_text
from headway.data.spec import Text
from headway.data.tokenizers import Tokenizer
from headway.look.gradients import Explained, likeliest
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.decoding import sample
from headway.scoring.likelihood import Surprise, surprise
from headway.scoring.metrics import BITS_PER_BYTE, LOSS, PERPLEXITY, PERPLEXITY_PER_WORD
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText, score_text
from headway.tasks.abilities import Draw, ReadingWindow, ReadsSegments, ScoresText, Writes
from headway.tasks.task import Task
from headway.training.update import Sampler


class NextTokens(Probing):
    """Every token is asked which one follows, and knows only those before it."""

    per_token, looks_ahead = True, False
    by_heart = 16  # a target per token: four rows are many
    audits = OF_NEXT_TOKENS

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(answers.flatten(0, -2).float(), batch.targets.flatten())

    def clueless(self, model: LanguageModel) -> tuple[float, str]:
        return equal_chances(model.vocabulary)

    def go_on(self, model: LanguageModel, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        if model.why_no_cache:
            raise DoesNotApply(f"this model keeps no cache: {model.why_no_cache}")
        return model(ids, state)


@dataclass(frozen=True)
class LanguageModelling(Task, ReadsSegments, ScoresText, Writes):
    kind, models, example = "language-model", "language models", 'headway score {run} --text "…"'
    metrics = (LOSS, PERPLEXITY, PERPLEXITY_PER_WORD, BITS_PER_BYTE)
    headline = PERPLEXITY
    cheap_methods = CheapMethods("unigram", f"{ORDER}-gram")
    probing = NextTokens()

    data: Corpus

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        data = recipe.data
        assert isinstance(data, Text)
        return cls(recipe, corpora.load(data.source, data.path, data.valid_fraction, data.tokenizer))

    @classmethod
    def rebuild(cls, run: Run, device: str) -> LanguageModel:
        return _spec(run.recipe).build(run.tokenizer.size, [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> LanguageModel:
        return _spec(self.recipe).build(self.data.tokenizer.size, seeds, device)

    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        assert isinstance(self.recipe.data, Text)
        train_ids = torch.as_tensor(self.data.split("train").ids).to(device)
        return self.recipe.data.batches.build(train_ids, self.recipe.segment, self.recipe.training.batch, seeds)

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.training.batch * self.recipe.segment

    @property
    def flops_per_step(self) -> int:
        per_token = _spec(self.recipe).forward_flops_per_token(self.data.tokenizer.size, self.recipe.segment)
        return 3 * self.tokens_per_step * per_token

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split))

    def check_split(self, split: str) -> None:
        if len(self.data.split(split)) < 2:
            what = f"split '{split}' of '{self.data.name}' is a single token"
            raise UserError(f"{what}: there is nothing to predict in it")

    def evaluate(self, model: LanguageModel) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        segment, at_most = self.recipe.segment, self.recipe.training.evaluate_tokens
        for split in self.recipe.training.evaluate_on:
            text, kind = self.data.split(split), self.data.tokenizer.kind
            for scores, one in zip(found, surprise(model, text, segment, segment, kind, at_most), strict=True):
                scores[f"{split}.loss"] = one.nats / one.tokens
        return found

    def score(self, model: LanguageModel, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        window, tokenizer = (self.recipe.scoring_segment, self.recipe.stride), self.data.tokenizer
        for split in splits:
            found = surprise(model, self.data.split(split), *window, tokenizer.kind, unknown=tokenizer.unknown)
            for scores, one in zip(per_replica, found, strict=True):
                scores += one.scores(split)
        return per_replica

    def title(self, model: LanguageModel) -> list[str]:
        data, tokens = self.recipe.data, len(self.data.split("train").ids)
        return [f"{data.source}: {tokens:,} {data.tokenizer.kind} tokens to train on, {model.vocabulary:,} kinds"]

    def gather_evidence(self) -> "TextEvidence":
        return TextEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        return likeliest(answer, run.tokenizer.pieces)

    # --- what else such models can do --------------------------------------------------------------------------------

    def in_segments(self, model: LanguageModel, window: ReadingWindow) -> Self:
        segment, stride = _window(self.recipe, model, window)
        scoring = self.recipe.scoring.model_copy(update={"segment": segment, "stride": stride})
        return replace(self, recipe=self.recipe.model_copy(update={"scoring": scoring}))

    def surprise(self, model: LanguageModel, split: str, segment: int, at_most: int) -> Surprise:
        tokenizer = self.data.tokenizer
        return surprise(model, self.data.split(split), segment, segment, tokenizer.kind, at_most, tokenizer.unknown)[0]

    def running(self, split: str) -> tuple[Tensor, Tokenizer]:
        return torch.as_tensor(self.data.split(split).ids).long(), self.data.tokenizer

    def nats(self, model: LanguageModel, rows: Tensor) -> Tensor:
        return model.losses(rows[..., :-1], rows[..., 1:])

    @classmethod
    def score_text(cls, run: Run, model: LanguageModel, text: str, window: ReadingWindow) -> ScoredText:
        tokenizer = run.tokenizer
        return score_text(model, tokenizer, text, *_window(run.recipe, model, window), tokenizer.kind)

    @classmethod
    def score_file(cls, run: Run, model: LanguageModel, path: Path, window: ReadingWindow) -> list[Score]:
        tokenizer = run.tokenizer
        tokens, read_in = tokenizer.encode(read_text(path)), _window(run.recipe, model, window)
        (found,) = surprise(model, tokens, *read_in, tokenizer.kind, unknown=tokenizer.unknown)
        return found.scores(path.name)

    @classmethod
    def write(
        cls, run: Run, model: LanguageModel, prompt: str, how: Draw, show: Callable[[str], object]
    ) -> tuple[str, str | None]:
        tokenizer = run.tokenizer
        drawn, text, longer = tokenizer.encode(prompt).ids.tolist(), "", ""
        given, generator = torch.tensor(drawn, dtype=torch.int64), random.generator(how.seed, "sample")
        for token in sample(model, given, how.tokens, how.temperature, how.top_k, how.top_p, generator):
            drawn.append(token)
            # A piece can change what stands before it (half a character, in bytes): what is settled is shown.
            longer = tokenizer.decode(drawn)
            if not longer.endswith("\ufffd"):
                show(longer[len(text) :])
                text = longer
        show(longer[len(text) :])
        return longer, model.why_no_cache and f"without a cache: {model.why_no_cache}"


class TextEvidence(Evidence):
    task: LanguageModelling

    def audit_data(self) -> Report:
        return run_audits(TEXT_AUDITS, TextSet(self.task.data.texts)) + token_audits(self.task.data)

    def measure_baselines(self) -> Sequence[Baseline]:
        recipe, data, splits = self.recipe, self.task.data, self.task.scored_splits
        ids = {split: tokens.ids for split, tokens in data.splits.items()}
        window = recipe.scoring_segment, recipe.stride
        found = language_baselines(ids, splits, data.tokenizer.size, *window, data.tokenizer.kind)
        return [baseline for of_split in found.values() for baseline in of_split]

    def beside(self, split: str) -> dict[str, Any]:
        scored = f"{split}.{PERPLEXITY.name}"
        unigram, counting = (math.log(b.score.value) for b in self.baselines if b.score.name == scored)
        return {"chance": unigram, "chance_is": "token frequencies", "counting": counting}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split)) - 1

    def recount(self, split: str) -> TextRecount:
        data, spec, recipe = self.task.data, self.recipe.data, self.recipe
        text, used = data.texts[split], data.split(split)
        if type(self.task).load.__func__ is LanguageModelling.load.__func__:  # others may read theirs in any way
            text = text_again(spec.source, spec.path, split, dict(data.texts))
        return TextRecount(text, data.tokenizer.encode(text), used, recipe.scoring_segment, recipe.stride)


def _spec(recipe: Recipe) -> LanguageModelSpec:
    assert isinstance(recipe.model, LanguageModelSpec)
    return recipe.model


def _window(recipe: Recipe, model: LanguageModel, asked: ReadingWindow) -> tuple[int, int]:
    """Segment and stride: those asked for, else the recipe's."""
    length, limit = asked.segment or recipe.scoring_segment, model.positions.limit
    if limit is not None and length > limit:
        raise UserError(f"a segment of {length} tokens, but the learned positions end at {limit}")
    step = asked.stride or (length if asked.segment else recipe.stride)
    if step > length:
        raise UserError(f"a stride of {step} would skip tokens between segments of {length}")
    return length, step
