"""Every score computed a second time, by its plain definition. Nothing here uses headway/scoring, because two programs
that share no code do not share a bug either.

    text    read from its file again → tokens → windows → log-softmax in float64 → nats of every scored token;
            or, where state is carried, one segment after the other instead of windows
    rows    read from their table again → tokens, cut, without any padding → softmax → counts of right answers

A split is recomputed completely if that takes about a second, else in parts spread over it, which the scorer then
scores as well.
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
    """How models are called: one model alone, or all replicas of a population in the same way."""

    def __call__(self, ids: Tensor, /, **beside: Tensor) -> Tensor:
        """The outputs of each of R replicas for rows of tokens [1, B, T], as [R, B, …]. `beside`: further inputs, such
        as sources."""
        ...

    def going_on(self, ids: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """The same for rows that continue from a state; and the state that they leave."""
        ...


class Asked(NamedTuple):
    """The replicas of a population, ready to be called."""

    together: Answer
    """All replicas in one pass."""
    alone: Callable[[int], Answer]
    """One replica."""
    members: int


CLOSE = 1e-4
"""Probabilities closer than this: which of two classes is likelier depends on the order of summation."""
MANY = 4000
_STEMS = {"valid": ("valid", "val", "dev")}


class Counted(NamedTuple):
    values: dict[str, float]
    """By name, without the split: loss, perplexity, accuracy, recall.CLASS …"""
    pieces: np.ndarray
    """Mean loss of every window or row, from which the standard error of a part's loss is computed."""
    loose: Mapping[str, float] = MappingProxyType({})
    """Tolerance of each metric, for rows whose two likeliest classes are too close to say which is first."""
    texts: Mapping[int, str] = MappingProxyType({})
    """Of models that generate text: the output for some rows, by row index."""


class Recount(ABC):
    """One split, ready to be recomputed. A part of it is whatever `counts` and `given` understand."""

    @property
    @abstractmethod
    def whole(self) -> Any: ...

    @property
    @abstractmethod
    def parts(self) -> Sequence[Any]:
        """Small parts spread over the split, always the same."""

    @abstractmethod
    def counts(self, part: Any, asked: Asked) -> list[Counted]:
        """Recompute the scores of a part, for every replica."""

    @property
    def many(self) -> Any | None:
        """Thousands of pieces, or the whole, for losses that are concentrated in few rows; None if `parts` suffice."""
        return None

    def losses(self, part: Any, asked: Asked) -> list[Counted]:
        """The same as `counts`, without metrics that need decoding."""
        return self.counts(part, asked)

    @abstractmethod
    def given(self, part: Any) -> Any:
        """This part in the form in which the scorer gets its splits."""

    @abstractmethod
    def size(self, part: Any) -> int:
        """The size in tokens."""

    @abstractmethod
    def compare(self) -> str | None:
        """How the split that is scored differs from what its source holds, as a phrase; None if it does not."""

    @cached_property
    def difference(self) -> str | None:
        """The same, cached."""
        return self.compare()

    def at_odds(self, part: Any, said: Mapping[str, Score], counted: Counted | None = None) -> str | None:
        """What is wrong, as a phrase, if scores of a part (by name, without the split) do not follow from what was
        stored with them, or if that differs from what was found here."""
        return None

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """What is wrong, as a phrase, if scores (by name, without the split) show that they do not cover all of it."""
        return None

    def unaided(self, asked: Asked) -> list[float] | None:
        """For every replica, the loss of some tokens if the text is cut off right before them; None for models that do
        not predict coming tokens."""
        return None


class CountedOneByOne(Recount):
    """For models that are called one after the other, because their next input depends on their last output."""

    @abstractmethod
    def count(self, part: Any, answer: Answer) -> Counted:
        """Recompute the scores of a part, for one replica."""

    def counts(self, part: Any, asked: Asked) -> list[Counted]:
        return [self.count(part, asked.alone(member)) for member in range(asked.members)]


def file_of(folder: Path, split: str, endings: Sequence[str]) -> Path | None:
    """The file of this split in a folder, by the usual names of splits."""
    named = (folder / f"{stem}{ending}" for stem in _STEMS.get(split, (split,)) for ending in endings)
    return next((file for file in named if file.exists()), None)


def spread(rows: int) -> np.ndarray:
    """Evenly spaced row indices, as many as can be recomputed in seconds."""
    return np.unique(np.linspace(0, rows - 1, MANY).astype(int))


def exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
