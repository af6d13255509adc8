"""The masked language modelling task: predict masked tokens of running text from both sides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.audit.baselines import ORDER, CheapMethods
from headway.audit.masking.evidence import MaskedEvidence
from headway.audit.models.definitions import cross_entropy
from headway.audit.models.learning import equal_chances
from headway.audit.probing import Probing
from headway.core.errors import UserError
from headway.data.labelled.batches import RowTable, Shuffled
from headway.data.running import corpus as corpora
from headway.data.running.batches import TextLines
from headway.data.running.masking import Hiding, MaskedSampler
from headway.data.running.rows import RowCorpus, in_rows, pieces, rows_of_lines
from headway.data.running.sources import FILES
from headway.data.running.spec import Text
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import Given
from headway.look.gradient_rows import GradientRow, GradientRows, GradientSide, long_enough, rows_of, some_of
from headway.look.gradients import Explained, likeliest
from headway.look.token_losses import Losing, TokenLosses
from headway.models.masked_language_model import MaskedLanguageModel, MaskedLanguageModelSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.ensemble import PIECES, gain, nats_of_mean
from headway.scoring.masked import Guesses, alone, guess
from headway.scoring.metrics import LOSS, MASKED_ACCURACY, PSEUDO_PERPLEXITY
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText
from headway.tasks.abilities import (
    Filled,
    FillsIn,
    FollowsGradients,
    GivenFile,
    JoinsOthers,
    ReadingWindow,
    ScoredTogether,
    ScoresText,
)
from headway.tasks.task import Task
from headway.training.update import Sampler

MAX_LENGTH_FACTOR = 2
"""Texts to fill in may be at most this many times as long as the rows in training, if the positions allow it."""


class HiddenTokens(Probing):
    """The model predicts the token at every position and sees all others; the loss is that of masked tokens."""

    per_token, looks_ahead = True, True

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        logits = answers.gather(2, batch.places[..., None].expand(-1, -1, -1, answers.shape[-1]))
        if batch.asked is None:
            return cross_entropy(logits, batch.targets)
        return cross_entropy(logits[batch.asked], batch.targets[batch.asked])

    def clueless(self, model: MaskedLanguageModel) -> tuple[float, str]:
        return equal_chances(model.vocabulary)

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Keep whole rows, since masked tokens may be anywhere, but fewer masked tokens of each."""
        few = batch.of_rows(slice(rows))
        most = max(1, tokens // 4)
        asked = None if few.asked is None else few.asked[:1, :, :most]
        padding_mask = None if few.padding_mask is None else few.padding_mask[:1]
        parts = few.inputs[:1], few.places[:1, :, :most], few.targets[:1, :, :most]
        return replace(few, inputs=parts[0], places=parts[1], targets=parts[2], asked=asked, padding_mask=padding_mask)


@dataclass(frozen=True)
class MaskedModelling(Task, JoinsOthers, FollowsGradients, ScoresText, FillsIn):
    kind, models = "masked-language-model", "masked language models"
    example = 'headway fill {run} "… [MASK] …"'
    metrics = (LOSS, MASKED_ACCURACY, PSEUDO_PERPLEXITY)
    headline = PSEUDO_PERPLEXITY
    cheap_methods = CheapMethods("unigram", f"{ORDER}-gram", ("majority",))
    probing = HiddenTokens()

    data: RowCorpus

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        data = _data(recipe)
        corpus = corpora.load(data.source, data.path, data.valid_fraction, data.tokenizer, data.encoding)
        tokenizer = corpus.tokenizer.with_marks()
        return cls(recipe, in_rows(corpus, tokenizer, _longest(recipe, tokenizer), data.batches.by_line))

    @classmethod
    def rebuild(cls, run: Run, device: str) -> MaskedLanguageModel:
        return _spec(run.recipe).build(run.tokenizer.size, [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> MaskedLanguageModel:
        spec = _spec(self.recipe)
        model = spec.build(self.data.tokenizer.size, seeds, device)
        model.notes = spec.start.fill(model)
        return model

    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        data, tokenizer, batch = _data(self.recipe), self.data.tokenizer, self.recipe.training.batch
        train, marks = self.data.split("train"), tokenizer.marks
        assert marks is not None
        words = torch.as_tensor(tokenizer.words).to(device)
        hide = Hiding(_spec(self.recipe).masking, marks, words, seeds, self.recipe.segment, "hidden")
        if isinstance(data.batches, TextLines):
            table, lengths = train.padded(marks)
            texts = RowTable(table, lengths, np.zeros(len(train), np.int64), device)  # without labels
            rows = Shuffled(buckets=data.batches.buckets).build(texts, batch, seeds)
        else:
            rows = data.batches.build(torch.as_tensor(train.ids).to(device), self.longest, batch, seeds)
        return MaskedSampler(rows, hide)

    @property
    def longest(self) -> int:
        """Tokens of text in a row, without special tokens."""
        return _longest(self.recipe, self.data.tokenizer)

    @property
    def tokens_per_step(self) -> int:
        """The mean, since lines have different lengths."""
        if not _data(self.recipe).batches.by_line:
            return self.recipe.training.batch * self.recipe.segment
        return max(1, round(self.recipe.training.batch * (self.data.split("train").lengths.mean() + 2)))

    @property
    def flops_per_step(self) -> int:
        """Every row counts as padded to full length, whether or not the device computes the padding."""
        guessed = max(1, round(_spec(self.recipe).masking.share * self.longest))
        per_row = _spec(self.recipe).forward_flops_per_row(self.data.tokenizer.size, self.recipe.segment, guessed)
        return 3 * self.recipe.training.batch * per_row

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split).ids)

    def check_split(self, split: str) -> None:
        if len(self.data.split(split).ids) < 2:
            what = f"split '{split}' of '{self.data.name}' has fewer than two tokens"
            raise UserError(f"{what}: there is no context to predict a token from")
        corpora.check_not_constant(self.data)

    def evaluate(self, model: MaskedLanguageModel) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        for split in self.recipe.training.evaluate_on:
            rows = self.data.split(split).beginning(self.recipe.training.evaluate_tokens)
            told = guess(model, rows, self.data.tokenizer, _spec(self.recipe).masking.share)
            for scores, one in zip(found, told, strict=True):
                scores |= {
                    f"{split}.{LOSS.name}": float(one.nats.mean()),
                    f"{split}.{MASKED_ACCURACY.name}": float(one.right.mean()),
                }
        return found

    def score(self, model: MaskedLanguageModel, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            for scores, one in zip(per_replica, self.told(model, split), strict=True):
                scores += one.scores(split)
        return per_replica

    def title(self, model: MaskedLanguageModel) -> list[str]:
        data, train = _data(self.recipe), self.data.split("train")
        what = f"{len(train.ids):,} {data.tokenizer.kind} tokens to train on, vocabulary: {model.vocabulary:,}"
        if data.batches.by_line:
            what += f", in {len(train):,} lines of at most {self.longest}"
        mask = _spec(self.recipe).masking
        how = f"{mask.share:.0%} of each row are predicted: {mask.masked:.0%} masked, {mask.random:.0%} random tokens"
        left = f"{max(0.0, 1 - mask.masked - mask.random):.0%} unchanged"
        return [f"{self.data.name}: {what}", f"{how}, {left}", *model.notes]

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, **_spec(self.recipe).start.facts}

    def on_less_data(self, folder: Path, most: int) -> Recipe:
        """The beginning of each split, with the vocabulary of the full data."""
        if max(len(self.data.split(split).ids) for split in self.scored_splits) <= most:
            return self.recipe
        for split, text in self.data.texts.items():
            share = min(1.0, (8 if split == "train" else 1) * most / len(self.data.split(split).ids))
            (folder / f"{split}.txt").write_text(text[: int(share * len(text))], "utf-8")
        (folder / "tokenizer.json").write_text(self.data.tokenizer.to_json(), "utf-8")
        given = Given(path=str(folder / "tokenizer.json"))
        data = self.recipe.data.model_copy(update={"source": FILES, "path": str(folder), "tokenizer": given})
        return self.recipe.model_copy(update={"data": data})

    def gather_evidence(self) -> MaskedEvidence:
        return MaskedEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        return likeliest(answer, run.tokenizer.pieces)

    # --- abilities ---------------------------------------------------------------------------------------------------

    def told(self, model: MaskedLanguageModel, split: str) -> list[Guesses]:
        return guess(model, self.data.split(split), self.data.tokenizer, _spec(self.recipe).masking.share)

    def together(self, split: str, told: Sequence[Guesses]) -> ScoredTogether:
        nats = np.stack([one.nats for one in told])
        whole, what = nats_of_mean(nats), f"ensemble of {len(told)} runs, mean of their probabilities"
        scores = [
            replace(score, label=f"{what}: {score.label}")
            for score in replace(told[0], nats=whole).scores(split)
            # the ensemble's accuracy is unknown: members give the probability of the right token only
            if not score.name.endswith(MASKED_ACCURACY.name)
        ]
        gained = gain(f"{split}.{LOSS.name}", LOSS.unit, nats, whole, LOSS.lower_is_better, PIECES)
        return ScoredTogether(scores, [one.scores(split) for one in told], [gained])

    def followed(self, split: str, most: int) -> GradientRows:
        """Rows that are long enough; in each the last token of text is masked and predicted."""
        rows, marks = self.data.split(split), self.data.tokenizer.marks
        assert marks is not None
        tokens, fit, ends = long_enough(
            rows.lengths + marks.room(), self.recipe.segment, f"rows of '{split}', with special tokens,"
        )
        chosen = some_of(fit, most, f"rows of '{split}' with {tokens} tokens or more, including special tokens")
        begins = (rows.ends - rows.lengths)[chosen]
        ids = np.stack([marks.row([rows.ids[begin : begin + tokens - marks.room()]]) for begin in begins])
        last = tokens - 1 - marks.behind
        targets = ids[:, last].copy()
        ids[:, last] = marks.mask

        def nats(model: MaskedLanguageModel, row: GradientRow) -> Tensor:
            guesses = model.guesses(row.ids, torch.full_like(row.target, last)[..., None]).float()
            return F.cross_entropy(guesses.flatten(0, 2), row.target.flatten(), reduction="none").view(row.target.shape)

        return GradientRows(
            rows_of(torch.as_tensor(ids).long()[None], torch.as_tensor(targets).long()[None]),
            GradientSide(last + 1, behind=marks.behind),
            nats,
            loss="the masked token t",
            called=f"rows of {last + 1} tokens",
            ends=ends,
        )

    @classmethod
    def losing(cls, run: Run, model: MaskedLanguageModel, text: str) -> Losing:
        """The loss of the given tokens; where the user wrote [MASK] the right token is unknown."""
        tokenizer = run.tokenizer
        ids, marks = tokenizer.encode_with_masks(text).ids, tokenizer.marks
        assert marks is not None
        if not len(ids):
            raise UserError("the text is empty: there is nothing to score")

        def now() -> TokenLosses:
            nats = alone(model, ids, tokenizer).nats.tolist()
            known = [None if one == marks.mask else value for one, value in zip(ids.tolist(), nats, strict=True)]
            return TokenLosses(tokenizer.pieces(ids), known, "of each token, masked alone and given all others")

        return now

    @classmethod
    def score_text(cls, run: Run, model: MaskedLanguageModel, text: str, window: ReadingWindow) -> ScoredText:
        _no_window(window)
        tokenizer = run.tokenizer
        ids = tokenizer.encode(text).ids
        if not len(ids):
            raise UserError("the text is empty: there is nothing to score")
        found = alone(model, ids, tokenizer)
        return ScoredText(tokenizer.pieces(ids), found.nats.tolist(), found.unknown, True, found)

    @classmethod
    def score_file(cls, run: Run, model: MaskedLanguageModel, file: GivenFile, window: ReadingWindow) -> list[Score]:
        _no_window(window)
        tokenizer, text = run.tokenizer, file.text()
        longest = _longest(run.recipe, tokenizer)
        by_line = _data(run.recipe).batches.by_line
        rows = rows_of_lines(text, tokenizer, longest) if by_line else pieces(tokenizer.encode(text).ids, longest)
        return guess(model, rows, tokenizer, _spec(run.recipe).masking.share)[0].scores(file.path.name)

    @classmethod
    @torch.no_grad()
    def fill_in(cls, run: Run, model: MaskedLanguageModel, text: str, most: int) -> Filled:
        tokenizer = run.tokenizer
        tokens, marks = tokenizer.encode_with_masks(text), tokenizer.marks
        assert marks is not None
        places = np.flatnonzero(tokens.ids == marks.mask)
        if not len(places):
            raise UserError(
                f"nothing is masked in '{text}': write {tokenizer.mask_name} where a token should be predicted"
            )
        row = marks.row([tokens.ids])
        model.check_length(len(row))
        if len(row) > MAX_LENGTH_FACTOR * run.recipe.segment:
            raise UserError(
                f"the text has {len(row):,} tokens, but the model was trained on {run.recipe.segment}: its predictions "
                "would be unreliable; give only the sentences around the mask"
            )
        given = torch.as_tensor(row).long()[None, None].to(next(model.parameters()).device)
        chances = model(given)[0, 0].double().softmax(-1).cpu()
        guesses = []
        for place in places + marks.before:
            # special tokens are left out
            likeliest_first = chances[place, tokenizer.words].topk(min(most, len(tokenizer.words)))
            names = tokenizer.pieces(tokenizer.words[likeliest_first.indices.numpy()].tolist())
            guesses.append(list(zip(names, likeliest_first.values.tolist(), strict=True)))
        filled, words = tokens.ids.copy(), tokenizer.words
        filled[places] = words[chances[places + marks.before][:, words].argmax(-1).numpy()]
        unknown = 0 if tokenizer.unknown is None else int((tokens.ids == tokenizer.unknown).sum())
        notes = [f"{unknown} of {len(tokens)} tokens are unknown words"] if unknown else []
        if len(row) > (context := run.recipe.segment):
            notes.append(f"the text has {len(row)} tokens, more than the model was trained on ({context})")
        if len(places) > 1:
            notes.append("each mask is predicted by itself: together the predictions need not make sense")
        return Filled(text, tokenizer.decode(filled), guesses, notes)


def _no_window(window: ReadingWindow) -> None:
    if any(window):
        raise UserError("masked tokens are predicted in independent rows: segment, stride and state do not apply")


def _longest(recipe: Recipe, tokenizer: Tokenizer) -> int:
    """Tokens of text in a row, without special tokens."""
    assert tokenizer.marks is not None
    return recipe.segment - tokenizer.marks.room()


def _data(recipe: Recipe) -> Text:
    assert isinstance(recipe.data, Text)
    return recipe.data


def _spec(recipe: Recipe) -> MaskedLanguageModelSpec:
    assert isinstance(recipe.model, MaskedLanguageModelSpec)
    return recipe.model
