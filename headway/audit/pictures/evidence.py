"""What pictures with captions give the audits of data, baselines, training and scores."""

import math
from collections.abc import Sequence
from typing import Any

from headway.audit.audit import Baseline
from headway.audit.evidence import Evidence
from headway.audit.pictures.baselines import measured
from headway.scoring.retrieval import pair_groups


class PictureEvidence(Evidence):
    """`task`: one that matches, `headway.tasks.contrastive.Contrastive`."""

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
        """The loss of one who gives all captions the same chance, in groups as large as batches."""
        dealt = pair_groups(len(self.task.data.split(split)), self.recipe.training.batch)
        nats = sum(len(one) * math.log(len(one)) for one in dealt) / sum(len(one) for one in dealt)
        return {"chance": nats, "chance_is": "equal chances for all pairs of a batch"}

    def size(self, split: str) -> int:
        return len(self.task.data.split(split))
