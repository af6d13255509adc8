"""Faults of fine-tuning: frozen layers that move, wrong learning rates of layers, adapters."""

from headway.audit.plants.needs import CLASSIFIER, part
from headway.audit.plants.planting import Bed, Need
from headway.nn.adapters import LowRank
from headway.training import adam, optimizers
from headway.training.tuning import Frozen, LastLayers

_bed = Bed("tuning", CLASSIFIER)


def tuned(kind: str, *more: str) -> Need:
    changes = (f"training.tuning={kind}", *more)
    return Need(f"{kind} tuning", lambda recipe: part(recipe, "training.tuning.kind") == kind, changes)


@_bed.spoil("tuning", tuned("frozen"), also=("moved",))
def frozen_weights_that_were_decayed(model):
    for p in model.layers[0].parameters():
        p.data *= 0.999


@_bed.plant("tuning", tuned("frozen"), also=("one-batch", "moved"))
def head_that_is_frozen_with_the_rest(patch):
    patch.setattr(Frozen, "pace", lambda self, name, model: float(name.startswith("head.output")))


@_bed.plant("tuning", tuned("last"), also=("moved",))
def last_layers_counted_from_the_tokens(patch):
    def pace(self, name, model):
        return float(0 < model.depth_of(name) <= self.layers or model.depth_of(name) == model.depth)

    patch.setattr(LastLayers, "pace", pace)


@_bed.plant("tuning", tuned("layerwise"))
def layers_that_all_have_the_rate_of_the_head(patch):
    for module in (optimizers, adam):
        patch.setattr(module, "pace_of", lambda p: 1.0)


@_bed.plant("tuning", tuned("lora"))
def adapters_that_begin_with_noise(patch):
    honest = LowRank.__init__

    def init(self, *given):
        honest(self, *given)
        self.up.start = (0.0, 0.1)

    patch.setattr(LowRank, "__init__", init)


@_bed.plant("tuning", tuned("lora", "training.tuning.alpha=64"))
def adapters_whose_alpha_is_not_used(patch):
    honest = LowRank.__init__

    def init(self, *given):
        honest(self, *given)
        self.scale = 1.0

    patch.setattr(LowRank, "__init__", init)
