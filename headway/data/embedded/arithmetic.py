"""`arithmetic-in-words`: sums and differences in English words, by rule; as texts with labels, and as running text.

With labels: "four minus ten" is negative, "four plus ten" positive, "ten minus ten" zero. All 800 expressions of two
numbers from zero to nineteen; 160 of them, chosen by a hash, are test.

Running text: sentences about the numbers below two hundred, a line each.

    forty two minus fifty is minus eight        sums and differences
    fifty minus forty two is above zero         on which side of zero they are
    seven eight nine ten eleven twelve          counting, up and down
    nineteen is less than thirty one            which of two is more

None of the 800 expressions is in it, of train as little as of test: no sentence has a "plus" or a "minus" between two
words for numbers from zero to nineteen ("forty two minus ten" is left out, for it has "two minus ten" in it), and no
two such numbers alone are compared.
"""

import hashlib
from collections.abc import Iterator

from headway.data.embedded.numbers_en_fr import english

SMALL = 20
BELOW = 200
TESTED = 160
OPERATIONS = ("plus", "minus")
SENTENCES = {"result": 30_000, "side": 12_000, "order": 6_000, "counting": 1_000}
"""About so many of each, before those are left out that may not be there."""
HELD_OUT = 20
"""One sentence of so many is valid."""


def label_of(value: int) -> str:
    return "negative" if value < 0 else "positive" if value > 0 else "zero"


def value_of(first: int, operation: str, second: int) -> int:
    return first + second if operation == "plus" else first - second


def expressions() -> Iterator[tuple[str, str]]:
    """All that have labels."""
    for first in range(SMALL):
        for operation in OPERATIONS:
            for second in range(SMALL):
                text = f"{word(first)} {operation} {word(second)}"
                yield text, label_of(value_of(first, operation, second))


def labelled_splits() -> dict[str, list[tuple[str, str]]]:
    """Text and label, of train and of test."""
    rows = sorted(expressions(), key=lambda row: _hash(f"arithmetic {row[0]}"))
    tested = {text for text, _ in rows[:TESTED]}
    every = list(expressions())
    return {"train": [r for r in every if r[0] not in tested], "test": [r for r in every if r[0] in tested]}


def text_splits() -> dict[str, str]:
    """Running text of train and valid: each sentence once, in the order of a hash."""
    found = dict.fromkeys(one for one in _sentences() if not holds_expression(one))
    by_split: dict[str, list[str]] = {"train": [], "valid": []}
    for one in sorted(found, key=_hash):
        by_split["valid" if _hash(f"split {one}") % HELD_OUT == 0 else "train"].append(one)
    return {split: "\n".join(lines) + "\n" for split, lines in by_split.items()}


def holds_expression(sentence: str) -> bool:
    """Whether one of the labelled expressions is in it, or two small numbers are compared."""
    words = sentence.split()
    around = zip(words, words[1:], words[2:], strict=False)
    if any(middle in OPERATIONS and {before, behind} <= _SMALL_WORDS for before, middle, behind in around):
        return True
    return len(words) == 5 and words[1] == "is" and {words[0], words[-1]} <= _SMALL_WORDS


def word(number: int) -> str:
    """forty two, one hundred seven; minus six."""
    if number < 0:
        return f"minus {word(-number)}"
    return english(number).replace("-", " ").replace(" and ", " ")


def _sentences() -> Iterator[str]:
    for k in range(SENTENCES["result"]):
        first, second, operation = _drawn(f"result {k}")
        yield f"{word(first)} {operation} {word(second)} is {word(value_of(first, operation, second))}"
    for k in range(SENTENCES["side"]):
        first, second, operation = _drawn(f"side {k}")
        value = value_of(first, operation, second)
        side = "zero" if value == 0 else f"{'below' if value < 0 else 'above'} zero"
        yield f"{word(first)} {operation} {word(second)} is {side}"
    for k in range(SENTENCES["order"]):
        first, second, _ = _drawn(f"order {k}")
        if first != second:
            yield f"{word(first)} is {'less' if first < second else 'more'} than {word(second)}"
    for k in range(SENTENCES["counting"]):
        first, _, operation = _drawn(f"counting {k}")
        step = 1 if operation == "plus" else -1
        last = min(max(first + 5 * step, 0), BELOW - 1)
        yield " ".join(word(n) for n in range(first, last + step, step))


def _drawn(what: str) -> tuple[int, int, str]:
    """Two numbers, which are often near each other, and an operation; small numbers as often as large ones."""
    drawn = _hash(what)
    parts = [drawn >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    first = parts[0] % (SMALL if parts[1] % 4 == 0 else BELOW)
    near = parts[1] // 4 % 2 == 0
    second = min(max(first + parts[2] % 21 - 10, 0), BELOW - 1) if near else parts[2] % BELOW
    return first, second, OPERATIONS[parts[3] % 4 > 0]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


_SMALL_WORDS = frozenset(word(n) for n in range(SMALL))
