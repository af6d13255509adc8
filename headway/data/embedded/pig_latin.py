"""`pig-latin`: English words from `python-docs` and their Pig Latin, by rule.

A word that begins with a vowel gets "way", one that begins with y gets "ay". Otherwise the leading consonants move to
the end, followed by "ay" ("qu" counts as one consonant, and y after the first letter as a vowel). The parts of a
hyphenated word are translated separately: well-known → ellway-nownkay.

Words are held out by a hash, so no word of valid or test is in train.
"""

import hashlib
import re

from headway.data.embedded import python_docs

HELD_OUT_PERCENT = {"valid": 10, "test": 10}
LONGEST = 20
"""The longest word in letters; longer ones are not real words."""

_WORD = re.compile(r"(?<![\w.'-])[a-z]{2,}(?:-[a-z]{2,})*(?![\w.'(=-])")
_ONSET = re.compile(r"(?:qu|[^aeiou])(?:qu|[^aeiouy])*")


def translated(word: str) -> str:
    """Translate a word to Pig Latin."""
    return "-".join(_part(part) for part in word.split("-"))


def splits() -> dict[str, list[tuple[str, str]]]:
    """(word, translation) pairs of train, valid and test, each word once, in alphabetical order."""
    text = "\n".join(python_docs.splits().values())
    words = sorted({word for word in _WORD.findall(text) if len(word) <= LONGEST})
    found: dict[str, list[tuple[str, str]]] = {"train": [], **{split: [] for split in HELD_OUT_PERCENT}}
    for word in words:
        found[split_of(word)].append((word, translated(word)))
    return found


def split_of(row: str, held_out: dict[str, int] = HELD_OUT_PERCENT) -> str:
    """The split of a row. It depends on the row alone, so it stays the same when other rows come and go."""
    percent = int.from_bytes(hashlib.blake2b(row.encode(), digest_size=8).digest()) % 100
    for split, share in held_out.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def _part(word: str) -> str:
    if not word:  # from a hyphen at the beginning or end
        return word
    if word[0] in "aeiou":
        return f"{word}way"
    if word[0] == "y":
        return f"{word}ay"
    onset = _ONSET.match(word)
    moved = onset.group() if onset else ""
    return f"{word[len(moved) :]}{moved}ay"
