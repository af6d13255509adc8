"""The translation task: pairs of texts, where the model writes the second from the first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from headway.audit.baselines import CheapMethods
from headway.audit.translation.evidence import PairEvidence
from headway.audit.translation.probing import Targets, TargetsAlone
from headway.core.errors import UserError
from headway.data.pairs import dataset
from headway.data.pairs.batches import BucketSampler
from headway.data.pairs.dataset import PairedSet
from headway.data.pairs.spec import Pairs
from headway.data.tokenizers import Tokenizer
from headway.look.gradient_rows import GradientRows, GradientSide, LongPairs, in_pairs, long_pairs
from headway.look.gradients import Explained, likeliest
from headway.look.reading import Sentence, read
from headway.look.token_losses import Losing, TokenLosses
from headway.look.translation_maps import attention_stacks, translation_maps
from headway.models.translator import Translator, TranslatorSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.decoding import DecodingSpec
from headway.scoring.ensemble import SplitResult, translation_gains
from headway.scoring.joint_translator import JointTranslator
from headway.scoring.metrics import (
    BLEU,
    BLEU_LOWERCASED,
    CHRF,
    EXACT_MATCH,
    LOSS,
    SENTENCE_BLEU,
    TOKEN_ACCURACY,
    Metric,
)
from headway.scoring.score import Score
from headway.scoring.translation import Forced, Model, decoded, forced, forced_scores, spread_out, translated
from headway.tasks.abilities import FollowsGradients, JoinsOthers, ScoredTogether, Translates, Translation
from headway.tasks.task import Task
from headway.training.update import Sampler


@dataclass(frozen=True)
class Translating(Task, Translates, JoinsOthers, FollowsGradients):
    kind, models, example = "encoder-decoder", "translators", 'headway translate {run} "…"'
    metrics = (LOSS, TOKEN_ACCURACY, EXACT_MATCH, BLEU, BLEU_LOWERCASED, CHRF, SENTENCE_BLEU)
    headline = BLEU
    cheap_methods = CheapMethods("copied source", "translation memory")
    probing = Targets()

    data: PairedSet

    @property
    def pairs(self) -> Pairs:
        """The data part of the recipe."""
        return _data(self.recipe)

    @classmethod
    def headline_of(cls, recipe: Recipe) -> Metric:
        return EXACT_MATCH if _data(recipe).is_exact else BLEU

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        data = _data(recipe)
        return cls(
            recipe,
            dataset.load(
                data.source,
                data.path,
                data.sides,
                data.filters,
                data.valid_fraction,
                data.tokenizer,
                data.target_tokenizer,
                data.rows,
            ),
        )

    @classmethod
    def rebuild(cls, run: Run, device: str) -> Translator:
        return _built(run.recipe, *tokenizers_of(run), [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> Translator:
        return _built(self.recipe, self.data.tokenizer, self.data.target_tokenizer, seeds, device)

    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        train, longest = self.data.split("train"), self.recipe.segment
        return self.pairs.batches.build(train, longest, self.recipe.training.batch, seeds, device)

    @cached_property
    def _reads(self) -> BucketSampler:
        sampler = self.sampler([self.recipe.seed], "cpu")
        assert isinstance(sampler, BucketSampler)
        return sampler

    @property
    def tokens_per_step(self) -> int:
        """The mean number of target tokens."""
        return max(1, self._reads.tokens_per_step)

    @property
    def flops_per_step(self) -> int:
        """Every row counts as padded to the longest of its bucket."""
        spec, vocabulary = _spec(self.recipe), self.data.target_tokenizer.size + 1
        shapes = self._reads.slots_per_step
        return round(sum(3 * share * rows * spec.forward_flops(s, t, vocabulary) for rows, s, t, share in shapes))

    def tokens_in(self, split: str) -> int:
        """Targets count twice: once for the teacher-forced loss, once for decoding."""
        return 2 * int(self.data.split(split).target.lengths.sum())

    @property
    def vocabularies(self) -> dict[str, Tokenizer]:
        if self.data.is_joint:
            return super().vocabularies
        return {**super().vocabularies, "target_tokenizer.json": self.data.target_tokenizer}

    def check_split(self, split: str) -> None:
        if not len(self.data.split(split)):
            raise UserError(f"split '{split}' of '{self.data.name}' is empty: it has nothing to translate")
        if not self.pairs.is_exact:
            from headway.scoring import bleu

            bleu.measured(["a"], ["a"])  # fails now, before training, if sacreBLEU is missing

    def evaluate(self, model: Translator) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        for split in self.recipe.training.evaluate_on:
            pairs = spread_out(self.data.split(split), self.recipe.training.evaluate_tokens)
            for scores, one in zip(found, forced(model, pairs), strict=True):
                scores |= {f"{split}.{LOSS.name}": one.loss, f"{split}.{TOKEN_ACCURACY.name}": one.accuracy}
        return found

    def score(self, model: Model, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            for scores, one in zip(per_replica, self._of_split(model, split), strict=True):
                scores += one.scores
        return per_replica

    def _of_split(self, model: Model, split: str) -> list[SplitResult]:
        """The results of every replica, decoded as the recipe says."""
        pairs, target, scoring = self.data.split(split), self.data.target_tokenizer, self.recipe.scoring
        cut, found = int((pairs.longer > model.longest).sum()), []
        said = zip(forced(model, pairs), translated(model, pairs, target, scoring.decoding), strict=True)
        for given, written in said:
            scores = forced_scores(split, given, target.kind, cut, model.longest)
            scores += written.scores(split, self.pairs.is_exact, scoring.bleu_tokenizer)
            found.append(SplitResult(given, scores))
        return found

    def told(self, model: Translator, split: str) -> list[tuple[Translator, int]]:
        """The replicas themselves, since an ensemble's translation cannot be computed from the members'
        translations."""
        return [(model, r) for r in range(model.replicas)]

    def together(self, split: str, told: Sequence[tuple[Translator, int]]) -> ScoredTogether:
        """Score the members and the ensemble, all decoded as this task's recipe says."""
        models = list({id(model): model for model, _ in told}.values())
        alone = {id(model): self._of_split(model, split) for model in models}
        members = [alone[id(model)][r] for model, r in told]
        (whole,) = self._of_split(JointTranslator(models), split)
        what = f"ensemble of {len(told)} runs, mean of their probabilities at every step"
        scores = [replace(score, label=f"{what}: {score.label}") for score in whole.scores]
        return ScoredTogether(scores, [one.scores for one in members], translation_gains(split, members, whole))

    def sentences(self, model: Model, split: str, how: DecodingSpec) -> list[list[str]]:
        self.check_split(split)
        (found,) = translated(model, self.data.split(split), self.data.target_tokenizer, how)
        return found.table(self.pairs.is_exact, self.recipe.scoring.bleu_tokenizer)

    def forced(self, model: Translator, split: str, at_most: int) -> Forced:
        return forced(model, spread_out(self.data.split(split), at_most))[0]

    def followed(self, split: str, most: int) -> GradientRows:
        pairs = self._long_pairs(split, most)
        return in_pairs(pairs, own=GradientSide(pairs.target), source=GradientSide(pairs.source, stack="encoder"))

    def _long_pairs(self, split: str, most: int) -> LongPairs:
        return long_pairs(self.data.split(split), self.recipe.segment, most, split)

    def title(self, model: Translator) -> list[str]:
        train, data, context = self.data.split("train"), self.data, self.recipe.model.context
        kinds = f"vocabulary for both sides: {model.vocabulary - 1:,} {data.tokenizer.kind} tokens"
        if not data.is_joint:
            kinds = f"vocabularies: {data.tokenizer.size:,} tokens (source), {data.target_tokenizer.size:,} (target)"
        lines = [f"{data.name}: {len(train):,} pair{'' if len(train) == 1 else 's'} to train on, {kinds}"]
        if data.dropped:
            told = ", ".join(f"{count:,} {reason}" for reason, count in data.dropped.items())
            lines.append(f"dropped from train: {told} (data.filters)")
        if left_out := int((train.longer > context).sum()):
            lines.append(
                f"{left_out:,} pairs are longer than {context} tokens (model.context) and left out of training"
            )
        if data.held_out:
            share, n = self.pairs.valid_fraction, len(data.split("valid"))
            lines.append(f"valid: {n:,} pairs, {share:.0%} of train held out, since the data has none")
        return lines

    def gather_evidence(self) -> PairEvidence:
        return PairEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        target = tokenizers_of(run)[1]

        def named(ids: list[int]) -> list[str]:
            return [target.pieces([k])[0] if k < target.size else "END" for k in ids]

        return likeliest(answer, named)

    @classmethod
    def attention(cls, model: Translator) -> dict[str, dict[int, str]]:
        return {stack: dict(enumerate(paths)) for stack, paths in attention_stacks(model).items() if paths}

    @classmethod
    def losing(cls, run: Run, model: Translator, text: str) -> Losing:
        sentence, written = cls._written(run, model, text)
        target, device = tokenizers_of(run)[1], next(model.parameters()).device
        end = target.size
        sources = torch.tensor([*sentence.ids, model.source_vocabulary - 1], device=device)[None, None]
        asked = torch.tensor([*written, end], device=device)[None, None]
        begun = torch.tensor([end, *written], device=device)[None, None]
        pieces, what = [*target.pieces(written), "END"], "of each token of its own translation, given those before it"

        def now() -> TokenLosses:
            with torch.no_grad():
                nats = model.nats(model(sources, begun), asked)[0, 0].double().tolist()
            return TokenLosses(pieces, nats, what)

        return now

    @classmethod
    def maps(cls, run: Run, model: Translator, text: str) -> Any:
        """Attention maps for the model's own translation of this text, decoded as the recipe says."""
        sentence, written = cls._written(run, model, text)
        target = tokenizers_of(run)[1]
        return translation_maps(model, sentence, written, target.pieces(written), target.decode(written), run.name)

    @classmethod
    def _written(cls, run: Run, model: Translator, text: str) -> tuple[Sentence, list[int]]:
        """The source as the model reads it, and its best translation as tokens without END."""
        source, target = tokenizers_of(run)
        sentence = read(source, text)
        if len(sentence.ids) >= run.recipe.model.context:
            reason = f"the sentence has {len(sentence.ids)} tokens, but the model reads {run.recipe.model.context - 1}"
            raise UserError(f"{reason} (model.context, less one for END)")
        ids = np.array(sentence.ids, dtype=np.int32)
        best = decoded(model, [ids], target.size, run.recipe.scoring.decoding)[0][0][0]
        return sentence, list(best.tokens)

    @classmethod
    def gradients(cls, run: Run, model: Translator, text: str, only: Sequence[int] | None = None) -> Any:
        raise UserError(
            f"gradients are only shown for models with a single sequence; try headway look {run.name} --show heads"
        )

    @classmethod
    def joined(cls, models: Sequence[Translator]) -> JointTranslator:
        return JointTranslator(models)

    @classmethod
    def translate(
        cls, run: Run, model: Model, texts: Sequence[str], how: DecodingSpec, told: Callable[[int], object]
    ) -> list[Translation]:
        source, target = tokenizers_of(run)
        context, ids = model.longest, []
        for k, text in enumerate(texts):
            try:
                ids.append(source.encode_rows([text.strip()])[0])  # stripped like the training rows
            except UserError as problem:
                where = f"text {k + 1}: " if len(texts) > 1 else ""
                raise UserError(f"{where}{str(problem).removeprefix('text 1: ')}") from None
        (found,) = decoded(model, ids, target.size, how, told)
        made = []
        for text, own, best in zip(texts, ids, found, strict=True):
            notes = [] if len(own) else ["the text is empty, so its translation is empty too"]
            if len(own) >= context:
                notes.append(f"only the first {context - 1} of {len(own)} tokens were read: model.context is {context}")
            unknown = 0 if source.unknown is None else int((own == source.unknown).sum())
            if unknown:
                notes.append(f"{unknown} of {len(own)} tokens are unknown words")
            if best[0].cut:
                notes.append(f"the translation did not end by itself and was cut after {len(best[0].tokens)} tokens")
            made.append(Translation(text, [(_one_line(target.decode(one.tokens)), one.score) for one in best], notes))
        return made


@dataclass(frozen=True)
class TranslatingAlone(Translating):
    """Translation by a decoder-only model, without an encoder."""

    kind = "decoder-only"
    probing = TargetsAlone()

    def followed(self, split: str, most: int) -> GradientRows:
        """Source, END and the target so far are one row."""
        pairs = self._long_pairs(split, most)
        behind = pairs.target - 1
        note = f"source, END and target are one row: END is {behind} tokens before t, and the source is before END"
        own, source = GradientSide(pairs.source + behind), GradientSide(pairs.source, behind=behind)
        return in_pairs(pairs, own, source, (note,))


def _built(recipe: Recipe, ours: Tokenizer, theirs: Tokenizer, seeds: Sequence[int], device: str) -> Translator:
    spec = _spec(recipe)
    if spec.shares_vocabulary and ours is not theirs:  # both are given files
        names = [one.pieces(np.arange(one.size)) for one in (ours, theirs)]
        if names[0] != names[1]:
            reason = f"{spec.shares_vocabulary}, but the given tokenizers have different tokens"
            raise UserError(f"{reason} (data.tokenizer has {ours.size:,}, data.target_tokenizer {theirs.size:,})")
    return spec.build(ours.size + 1, theirs.size + 1, seeds, device)


def _one_line(text: str) -> str:
    """Join lines, so that output lines stay aligned with inputs: a badly trained model may write a line end, if its
    vocabulary has one."""
    return " ".join(text.splitlines())


def tokenizers_of(run: Run) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of sources and of targets."""
    ours = run.tokenizer
    if _data(run.recipe).target_tokenizer is None:
        return ours, ours
    return ours, run.tokenizer_in("target_tokenizer.json")


def _data(recipe: Recipe) -> Pairs:
    assert isinstance(recipe.data, Pairs)
    return recipe.data


def _spec(recipe: Recipe) -> TranslatorSpec:
    assert isinstance(recipe.model, TranslatorSpec)
    return recipe.model
