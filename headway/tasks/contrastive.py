"""The contrastive task: match pictures with their captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from torch import Tensor

from headway.audit.baselines import CheapMethods
from headway.audit.pictures.evidence import PictureEvidence
from headway.audit.pictures.probing import Matching
from headway.core.errors import UserError
from headway.data.images import dataset
from headway.data.images.dataset import PictureSet
from headway.data.images.pictures import squared
from headway.data.images.spec import Pictures
from headway.look.gradients import Explained, Gradients
from headway.look.maps import Maps
from headway.look.picture_maps import PictureMaps, picture_maps
from headway.models.clip import Clip, ClipSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import ACCURACY, CAPTIONS_AT, LOSS, PICTURES_AT, Metric
from headway.scoring.pictures.matching import OwnMatcher, Shown
from headway.scoring.pictures.retrieval import Retrieved, prompt_tokens, retrieve, spread_out
from headway.scoring.score import Score
from headway.tasks.abilities import MatchesPictures
from headway.tasks.task import Task
from headway.training.update import Sampler


@dataclass(frozen=True)
class Contrastive(Task, MatchesPictures):
    kind, models, example = "clip", "models that match pictures and captions", 'headway match {run} --captions "…"'
    metrics = (LOSS, ACCURACY, *CAPTIONS_AT.values(), *PICTURES_AT.values())
    headline = CAPTIONS_AT[1]
    cheap_methods = CheapMethods("chance", "colours")
    probing = Matching()

    data: PictureSet

    @property
    def pictures(self) -> Pictures:
        """The data part of the recipe."""
        return _data(self.recipe)

    @classmethod
    def headline_of(cls, recipe: Recipe) -> Metric:
        """Accuracy if the pictures have classes, which the recipe tells before the data are loaded."""
        return ACCURACY if _data(recipe).has_classes else CAPTIONS_AT[1]

    @classmethod
    def load(cls, recipe: Recipe) -> Self:
        if recipe.training.accumulate > 1:
            reason = "a contrastive batch cannot be split, because every row is a negative for every other"
            raise UserError(f"training.accumulate={recipe.training.accumulate}: {reason}; set it to 1")
        data = _data(recipe)
        return cls(
            recipe,
            dataset.load(
                data.source, data.path, data.size, data.template, data.rows, data.valid_fraction, data.tokenizer
            ),
        )

    @classmethod
    def rebuild(cls, run: Run, device: str) -> Clip:
        return _spec(run.recipe).build(run.tokenizer.size + 1, _data(run.recipe).size, [run.recipe.seed], device)

    def build(self, seeds: Sequence[int], device: str) -> Clip:
        return _spec(self.recipe).build(self.data.tokenizer.size + 1, self.data.size, seeds, device)

    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        train, end = self.data.split("train"), self.data.tokenizer.size
        return self.pictures.batches.build(train, self.recipe.segment, end, self.recipe.training.batch, seeds, device)

    @property
    def tokens_per_step(self) -> int:
        """The mean number of caption tokens, with END; patches do not count."""
        lengths = (self.data.split("train").lengths + 1).clip(max=self.recipe.segment)
        return max(1, round(self.recipe.training.batch * lengths.mean()))

    @property
    def longest_row(self) -> int:
        """In tokens of captions or in patches of pictures."""
        return max(super().longest_row, _spec(self.recipe).picture.patches(self.data.size))

    @property
    def flops_per_step(self) -> int:
        spec, batch = _spec(self.recipe), self.recipe.training.batch
        longest = int((self.data.split("train").lengths + 1).clip(max=self.recipe.segment).max())
        return 3 * batch * (spec.forward_flops(self.data.size, longest) + 2 * batch * spec.shared)

    def tokens_in(self, split: str) -> int:
        return len(self.data.split(split)) * self.recipe.segment

    @property
    def facts(self) -> dict[str, Any]:
        own = {} if self.data.classes is None else {"classes": list(self.data.classes)}
        return {**super().facts, **own}

    def check_split(self, split: str) -> None:
        if len(np.unique(self.data.split(split).picture)) < 2:
            raise UserError(
                f"split '{split}' of '{self.data.name}' has fewer than two pictures: there is nothing to choose from"
            )

    def evaluate(self, model: Clip) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
        headline = self.headline_of(self.recipe)
        for split in self.recipe.training.evaluate_on:
            at_most = self.recipe.training.evaluate_tokens
            pairs = spread_out(self.data.split(split), at_most and at_most // self.recipe.segment)
            for scores, one in zip(found, self._retrieved(model, pairs), strict=True):
                scores[f"{split}.loss"] = float(one.nats.mean())
                told = {score.name: score.value for score in self._scored(one, split, pairs)}
                scores[f"{split}.{headline.name}"] = told[f"{split}.{headline.name}"]
        return found

    def score(self, model: Clip, splits: Sequence[str]) -> list[list[Score]]:
        per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
        for split in splits:
            pairs = self.data.split(split)
            for scores, one in zip(per_replica, self._retrieved(model, pairs), strict=True):
                scores += self._scored(one, split, pairs)
        return per_replica

    def _retrieved(self, model: Clip, pairs: dataset.CaptionedPictures) -> list[Retrieved]:
        data, spec, prompts = self.data, self.pictures, None
        if data.classes is not None:
            prompts = prompt_tokens(data.tokenizer, data.classes, spec.prompts)
        return retrieve(model, pairs, spec.among, self.recipe.training.batch, prompts)

    def _scored(self, found: Retrieved, split: str, pairs: dataset.CaptionedPictures) -> list[Score]:
        return found.scores(split, pairs, self.data.classes, self.recipe.training.batch)

    def title(self, model: Clip) -> list[str]:
        data, train = self.data, self.data.split("train")
        pictures, captions = len(np.unique(train.picture)), len(np.unique(train.caption))
        what = f"{pictures:,} pictures of {data.size} × {data.size} pixels with {captions:,} different captions"
        lines = [f"{data.name}: {what} to train on, vocabulary: {model.vocabulary - 1:,} {data.tokenizer.kind} tokens"]
        if cut := int((train.lengths >= self.recipe.segment).sum()):
            kept = f"truncated to {self.recipe.segment - 1} tokens (model.context), and END is kept"
            lines.append(f"{cut:,} captions are longer, {kept}")
        if data.held_out:
            share, n = self.pictures.valid_fraction, len(data.split("valid"))
            lines.append(f"valid: {n:,} pairs, {share:.0%} of train held out, since the data has none")
        return [*lines, *data.notes]

    def gather_evidence(self) -> PictureEvidence:
        return PictureEvidence(self)

    @classmethod
    def explain(cls, run: Run, answer: Tensor) -> Explained:
        raise _needs_a_picture(run)

    @classmethod
    def maps(cls, run: Run, model: Clip, text: str) -> Maps:
        raise _needs_a_picture(run)

    @classmethod
    def gradients(cls, run: Run, model: Clip, text: str, only: Sequence[int] | None = None) -> Gradients:
        raise _needs_a_picture(run)

    @classmethod
    def matcher(cls, run: Run, model: Clip) -> OwnMatcher:
        return OwnMatcher(run.name, model, run.tokenizer)

    @classmethod
    def look_at(cls, run: Run, model: Clip, shown: Shown, caption: str) -> PictureMaps:
        pixels = squared(shown.image, model.picture.size)
        return picture_maps(model, run.tokenizer, pixels, caption, shown.name, run.name)

    def shown(self, split: str, places: Sequence[int] | None) -> list[Shown]:
        from PIL import Image

        pairs = self.data.split(split)
        known = len(pairs.names)
        if strange := [k for k in places or () if not 0 <= k < known]:
            raise UserError(
                f"no picture {split}:{strange[0]}: the pictures of {split} are {split}:0 to {split}:{known - 1}"
            )
        return [
            Shown(f"{split}:{k}", Image.fromarray(np.ascontiguousarray(pairs.pixels[k].transpose(1, 2, 0))))
            for k in (range(known) if places is None else places)
        ]

    def caption_of(self, split: str, place: int) -> str:
        pairs = self.data.split(split)
        return pairs.captions[int(np.flatnonzero(pairs.picture == place)[0])]


def _needs_a_picture(run: Run) -> UserError:
    return UserError(f'to look at a caption, give a picture too: headway look {run.name} --image FILE "…"')


def _data(recipe: Recipe) -> Pictures:
    assert isinstance(recipe.data, Pictures)
    return recipe.data


def _spec(recipe: Recipe) -> ClipSpec:
    assert isinstance(recipe.model, ClipSpec)
    return recipe.model
