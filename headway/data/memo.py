"""Memoised tokenisation: each word with the white space before it is split by the library once, then looked up.

Headway's tokenizers never look beyond the end of a word, so a text may be cut there, and most of the pieces have been
seen before. The library makes a million tokens a second; looking up is ten times as fast. The memo is bounded in size.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_UNIT = re.compile(r"\s*\S+")
MAX_UNITS, MAX_CHARACTERS = 1 << 20, 1 << 26
"""Limits of the memo; beyond them it is emptied."""


class CutText(NamedTuple):
    """Tokens of a text: ids, bytes covered, and whether a word begins in each."""

    ids: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray


class UnitMemo:
    def __init__(self, measure: Callable[[Sequence[str]], list[CutText]]):
        """`measure` tokenises texts, each by itself."""
        self._measure = measure
        self._forget()

    def _forget(self) -> None:
        self._slots = _Slots()
        self._letters = 0
        self._ids, self._sizes = _Growing(np.int32), _Growing(np.int32)
        self._starts = _Growing(np.bool_)
        self._begins, self._counts, self._left = _Growing(np.int64), _Growing(np.int64), _Growing(np.int64)

    def cut(self, text: str) -> tuple[CutText, int]:
        """The tokens of a text that begins after a word, and how many bytes at its end no token covers. Such bytes in
        the middle count with the next token."""
        units = _UNIT.findall(text)
        if white := text[len(text.rstrip()) :]:
            units.append(white)
        if len(self._slots) > MAX_UNITS or self._letters > MAX_CHARACTERS:
            self._forget()
        slots = np.fromiter(map(self._slots.__getitem__, units), np.int64, len(units))
        self._learn(self._slots.new())
        counts, left = self._counts.all[slots], self._left.all[slots]
        ends = np.cumsum(counts)
        places = np.repeat(self._begins.all[slots] - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
        found = CutText(self._ids.all[places], self._sizes.all[places], self._starts.all[places])
        last = 0
        for unit in np.flatnonzero(left):
            if (token := int(ends[unit])) < len(places):
                found.sizes[token] += left[unit]
            else:
                last += int(left[unit])
        return found, last

    def _learn(self, new: Sequence[str]) -> None:
        if not new:
            return
        whole = np.array([len(unit.encode()) for unit in new])
        self._letters += sum(map(len, new))
        measured = self._measure(new)
        counts = np.array([len(one.ids) for one in measured])
        begins = len(self._ids) + np.cumsum(counts) - counts
        self._ids.add(np.concatenate([one.ids for one in measured]))
        self._sizes.add(np.concatenate([one.sizes for one in measured]))
        self._starts.add(np.concatenate([one.starts for one in measured]))
        self._begins.add(begins)
        self._counts.add(counts)
        self._left.add(whole - np.array([int(one.sizes.sum()) for one in measured]))


class _Slots(dict[str, int]):
    """The index of every unit; a new unit gets the next index."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[str] = []

    def __missing__(self, unit: str) -> int:
        self[unit] = place = len(self)
        self._new.append(unit)
        return place

    def new(self) -> list[str]:
        """Units added since the last call."""
        found, self._new = self._new, []
        return found


class _Growing:
    """A growable array."""

    def __init__(self, dtype: type):
        self._store, self._size = np.zeros(1024, dtype), 0

    def __len__(self) -> int:
        return self._size

    @property
    def all(self) -> np.ndarray:
        return self._store[: self._size]

    def add(self, more: np.ndarray) -> None:
        needed = self._size + len(more)
        if needed > len(self._store):
            larger = np.zeros(max(needed, 2 * len(self._store)), self._store.dtype)
            larger[: self._size] = self.all
            self._store = larger
        self._store[self._size : needed] = more
        self._size = needed
