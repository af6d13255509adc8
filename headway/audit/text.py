"""Audits of running text, and of the tokens it becomes: is the held-out text really held out?

Running text is not compared line by line: short lines occur twice in any honest corpus. Compared are windows of eight
words, and the places where rare words stand. How much overlap is natural differs from corpus to corpus, so the corpus
itself is asked: pieces of the train split are compared with the rest of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.rows import shortened

WINDOW = 8
PIECES = 5
RARE = 5
NEAR = 0.02
FEWEST_MEETINGS = 300
MOST_WORDS = 5_000_000  # of train; from more, its beginning


@dataclass(frozen=True, eq=False)
class TextSet:
    """Running text by split, train first."""

    texts: Mapping[str, str]

    @property
    def held_out(self) -> list[str]:
        found = [split for split in self.texts if split != "train" and self.texts[split].strip()]
        if not found or not self.texts.get("train", "").strip():
            raise DoesNotApply("there is no text beside train to compare with it")
        return found

    @cached_property
    def words(self) -> dict[str, np.ndarray]:
        """Every split as numbers of its words, which are what white space sets apart: the same for any tokenizer."""
        numbers: dict[str, int] = {}
        return {
            split: np.array([numbers.setdefault(word, len(numbers)) for word in _beginning(text)], np.int64)
            for split, text in self.texts.items()
        }

    def excerpt(self, split: str, word: int, length: int) -> str:
        return shortened(" ".join(self.texts[split].split(maxsplit=word + length)[word : word + length]))


def _beginning(text: str) -> list[str]:
    return text.split(maxsplit=MOST_WORDS)[:MOST_WORDS]


# --- leaks -------------------------------------------------------------------------------------------------------


@audit("data")
def repeated_text(data: TextSet) -> Outcome:
    """Held-out text does not occur in the train split, eight words at a time.

    The number is the share of all windows of 8 words of a held-out split that occur in train. Some do in any language:
    quotations, headings, set phrases. How many is asked of the corpus itself: five pieces of train, each as long as the
    held-out split or a tenth of train, are compared with the rest of train. (An encyclopedia has 0.4 to 0.8 %, plays
    none, the documentation of a program 0.4 to 5 %.) More than the highest of these by 2 % of the windows is a warning,
    by 10 % a failure. So is, as a warning, more than 10 % where train repeats itself as much: the split is not to
    blame, but the text is. Remove what is repeated from train.
    """
    held_out, train = data.held_out, _windows(data.words["train"])
    if not len(train):
        raise DoesNotApply(f"train has fewer than {WINDOW} words")
    known, number, count = np.unique(train, return_inverse=True, return_counts=True)
    worst, share, example = "", -1.0, 0
    for split in held_out:
        found = _windows(data.words[split])
        place = np.minimum(np.searchsorted(known, found), len(known) - 1)
        repeated = known[place] == found
        if len(found) and repeated.mean() > share:
            worst, share, example = split, float(repeated.mean()), int(repeated.argmax())
    if not worst:
        raise DoesNotApply(f"the held-out splits have fewer than {WINDOW} words")
    usual = max(_repeated_elsewhere(number, count, piece) for piece in _pieces(data, len(train)))
    sentence = (
        f"{share:.1%} of the {WINDOW}-word windows of {worst} occur in train; pieces of train have up to {usual:.1%}"
    )
    if share > 0:
        sentence += f" (such as {data.excerpt(worst, example, WINDOW)})"
    if share > usual + 0.10:
        return failed(share, sentence)
    return (warned if share > min(usual + 0.02, 0.10) else passed)(share, sentence)


def _windows(words: np.ndarray) -> np.ndarray:
    """One 64-bit number for every window: equal for equal words, and for others with a chance of 1 in 10^19."""
    mixed = (words.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    count = max(len(words) - WINDOW + 1, 0)
    found = np.zeros(count, np.uint64)
    for k in range(WINDOW):
        found = found * np.uint64(0x100000001B3) + mixed[k : k + count]
    return found


def _pieces(data: TextSet, length: int) -> list[slice]:
    size = max(1, min(max(len(data.words[split]) for split in data.held_out), length // 10))
    return [slice(first, first + size) for first in np.linspace(0, length - size, PIECES).astype(int)]


def _repeated_elsewhere(number: np.ndarray, count: np.ndarray, piece: slice) -> float:
    """The share of a piece's windows that occur outside it too."""
    mine, times = np.unique(number[piece], return_counts=True)
    return float(times[count[mine] > times].sum() / times.sum())


@audit("data")
def split_by_line(data: TextSet) -> Outcome:
    """The held-out text is not made of lines picked from within the documents of the train split.

    If every tenth line of a book is held out, names and turns of a page are in train although no line is. Rare words
    tell: a word that occurs at most 5 times in train and at most 5 times in the held-out split stands, in both, where
    its document is. If lines were picked in order, it stands at the same part of the way through both splits. The
    number is how many times more often than by chance rare words meet within 2 % of the way. Splits by document have
    0.7 to 2.2 (2.2 where documents are sorted by name, so that kin stand together); picked lines 3.3 (plays), 6 to 12
    (an encyclopedia), 14 to 19 (documentation). Above 3 it is a warning, above 5 a failure. Hold out whole documents.

    What this cannot find: lines that were shuffled before or after the split. No order is left to go by, and held-out
    lines from known documents then look like any others; a corpus of shuffled sentences should be suspected anyway.
    """
    worst, ratio, meetings = "", -1.0, 0
    for split in data.held_out:
        here, there = _rare_meetings(data.words["train"], data.words[split])
        if len(here) >= FEWEST_MEETINGS:
            # By chance, each word stays where it is in the held-out split and takes another's place in train.
            expected = np.mean([_close(here, np.roll(there, len(there) * k // 8)) for k in range(1, 8)])
            found = _close(here, there) / max(float(expected), 1 / len(here))
            if found > ratio:
                worst, ratio, meetings = split, float(found), len(here)
    if not worst:
        raise DoesNotApply(f"too few rare words are in both splits to tell ({FEWEST_MEETINGS} are needed)")
    sentence = (
        f"rare words of {worst} stand at the same place of train {ratio:.1f} times as often as by chance "
        f"({meetings:,} pairs of places)"
    )
    if ratio > 3:
        sentence += ": lines of one document seem to be in both"
    return (failed if ratio > 5 else warned if ratio > 3 else passed)(ratio, sentence)


def _rare_meetings(train: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of places where a rare word stands, as shares of the way through the held-out split and train."""
    size = int(max(train.max(), held.max())) + 1
    in_train, in_held = np.bincount(train, minlength=size), np.bincount(held, minlength=size)
    rare = (in_train > 0) & (in_train <= RARE) & (in_held > 0) & (in_held <= RARE)
    held_places, train_places = np.flatnonzero(rare[held]), np.flatnonzero(rare[train])
    train_places = train_places[np.argsort(train[train_places], kind="stable")]
    times = in_train[held[held_places]]
    first = np.searchsorted(train[train_places], held[held_places])
    pair = np.repeat(np.arange(len(held_places)), times)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(times) - times, times)
    return held_places[pair] / len(held), train_places[first[pair] + nth] / len(train)


def _close(here: np.ndarray, there: np.ndarray) -> float:
    return float((np.abs(here - there) < NEAR).mean())


TEXT_AUDITS: list[Audit] = [repeated_text, split_by_line]


# --- tokens ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TokenSet:
    """What a tokenizer made of each split, train first; rows are put one after the other."""

    ids: Mapping[str, np.ndarray]
    vocabulary: int
    """How many tokens there are."""
    unknown: int | None = None
    """The token for all that the vocabulary lacks."""
    show: Callable[[list[int]], list[str]] = lambda ids: [str(i) for i in ids]
    """Tokens as text, for examples: `tokenizer.pieces`."""

    @cached_property
    def counts(self) -> dict[str, np.ndarray]:
        return {split: np.bincount(ids, minlength=self.vocabulary) for split, ids in self.ids.items() if len(ids)}


@audit("data")
def out_of_vocabulary(data: TokenSet) -> Outcome:
    """Few tokens of a split are unknown words, and the unknown word was there to be learnt.

    An unknown word is easy to predict and is not what the text says, so a perplexity on text with many of them looks
    better than it is, and a classifier does not see them. Above 10 % of a split's tokens is a warning, above 30 % a
    failure. (WikiText-2, whose rare words come as <unk>, has 5 to 6 %.) It is a warning, too, where a held-out split
    has more than 1 % and train has none: the model never saw the token, and what it predicts for it is an accident of
    the initial weights. Use byte pairs; or a smaller vocabulary, whose unknown words are in train as well.
    """
    if data.unknown is None:
        raise DoesNotApply("the vocabulary has a token for every text")
    shares = {split: counts[data.unknown] / counts.sum() for split, counts in data.counts.items()}
    worst = max(shares, key=lambda split: shares[split])
    sentence = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    sentence = f"unknown words: {sentence} of the tokens"
    if shares[worst] > 0.3:
        return failed(shares[worst], sentence)
    if shares[worst] > 0.01 and not shares["train"]:
        return warned(shares[worst], f"{sentence}; the model never saw one in training")
    return (warned if shares[worst] > 0.1 else passed)(shares[worst], sentence)


@audit("data")
def vocabulary_from_train(data: TokenSet) -> Outcome:
    """The vocabulary was made from the train split alone.

    A word that train does not have can be in the vocabulary only if somebody looked elsewhere. A vocabulary that was
    made from all splits has words that are in held-out splits and not in train, and no others that train lacks. One
    that was made for other text (GPT-2's, say) lacks most of these, and has many that are nowhere: that is no leak. So
    the audit fails if there are tokens which only held-out splits have, and they are more than half of those that train
    lacks. Three or fewer are passed over (byte pairs may have a stray one). Learn the vocabulary on train.
    """
    held = [split for split in data.counts if split != "train"]
    if not held or "train" not in data.counts:
        raise DoesNotApply("there is no split beside train")
    lacking = data.counts["train"] == 0
    if data.unknown is not None:
        lacking[data.unknown] = False
    elsewhere = lacking & (sum(data.counts[split] for split in held) > 0)
    count, of = int(elsewhere.sum()), int(lacking.sum())
    if not count:
        return passed(0, f"every token of {', '.join(held)} is in train")
    some = ", ".join(f"‘{piece}’" for piece in data.show(np.flatnonzero(elsewhere)[:5].tolist()))
    sentence = f"{count:,} of {data.vocabulary:,} tokens are in held-out splits and never in train, such as {some}"
    if count > 3 and count > of / 2:
        return failed(count, f"{sentence}: the vocabulary was made from more than train")
    return passed(count, f"{sentence}; {of - count:,} more are in no split")


TOKEN_AUDITS: list[Audit] = [out_of_vocabulary, vocabulary_from_train]
