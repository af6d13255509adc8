"""BLEU and chrF by their definitions, in plain loops: n-grams, matches, and the brevity penalty. Nothing here uses
sacreBLEU or headway/scoring.

    counts_of("bleu", ours, right)     the statistics of each sentence: lengths, matching n-grams
    made_of("bleu", sums)              the score, from the sums of these over any sentences

BLEU: Papineni et al. 2002, tokenized like NIST's mteval (13a, intl); chrF: Popović 2015.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Test = Callable[[str], bool]
Items = str | tuple[str, ...]
"""Characters, or words."""

WORDS, LETTERS = 4, 6
"""The highest n-gram orders."""
SIGNS = set(' !"#$%&()*+/:;<=>?@[\\]^_`{|}~')
"""Each is always a separate token in 13a; not so ' - . and the comma."""
ENTITIES = ("<skipped>", ""), ("-\n", ""), ("\n", " "), ("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")


def counts_of(
    metric: str, ours: Sequence[str], right: Sequence[str], tokenizer: str = "13a"
) -> list[list[float]] | None:
    """The statistics of each sentence; None if this is not a metric of texts."""
    both = list(zip(ours, right, strict=True))
    if metric == "chrf":
        return [_letters(a, b) for a, b in both]
    if metric in ("bleu", "bleu_lowercased"):
        lower = metric == "bleu_lowercased"
        return [_words(*(words(text.lower() if lower else text, tokenizer) for text in pair)) for pair in both]
    if metric == "sentence_bleu":
        cut = [[words(text, tokenizer) for text in pair] for pair in both]
        return [[_bleu(_words(a, b), min(WORDS, len(a))), 1] for a, b in cut]
    if metric == "exact_match":
        return [[a.split() == b.split(), 1] for a, b in both]
    return None


def made_of(metric: str, counts: Sequence[Sequence[float]]) -> float:
    """The score of these sentences as one corpus."""
    sums = [sum(column) for column in zip(*counts, strict=True)]
    if metric == "chrf":
        return _chrf(sums)
    return _bleu(sums, WORDS) if metric.startswith("bleu") else sums[0] / sums[1]


# --- n-grams ---------------------------------------------------------------------------------------------------------


def _words(ours: Items, right: Items) -> list[float]:
    """Both lengths; for n-grams of one to four words the number of matches, each clipped to its count in the reference;
    and the number of n-grams."""
    common = [(_ngrams(ours, n) & _ngrams(right, n)).total() for n in range(1, WORDS + 1)]
    return [len(ours), len(right), *common, *(max(0, len(ours) - n) for n in range(WORDS))]


def _letters(ours: str, right: str) -> list[float]:
    """For character n-grams of order one to six, without blanks: the counts of each side, and of matches."""
    a, b, found = "".join(ours.split()), "".join(right.split()), []
    for n in range(1, LETTERS + 1):
        mine, theirs = _ngrams(a, n), _ngrams(b, n)
        found += [mine.total() if theirs else 0, theirs.total(), (mine & theirs).total()]
    return found


def _ngrams(items: Items, n: int) -> Counter[Any]:
    return Counter([items[k : k + n] for k in range(len(items) - n + 1)])


def _bleu(sums: Sequence[float], orders: int) -> float:
    """The geometric mean of the precisions of so many orders, times the brevity penalty. The first order without a
    match counts as having half of one, the next a quarter …"""
    ours, theirs, common, there = sums[0], sums[1], sums[2 : 2 + WORDS], sums[2 + WORDS :]
    if not any(common) or not all(there[:orders]):
        return 0.0
    logarithms, given = 0.0, 1.0
    for n in range(orders):
        if not common[n]:
            given /= 2
        logarithms += math.log((common[n] or given) / there[n])
    penalty = 1.0 if ours >= theirs else math.exp(1 - theirs / ours)
    return 100 * penalty * math.exp(logarithms / orders)


def _chrf(sums: Sequence[float]) -> float:
    """F-score of precision and recall, each averaged over the orders that both sides have; recall weighs four times."""
    orders = [sums[k : k + 3] for k in range(0, len(sums), 3)]
    orders = [(ours, theirs, both) for ours, theirs, both in orders if ours and theirs]
    if not any(both for _, _, both in orders):
        return 0.0
    precision, recall = (sum(o[2] / o[k] for o in orders) / len(orders) for k in (0, 1))
    return 100 * 5 * precision * recall / (4 * precision + recall)


# --- words -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2**14)
def words(text: str, tokenizer: str) -> tuple[str, ...]:
    """The tokens by the recipe's `scoring.bleu_tokenizer`."""
    text = text.rstrip()
    if tokenizer == "char":
        return tuple(letter for letter in text if not letter.isspace())
    if tokenizer == "13a":
        for sign, plain in ENTITIES:
            text = text.replace(sign, plain)
        text = "".join(f" {c} " if c in SIGNS else c for c in f" {text} ")
        text = _replace_pairs(text, lambda c: not _is_digit(c), lambda c: c in ".,", "{} {} ")
        text = _replace_pairs(text, lambda c: c in ".,", lambda c: not _is_digit(c), " {} {}")
        text = _replace_pairs(text, _is_digit, lambda c: c == "-", "{} {} ")
    elif tokenizer == "intl":
        text = _replace_pairs(text, lambda c: not _is("N", c), lambda c: _is("P", c), "{} {} ")
        text = _replace_pairs(text, lambda c: _is("P", c), lambda c: not _is("N", c), " {} {}")
        text = "".join(f" {c} " if _is("S", c) else c for c in text)
    return tuple(text.split())


def _replace_pairs(text: str, first: Test, second: Test, form: str) -> str:
    """Replace, from left to right, pairs of characters where both satisfy their test."""
    made, k = [], 0
    while k < len(text):
        if k + 1 < len(text) and first(text[k]) and second(text[k + 1]):
            made.append(form.format(text[k], text[k + 1]))
            k += 2
        else:
            made.append(text[k])
            k += 1
    return "".join(made)


def _is_digit(letter: str) -> bool:
    return letter in "0123456789"


def _is(category: str, letter: str) -> bool:
    """By Unicode category: N numbers, P punctuation, S symbols."""
    return unicodedata.category(letter).startswith(category)
