"""Faults of special kinds of dropout: locked, of whole words, of weights; and of their rates."""

import torch
from torch import nn

from headway.audit.plants.models.recurrence import with_recurrence
from headway.audit.plants.needs import part
from headway.audit.plants.planting import Bed, Need
from headway.nn.dropout import LockedDropout, NoiseSpec, WeightDropout, WordDropout
from headway.nn.recurrence import Cells
from headway.nn.replicated import Dropout

_bed = Bed("noise")
DROPPED = with_recurrence("weight dropout", ("lstm",), "{kind: lstm, weight_dropout: 0.3}", weight_dropout=0.3)
LOCKED = Need(
    "locked dropout",
    lambda recipe: part(recipe, "model.noise.kind") == "locked",
    ("model.noise=locked", "model.dropout=0.2"),
)
WORDS = Need("dropped words", lambda recipe: bool(part(recipe, "model.noise.words")), ("model.noise.words=0.3",))
ENDS = Need(
    "separate dropout rates at both ends",
    lambda recipe: bool(part(recipe, "model.noise.input")) and bool(part(recipe, "model.noise.output")),
    ("model.noise={input: 0.1, output: 0.4}", "model.dropout=0.2"),
)


@_bed.plant("determinism", DROPPED)
def weights_dropped_in_evaluation(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x * self.factors(x.shape, x.dtype))


@_bed.plant("determinism", LOCKED)
def locked_dropout_from_a_global_generator(patch):
    def forward(self, x):
        if not (self.training and self.active):
            return x
        R, B, _, D = x.shape
        return x * (torch.rand(R, B, 1, D, device=x.device) >= self.rates.view(-1, 1, 1, 1)) / (1 - self.rates.max())

    patch.setattr(LockedDropout, "forward", forward)


@_bed.plant("dropout", LOCKED)
def locked_dropout_drawn_at_every_token(patch):
    patch.setattr(LockedDropout, "forward", Dropout.forward)


@_bed.plant("dropout", LOCKED)
def locked_dropout_shared_by_all_rows(patch):
    def forward(self, x):
        R, _, _, D = x.shape
        return x * self.factors((R, 1, 1, D), x.dtype) if self.drops else x

    patch.setattr(LockedDropout, "forward", forward)


@_bed.plant("dropout", LOCKED)
def locked_dropout_shared_by_all_layers(patch):
    honest = LockedDropout.factors

    def factors(self, *given):
        own = self.keys.clone()
        self.keys.fill_(1)
        found = honest(self, *given)
        self.keys.copy_(own)
        return found

    patch.setattr(LockedDropout, "factors", factors)


@_bed.plant("dropout", DROPPED)
def weights_never_dropped(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x)


@_bed.plant("dropout", DROPPED)
def dropped_weights_not_used(patch):
    """`self.drop(weight)` is called but its result is discarded, so the whole matrix is used."""
    honest = Cells.forward

    def forward(self, x, first, real):
        drop = self.drop
        drop(self.recurrent)
        self.drop = nn.Identity()
        try:
            return honest(self, x, first, real)
        finally:
            self.drop = drop

    patch.setattr(Cells, "forward", forward)


@_bed.plant("dropout", DROPPED, also=("batch-invariance", "cache", "carried-state", "definition"))
def weights_of_the_last_step_left_out_in_evaluation(patch):
    """Two evaluations agree, since the same weights are missing in both."""

    def forward(self, x):
        if self.drops:
            vars(self)["last"] = self.factors(x.shape, x.dtype).detach()
        last = vars(self).get("last")
        return x if last is None or last.shape != x.shape else x * last

    patch.setattr(WeightDropout, "forward", forward)


@_bed.plant("dropout", WORDS)
def words_dropped_by_the_place_they_stand_at(patch):
    def forward(self, x, ids):
        return x * self.factors((len(x), ids.shape[2]), x.dtype)[:, None, :, None] if self.drops else x

    patch.setattr(WordDropout, "forward", forward)


@_bed.plant("dropout", ENDS)
def rates_of_input_and_output_exchanged(patch):
    honest = NoiseSpec.build

    def build(self, replicas, rate, own=None):
        exchanged = {self.input: self.output, self.output: self.input}
        return honest(self, replicas, rate, exchanged.get(own, own))

    patch.setattr(NoiseSpec, "build", build)
