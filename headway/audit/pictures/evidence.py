"""What pictures with captions give to the audits of data, baselines, training and scores."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.audit.audit import Audit, Baseline, Report, run_audits
from headway.audit.data.batches import READ_AUDITS, Place, ReadInTraining
from headway.audit.evidence import Evidence
from headway.audit.pictures.baselines import measured
from headway.audit.pictures.data import PICTURE_AUDITS, PICTURE_BATCH_AUDITS, PictureRows, PicturesRead
from headway.audit.pictures.recount import RETRIEVAL_AUDITS, RetrievalRecount
from headway.data.images.sources import RawPictures, read_pictures
from headway.scoring.pictures.retrieval import pair_groups


class PictureEvidence(Evidence):
    """`task`: a matching task, `headway.tasks.contrastive.Contrastive`."""

    @cached_property
    def rows(self) -> PictureRows:
        data = self.task.data
        pixels = {split: pairs.pixels for split, pairs in data.splits.items()}
        captions = {split: pairs.captions for split, pairs in data.splits.items()}
        return PictureRows(pixels, captions, data.classes is not None)

    def looked_at(self) -> Sequence[tuple[Any, Sequence[Audit]]]:
        return [(self.rows, PICTURE_AUDITS), *super().looked_at()]

    def reading(self) -> Report:
        sampler, train, spec = self.task.sampler([self.recipe.seed], "cpu"), self.task.data.split("train"), self.recipe
        how, end = self.task.pictures.batches, self.task.data.tokenizer.size
        left_out = spec.model.contrast.repeats == "left-out"
        flip, shift = getattr(how, "flip", False), getattr(how, "shift", 0)
        pairs = PicturesRead(sampler, train, spec.segment, end, flip, shift, left_out)
        places = [Place(k, k) for k in range(len(train))]
        read = ReadInTraining(sampler, pairs, places, f"{len(train):,} pairs", how.by_seed, goes_on=False)
        return run_audits(READ_AUDITS, read) + run_audits(PICTURE_BATCH_AUDITS, pairs)

    def audit_answers(self, scored: Any) -> Report:
        if self.judged is None or self.judged not in scored.stored:
            return Report(not_run={one.name: "no held-out split was scored" for one in RETRIEVAL_AUDITS})
        return run_audits(RETRIEVAL_AUDITS, scored)

    @cached_property
    def _again(self) -> dict[str, RawPictures]:
        spec = self.task.pictures
        return read_pictures(spec.source, spec.path, spec.template, spec.valid_fraction, spec.rows)[0]

    @cached_property
    def train_again(self) -> str | None:
        again, used = self._again["train"], self.task.data.split("train")
        return None if again.names == used.names else f"{len(used.names):,} pictures; the source has others"

    def recount(self, split: str) -> RetrievalRecount:
        data, spec, recipe = self.task.data, self.task.pictures, self.recipe
        return RetrievalRecount(
            self._again[split],
            data.split(split),
            data.tokenizer,
            data.size,
            data.classes,
            spec.prompts,
            recipe.model.context,
            spec.among,
            recipe.training.batch,
            recipe.model.contrast,
        )

    def measure_baselines(self) -> Sequence[Baseline]:
        data, spec = self.task.data, self.task.pictures
        with_classes = data.classes is not None
        return [
            one
            for split in self.task.scored_splits
            for one in measured(data, split, spec.among, spec.prompts, with_classes)
        ]

    @property
    def baselines_depend_on(self) -> Sequence[Any]:
        return self.task.pictures.among, self.task.pictures.prompts

    def beside(self, split: str) -> dict[str, Any]:
        """The loss of a uniform guess among all captions, in groups as large as batches."""
        dealt = pair_groups(len(self.task.data.split(split)), self.recipe.training.batch)
        nats = sum(len(one) * math.log(len(one)) for one in dealt) / sum(len(one) for one in dealt)
        return {"chance": nats, "chance_is": "uniform guesses among the pairs of a batch"}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))
