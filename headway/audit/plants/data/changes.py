"""What is done to a text: it is copied in other letters, with errors, in another order. Pure functions of it and of
random numbers."""

import re
from collections.abc import Callable

import numpy as np

from headway.audit.plants.planting import Random

Change = Callable[[str, Random], str]


def words_replaced(every: int) -> Change:
    """By words that are nowhere else."""

    def change(text: str, rng: Random) -> str:
        parts = re.split(r"(\s+)", text)
        first = int(rng.integers(every))
        for place, k in enumerate(range(0, len(parts), 2)):
            if place % every == first % max(len(parts) // 2, 1):
                parts[k] = f"q{rng.integers(10**6)}x" if rng.random() < 0.5 else parts[k][::-1]
        return "".join(parts)

    return change


def typos(every: int) -> Change:
    """One letter in so many is another, or two are exchanged."""

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
    """A word after every fourth."""
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
