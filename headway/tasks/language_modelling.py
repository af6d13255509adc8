"""Language modelling: running text, whose next token is to be predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from headway.core.errors import UserError
from headway.data.running import corpus as corpora
from headway.data.running.corpus import Corpus
from headway.data.spec import Text
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.cost import training_flops_per_token
from headway.scoring.likelihood import surprise
from headway.scoring.score import Score
from headway.tasks.task import Task
from headway.training.update import Sampler


@dataclass(frozen=True)
class LanguageModelling(Task):
    quantities = ("loss", "perplexity", "perplexity_per_word", "bits_per_byte")

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
        per_token = training_flops_per_token(_spec(self.recipe), self.data.tokenizer.size, self.recipe.segment)
        return self.tokens_per_step * per_token

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


def _spec(recipe: Recipe) -> LanguageModelSpec:
    assert isinstance(recipe.model, LanguageModelSpec)
    return recipe.model
