"""Near copies: rows that share too much of what they say with another row to have been written apart.

A row is the set of its words: case, punctuation, order and repetition are gone, so a copy that was shuffled, retyped or
cut is still a copy. A word is worth −log of the share of rows that have it, in nats: "the" next to nothing, a name some
nine. Two rows are near copies if they share half of what the shorter says, and so many nats that independent rows would
hardly ever meet in as much (20, and one e-fold for each e-fold of rows that are compared with). Half, because copies
whose every third word was replaced have 60 to 70 %, and rows of honest sets hardly ever have half.

Rows that could be copies are found by their rarest words: an index says which rows hold a word, the rarest words come
first, and no more of them are used than make some millions of pairs. The overlap is then exact. (MinHash, the usual
tool, estimates the Jaccard similarity of the whole rows: a row that was cut to a third has 0.33 there, as much as rows
that merely share a topic; and it takes many hashes to estimate what is cheap to count.)
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
"""Of rows that meet in a word, and some more for each row: the cost of a comparison, which takes a second at most."""


@dataclass(frozen=True, eq=False)
class Bags:
    """Rows as sets of words: every word of a row once, in the order of the rows."""

    row: np.ndarray
    word: np.ndarray
    rows: int
    """How many there are; some may have no word."""

    @classmethod
    def of(cls, row: np.ndarray, word: np.ndarray, rows: int) -> "Bags":
        both = _distinct(row.astype(np.int64) << 32 | word)
        return cls(both >> 32, both & (2**32 - 1), rows)

    @classmethod
    def of_texts(cls, texts: Iterable[str], numbers: dict[str, int]) -> "Bags":
        """Of words that blanks set apart; `numbers` says what each is called, and learns new ones."""
        found = [text.split() for text in texts]
        for word in dict.fromkeys(chain.from_iterable(found)):
            numbers.setdefault(word, len(numbers))
        words = np.fromiter(map(numbers.__getitem__, chain.from_iterable(found)), np.int64)
        return cls.of(np.repeat(np.arange(len(found)), [len(row) for row in found]), words, len(found))

    def some(self, rows: np.ndarray) -> "Bags":
        """These rows of it, in their order, counted from zero."""
        place = np.full(self.rows, -1)
        place[rows] = np.arange(len(rows))
        mine = place[self.row] >= 0
        return Bags.of(place[self.row[mine]], self.word[mine], len(rows))


class NearCopies(NamedTuple):
    """Pairs of near copies; a row may have several."""

    row: np.ndarray
    twin: np.ndarray
    share: np.ndarray
    """Of what the shorter row says, by weight, that the other says too."""
    nats: np.ndarray
    """What both say."""

    def which(self, rows: int) -> np.ndarray:
        """bool [rows]: has a twin."""
        found = np.zeros(rows, np.bool_)
        found[self.row] = True
        return found

    def clearest(self, which: np.ndarray) -> tuple[int, int]:
        """The pair that shares most, of these rows (bool): an example."""
        best = np.where(which[self.row], self.share * np.minimum(self.nats, 100), -1).argmax()
        return int(self.row[best]), int(self.twin[best])


def near_copies(
    rows: Bags, among: Bags, *, cut: bool = True, skip: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
) -> NearCopies:
    """The near copies of some rows among others. Without `cut`, a row counts only if the twin has half of all it says,
    however long the twin is. `skip(row, twin)` says which pairs do not count, such as a row and itself."""
    vocabulary = int(max(rows.word.max(initial=0), among.word.max(initial=0))) + 1
    here, there = (np.bincount(bags.word, minlength=vocabulary) for bags in (rows, among))
    weights = np.log((among.rows + 1) / (there + 1))
    rarest = np.argsort(there, kind="stable")
    few_enough = np.cumsum((here * there.astype(float))[rarest]) <= MOST_PAIRS + 500 * rows.rows
    weights[rarest[~few_enough]] = 0
    weights[there == 0] /= 2  # it may be a typing error, or what a word was replaced by: it could not be shared
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
    """What each row says, in nats."""
    return np.bincount(bags.row, weights[bags.word], minlength=bags.rows)


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """In order."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) != 0]


def evenly(n: int, most: int) -> list[int]:
    """So many of n places at most, taken evenly."""
    return [int(place) for place in np.linspace(0, n - 1, min(n, most))]
