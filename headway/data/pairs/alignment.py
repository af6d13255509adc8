"""Whether lines belong together, told without knowing either language: by their lengths, their signs, and what is
the same in both (numbers, names). One pair tells little; a hundred tell where two files have parted.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

SURE = 0.05
"""By how much lines that belong together must be more alike, on average, than lines that do not."""

_SAME_IN_BOTH = re.compile(r"\d+|\b[A-Z]\w+|[?!:;()\"]")


def likeness(source: str, target: str) -> float:
    """Of one line to another, from 0 to 1."""
    lengths = abs(math.log((len(source) + 5) / (len(target) + 5)))
    ours, theirs = set(_SAME_IN_BOTH.findall(source)), set(_SAME_IN_BOTH.findall(target))
    shared = len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.5
    return 0.5 * math.exp(-2 * lengths) + 0.5 * shared


def where_they_part(sources: Sequence[str], targets: Sequence[str]) -> int | None:
    """The first line, counted from 1, from which lines of files of different lengths go together only when one file is
    moved up by the difference; None where that cannot be told."""
    longer, shorter = (sources, targets) if len(sources) > len(targets) else (targets, sources)
    surplus = len(longer) - len(shorter)
    if not surplus or not shorter:
        return None
    as_they_stand = np.array([likeness(a, b) for a, b in zip(longer, shorter, strict=False)])
    moved = np.array([likeness(a, b) for a, b in zip(longer[surplus:], shorter, strict=True)])
    # Up to line k as they stand, from there on moved.
    gains = np.concatenate(([0.0], np.cumsum(as_they_stand - moved)))
    k = int(gains.argmax())
    before, after = (as_they_stand - moved)[:k], (moved - as_they_stand)[k:]
    if (len(before) >= 20 and before.mean() < SURE) or (len(after) >= 20 and after.mean() < SURE):
        return None
    return k + 1 if len(before) >= 20 or len(after) >= 20 else None
