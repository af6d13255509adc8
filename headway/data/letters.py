"""Characters of a text: their codes and byte sizes, which are white space, and where a text may be cut."""

import re
from collections.abc import Iterator

import numpy as np

LINE_END = "\n"

# White space as in `str.split`. The library's own \s lacks U+001C–1F, so word counts would differ.
BLANK = "\t\x0b-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE = "\n" + BLANK
_BEYOND_WHITE = 0x3001
_IS_WHITE = np.array([chr(code).isspace() for code in range(_BEYOND_WHITE + 1)])

# Text is cut for the library where every tokenizer splits anyway: between a word and the white space after it.
CHUNK = 1 << 14
# (But not before U+001C–1F, which other vocabularies may treat as characters.)
_WORD_ENDS = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")
PIECE = 1 << 18
"""Characters processed at a time: few enough that the allocator reuses memory instead of requesting it anew."""
_SIGNS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


def chunks(text: str, letters: int = CHUNK) -> Iterator[str]:
    """Pieces of about so many characters, cut at the end of a word."""
    begin = 0
    while begin < len(text):
        word_end = _WORD_ENDS.search(text, begin + letters)
        end = word_end.start() if word_end else len(text)
        yield text[begin:end]
        begin = end


def codes_of(text: str) -> np.ndarray:
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def byte_length(text: str) -> int:
    """Size in UTF-8, without encoding the whole text at once."""
    return len(text) if text.isascii() else sum(len(text[k : k + PIECE].encode()) for k in range(0, len(text), PIECE))


def letters_of(text: str) -> set[str]:
    """The set of characters in a text."""
    there = np.zeros(0x110000, np.bool_)
    for begin in range(0, len(text), PIECE):
        there[codes_of(text[begin : begin + PIECE])] = True
    return {chr(code) for code in np.flatnonzero(there)}


def looked_up(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Look up every character code in a table; its last entry stands for all codes beyond it."""
    return np.take(table, codes, mode="clip")


def white_in(codes: np.ndarray) -> np.ndarray:
    """Which of the characters are white space."""
    return looked_up(_IS_WHITE, codes)


def letter_sizes(codes: np.ndarray) -> np.ndarray:
    """The number of UTF-8 bytes of each character."""
    return 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)


def place(text: str, index: int) -> str:
    return f"in line {text.count(LINE_END, 0, index) + 1}, column {index - text.rfind(LINE_END, 0, index)}"


def show(meaning: bytes) -> str:
    letters = meaning.decode(errors="backslashreplace").translate(_SIGNS)
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)
