"""`pig-latin`: English words and what children make of them, by a rule. The words are those of `python-docs`.

A word that begins with a vowel gets "way", one that begins with y gets "ay"; of others the consonants in front ("qu"
goes as one, and y behind the first letter is a vowel) move to the end, and "ay" follows. The parts of a word with
hyphens are words of their own: well-known → ellway-nownkay.

What is held out is words, chosen by a hash of the word: no word of valid or test was seen in training.
"""

import hashlib
import re

from headway.data.embedded import python_docs

HELD_OUT_PERCENT = {"valid": 10, "test": 10}
LONGEST = 20
"""Letters: beyond that are no words that anybody says."""

_WORD = re.compile(r"(?<![\w.'-])[a-z]{2,}(?:-[a-z]{2,})*(?![\w.'(=-])")
_ONSET = re.compile(r"(?:qu|[^aeiou])(?:qu|[^aeiouy])*")


def translated(word: str) -> str:
    """The rule."""
    return "-".join(_part(part) for part in word.split("-"))


def splits() -> dict[str, list[tuple[str, str]]]:
    """Pairs of train, valid and test, each word once, by alphabet."""
    text = "\n".join(python_docs.splits().values())
    words = sorted({word for word in _WORD.findall(text) if len(word) <= LONGEST})
    found: dict[str, list[tuple[str, str]]] = {"train": [], **{split: [] for split in HELD_OUT_PERCENT}}
    for word in words:
        found[split_of(word)].append((word, translated(word)))
    return found


def split_of(row: str, held_out: dict[str, int] = HELD_OUT_PERCENT) -> str:
    """Depends on the row alone, so it stays where it is when others come and go."""
    percent = int.from_bytes(hashlib.blake2b(row.encode(), digest_size=8).digest()) % 100
    for split, share in held_out.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def _part(word: str) -> str:
    if not word:  # of a hyphen that stands at an end
        return word
    if word[0] in "aeiou":
        return f"{word}way"
    if word[0] == "y":
        return f"{word}ay"
    onset = _ONSET.match(word)
    moved = onset.group() if onset else ""
    return f"{word[len(moved) :]}{moved}ay"
