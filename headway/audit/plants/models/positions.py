"""Faults of positions: schemes that do not distinguish tokens, or are not what their name says."""

import torch

from headway.audit.plants.models.parts import asked_elsewhere
from headway.audit.plants.needs import ATTENTION, CLASSIFIER, FUSED, LANGUAGE_MODEL, positions, rows_of, with_attention
from headway.audit.plants.planting import Bed
from headway.nn import positions as schemes

_bed = Bed("positions", ATTENTION)
EIGHT_HEADS = with_attention("eight heads", lambda one: one.heads == 8, "model.mixer.heads=8")


# --- order -----------------------------------------------------------------------------------------------------------


@_bed.plant("order", positions("rotary"))
def positions_built_but_not_used(patch):
    patch.setattr(schemes.RotaryPositions, "rotate", lambda self, x, at: x)


@_bed.plant("order", CLASSIFIER, positions("sinusoidal"))
def positions_built_but_not_used_by_an_encoder(patch):
    patch.setattr(schemes.SinusoidalPositions, "embed", lambda self, x, at: x)


@_bed.plant("order", positions("learned"))
def all_tokens_at_position_0(patch):
    honest = schemes.LearnedPositions.embed
    patch.setattr(schemes.LearnedPositions, "embed", lambda self, x, at: honest(self, x, torch.zeros_like(at)))


@_bed.plant("order", positions("rotary"))
def one_rotary_angle_for_all(patch):
    honest = schemes.RotaryPositions.rotate
    patch.setattr(schemes.RotaryPositions, "rotate", lambda self, x, at: honest(self, x, torch.ones_like(at)))


@_bed.plant("order", positions("t5"))
def one_t5_bucket(patch):
    patch.setattr(schemes.T5Positions, "bucket", lambda self, distance: torch.zeros_like(distance))


@_bed.plant("order", CLASSIFIER, positions("t5-symmetric"))
def one_t5_bucket_in_an_encoder(patch):
    patch.setattr(schemes.SymmetricT5Positions, "bucket", lambda self, distance: torch.zeros_like(distance))


@_bed.plant("order", LANGUAGE_MODEL, positions("alibi"))
def no_slope_at_all(patch):
    patch.setattr(schemes.AlibiPositions, "bias", lambda self, replica, head, i, j: 0.0 * self.slopes[head] * (j - i))


@_bed.plant("order", rows_of(32), positions("learned"), also=("cache",))
def positions_shuffled(patch):
    asked_elsewhere(patch, lambda at: (31 - at).abs())


@_bed.plant("order", positions("rotary"), also=("cache", "padding"))
def positions_counted_in_pairs(patch):
    asked_elsewhere(patch, lambda at: at // 2)


@_bed.plant("order", CLASSIFIER, positions("sinusoidal"))
def positions_of_an_encoder_end_at_16(patch):
    asked_elsewhere(patch, lambda at: at.clamp(max=16))


# --- definitions -----------------------------------------------------------------------------------------------------


@_bed.plant("definition", LANGUAGE_MODEL, positions("alibi"))
def alibi_with_the_wrong_sign(patch):
    honest = schemes.AlibiPositions.bias
    patch.setattr(schemes.AlibiPositions, "bias", lambda self, replica, head, i, j: -honest(self, replica, head, i, j))


@_bed.plant("definition", LANGUAGE_MODEL, positions("alibi"))
def alibi_with_one_slope_for_all_heads(patch):
    patch.setattr(schemes, "alibi_slopes", lambda heads: [0.5] * heads)


@_bed.plant("definition", CLASSIFIER, positions("alibi-symmetric"), EIGHT_HEADS)
def alibi_with_slopes_of_another_series(patch):
    patch.setattr(schemes, "alibi_slopes", lambda heads: [2 ** -(h + 2) for h in range(heads)])


@_bed.plant("definition", CLASSIFIER, positions("alibi-symmetric"))
def alibi_that_looks_one_way_only(patch):
    honest = schemes.SymmetricAlibiPositions.bias

    def bias(self, replica, head, i, j):
        return torch.where(j > i, 0.0, honest(self, replica, head, i, j))

    patch.setattr(schemes.SymmetricAlibiPositions, "bias", bias)


@_bed.plant("definition", positions("rotary"))
def rotary_angles_of_another_base(patch):
    honest = schemes._frequencies  # pyright: ignore[reportPrivateUsage]
    patch.setattr(schemes, "_frequencies", lambda width, base: honest(width, base / 10))


@_bed.plant("definition", FUSED, positions("rotary"))
def rotary_that_turns_keys_the_other_way(patch):
    honest = schemes.RotaryPositions.rotate
    patch.setattr(schemes.RotaryPositions, "rotate", lambda self, x, at: honest(self, x, -at))


@_bed.plant("definition", positions("rotary"))
def rotary_that_turns_a_half_of_each_head(patch):
    honest = schemes.RotaryPositions.rotate

    def rotate(self, x, at):
        turned, half = honest(self, x, at).clone(), x.shape[-1] // 4
        turned[..., :half] = x[..., :half]
        return turned

    patch.setattr(schemes.RotaryPositions, "rotate", rotate)


@_bed.plant("definition", positions("sinusoidal"))
def sinusoids_of_one_frequency(patch):
    honest = schemes._frequencies  # pyright: ignore[reportPrivateUsage]
    patch.setattr(schemes, "_frequencies", lambda *given: torch.ones_like(honest(*given)))


@_bed.plant("definition", LANGUAGE_MODEL, positions("t5"))
def t5_buckets_that_end_at_eight(patch):
    honest = schemes.T5Positions.bucket
    patch.setattr(schemes.T5Positions, "bucket", lambda self, distance: honest(self, distance.clamp(min=-8)))


@_bed.plant("definition", rows_of(32), positions("learned"), also=("cache",))
def learned_positions_that_stop_at_24(patch):
    honest = schemes.LearnedPositions.embed
    patch.setattr(schemes.LearnedPositions, "embed", lambda self, x, at: honest(self, x, at.clamp(max=24)))
