"""Changes of a text: copies in other letters, with typing errors, in another order. Pure functions of the text and a
random generator."""

import re
from collections.abc import Callable

import numpy as np

from headway.audit.plants.planting import Random

Change = Callable[[str, Random], str]


def words_replaced(every: int) -> Change:
    """Replace one word in every so many by one that occurs nowhere else, or by itself backwards."""

    def change(text: str, rng: Random) -> str:
        parts = re.split(r"(\s+)", text)
        first = int(rng.integers(every))
        for place, k in enumerate(range(0, len(parts), 2)):
            if place % every == first % max(len(parts) // 2, 1):
                parts[k] = f"q{rng.integers(10**6)}x" if rng.random() < 0.5 else parts[k][::-1]
        return "".join(parts)

    return change


def typos(every: int) -> Change:
    """Replace one letter in so many by a random one."""

    def change(text: str, rng: Random) -> str:
        letters = list(text)
        for k in np.flatnonzero(rng.random(len(letters)) < 1 / every).tolist():
            if letters[k].isalpha():
                letters[k] = chr(97 + int(rng.integers(26)))
        return "".join(letters)

    return change


def shuffled(text: str, rng: Random) -> str:
    return " ".join(rng.permutation(text.split()).tolist())


def cut(share: float) -> Change:
    return lambda text, rng: " ".join(text.split()[: max(int(len(text.split()) * share), 3)])


def filled(text: str, rng: Random) -> str:
    """Insert a word after every fourth."""
    return re.sub(r"(\S+\s+\S+\s+\S+\s+\S+)\s", r"\1 actually ", text)


def dressed(text: str, rng: Random) -> str:
    return "  " + re.sub(r"\s+", "  ", text.upper()).replace(".", " …")


def copied(text: str, rng: Random) -> str:
    return text


def lower_case(text: str, rng: Random) -> str:
    return text.lower()


def without_punctuation(text: str, rng: Random) -> str:
    return re.sub(r"[^\w\s]", "", text)


def a_word_a_line(text: str, rng: Random) -> str:
    return "\n".join(text.split())
