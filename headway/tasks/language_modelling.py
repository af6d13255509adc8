"""The language modelling task: predict the next token of running text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply
from headway.audit.baselines import ORDER, CheapMethods
from headway.audit.models.definitions import cross_entropy, penalty
from headway.audit.models.learning import OF_NEXT_TOKENS, equal_chances
from headway.audit.probing import Probing
from headway.audit.running.evidence import TextEvidence
from headway.core import random
from headway.core.errors import UserError
from headway.data.running import corpus as corpora
from headway.data.running.corpus import Corpus
from headway.data.running.sources import FILES
from headway.data.running.spec import Text
from headway.data.tokenizers import Tokenizer
from headway.data.tokens import Tokens
from headway.data.vocabularies import Given
from headway.look.gradient_rows import GradientRows, in_segments
from headway.look.gradients import Explained, likeliest
from headway.look.token_losses import Losing, TokenLosses
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.decoding import sample, samples
from headway.scoring.ensemble import PIECES, gain, nats_of_mean
from headway.scoring.likelihood import Surprise, losses_of, surprise, surprise_of
from headway.scoring.metrics import BITS_PER_BYTE, LOSS, PERPLEXITY, PERPLEXITY_PER_WORD
from headway.scoring.reading import Reading
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText, score_text
from headway.tasks.abilities import (
    Draw,
    FollowsGradients,
    GivenFile,
    JoinsOthers,
    ReadingWindow,
    ReadsSegments,
    ScoredTogether,
    ScoresText,
    Writes,
)
from headway.tasks.task import Task
from headway.training.update import Sampler

MAX_ELEMENTS = 1 << 32
"""Largest allowed tensor of a layer in elements, when a segment is read: 16 GiB in float32."""


class NextTokens(Probing):
    """At every position the model predicts the next token, and sees only those before it."""

    per_token, looks_ahead = True, False
    by_heart = 16  # few rows suffice, since every token is a target
    audits = OF_NEXT_TOKENS

    def run(self, model: LanguageModel, ids: Tensor, padding_mask: Tensor | None = None) -> None:
        model.hidden(ids, padding_mask=padding_mask)

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        return cross_entropy(answers, batch.targets)

    def lowered(self, model: LanguageModel, answers: Tensor, batch: Any, before: Any = None) -> Tensor:
        """The training objective: the loss plus a penalty on the vectors that the output layer reads. They are computed
        again, with the same dropout noise."""
        nats = self.loss(answers, batch)
        if not model.spec.penalty.counts:
            return nats
        return nats + penalty(model.spec.penalty, model.hidden(batch.inputs, model.going_on_from(before))[0])

    def clueless(self, model: LanguageModel) -> tuple[float, str]:
        return equal_chances(model.vocabulary)

    def go_on(self, model: LanguageModel, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        if model.why_no_cache:
            raise DoesNotApply(f"this model has no cache: {model.why_no_cache}")
        return model(ids, state)

    def carry_on(self, model: LanguageModel, ids: Tensor, carried: Any) -> tuple[Tensor, Any]:
        answers, after = model(ids, model.going_on_from(carried))
        return answers, model.carried(after)


@dataclass(frozen=True)
class LanguageModelling(Task, JoinsOthers, ReadsSegments, FollowsGradients, ScoresText, Writes):
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
        return cls(recipe, corpora.load(data.source, data.path, data.valid_fraction, data.tokenizer, data.encoding))

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
            what = f"split '{split}' of '{self.data.name}' has fewer than two tokens"
            raise UserError(f"{what}: it has nothing to predict")
        corpora.check_not_constant(self.data)
        length = min(self.recipe.reading.segment, len(self.data.split(split)) - 1)
        if (numbers := _spec(self.recipe).largest(length) * length) > MAX_ELEMENTS:
            raise UserError(
                f"scoring.segment={self.recipe.reading.segment:,}: to read {length:,} tokens of '{split}' at once "
                f"takes {4 * numbers / 2**30:,.1f} GiB for one tensor; use a shorter segment, with a scoring.stride "
                "if every token should have much context"
            )

    def evaluate(self, model: LanguageModel) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        segment, at_most = self.recipe.segment, self.recipe.training.evaluate_tokens
        for split in self.recipe.training.evaluate_on:
            text, kind = self.data.split(split), self.data.tokenizer.kind
            read = surprise(model, text, segment, segment, kind, at_most, carried=self.recipe.carries)
            for scores, one in zip(found, read, strict=True):
                scores[f"{split}.loss"] = one.nats / one.tokens
        return found

    def score(self, model: LanguageModel, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            found = _surprise(model, self.data.split(split), self.recipe.reading, self.data.tokenizer)
            for scores, one in zip(per_replica, found, strict=True):
                scores += one.scores(split)
        return per_replica

    def title(self, model: LanguageModel) -> list[str]:
        data, tokens = self.recipe.data, len(self.data.split("train").ids)
        lines = [
            f"{data.source}: {tokens:,} {data.tokenizer.kind} tokens to train on, vocabulary: {model.vocabulary:,}"
        ]
        return [*lines, self._state] if self.recipe.model.remembers else lines

    @property
    def _state(self) -> str:
        """For messages: whether a model that can carry state does so in training."""
        if not self.recipe.data.rows_go_on:
            return f"no state is carried: every row ({self.recipe.data.batches.kind}) starts with a fresh state"
        steps = self.sampler([self.recipe.seed], "cpu").steps_per_epoch
        return f"state is carried from batch to batch and reset with each epoch ({steps:,} steps)"

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, **({"state": self._state} if self.recipe.model.remembers else {})}

    def on_less_data(self, folder: Path, most: int) -> Recipe:
        """The beginning of each split, with the vocabulary of the full data."""
        longest = max(len(self.data.split(split)) for split in self.scored_splits)
        if longest <= most:
            return self.recipe
        for split, text in self.data.texts.items():
            share = min(1.0, (8 if split == "train" else 1) * most / len(self.data.split(split)))
            (folder / f"{split}.txt").write_text(text[: int(share * len(text))], "utf-8")
        (folder / "tokenizer.json").write_text(self.data.tokenizer.to_json(), "utf-8")
        given = Given(path=str(folder / "tokenizer.json"))
        data = self.recipe.data.model_copy(update={"source": FILES, "path": str(folder), "tokenizer": given})
        return self.recipe.model_copy(update={"data": data})

    def gather_evidence(self) -> TextEvidence:
        return TextEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        return likeliest(answer, run.tokenizer.pieces)

    @classmethod
    def losing(cls, run: Run, model: LanguageModel, text: str) -> Losing:
        def now() -> TokenLosses:
            found = cls.score_text(run, model, text, ReadingWindow())
            return TokenLosses(found.pieces, found.nats, "of each token, given those before it")

        return now

    # --- abilities ---------------------------------------------------------------------------------------------------

    def in_segments(self, model: LanguageModel, window: ReadingWindow) -> Self:
        segment, stride, carried = _reading(self.recipe, model, window)
        state = "carried" if carried else "fresh"
        scoring = self.recipe.scoring.model_copy(update={"segment": segment, "stride": stride, "state": state})
        return replace(self, recipe=self.recipe.model_copy(update={"scoring": scoring}))

    def surprise(self, model: LanguageModel, split: str, reading: Reading, at_most: int) -> Surprise:
        tokens, (kind, unknown) = self.data.split(split), (self.data.tokenizer.kind, self.data.tokenizer.unknown)
        return surprise(model, tokens, reading.segment, reading.stride, kind, at_most, unknown, reading.carried)[0]

    @torch.no_grad()
    def told(self, model: LanguageModel, split: str) -> list["TokenNats"]:
        reading = self.recipe.reading
        found = losses_of(model.eval(), torch.as_tensor(self.data.split(split).ids), reading)
        return [TokenNats(one, reading) for one in found.double().cpu().numpy()]

    def together(self, split: str, told: Sequence["TokenNats"]) -> ScoredTogether:
        nats = np.stack([one.nats for one in told])
        of_all, readings = nats_of_mean(nats), dict.fromkeys(one.reading for one in told)
        each = [self._surprise(split, one.nats, one.reading).scores(split) for one in told]
        whole = self._surprise(split, of_all, told[0].reading)
        if len(readings) > 1:
            whole = replace(
                whole, read_in="read differently by each member: " + "; ".join(reading.label for reading in readings)
            )
        scores = [replace(score, label=f"{_mean_of(told)}: {score.label}") for score in whole.scores(split)]
        gained = gain(f"{split}.{LOSS.name}", LOSS.unit, nats, of_all, LOSS.lower_is_better, PIECES)
        return ScoredTogether(scores, each, [gained])

    def _surprise(self, split: str, nats: np.ndarray, reading: Reading) -> Surprise:
        tokens, tokenizer = self.data.split(split), self.data.tokenizer
        return surprise_of(float(nats.sum()), tokens, reading, tokenizer.kind, unknown=tokenizer.unknown)

    def running(self, split: str) -> tuple[Tensor, Tokenizer]:
        return torch.as_tensor(self.data.split(split).ids).long(), self.data.tokenizer

    def nats(self, model: LanguageModel, rows: Tensor) -> Tensor:
        return model.losses(rows[..., :-1], rows[..., 1:])

    def followed(self, split: str, most: int) -> GradientRows:
        return in_segments(self.running(split)[0], self.recipe.segment, most)

    @classmethod
    def score_text(cls, run: Run, model: LanguageModel, text: str, window: ReadingWindow) -> ScoredText:
        tokenizer = run.tokenizer
        return score_text(model, tokenizer, text, _reading(run.recipe, model, window), tokenizer.kind)

    @classmethod
    def score_file(cls, run: Run, model: LanguageModel, file: GivenFile, window: ReadingWindow) -> list[Score]:
        tokenizer = run.tokenizer
        tokens, reading = tokenizer.encode(file.text()), _reading(run.recipe, model, window)
        (found,) = _surprise(model, tokens, reading, tokenizer)
        return found.scores(file.path.name)

    @classmethod
    def write(
        cls, run: Run, model: LanguageModel, prompt: str, how: Draw, show: Callable[[str], object]
    ) -> tuple[str, str | None]:
        tokenizer = run.tokenizer
        drawn = tokenizer.encode(prompt).ids.tolist()
        given, generator = torch.tensor(drawn, dtype=torch.int64), random.generator(how.seed, "sample")
        # A token can be part of a character, so text is shown only once it decodes completely. How a token decodes
        # depends on the token before it and no earlier one, so only the last few are decoded again.
        last, settled, text = 0, 0, ""
        for token in sample(model, given, how.tokens, how.temperature, how.top_k, how.top_p, generator):
            drawn.append(token)
            longer = tokenizer.decode(drawn[last:])
            if not longer.endswith("\ufffd"):
                show(longer[len(text) :])
                last, settled = settled, len(drawn)
                text = tokenizer.decode(drawn[last:])
        show(tokenizer.decode(drawn[last:])[len(text) :])
        return tokenizer.decode(drawn), model.why_no_cache and f"without a cache: {model.why_no_cache}"

    @classmethod
    def write_many(cls, run: Run, model: LanguageModel, prompt: str, how: Draw, count: int) -> list[str]:
        tokenizer = run.tokenizer
        given = tokenizer.encode(prompt).ids.tolist()
        noise = [random.generator(how.seed, "sample", *((k,) if k else ())) for k in range(count)]
        ids = torch.tensor(given, dtype=torch.int64)
        drawn = list(samples(model, ids, how.tokens, how.temperature, how.top_k, how.top_p, noise))
        return [tokenizer.decode([*given, *(tokens[k] for tokens in drawn)]) for k in range(count)]


class TokenNats(NamedTuple):
    """Nats of every token but the first of a text, and how the text was read."""

    nats: np.ndarray
    reading: Reading


def _mean_of(members: Sequence[Any]) -> str:
    return f"ensemble of {len(members)} runs, mean of their probabilities"


def _spec(recipe: Recipe) -> LanguageModelSpec:
    assert isinstance(recipe.model, LanguageModelSpec)
    return recipe.model


def _surprise(model: LanguageModel, tokens: Tokens, reading: Reading, tokenizer: Tokenizer) -> list[Surprise]:
    segment, stride, carried = reading
    return surprise(model, tokens, segment, stride, tokenizer.kind, unknown=tokenizer.unknown, carried=carried)


def _reading(recipe: Recipe, model: LanguageModel, asked: ReadingWindow) -> Reading:
    """The reading as asked for, else as the recipe says."""
    length, limit = asked.segment or recipe.scoring_segment, model.positions.limit
    if limit is not None and length > limit:
        raise UserError(f"a segment of {length} tokens is too long: the learned positions end at {limit}")
    step = asked.stride or (length if asked.segment or asked.state == "carried" else recipe.stride)
    if step > length:
        raise UserError(f"a stride of {step} would skip tokens between segments of {length}")
    if asked.state == "carried" and not recipe.model.remembers:
        raise UserError("no layer of this model carries a state: only state=fresh is possible")
    if asked.state == "carried" and step < length:
        raise UserError(f"with carried state every token is read once, so a stride of {step} is not possible")
    carried = recipe.carries if asked.state is None else asked.state == "carried"
    return Reading(length, step, carried and step == length)
