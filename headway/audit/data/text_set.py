"""Running text in the forms that the audits compare: word ids, 8-word windows, and blocks of words."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from headway.audit.audit import DoesNotApply
from headway.audit.data.near_copies import Bags, NearCopies, near_copies
from headway.audit.data.row_set import shortened, words_of

WINDOW = 8
BLOCK = 32
MOST_BLOCKS = 1000  # of a split that are looked up, evenly spaced
PIECES = 5
MOST_WORDS = 5_000_000  # of a split; of longer text only a prefix is used


@dataclass(frozen=True, eq=False)
class TextSet:
    """Running text by split, train first."""

    texts: Mapping[str, str]

    @property
    def held_out(self) -> list[str]:
        found = [split for split in self.texts if split != "train" and self.texts[split].strip()]
        if not found or not self.texts.get("train", "").strip():
            raise DoesNotApply("there is no text other than train to compare with")
        return found

    @cached_property
    def _numbered(self) -> tuple[dict[str, np.ndarray], list[str]]:
        return _numbers({split: words_of(text)[:MOST_WORDS] for split, text in self.texts.items()})

    @property
    def words(self) -> dict[str, np.ndarray]:
        """Every split as ids of its normalised words: the same for any tokenizer, case and punctuation."""
        return self._numbered[0]

    @cached_property
    def written(self) -> dict[str, np.ndarray]:
        """The same for words as written, separated by white space; rare words are rarer in this form."""
        return _numbers({split: text.split()[:MOST_WORDS] for split, text in self.texts.items()})[0]

    def excerpt(self, split: str, word: int, length: int) -> str:
        words = self._numbered[1]
        return shortened(" ".join(words[number] for number in self.words[split][word : word + length]))

    @cached_property
    def windows(self) -> dict[str, np.ndarray]:
        return {split: _windows(words) for split, words in self.words.items()}

    @cached_property
    def known(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sorted distinct windows of train, the index of each window among them, and how often each occurs."""
        return np.unique(self.windows["train"], return_inverse=True, return_counts=True)

    @cached_property
    def repeated(self) -> dict[str, np.ndarray]:
        """Which windows of each held-out split occur in train."""
        known = self.known[0]
        found = {}
        for split in self.held_out:
            place = np.minimum(np.searchsorted(known, self.windows[split]), max(len(known) - 1, 0))
            found[split] = known[place] == self.windows[split] if len(known) else np.zeros(0, np.bool_)
        return found

    @cached_property
    def pieces(self) -> list[slice]:
        """Pieces of train, each as long as the longest held-out split or a tenth of train."""
        length = len(self.words["train"]) - WINDOW + 1
        size = max(1, min(max(len(self.words[split]) for split in self.held_out), length // 10))
        return [slice(first, first + size) for first in np.linspace(0, length - size, PIECES).astype(int)]

    # Blocks

    def starts(self, split: str, part: slice = slice(None), most: int = MOST_BLOCKS) -> np.ndarray:
        """Start positions of blocks in a part of a split, evenly spaced."""
        first, last, _ = part.indices(len(self.words[split]))
        all_ = np.arange(first, last - BLOCK + 1, BLOCK)
        return all_[np.linspace(0, len(all_) - 1, min(len(all_), most)).astype(int)] if len(all_) else all_

    def blocks(self, split: str, starts: np.ndarray) -> Bags:
        words = self.words[split][starts[:, None] + np.arange(BLOCK)]
        owner = np.repeat(np.arange(len(starts)), BLOCK)[self.is_telling[words].ravel()]
        return Bags.of(owner, words[self.is_telling[words]], len(starts))

    @cached_property
    def is_telling(self) -> np.ndarray:
        """By word: it is rare enough to be worth looking up."""
        counts = np.bincount(self.words["train"], minlength=len(self._numbered[1]))
        return counts <= max(1000, len(self.words["train"]) // BLOCK // 50)

    @cached_property
    def shelves(self) -> dict[str, Bags]:
        """Of each split: overlapping blocks of twice the block length, each starting in the middle of the one before,
        so that every passage of block length lies wholly within one of them."""
        found = {}
        for split, words in self.words.items():
            place = np.flatnonzero(self.is_telling[words])
            owner = np.concatenate([place // BLOCK, np.maximum(place // BLOCK - 1, 0)])
            found[split] = Bags.of(owner, np.tile(words[place], 2), max(len(words) // BLOCK, 1))

        return found

    def copied(self, split: str, among: str) -> tuple[np.ndarray, NearCopies]:
        """Start positions of blocks of a split, and their near copies in another split."""
        starts = self.starts(split)
        return starts, near_copies(self.blocks(split, starts), self.shelves[among], cut=False)

    @cached_property
    def usually_copied(self) -> float:
        """The largest share, over the pieces of train, of blocks with a near copy in the rest of train."""
        shares = []
        for piece in self.pieces:
            starts = self.starts("train", piece, MOST_BLOCKS // PIECES)
            if not len(starts):
                continue
            first, last = piece.start // BLOCK - 2, piece.stop // BLOCK + 1
            within = lambda _, twin, first=first, last=last: (first <= twin) & (twin <= last)  # noqa: E731
            near = near_copies(self.blocks("train", starts), self.shelves["train"], cut=False, skip=within)
            shares.append(near.which(len(starts)).mean())
        return float(max(shares, default=0.0))


def _numbers(words: Mapping[str, list[str]]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Word ids by split, and the word of each id."""
    known = {word: number for number, word in enumerate(dict.fromkeys(chain.from_iterable(words.values())))}
    found = {s: np.fromiter(map(known.__getitem__, some), np.int64, len(some)) for s, some in words.items()}
    return found, list(known)


def _windows(words: np.ndarray) -> np.ndarray:
    """A 64-bit hash of every window; different windows collide with a probability of 1 in 10^19."""
    mixed = (words.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    count = max(len(words) - WINDOW + 1, 0)
    found = np.zeros(count, np.uint64)
    for k in range(WINDOW):
        found = found * np.uint64(0x100000001B3) + mixed[k : k + count]
    return found
