"""Whether lines belong together, told without knowing either language: by their lengths, their signs, and what is
the same in both (numbers, names). One pair tells little; a hundred tell where two files have parted.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

SURE = 0.05
"""By how much lines that belong together must be more alike, on average, than lines that do not."""
LESS_SURE = 0.02
"""The same, of as many lines as a stretch has."""
LOOKED_UP = 5_000
"""Lines of a long text that tell about where two files part."""
STRETCH = 200
"""Lines on end that are compared with others."""
LOOKED_AT = 12
"""Stretches of a text, at most, from its beginning to its end."""
MOST_BEFORE = 10_000
"""Rows before a stretch that has slipped, among which the first such row is looked for."""
FARTHEST = 10
"""Rows by which one side may have slipped beside the other: more are not looked for."""
FEW = 0.05
"""Of all lines: where no more of them are unlike others, all are alike."""
FAR_APART = (-40, -30, -20, 20, 30, 40)
"""Rows between lines that have nothing to do with each other."""
SLIPPED, BELONGS, NOTHING_TELLS = 4.0, 6.0, 2.0
"""Standard deviations of the mean of a stretch. Some hundred means are compared, and the largest of them may not lie
above 4 by chance. Lines of Multi30k, TED and Pig Latin that belong together are 9 to 43 above lines far apart; when one
side is shuffled, 2 at most."""

_SAME_IN_BOTH = re.compile(r"\d+|\b[A-Z]\w+|[?!:;()\"]")
Pairs = Sequence[tuple[str, str]]


class Slipped(NamedTuple):
    """From `row` on, counted from 1, sources go with the target so many rows later (or earlier, if less than 0); None =
    with none that stands near."""

    row: int
    by: int | None
    gain: float
    """By how much those are more alike; or by how much lines as they stand are less alike than elsewhere."""


def likeness(source: str, target: str, usual: float = 0.0) -> float:
    """Of one line to another, from 0 to 1. `usual`: how lengths go in these languages, by `usual_lengths`."""
    lengths = abs(_length(source) - _length(target) - usual)
    ours, theirs = set(_SAME_IN_BOTH.findall(source)), set(_SAME_IN_BOTH.findall(target))
    shared = len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.5
    return 0.5 * math.exp(-2 * lengths) + 0.5 * shared


def usual_lengths(sources: Sequence[str], targets: Sequence[str]) -> float:
    """The difference of the logarithms of lengths in the middle of all: the same, however lines are out of order."""
    ours, theirs = ([_length(text) for text in side if text] for side in (sources, targets))
    return float(np.median(ours) - np.median(theirs)) if ours and theirs else 0.0


def _length(text: str) -> float:
    return math.log(len(text) + 5)


def where_they_part(sources: Sequence[str], targets: Sequence[str]) -> int | None:
    """The first line, counted from 1, from which lines of files of different lengths go together only when one file is
    moved up: by the difference of their lengths, or by less where they part more than once. None where that cannot be
    told."""
    longer, shorter = (sources, targets) if len(sources) > len(targets) else (targets, sources)
    surplus = len(longer) - len(shorter)
    if not surplus or not shorter:
        return None
    usual = usual_lengths(longer, shorter)
    told = [_parting(longer, shorter, usual, by) for by in {surplus, *range(1, min(surplus, FARTHEST))}]
    return min((line for line in told if line is not None), default=None)


def _parting(longer: Sequence[str], shorter: Sequence[str], usual: float, by: int) -> int | None:
    """Up to line k as they stand, from there on moved up by so many: to the end, or until they part again. Of long
    texts some lines tell about where, and those around it where exactly."""

    def better_as_they_stand(rows: range) -> Float[np.ndarray, " n"]:
        both = ((likeness(longer[row + at], shorter[row], usual) for at in (0, by)) for row in rows)
        return np.array([stands - moved for stands, moved in both])

    rows = range(0, len(shorter), max(1, len(shorter) // LOOKED_UP))
    gains = better_as_they_stand(rows)
    k = int(_running(gains).argmax())
    until = k + int(_running(-gains[k:]).argmax())
    before, after = gains[:k], -gains[k:until]
    if (len(before) >= 20 and before.mean() < SURE) or (len(after) >= 20 and after.mean() < SURE):
        return None
    whole = by == len(longer) - len(shorter)  # what is missing may be the last lines, or the first
    if len(after) < 20 and not (whole and len(before) >= 20 and until == len(rows)):
        return None
    around = range(rows.step * max(0, k - 20), min(len(shorter), rows.step * (k + 20)))
    return around.start + int(_running(better_as_they_stand(around)).argmax()) + 1


def stretches_of(rows: int) -> list[int]:
    """The rows at which the stretches begin that are looked at, from the first to the last."""
    if rows < 40:
        return []
    last = max(0, rows - STRETCH)
    return sorted(set(np.linspace(0, last, min(LOOKED_AT, 1 + math.ceil(last / STRETCH))).astype(int).tolist()))


def where_they_slip(pairs: Pairs) -> Slipped | None:
    """Where sides of equal length have slipped beside each other: a line is missing here and another there. Stretches
    of the text are looked at, and where one of them is wrong, what is before it."""
    lines = _BesideEachOther(pairs)
    shifts = [by for far in range(1, FARTHEST + 1) for by in (far, -far)]
    for number, first in enumerate(lines.stretches):
        rows = range(first, first + STRETCH)
        gains = {by: lines.gains(rows, by) for by in shifts}
        by = max(gains, key=lambda by: np.nanmean(gains[by]))
        if np.nanmean(gains[by]) > LESS_SURE and _deviations(gains[by]) > SLIPPED:
            begin = max(0, min(lines.stretches[max(0, number - 1)], first - MOST_BEFORE))
            before = np.nan_to_num(lines.gains(range(begin, first + STRETCH), by))
            return Slipped(begin + int(_running(-before).argmax()) + 1, by, float(np.nanmean(gains[by])))
    return None


def where_they_differ(pairs: Pairs) -> Slipped | None:
    """Where lines, two stretches on end, are no more alike than lines far apart, though elsewhere they are: from there
    on one side is in another order, or another text. Row 1, where nothing tells that any lines belong together; with a
    gain of 0, where they are all alike, of one length for example, so that nothing could."""
    lines = _BesideEachOther(pairs)
    gains = [
        -np.nanmean([lines.gains(range(first, first + STRETCH), by) for by in FAR_APART], 0)
        for first in lines.stretches
    ]
    if len(gains) < 2:
        return None
    everywhere = np.concatenate(gains)
    if _deviations(everywhere) < NOTHING_TELLS:
        differs = np.count_nonzero(everywhere) > FEW * len(everywhere)
        return Slipped(1, None, float(everywhere.mean()) if differs else 0.0)
    clear = [gain.mean() for gain in gains if _deviations(gain) > BELONGS]
    if len(clear) < 2:
        return None
    usual = float(np.median(clear))
    strange = [gain.mean() < usual / 5 and _deviations(gain) < NOTHING_TELLS for gain in gains]
    at = next((k for k, two in enumerate(pairwise(strange)) if all(two)), None)
    return None if at is None else Slipped(lines.stretches[at] + 1, None, usual - float(gains[at].mean()))


class _BesideEachOther:
    """Two texts, line beside line."""

    def __init__(self, pairs: Pairs):
        self.pairs = pairs
        self.usual = usual_lengths([source for source, _ in pairs], [target for _, target in pairs])
        self.stretches = stretches_of(len(pairs))
        self._own: dict[int, float] = {}

    def gains(self, rows: Iterable[int], by: int) -> Float[np.ndarray, " n"]:
        """How much more these sources are like the targets so many rows later than like their own; nan where there is
        none."""
        found, there = [], range(len(self.pairs))
        for k in (k for k in rows if k in there):
            own = self._own.get(k)
            if own is None:
                own = self._own[k] = likeness(*self.pairs[k], self.usual)
            other = likeness(self.pairs[k][0], self.pairs[k + by][1], self.usual) if k + by in there else math.nan
            found.append(other - own)
        return np.array(found)


def _deviations(gains: Float[np.ndarray, " n"]) -> float:
    """By how many standard deviations of itself the mean is above 0."""
    spread = float(np.nanstd(gains)) / math.sqrt(len(gains))
    return float(np.nanmean(gains)) / max(spread, 1e-12)


def _running(gains: Float[np.ndarray, " n"]) -> Float[np.ndarray, " m"]:
    """The sum of none of them, of the first, of the first two …"""
    return np.concatenate(([0.0], np.cumsum(gains)))
