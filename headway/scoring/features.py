"""Features of a frozen encoder: computed once for every text and looked up afterwards.

Where only the head is trained (`training.tuning: frozen`), a training step reads precomputed features instead of text.
They are computed in evaluation mode, without any dropout in the encoder. The head's own dropout (`model.head.dropout`)
still applies, because the head runs anew at every step.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.data.labelled.batches import FeatureBatch, RowSampler
from headway.data.labelled.dataset import Texts
from headway.data.running.batches import Step
from headway.models.classifier import Classifier
from headway.scoring.accuracy import by_length


class KeptFeatures:
    """A cache of features per set of texts, for the life of the model, in the caller's autocast precision."""

    def __init__(self, model: Classifier):
        self.model = model
        self.known: dict[tuple[int, torch.dtype | None], tuple[Texts, Tensor]] = {}

    @torch.no_grad()
    def of(self, texts: Texts) -> Float[Tensor, "R N D"]:
        device = next(self.model.parameters()).device
        rounds = torch.is_autocast_enabled(device.type)
        key = id(texts), torch.get_autocast_dtype(device.type) if rounds else None
        if key not in self.known:
            self.known[key] = texts, self._computed(texts)  # keep the texts alive, so that their id() is not reused
        return self.known[key][1]

    def _computed(self, texts: Texts) -> Float[Tensor, "R N D"]:
        model, found = self.model, None
        trains = model.training
        model.eval()
        for rows, ids, padding_mask in by_length(model, *map(torch.as_tensor, texts.padded(model.spec.context))):
            some = model.features(ids, padding_mask).float()
            found = some.new_empty(len(some), len(texts), some.shape[-1]) if found is None else found
            found[:, rows.to(some.device)] = some
        model.train(trains)
        assert found is not None, "a split without texts"
        return found


class FeatureSampler:
    """Wraps another sampler: the same batches as features."""

    def __init__(
        self, rows: RowSampler, features: KeptFeatures, train: Texts, device: str, autocast: Callable[[], Any]
    ):
        self.steps_per_epoch = rows.steps_per_epoch
        self.rows, self.features, self.train, self.autocast = rows, features, train, autocast
        self.labels = torch.as_tensor(train.labels).to(device)

    def at(self, step: Step) -> FeatureBatch:
        with self.autocast():
            table = self.features.of(self.train)
        rows = self.rows.rows_at(step)
        replicas = torch.arange(len(rows), device=rows.device)[:, None]
        return FeatureBatch(table[replicas, rows], self.labels[rows])
