"""Audits of pairs, split beside split: are held-out pairs new, and written and cut as those of train are?

What is asked of rows of any kind is asked of pairs too, of their sources or of both sides as one row. What each side
looks like, and how long it is beside the other, is asked here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.near_copies import evenly
from headway.audit.data.pair_set import PairSet
from headway.audit.data.rows import damaged_rows, repeated_rows, seen_rows_nearly, shared_rows

SIDES = ("source", "target")
MOST_ROWS, FEWEST_ROWS = 5000, 20
FEWEST_LETTERS, ENOUGH_LETTERS = 500, 3000
"""Of fewer than enough, more is allowed: chance has a say."""
PIECES = 5
OTHER_SHAPES, OTHER_LETTERS = 0.01, 0.04
"""Bits of divergence beyond what pieces of train have: worth a warning. Of held-out splits of Multi30k, TED, numbers in
words and Pig Latin shapes have 0.004 at most and letters 0.01, and 0.03 in a hundred captions of other pictures. The
same splits without capitals have 0.016 and more in shapes, with signs set apart 0.023, without signs 0.019."""
ANOTHER_TEXT = 0.1
"""Of either: French for German has 0.2 in letters, a text read backwards 0.3, one without blanks 0.16 in shapes."""
ENOUGH = 100
AT_ONE_LENGTH = 0.05
CUT = float(np.log(1.25))


class Spelling(NamedTuple):
    """How often which sign follows which."""

    pairs: np.ndarray
    """Two signs as one number, in order."""
    share: Float[np.ndarray, " n"]


@audit("data")
def written_alike(data: PairSet) -> Outcome:
    """Held-out splits are written as train is: in the same language, with the same signs, capitals and blanks.

    How often which sign follows which is counted on each side of each split, and compared with train by the
    Jensen-Shannon divergence, in bits: once letter by letter, and once with all small letters, all capitals and all
    digits as one. What pieces of train have, as long as the split, is taken off. More than 0.04 of letters, or 0.01 of
    such shapes, is a warning: one of them was lowercased, tokenised, stripped of its signs or read in a wrong encoding
    and the other was not, or it is text of another kind. More than 0.1 is a failure: it is another language, or
    another text. Prepare all splits alike, else a score says how well the preparation was guessed.
    """
    worst: tuple[float, float, str] = (-np.inf, 0.0, "")
    for k, side in enumerate(SIDES):
        texts = {split: [pair[k] for pair in data.pairs[split] if pair[k]] for split in ("train", *data.held_out)}
        for split in data.held_out:
            n = min(len(texts[split]), len(texts["train"]) // PIECES, MOST_ROWS)
            for told, allowed in ((_letters, OTHER_LETTERS), (_shapes, OTHER_SHAPES)) if n >= FEWEST_ROWS else ():
                mine = told([texts[split][row] for row in evenly(len(texts[split]), n)])
                if len(mine) < FEWEST_LETTERS:
                    continue
                allowed *= max(1, ENOUGH_LETTERS / len(mine))
                train = told([texts["train"][row] for row in evenly(len(texts["train"]), MOST_ROWS)])
                off = divergence(spelling(mine), spelling(train)) - _usual(told, texts["train"], n)
                if off / allowed > worst[0]:
                    says = f"{side}s of {split} are {max(off, 0):.2g} bits from those of train"
                    worst = (off / allowed, off, f"{says}: {_most_unlike(spelling(mine), spelling(train))}")
    if not worst[2]:
        raise DoesNotApply("held-out splits are too small to say how they are written")
    of_allowed, off, says = worst
    if of_allowed <= 1:
        return passed(max(off, 0.0), "held-out splits are written as train is")
    return (failed if off > ANOTHER_TEXT else warned)(off, says)


@audit("data")
def cut_sides(data: PairSet) -> Outcome:
    """No side is cut at one length, and held-out targets are as long beside their sources as those of train.

    Where many texts end at the very same length, the longest there is, and what stands beside them goes on, they were
    cut there: looked for is a side, in words or in letters, with 5 % of its texts at its greatest length, beside which
    the other side is longer by a quarter than it usually is. And the middle of the ratios of lengths of each held-out
    split is set beside that of train: honest splits differ by 6 % at most. More than a quarter is a warning, more than
    a half, or texts that were cut, a failure: one of them was cut, or its columns are others.
    """
    off, says = 0.0, "no side is cut at one length, and all splits have the same ratio of lengths"
    letters = {split: _lengths(pairs, len) for split, pairs in data.pairs.items()}
    of_train = _ratio(letters["train"]) if "train" in letters else None
    for split, pairs in data.pairs.items():
        for what, lengths in (("letters", letters[split]), ("words", _lengths(pairs, lambda text: len(text.split())))):
            for k, side in enumerate(SIDES):
                if (share := _share_cut(lengths[:, k], lengths[:, 1 - k])) is not None:
                    most = int(lengths[:, k].max())
                    told = f"{share:.0%} of the {side}s of {split} have {most} {what}, and none has more"
                    return failed(share, f"{told}: they were cut there")
        ratio = _ratio(letters[split])
        if ratio is not None and of_train is not None and abs(ratio - of_train) > abs(off):
            off = ratio - of_train
            told = f"targets of {split} have {np.exp(ratio):.2f} times the letters of their sources"
            says = f"{told}, those of train {np.exp(of_train):.2f} times"
    return (failed if abs(off) > np.log(1.5) else warned if abs(off) > CUT else passed)(float(off), says)


def spelling(signs: np.ndarray) -> Spelling:
    pairs, counts = np.unique(signs[:-1].astype(np.int64) << 21 | signs[1:], return_counts=True)
    return Spelling(pairs, counts / max(1, counts.sum()))


def divergence(one: Spelling, other: Spelling) -> float:
    """Jensen-Shannon, in bits: 0 = the same, 1 = nothing in common."""
    p, q, _ = _side_by_side(one, other)
    middle = (p + q) / 2
    return float(sum((x[x > 0] * np.log2(x[x > 0] / middle[x > 0])).sum() for x in (p, q)) / 2)


def _side_by_side(one: Spelling, other: Spelling) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    every = np.union1d(one.pairs, other.pairs)
    found = []
    for spelled in (one, other):
        share = np.zeros(len(every))
        share[np.searchsorted(every, spelled.pairs)] = spelled.share
        found.append(share)
    return found[0], found[1], every


def _most_unlike(one: Spelling, train: Spelling) -> str:
    """The two signs that tell most."""
    p, q, every = _side_by_side(one, train)
    middle = (p + q) / 2
    parts = [np.where(x > 0, x * np.log2(np.where(x > 0, x, 1) / middle), 0) for x in (p, q)]
    most = int((parts[0] + parts[1]).argmax())
    signs = "".join(map(chr, (every[most] >> 21, every[most] & (2**21 - 1)))).replace("\n", "⏎")
    return f"“{signs}” is {p[most]:.2%} of what follows on each other there, and {q[most]:.2%} in train"


def _usual(told: Callable[[Iterable[str]], np.ndarray], texts: Sequence[str], n: int) -> float:
    """The largest divergence of a piece of train, of so many rows, from the rest of it."""
    found = []
    for first in np.linspace(0, len(texts) - n, PIECES).astype(int):
        rest = [*texts[:first], *texts[first + n :]]
        others = told([rest[row] for row in evenly(len(rest), MOST_ROWS)])
        found.append(divergence(spelling(told(texts[first : first + n])), spelling(others)))
    return max(found)


def _letters(texts: Iterable[str]) -> np.ndarray:
    whole = "\n".join(["", *(" ".join(text.split()) for text in texts), ""])
    return np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), np.uint32)


def _shapes(texts: Iterable[str]) -> np.ndarray:
    """Small letters, capitals and digits are one sign each; others are themselves."""
    signs = _letters(texts)
    every, where = np.unique(signs, return_inverse=True)
    return np.array([ord(_shape(chr(sign))) for sign in every], np.uint32)[where]


def _shape(sign: str) -> str:
    return "A" if sign.isupper() else "a" if sign.isalpha() else "0" if sign.isdigit() else sign


def _lengths(pairs: Sequence[tuple[str, str]], measure: Callable[[str], int]) -> np.ndarray:
    """[n, 2]: of pairs with something on either side."""
    return np.array([[measure(s), measure(t)] for s, t in pairs if s and t], dtype=np.int64).reshape(-1, 2)


def _share_cut(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """The share of texts that have the greatest length, where what stands beside them is longer than it usually is."""
    if len(ours) < ENOUGH or ours.max() < 4:
        return None
    cut = ours == ours.max()
    if not cut.mean() > AT_ONE_LENGTH or (~cut).sum() < FEWEST_ROWS:
        return None
    beside = np.log(theirs / np.maximum(ours, 1))
    return float(cut.mean()) if np.median(beside[cut]) - np.median(beside[~cut]) > CUT else None


def _ratio(letters: np.ndarray) -> float | None:
    """The logarithm of the middle ratio of target to source, of pairs with more than ten letters."""
    letters = letters[letters.max(1) > 10] if len(letters) else letters
    return float(np.median(np.log(letters[:, 1] / letters[:, 0]))) if len(letters) >= FEWEST_ROWS else None


OF_SOURCES = (seen_rows_nearly, shared_rows, repeated_rows)
SPLIT_AUDITS: list[Audit] = [written_alike, cut_sides]
AS_ROWS: list[Audit] = [
    *(replace(one, check=lambda data, one=one: one.check(data.sources)) for one in OF_SOURCES),
    replace(damaged_rows, check=lambda data: damaged_rows.check(data.rows)),
]
"""What is asked of rows of any kind."""
