"""Faults of translation pairs: rows that do not belong together, or in the wrong direction."""

from dataclasses import replace
from itertools import pairwise

from headway.audit.data.pair_set import PairSet
from headway.audit.data.pair_tokens import References
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


@_pairs("targets_a_row_later_from_the_middle_on", "line-order", also=("unlike-lengths", "misaligned-pairs"))
def _shifted_late(pairs, split, rng):
    k = len(pairs) // 2
    return pairs[:k] + [(a[0], b[1]) for a, b in pairwise(pairs[k:])]


@_pairs("targets_three_rows_earlier", "line-order", also=("unlike-lengths",))
def _shifted_far(pairs, split, rng):
    return [(a[0], b[1]) for a, b in zip(pairs[3:], pairs, strict=False)]


@_pairs("some_targets_shuffled_among_themselves", "misaligned-pairs", also=("unlike-lengths", "line-order"))
def _misaligned(pairs, split, rng):
    """Two in five of the targets of train."""
    some = [k for k in range(len(pairs)) if split == "train" and rng.random() < 0.4]
    others = dict(zip(some, some[1:] + some[:1], strict=True))
    return [(source, pairs[others.get(k, k)][1]) for k, (source, _) in enumerate(pairs)]


@_pairs("held_out_from_the_other_direction", "swapped-sides", also=("seen-pairs", "written-alike", "cut-sides"))
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


@_pairs("answers_in_the_sources", "copied-targets", also=("unlike-lengths", "rows-of-text"))
def _joined(pairs, split, rng):
    """As if two columns had been read as one."""
    return [(f"{s} ; {t}", t) for s, t in pairs]


@_pairs("missing_references", "rows-of-text", also=("written-alike",))
def _missing(pairs, split, rng):
    return pairs if split == "train" else [(s, "" if rng.random() < 0.2 else t) for s, t in pairs]


@_pairs("targets_of_train_truncated", "cut-sides", also=("unlike-lengths", "many-targets", "seen-pairs"))
def _cut(pairs, split, rng):
    return [(s, t[: len(t) // 2 + 1]) for s, t in pairs] if split == "train" else pairs


@_pairs("targets_doubled_in_train", "cut-sides")
def _twice(pairs, split, rng):
    return [(s, f"{t} {t}") for s, t in pairs] if split == "train" else pairs


@_pairs("held_out_targets_reversed", "written-alike")
def _backwards(pairs, split, rng):
    return pairs if split == "train" else [(s, t[::-1]) for s, t in pairs]


@_pairs("held_out_without_spaces", "written-alike")
def _without_blanks(pairs, split, rng):
    return pairs if split == "train" else [(s.replace(" ", ""), t.replace(" ", "")) for s, t in pairs]


class _LosesTheEnd:
    """A tokenizer whose decode drops the last token."""

    def __init__(self, honest):
        self.encode_rows, self.unknown, self._decode = honest.encode_rows, honest.unknown, honest.decode

    def decode(self, ids):
        return self._decode(ids[:-1])


_bed.data(
    References,
    "writable-references",
    "decoding without the last token",
    lambda data, rng: replace(data, tokenizer=_LosesTheEnd(data.tokenizer)),
)
