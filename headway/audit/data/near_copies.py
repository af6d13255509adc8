"""Near copies: rows that share too much content with another row to have been written independently.

A row is the set of its words. Case, punctuation, order and repetition are ignored, so a copy that was shuffled, retyped
or cut is still a copy. The weight of a word is −log of the share of rows that have it, in nats: almost nothing for
"the", about nine for a name. Two rows are near copies if they share half of the content of the shorter one, and so many
nats that independent rows hardly ever share as much (20, plus the logarithm of the number of rows compared with). Half,
because copies with every third word replaced share 60 to 70 %, and rows of honest data sets hardly ever half.

Candidates are found by their rarest words: an inverted index says which rows have a word, and words are used from the
rarest on until they make a few million pairs. The overlap is then exact. (MinHash, the usual tool, estimates the
Jaccard similarity of whole rows: a row that was cut to a third has 0.33, as much as rows that merely share a topic; and
it takes many hashes to estimate what is cheap to count.)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SHARED = 0.5
FEWEST_NATS = 20.0
MOST_PAIRS = 2_000_000
"""Maximum number of pairs of rows that share a word, plus some more per row: a comparison takes a second at most."""


@dataclass(frozen=True, eq=False)
class Bags:
    """Rows as sets of words: every word of a row once, sorted by row."""

    row: np.ndarray
    word: np.ndarray
    rows: int
    """Number of rows; some may have no words."""

    @classmethod
    def of(cls, row: np.ndarray, word: np.ndarray, rows: int) -> "Bags":
        both = _distinct(row.astype(np.int64) << 32 | word)
        return cls(both >> 32, both & (2**32 - 1), rows)

    @classmethod
    def of_texts(cls, texts: Iterable[str], numbers: dict[str, int]) -> "Bags":
        """From texts, split at blanks; `numbers` maps words to ids, and new words are added to it."""
        found = [text.split() for text in texts]
        for word in dict.fromkeys(chain.from_iterable(found)):
            numbers.setdefault(word, len(numbers))
        words = np.fromiter(map(numbers.__getitem__, chain.from_iterable(found)), np.int64)
        return cls.of(np.repeat(np.arange(len(found)), [len(row) for row in found]), words, len(found))

    def some(self, rows: np.ndarray) -> "Bags":
        """The bags of these rows, in this order, numbered from zero."""
        place = np.full(self.rows, -1)
        place[rows] = np.arange(len(rows))
        mine = place[self.row] >= 0
        return Bags.of(place[self.row[mine]], self.word[mine], len(rows))


class NearCopies(NamedTuple):
    """Pairs of near copies; a row may have several."""

    row: np.ndarray
    twin: np.ndarray
    share: np.ndarray
    """Overlap, as a share of the weight of the shorter row."""
    nats: np.ndarray
    """Weight of the shared words."""

    def which(self, rows: int) -> np.ndarray:
        """bool [rows]: whether a row has a near copy."""
        found = np.zeros(rows, np.bool_)
        found[self.row] = True
        return found

    def clearest(self, which: np.ndarray) -> tuple[int, int]:
        """Of these rows (bool), the pair that shares most, as an example."""
        best = np.where(which[self.row], self.share * np.minimum(self.nats, 100), -1).argmax()
        return int(self.row[best]), int(self.twin[best])


def near_copies(
    rows: Bags, among: Bags, *, cut: bool = True, skip: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
) -> NearCopies:
    """The near copies of some rows among others. Without `cut`, the twin must have half of the row's content, however
    short the twin is. `skip(row, twin)` says which pairs do not count, such as a row and itself."""
    vocabulary = int(max(rows.word.max(initial=0), among.word.max(initial=0))) + 1
    here, there = (np.bincount(bags.word, minlength=vocabulary) for bags in (rows, among))
    weights = np.log((among.rows + 1) / (there + 1))
    rarest = np.argsort(there, kind="stable")
    few_enough = np.cumsum((here * there.astype(float))[rarest]) <= MOST_PAIRS + 500 * rows.rows
    weights[rarest[~few_enough]] = 0
    weights[there == 0] /= 2  # it may be a typing error or a replacement, and could not be shared
    mine, theirs = _weighted(rows, weights), _weighted(among, np.sign(weights))
    both = (mine @ theirs.T.tocsr()).tocoo()
    of_row, of_twin = _said(rows, weights)[both.row], _said(among, weights)[both.col]
    share = both.data / np.minimum(of_row, of_twin if cut else of_row)
    near = (share >= SHARED) & (both.data >= FEWEST_NATS + np.log(among.rows))
    found = NearCopies(*(part[near] for part in (both.row, both.col, share, both.data)))
    if skip is None:
        return found
    counted = ~skip(found.row, found.twin)
    return NearCopies(*(part[counted] for part in found))


def _weighted(bags: Bags, weights: np.ndarray) -> "csr_matrix":
    """[rows, words], with the weight of a word where a row has it."""
    from scipy.sparse import csr_matrix

    telling = weights[bags.word] > 0
    row, word = bags.row[telling], bags.word[telling]
    begins = np.searchsorted(row, np.arange(bags.rows + 1))
    return csr_matrix((weights[word], word, begins), shape=(bags.rows, len(weights)))


def _said(bags: Bags, weights: np.ndarray) -> np.ndarray:
    """The total weight of each row, in nats."""
    return np.bincount(bags.row, weights[bags.word], minlength=bags.rows)


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """The distinct values, sorted."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) != 0]


def evenly(n: int, most: int) -> list[int]:
    """At most so many of n indices, evenly spaced."""
    return [int(place) for place in np.linspace(0, n - 1, min(n, most))]
