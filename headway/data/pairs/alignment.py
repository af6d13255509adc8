"""Check whether lines of two files are translations of each other, without knowing the languages: by their lengths,
punctuation, and what is the same in both (numbers, names). One pair says little; a hundred show where files diverge.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MIN_GAIN = 0.05
"""The minimum mean difference in similarity between lines that belong together and lines that do not."""
MIN_GAIN_OF_STRETCH = 0.02
"""The same for the mean over a stretch."""
STRETCH = 200
"""Consecutive lines that are compared with others."""
MAX_STRETCHES = 12
"""The maximum number of stretches examined, spread over the text."""
MAX_ROWS_BEFORE = 10_000
"""How many rows before a shifted stretch are searched for the first shifted row."""
MAX_SHIFT = 10
"""The largest shift between the sides, in rows, that is searched for."""
FEW_DIFFERENT = 0.05
"""If at most this share of lines differs from others in similarity, all lines count as alike."""
FAR_OFFSETS = (-40, -30, -20, 20, 30, 40)
"""Offsets at which lines have nothing to do with each other."""
Z_SHIFTED, Z_MATCHING, Z_UNRELATED = 4.0, 6.0, 2.0
"""Thresholds in standard errors of a stretch's mean. Some hundred means are compared, and the largest must not exceed 4
by chance. In Multi30k, TED and Pig Latin, lines that belong together are 9 to 43 above lines far apart; when one side
is shuffled, at most 2."""

_SAME_IN_BOTH = re.compile(r"\d+|\b[A-Z]\w+|[?!:;()\"]")
Pairs = Sequence[tuple[str, str]]


class Misalignment(NamedTuple):
    """A misalignment: from `row` on, counted from 1, sources match the target `by` rows later (negative: earlier). None
    = no target nearby matches."""

    row: int
    by: int | None
    gain: float
    """How much more similar the shifted lines are or, without a shift, how much less similar lines are than
    elsewhere."""


def similarity(source: str, target: str, usual: float = 0.0) -> float:
    """Similarity of two lines, from 0 to 1. `usual` is the usual log ratio of lengths, from `usual_lengths`."""
    lengths = abs(_length(source) - _length(target) - usual)
    ours, theirs = set(_SAME_IN_BOTH.findall(source)), set(_SAME_IN_BOTH.findall(target))
    shared = len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.5
    return 0.5 * math.exp(-2 * lengths) + 0.5 * shared


def usual_lengths(sources: Sequence[str], targets: Sequence[str]) -> float:
    """The difference of the median log lengths, which does not depend on the order of lines."""
    ours, theirs = ([_length(text) for text in side if text] for side in (sources, targets))
    return float(np.median(ours) - np.median(theirs)) if ours and theirs else 0.0


def _length(text: str) -> float:
    return math.log(len(text) + 5)


def find_divergence(sources: Sequence[str], targets: Sequence[str]) -> int | None:
    """For files of different lengths: the first line, counted from 1, from which they match only if the longer one is
    shifted, by the difference of their lengths or by less if they diverge more than once. None if that is not clear."""
    longer, shorter = (sources, targets) if len(sources) > len(targets) else (targets, sources)
    surplus = len(longer) - len(shorter)
    if not surplus or not shorter:
        return None
    usual = usual_lengths(longer, shorter)
    lines = [_divergence(longer, shorter, usual, by) for by in {surplus, *range(1, min(surplus, MAX_SHIFT))}]
    return min((line for line in lines if line is not None), default=None)


def _divergence(longer: Sequence[str], shorter: Sequence[str], usual: float, by: int) -> int | None:
    """The line from which the files match with this shift, to the end or until they diverge again."""
    unshifted = np.array([similarity(a, b, usual) for a, b in zip(longer, shorter, strict=False)])
    moved = np.array([similarity(a, b, usual) for a, b in zip(longer[by:], shorter, strict=False)])
    k = int(_cumulative(unshifted - moved).argmax())
    until = k + int(_cumulative((moved - unshifted)[k:]).argmax())
    before, after = (unshifted - moved)[:k], (moved - unshifted)[k:until]
    if (len(before) >= 20 and before.mean() < MIN_GAIN) or (len(after) >= 20 and after.mean() < MIN_GAIN):
        return None
    whole = by == len(longer) - len(shorter)  # the missing lines may be the last or the first
    return k + 1 if len(after) >= 20 or (whole and len(before) >= 20 and until == len(shorter)) else None


def stretches_of(rows: int) -> list[int]:
    """The first rows of the stretches to examine."""
    if rows < 40:
        return []
    last = max(0, rows - STRETCH)
    return sorted(set(np.linspace(0, last, min(MAX_STRETCHES, 1 + math.ceil(last / STRETCH))).astype(int).tolist()))


def find_shift(pairs: Pairs) -> Misalignment | None:
    """Find a shift between sides of equal length, where one line is missing on each side at different places. Stretches
    of the text are tested; before the first shifted one, the first shifted row is searched."""
    lines = _LineSimilarities(pairs)
    shifts = [by for far in range(1, MAX_SHIFT + 1) for by in (far, -far)]
    for number, first in enumerate(lines.stretches):
        rows = range(first, first + STRETCH)
        gains = {by: lines.gains(rows, by) for by in shifts}
        by = max(gains, key=lambda by: np.nanmean(gains[by]))
        if np.nanmean(gains[by]) > MIN_GAIN_OF_STRETCH and _z_score(gains[by]) > Z_SHIFTED:
            begin = max(0, min(lines.stretches[max(0, number - 1)], first - MAX_ROWS_BEFORE))
            before = np.nan_to_num(lines.gains(range(begin, first + STRETCH), by))
            return Misalignment(begin + int(_cumulative(-before).argmax()) + 1, by, float(np.nanmean(gains[by])))
    return None


def find_mismatch(pairs: Pairs) -> Misalignment | None:
    """Find where, for two consecutive stretches, lines are no more similar than lines far apart although elsewhere they
    are: there one side has another order or another text. Row 1 if no lines seem to belong together; with a gain of 0
    if all lines are alike, for example of equal length, so that nothing can be concluded."""
    lines = _LineSimilarities(pairs)
    gains = [
        -np.nanmean([lines.gains(range(first, first + STRETCH), by) for by in FAR_OFFSETS], 0)
        for first in lines.stretches
    ]
    if len(gains) < 2:
        return None
    everywhere = np.concatenate(gains)
    if _z_score(everywhere) < Z_UNRELATED:
        differs = np.count_nonzero(everywhere) > FEW_DIFFERENT * len(everywhere)
        return Misalignment(1, None, float(everywhere.mean()) if differs else 0.0)
    clear = [gain.mean() for gain in gains if _z_score(gain) > Z_MATCHING]
    if len(clear) < 2:
        return None
    usual = float(np.median(clear))
    strange = [gain.mean() < usual / 5 and _z_score(gain) < Z_UNRELATED for gain in gains]
    at = next((k for k, two in enumerate(pairwise(strange)) if all(two)), None)
    return None if at is None else Misalignment(lines.stretches[at] + 1, None, usual - float(gains[at].mean()))


class _LineSimilarities:
    """Similarities of lines of two texts, with a cache."""

    def __init__(self, pairs: Pairs):
        self.pairs = pairs
        self.usual = usual_lengths([source for source, _ in pairs], [target for _, target in pairs])
        self.stretches = stretches_of(len(pairs))
        self._own: dict[int, float] = {}

    def gains(self, rows: Iterable[int], by: int) -> Float[np.ndarray, " n"]:
        """How much more similar these sources are to the target `by` rows later than to their own; nan if there is
        none."""
        found, there = [], range(len(self.pairs))
        for k in (k for k in rows if k in there):
            own = self._own.get(k)
            if own is None:
                own = self._own[k] = similarity(*self.pairs[k], self.usual)
            other = similarity(self.pairs[k][0], self.pairs[k + by][1], self.usual) if k + by in there else math.nan
            found.append(other - own)
        return np.array(found)


def _z_score(gains: Float[np.ndarray, " n"]) -> float:
    """The mean in units of its standard error."""
    spread = float(np.nanstd(gains)) / math.sqrt(len(gains))
    return float(np.nanmean(gains)) / max(spread, 1e-12)


def _cumulative(gains: Float[np.ndarray, " n"]) -> Float[np.ndarray, " m"]:
    """Cumulative sums, beginning with 0."""
    return np.concatenate(([0.0], np.cumsum(gains)))
