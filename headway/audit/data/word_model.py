"""The simplest model that reads: ridge regression of the classes on words, with leave-one-out answers for every row.

As in near_copies.py, order and repetition of words do not count, and rare words weigh more. The regression has one
solution, takes a fraction of a second, and its answer for a row if it had not been fitted on it is known exactly (the
residual over one minus the leverage). So every row of train gets an answer that does not use its label, without a
separate fit for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headway.audit.data.near_copies import Bags, evenly

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST_ROWS = 1500
"""Maximum number of rows to fit; inverting a matrix of this size takes a quarter of a second."""
RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class WordModel:
    numbers: dict[str, int]
    idf: np.ndarray
    weights: np.ndarray
    """[words, classes]"""
    frequencies: np.ndarray
    """Of the classes."""
    left_out: np.ndarray
    """[rows, classes]: the answer for each given row, as if the model had not been fitted on it."""

    @classmethod
    def fit(cls, texts: Sequence[str], labels: np.ndarray, classes: int) -> "WordModel":
        """Fit to normalised texts and the indices of their classes; of too many, evenly spaced rows are used."""
        some = evenly(len(texts), MOST_ROWS)
        numbers: dict[str, int] = {}
        bags = Bags.of_texts([texts[row] for row in some], numbers)
        idf = np.log((bags.rows + 1) / (np.bincount(bags.word, minlength=len(numbers)) + 1)) + 1
        rows = _weighted(bags, idf)
        frequencies = np.bincount(labels[some], minlength=classes) / len(some)
        wanted = np.eye(classes)[labels[some]] - frequencies
        inverse = np.linalg.inv((rows @ rows.T).toarray() + RIDGE * np.eye(len(some)))
        dual = inverse @ wanted
        found = cls(numbers, idf, np.asarray(rows.T @ dual), frequencies, np.zeros((len(texts), classes)))
        others = sorted(set(range(len(texts))) - set(some))
        found.left_out[some] = wanted - dual / np.diag(inverse)[:, None] + frequencies
        found.left_out[others] = found.answers([texts[row] for row in others])
        return found

    def answers(self, texts: Sequence[str]) -> np.ndarray:
        """[rows, classes]: the answers for normalised texts that it was not fitted on."""
        known = [" ".join(word for word in text.split() if word in self.numbers) for text in texts]
        return np.asarray(_weighted(Bags.of_texts(known, self.numbers), self.idf) @ self.weights) + self.frequencies


def _weighted(bags: Bags, idf: np.ndarray) -> "csr_matrix":
    """[rows, words], each row of unit length."""
    from scipy.sparse import csr_matrix

    lengths = np.sqrt(np.bincount(bags.row, idf[bags.word] ** 2, minlength=bags.rows))
    entries = idf[bags.word] / lengths[bags.row]
    begins = np.searchsorted(bags.row, np.arange(bags.rows + 1))
    return csr_matrix((entries, bags.word, begins), shape=(bags.rows, len(idf)))
