"""Faults of translation pairs: rows that do not belong together, or in the wrong direction."""

from dataclasses import replace
from itertools import pairwise

from headway.audit.data.pairs import PairSet
from headway.audit.plants.needs import TRANSLATOR
from headway.audit.plants.planting import Bed

_bed = Bed("pairs", TRANSLATOR)


def _pairs(name: str, caught_by: str, also: tuple[str, ...] = ()):
    def keep(change):
        def into(data: PairSet, rng) -> PairSet:
            return replace(data, pairs={s: change(list(p), s, rng) for s, p in data.pairs.items()}, files=None)

        _bed.add(name, caught_by, module=__name__, of=PairSet, data=into, also=also)
        return change

    return keep


@_pairs("targets_a_row_later", "line-order", also=("unlike-lengths",))
def _shifted(pairs, split, rng):
    return [(a[0], b[1]) for a, b in pairwise(pairs)] if split == "train" else pairs


@_pairs("targets_a_row_later_from_the_middle_on", "line-order", also=("unlike-lengths",))
def _shifted_late(pairs, split, rng):
    k = len(pairs) // 2
    return pairs[:k] + [(a[0], b[1]) for a, b in pairwise(pairs[k:])]


@_pairs("targets_three_rows_earlier", "line-order", also=("unlike-lengths",))
def _shifted_far(pairs, split, rng):
    return [(a[0], b[1]) for a, b in zip(pairs[3:], pairs, strict=False)]


@_pairs("held_out_from_the_other_direction", "swapped-sides", also=("seen-pairs",))
def _turned(pairs, split, rng):
    return pairs if split == "train" else [(target, source) for source, target in pairs]


@_pairs("rows_swapped_here_and_there", "swapped-sides", also=("unlike-lengths",))
def _turned_here_and_there(pairs, split, rng):
    return [(t, s) if split == "train" and rng.random() < 0.3 else (s, t) for s, t in pairs]


@_pairs("rows_never_translated", "copied-targets", also=("unlike-lengths",))
def _untranslated(pairs, split, rng):
    return [(s, s) if split == "train" and rng.random() < 0.3 else (s, t) for s, t in pairs]


@_pairs("metadata_among_the_pairs", "rows-of-text", also=("unlike-lengths",))
def _tagged(pairs, split, rng):
    tagged = [(f"<keywords>{s}</keywords>", f"<keywords>{t}</keywords>") for s, t in pairs if rng.random() < 0.1]
    return [*pairs, *tagged] if split == "train" else pairs
