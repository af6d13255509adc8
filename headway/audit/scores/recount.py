"""Every score computed a second time, by its plain definition. Nothing here uses headway/scoring: two computations that
share no code do not share a fault either.

    text    read from its file again → tokens → windows → log-softmax in float64 → nats of every token that is due;
            or, where state is carried, one segment after the other in the place of windows
    rows    read from their table again → tokens, cut, without any padding → softmax → counts of what is right

A split is counted whole where that is a matter of a second, else in parts spread over it, of which the scorer is asked
as well.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from headway.scoring.score import Score


class Answer(Protocol):
    """How models are asked: one alone, or all members of a population the same."""

    def __call__(self, ids: Tensor, /, **beside: Tensor) -> Tensor:
        """Everything each of R says of rows of tokens [1, B, T], as [R, B, …]; `beside`: what else they must be given,
        such as sources."""
        ...

    def going_on(self, ids: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """The same of rows that continue those which left this state; and the state that they leave."""
        ...


class Asked(NamedTuple):
    """The members of a population, ready to be asked."""

    together: Answer
    """All of them at once."""
    alone: Callable[[int], Answer]
    """One of them."""
    members: int


CLOSE = 1e-4
"""Chances that differ by less: which of two classes is the likelier one depends on the order of sums."""
MANY = 4000
_STEMS = {"valid": ("valid", "val", "dev")}


class Counted(NamedTuple):
    values: dict[str, float]
    """By name, without the split: loss, perplexity, accuracy, recall.CLASS …"""
    pieces: np.ndarray
    """Mean nats of every window or row: how much the loss of a part depends on which part it is."""
    loose: Mapping[str, float] = MappingProxyType({})
    """By how much a count may be off, by name: for rows whose two likeliest classes are too close to say which."""
    texts: Mapping[int, str] = MappingProxyType({})
    """Of models that write: what they write for some of the rows, by their places."""


class Recount(ABC):
    """One split, ready to be counted. A part of it is whatever `counts` and `given` understand."""

    @property
    @abstractmethod
    def whole(self) -> Any: ...

    @property
    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """Spread out, always the same, and small."""

    @abstractmethod
    def counts(self, part: Any, asked: Asked) -> list[Counted]:
        """For every member."""

    @property
    def many(self) -> Any | None:
        """Thousands of pieces, or the whole, for losses most of which are in a few; None = `parts` are enough."""
        return None

    def losses(self, part: Any, asked: Asked) -> list[Counted]:
        """As `counts`, of what needs no decoding."""
        return self.counts(part, asked)

    @abstractmethod
    def given(self, part: Any) -> Any:
        """This part as the scorer has its splits."""

    @abstractmethod
    def size(self, part: Any) -> int:
        """In tokens."""

    @abstractmethod
    def compare(self) -> str | None:
        """In words, where what is scored under this name is not what its source has under it."""

    @cached_property
    def difference(self) -> str | None:
        """The same, found once."""
        return self.compare()

    def at_odds(self, part: Any, said: Mapping[str, Score], counted: Counted | None = None) -> str | None:
        """In words, where scores of a part (by name, without the split) are not what follows from what is kept with
        them, or that is not what was found here."""
        return None

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """In words, where scores (by name, without the split) tell by themselves that they are not of all of it."""
        return None

    def unaided(self, asked: Asked) -> list[float] | None:
        """For every member, the loss of some tokens where the text ends before them; None where answers are not of
        tokens to come."""
        return None


class CountedOneByOne(Recount):
    """Of models that are asked one after the other, each for what the last answer made of it."""

    @abstractmethod
    def count(self, part: Any, answer: Answer) -> Counted:
        """For one member."""

    def counts(self, part: Any, asked: Asked) -> list[Counted]:
        return [self.count(part, asked.alone(member)) for member in range(asked.members)]


def file_of(folder: Path, split: str, endings: Sequence[str]) -> Path | None:
    """Where a folder has this split, by the names that splits go by."""
    named = (folder / f"{stem}{ending}" for stem in _STEMS.get(split, (split,)) for ending in endings)
    return next((file for file in named if file.exists()), None)


def spread(rows: int) -> np.ndarray:
    """Places of rows from everywhere, as many as can be counted in seconds."""
    return np.unique(np.linspace(0, rows - 1, MANY).astype(int))


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
