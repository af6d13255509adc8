"""A count-based language model: interpolated n-grams with modified Kneser–Ney smoothing, as numpy arrays.

Every neural model has to beat an n-gram model, which takes seconds to fit. The probabilities are proper: they sum to 1
over the vocabulary after any context, so the perplexity can be compared with that of a model with the same tokens.
(Chen and Goodman 1999, https://doi.org/10.1006/csla.1999.0128)

    p_n(w | h) = (c(hw) - D(c(hw))) / c(h)  +  spare(h) · p_{n-1}(w | h without its oldest token)

c are counts in the highest order, and below it the number of different preceding tokens; D is the discount for a count
of 1, 2, 3 or more; spare(h) is the mass discounted after h. Below the lowest order the distribution is uniform.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

UNSEEN = -1
# For counts of which too few are small to estimate discounts: the characters of a long text, or a toy.
DISCOUNTS_WITHOUT_EVIDENCE = (0.5, 1.0, 1.5)


@dataclass(frozen=True, eq=False)
class Level:
    """The n-grams of one length. An n-gram's index is its place in `keys`; its key combines the index of its first
    n - 1 tokens, as an n-gram of the level below, and its last token."""

    keys: np.ndarray
    kept: np.ndarray
    """Of each n-gram: its count minus the discount."""
    totals: np.ndarray
    """Of each context, which is an n-gram of the level below: the sum of the counts of all tokens that follow."""
    spare: np.ndarray
    """Of each context: the probability mass that goes to the level below."""

    def find(self, contexts: np.ndarray, tokens: np.ndarray, vocabulary: int) -> np.ndarray:
        """The indices of these n-grams, or UNSEEN."""
        wanted = contexts * vocabulary + tokens
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((contexts != UNSEEN) & (self.keys[places] == wanted), places, UNSEEN)


@dataclass(frozen=True, eq=False)
class NGramModel:
    levels: list[Level]
    """Shortest first."""
    vocabulary: int

    @property
    def order(self) -> int:
        return len(self.levels)

    def losses(self, ids: np.ndarray, context: np.ndarray) -> np.ndarray:
        """The loss in nats of every token but the first; `context` says how many earlier tokens each may use."""
        ids = ids.astype(np.int64)
        likely = np.full(len(ids) - 1, 1 / self.vocabulary)
        before = np.zeros(len(ids), np.int64)  # before each token: the index of the (n - 1)-gram that ends there
        for n, level in enumerate(self.levels, start=1):
            found = level.find(before, ids, self.vocabulary)
            contexts, grams = before[1:], found[1:]
            usable = (contexts != UNSEEN) & (context >= n - 1)
            usable[usable] = level.totals[contexts[usable]] > 0
            contexts, grams = contexts[usable], grams[usable]
            own = np.where(grams == UNSEEN, 0.0, level.kept[grams]) / level.totals[contexts]
            likely[usable] = own + level.spare[contexts] * likely[usable]
            before = np.concatenate([[UNSEEN], found[:-1]])
        return -np.log(likely)


def fit(ids: np.ndarray, vocabulary: int, order: int) -> NGramModel:
    """Count every n-gram of a text up to `order` tokens: less than a second for two million tokens and order 5."""
    grams = list(_grams(ids.astype(np.int64), vocabulary, order))
    levels = []
    for n, (keys, counts, _, _) in enumerate(grams):
        if n + 1 < len(grams):
            longer_ends = grams[n + 1][2]  # where, in the text, one example of each longer gram ends
            counts = np.bincount(grams[n][3][longer_ends], minlength=len(keys))
        levels.append(_level(keys, counts, vocabulary, contexts=len(grams[n - 1][0]) if n else 1))
    return NGramModel(levels, vocabulary)


def _grams(ids: np.ndarray, vocabulary: int, order: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Level by level: keys, counts, the position in the text where one example of each ends, and the index of the
    n-gram that ends at each position (UNSEEN at the first n - 1)."""
    before = np.zeros(len(ids), np.int64)
    for n in range(1, min(order, len(ids)) + 1):
        wanted = before[n - 1 :] * vocabulary + ids[n - 1 :]
        keys, counts, examples, numbers = _counted(wanted)
        at = np.concatenate([np.full(n - 1, UNSEEN), numbers])
        yield keys, counts, examples + n - 1, at
        before = np.concatenate([[UNSEEN], at[:-1]])


def _counted(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The distinct values in order, how often each occurs and where first, and the index of the value at each place.
    The same as np.unique, but values are sorted with their places in the lower bits, many times as fast as argsort."""
    bits = len(wanted).bit_length()
    if int(wanted.max()) < 1 << (63 - bits):
        both = np.sort(wanted << bits | np.arange(len(wanted)))
        sorted_, order = both >> bits, both & ((1 << bits) - 1)
    else:
        order = np.argsort(wanted, kind="stable")
        sorted_ = wanted[order]
    begins = np.flatnonzero(np.diff(sorted_, prepend=-1))
    counts = np.diff(begins, append=len(wanted))
    numbers = np.empty(len(wanted), np.int64)
    numbers[order] = np.repeat(np.arange(len(begins)), counts)
    return sorted_[begins], counts, order[begins], numbers


def _level(keys: np.ndarray, counts: np.ndarray, vocabulary: int, contexts: int) -> Level:
    taken = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]
    context = keys // vocabulary
    totals = np.bincount(context, counts, minlength=contexts)
    spare = np.bincount(context, taken, minlength=contexts) / np.maximum(totals, 1)
    return Level(keys, counts - taken, totals, spare)


def _discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """The discounts for counts of 1, 2, and 3 or more, from how many counts of 1, 2, 3 and 4 there are."""
    once, twice, thrice, four = (np.bincount(np.minimum(counts, 5), minlength=6)[1:5]).tolist()
    if not (once and twice and thrice and four):
        return DISCOUNTS_WITHOUT_EVIDENCE
    y = once / (once + 2 * twice)
    one, two, three = 1 - 2 * y * twice / once, 2 - 3 * y * thrice / twice, 3 - 4 * y * four / thrice
    return (one, two, three) if 0 < one <= 1 and 0 < two <= 2 and 0 < three <= 3 else DISCOUNTS_WITHOUT_EVIDENCE
