"""Audits that compare splits of pairs: are held-out pairs new, and prepared and truncated like those of train?

The audits of rows also run on pairs, on their sources or on both sides as one row. Audits of the spelling of each side
and of the ratio of lengths are defined here.
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
MAX_ROWS, MIN_ROWS = 5000, 20
MIN_LETTERS, ENOUGH_LETTERS = 500, 3000
"""Splits with fewer than enough letters get a larger threshold, because of chance."""
PIECES = 5
MAX_SHAPE_DIVERGENCE, MAX_LETTER_DIVERGENCE = 0.01, 0.04
"""Divergence in bits beyond that of pieces of train; more is a warning. Held-out splits of Multi30k, TED, numbers in
words and Pig Latin have at most 0.004 in shapes and 0.01 in letters, and a hundred captions of other pictures 0.03. The
same splits without capitals have at least 0.016 in shapes, with separated punctuation 0.023, without any 0.019."""
OTHER_TEXT = 0.1
"""A larger divergence is a failure: French instead of German has 0.2 in letters, reversed text 0.3, text without spaces
0.16 in shapes."""
MIN_PAIRS = 100
AT_ONE_LENGTH = 0.05
MIN_CUT_LETTERS, MIN_CUT_WORDS = 20, 4
MAX_LOG_RATIO = float(np.log(1.25))


class Bigrams(NamedTuple):
    """Frequencies of pairs of consecutive characters."""

    pairs: np.ndarray
    """Two characters as one number, ascending."""
    share: Float[np.ndarray, " n"]


@audit("data")
def written_alike(data: PairSet) -> Outcome:
    """Held-out splits are written like train: the same language, punctuation, capitals and spaces.

    Character bigrams are counted on each side of each split and compared with train by the Jensen-Shannon divergence,
    in bits: once with all characters, and once with all lower-case letters, all capitals and all digits replaced by one
    character each ("shapes"). The divergence of pieces of train of the same size is subtracted. More than 0.04 in
    characters, or 0.01 in shapes, is a warning: one split was lowercased, tokenised, stripped of punctuation or decoded
    in a wrong encoding and the other was not, or it is text of another kind. More than 0.1 is a failure: it is another
    language, or another text. Prepare all splits in the same way; otherwise the score measures the preparation.
    """
    worst: tuple[float, float, str] = (-np.inf, 0.0, "")
    for k, side in enumerate(SIDES):
        texts = {split: [pair[k] for pair in data.pairs[split] if pair[k]] for split in ("train", *data.held_out)}
        for split in data.held_out:
            n = min(len(texts[split]), len(texts["train"]) // PIECES, MAX_ROWS)
            measures = (_letters, MAX_LETTER_DIVERGENCE), (_shapes, MAX_SHAPE_DIVERGENCE)
            for measure, allowed in measures if n >= MIN_ROWS else ():
                mine = measure([texts[split][row] for row in evenly(len(texts[split]), n)])
                if len(mine) < MIN_LETTERS:
                    continue
                allowed *= max(1, ENOUGH_LETTERS / len(mine))
                train = measure([texts["train"][row] for row in evenly(len(texts["train"]), MAX_ROWS)])
                off = divergence(bigrams(mine), bigrams(train)) - _usual(measure, texts["train"], n)
                if off / allowed > worst[0]:
                    says = f"{side}s of {split} are {max(off, 0):.2g} bits from those of train"
                    worst = (off / allowed, off, f"{says}: {_largest_difference(bigrams(mine), bigrams(train))}")
    if not worst[2]:
        raise DoesNotApply("held-out splits are too small to compare their spelling")
    of_allowed, off, says = worst
    if of_allowed <= 1:
        return passed(max(off, 0.0), "held-out splits are written like train")
    return (failed if off > OTHER_TEXT else warned)(off, says)


@audit("data")
def cut_sides(data: PairSet) -> Outcome:
    """No side is truncated, and the ratio of target to source lengths is the same in held-out splits and train.

    Texts were truncated if many have exactly the maximum length although their counterparts are longer than usual: the
    audit searches for a side, in words or in characters, with 5 % of its texts at its maximum length, whose
    counterparts are 25 % longer than usual in proportion. A maximum of less than 4 words or 20 characters is ignored:
    sums of two numbers often have one length. The audit also compares the usual ratio of lengths of each held-out split
    with that of train: honest splits differ by at most 6 %. More than 25 % is a warning; more than 50 %, or truncated
    texts, a failure: a side was truncated, or its columns are wrong.
    """
    off, says = 0.0, "no side is truncated, and all splits have the same ratio of lengths"
    letters = {split: _lengths(pairs, len) for split, pairs in data.pairs.items()}
    of_train = _ratio(letters["train"]) if "train" in letters else None
    for split, pairs in data.pairs.items():
        words = _lengths(pairs, lambda text: len(text.split()))
        for what, lengths, shortest in (("letters", letters[split], MIN_CUT_LETTERS), ("words", words, MIN_CUT_WORDS)):
            for k, side in enumerate(SIDES):
                if (share := _share_cut(lengths[:, k], lengths[:, 1 - k], shortest)) is not None:
                    most = int(lengths[:, k].max())
                    truncated = f"{share:.0%} of the {side}s of {split} have {most} {what}, and none has more"
                    return failed(share, f"{truncated}: they were truncated")
        ratio = _ratio(letters[split])
        if ratio is not None and of_train is not None and abs(ratio - of_train) > abs(off):
            off = ratio - of_train
            here = f"targets of {split} have {np.exp(ratio):.2f} times the characters of their sources"
            says = f"{here}, those of train {np.exp(of_train):.2f} times"
    return (failed if abs(off) > np.log(1.5) else warned if abs(off) > MAX_LOG_RATIO else passed)(float(off), says)


def bigrams(characters: np.ndarray) -> Bigrams:
    pairs, counts = np.unique(characters[:-1].astype(np.int64) << 21 | characters[1:], return_counts=True)
    return Bigrams(pairs, counts / max(1, counts.sum()))


def divergence(one: Bigrams, other: Bigrams) -> float:
    """Jensen-Shannon divergence in bits: 0 = identical, 1 = nothing in common."""
    p, q, _ = _aligned(one, other)
    middle = (p + q) / 2
    return float(sum((x[x > 0] * np.log2(x[x > 0] / middle[x > 0])).sum() for x in (p, q)) / 2)


def _aligned(one: Bigrams, other: Bigrams) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The shares of both for all bigrams that occur in either, and these bigrams."""
    every = np.union1d(one.pairs, other.pairs)
    found = []
    for counted in (one, other):
        share = np.zeros(len(every))
        share[np.searchsorted(every, counted.pairs)] = counted.share
        found.append(share)
    return found[0], found[1], every


def _largest_difference(one: Bigrams, train: Bigrams) -> str:
    """The bigram that contributes most to the divergence."""
    p, q, every = _aligned(one, train)
    middle = (p + q) / 2
    parts = [np.where(x > 0, x * np.log2(np.where(x > 0, x, 1) / middle), 0) for x in (p, q)]
    most = int((parts[0] + parts[1]).argmax())
    both = "".join(map(chr, (every[most] >> 21, every[most] & (2**21 - 1)))).replace("\n", "⏎")
    return f"“{both}” makes up {p[most]:.2%} of character pairs there, and {q[most]:.2%} in train"


def _usual(measure: Callable[[Iterable[str]], np.ndarray], texts: Sequence[str], n: int) -> float:
    """The largest divergence of a piece of train, with n rows, from the rest of it."""
    found = []
    for first in np.linspace(0, len(texts) - n, PIECES).astype(int):
        rest = [*texts[:first], *texts[first + n :]]
        others = measure([rest[row] for row in evenly(len(rest), MAX_ROWS)])
        found.append(divergence(bigrams(measure(texts[first : first + n])), bigrams(others)))
    return max(found)


def _letters(texts: Iterable[str]) -> np.ndarray:
    whole = "\n".join(["", *(" ".join(text.split()) for text in texts), ""])
    return np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), np.uint32)


def _shapes(texts: Iterable[str]) -> np.ndarray:
    """Lower-case letters, capitals and digits become one character each; others are unchanged."""
    every, where = np.unique(_letters(texts), return_inverse=True)
    return np.array([ord(_shape(chr(character))) for character in every], np.uint32)[where]


def _shape(character: str) -> str:
    if character.isupper():
        return "A"
    return "a" if character.isalpha() else "0" if character.isdigit() else character


def _lengths(pairs: Sequence[tuple[str, str]], measure: Callable[[str], int]) -> np.ndarray:
    """[n, 2]: the lengths of pairs without an empty side."""
    return np.array([[measure(s), measure(t)] for s, t in pairs if s and t], dtype=np.int64).reshape(-1, 2)


def _share_cut(ours: np.ndarray, theirs: np.ndarray, shortest: int) -> float | None:
    """The share of texts with the maximum length if their counterparts are longer than usual; otherwise None, as for a
    maximum below `shortest`."""
    if len(ours) < MIN_PAIRS or ours.max() < shortest:
        return None
    cut = ours == ours.max()
    if not cut.mean() > AT_ONE_LENGTH or (~cut).sum() < MIN_ROWS:
        return None
    beside = np.log(theirs / np.maximum(ours, 1))
    return float(cut.mean()) if np.median(beside[cut]) - np.median(beside[~cut]) > MAX_LOG_RATIO else None


def _ratio(letters: np.ndarray) -> float | None:
    """The logarithm of the usual ratio of target to source length, over pairs with more than ten characters: the mean
    of the middle half, since the median of short answers, such as yes and no, may be either."""
    letters = letters[letters.max(1) > 10] if len(letters) else letters
    ratios, quarter = np.sort(np.log(letters[:, 1] / letters[:, 0])), len(letters) // 4
    return float(ratios[quarter : len(ratios) - quarter].mean()) if len(ratios) >= MIN_ROWS else None


OF_SOURCES = (seen_rows_nearly, shared_rows, repeated_rows)
SPLIT_AUDITS: list[Audit] = [written_alike, cut_sides]
AS_ROWS: list[Audit] = [
    *(replace(one, check=lambda data, one=one: one.check(data.sources)) for one in OF_SOURCES),
    replace(damaged_rows, check=lambda data: damaged_rows.check(data.rows)),
]
"""Audits of rows of any kind, applied to pairs."""
