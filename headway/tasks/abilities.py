"""Abilities: what only some kinds of models can do. A task derives from the abilities that it has.

able(run, Writes).write(…)      or a UserError that says which models can do this, and what to try instead
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from torch import Tensor

from headway.core.errors import UserError
from headway.data.running.sources import read_text
from headway.data.tokenizers import Tokenizer
from headway.look.gradient_rows import GradientRows
from headway.look.picture_maps import PictureMaps
from headway.run.folder import Run
from headway.scoring.accuracy import Predictions
from headway.scoring.decoding import DecodingSpec
from headway.scoring.ensemble import Gain
from headway.scoring.likelihood import Surprise
from headway.scoring.pictures.matching import Matcher, Shown
from headway.scoring.reading import Reading
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText
from headway.scoring.spec import State
from headway.scoring.translation import Forced


class Ability(ABC):
    activity: ClassVar[str]
    """The beginning of the message "… is only possible with language models"."""


class ReadingWindow(NamedTuple):
    """How a text is read, where this overrides the recipe."""

    segment: int | None = None
    stride: int | None = None
    state: State | None = None


class ReadsSegments(Ability):
    """Running text can be read in segments of any length."""

    activity = "choosing segments and strides"

    @abstractmethod
    def in_segments(self, model: Any, window: ReadingWindow) -> Self:
        """The same task, scored in other segments; a UserError if the model cannot read them."""

    @abstractmethod
    def surprise(self, model: Any, split: str, reading: Reading, at_most: int) -> Surprise:
        """Score the beginning of a split by this reading, for the first replica."""

    @abstractmethod
    def running(self, split: str) -> tuple[Tensor, Tokenizer]:
        """The tokens of a split, in order."""

    @abstractmethod
    def nats(self, model: Any, rows: Tensor) -> Tensor:
        """Nats of every token but the first, for rows [1, N, T]."""


class FollowsGradients(Ability):
    """Gradients can be measured by distance from the last token of a row."""

    activity = "measuring how far gradients reach"

    @abstractmethod
    def followed(self, split: str, most: int) -> GradientRows:
        """At most `most` rows from all over a split, with the loss whose gradient is measured."""


@dataclass(frozen=True)
class ScoredTogether:
    """The scores of an ensemble on one split."""

    scores: list[Score]
    members: list[list[Score]]
    """The scores of each member alone."""
    gains: list[Gain]


class JoinsOthers(Ability):
    """Several models can be combined into an ensemble."""

    activity = "averaging several models"

    @abstractmethod
    def told(self, model: Any, split: str) -> list[Any]:
        """The outputs of every replica on a split, in the form that `together` takes."""

    @abstractmethod
    def together(self, split: str, told: Sequence[Any]) -> ScoredTogether:
        """Combine the outputs of several models on a split."""


@dataclass(frozen=True)
class GivenFile:
    """A file given by the user, and how it is read where this overrides the recipe."""

    path: Path
    encoding: str | None = None
    columns: tuple[int | str, ...] = ()
    """For a table: the text columns."""
    label: int | str | None = None
    """For a table: the column of the class."""

    def text(self) -> str:
        """The content of a file of running text."""
        if self.columns or self.label is not None:
            raise UserError("columns can only be chosen for tables, but this run reads running text")
        return read_text(self.path, self.encoding, key="--encoding ")


class ScoresFiles(Ability):
    activity = "scoring a file"

    @classmethod
    @abstractmethod
    def score_file(cls, run: Run, model: Any, file: GivenFile, window: ReadingWindow) -> list[Score]:
        """The scores of a whole file."""


class ScoresText(ScoresFiles):
    """A text can be scored without a reference or label."""

    activity = "scoring a text"

    @classmethod
    @abstractmethod
    def score_text(cls, run: Run, model: Any, text: str, window: ReadingWindow) -> ScoredText:
        """Score a text token by token."""


@dataclass(frozen=True)
class Draw:
    """Settings for sampling text."""

    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


class Writes(Ability):
    activity = "writing text"

    @classmethod
    @abstractmethod
    def write(
        cls, run: Run, model: Any, prompt: str, how: Draw, show: Callable[[str], object]
    ) -> tuple[str, str | None]:
        """The prompt and its continuation, shown piece by piece; and a note if no cache could be used."""

    @classmethod
    @abstractmethod
    def write_many(cls, run: Run, model: Any, prompt: str, how: Draw, count: int) -> list[str]:
        """Continue the prompt `count` times in one batch; the first text is the one that `write` gives."""


@dataclass(frozen=True)
class Classified:
    """A classifier's answer for a text that a user typed."""

    chances: dict[str, float]
    """The probability of each class, likeliest first."""
    tokens: int
    unknown: int
    """How many of the tokens are the unknown word."""
    notes: list[str]
    """Caveats, such as unknown words."""

    def as_json(self) -> dict[str, Any]:
        return {"classes": self.chances, "tokens": self.tokens, "unknown": self.unknown, "notes": self.notes}


@dataclass(frozen=True)
class ClassifiedTexts:
    """A classifier's answers for many texts."""

    classes: tuple[str, ...]
    chances: Float[np.ndarray, "N C"]
    cut: int
    """How many were truncated to the model's context."""
    strange: int
    """How many contain no known word."""


@dataclass(frozen=True)
class Translation:
    """A translator's output for one text."""

    source: str
    hypotheses: list[tuple[str, float]]
    """Best first, each with its length-normalised log-probability."""
    notes: list[str]
    """Caveats, such as truncation."""

    @property
    def text(self) -> str:
        return self.hypotheses[0][0]

    def as_json(self) -> dict[str, Any]:
        found = [{"text": text, "score": score} for text, score in self.hypotheses]
        return {"source": self.source, "text": self.text, "hypotheses": found, "notes": self.notes}


class Translates(Ability):
    activity = "translating"

    @classmethod
    @abstractmethod
    def translate(
        cls, run: Run, model: Any, texts: Sequence[str], how: DecodingSpec, told: Callable[[int], object]
    ) -> list[Translation]:
        """Translate these texts; `told` is called with the number done."""

    @classmethod
    @abstractmethod
    def joined(cls, models: Sequence[Any]) -> Any:
        """An ensemble that averages probabilities at every step, to pass to `translate` as a model."""

    @abstractmethod
    def sentences(self, model: Any, split: str, how: DecodingSpec) -> list[list[str]]:
        """A table with a header and a row for every pair of a split."""

    @abstractmethod
    def forced(self, model: Any, split: str, at_most: int) -> Forced:
        """Teacher-forced results of the first replica, on a random subset of pairs with at most so many target
        tokens."""


@dataclass(frozen=True)
class Filled:
    """A model's predictions for the masked tokens of a text."""

    text: str
    """The text as typed."""
    filled: str
    """The text with the likeliest token in each place."""
    guesses: list[list[tuple[str, float]]]
    """For every place, tokens and their probabilities, likeliest first."""
    notes: list[str]
    """Caveats, such as unknown words."""

    def as_json(self) -> dict[str, Any]:
        places = [[{"token": token, "probability": chance} for token, chance in place] for place in self.guesses]
        return {"text": self.text, "filled": self.filled, "places": places, "notes": self.notes}


class FillsIn(Ability):
    activity = "filling in masked tokens"

    @classmethod
    @abstractmethod
    def fill_in(cls, run: Run, model: Any, text: str, most: int) -> Filled:
        """Predict the [MASK]s of a text: at most `most` guesses for each."""


class Classifies(Ability):
    activity = "classifying"

    @classmethod
    @abstractmethod
    def classify(cls, run: Run, model: Any, text: str) -> Classified:
        """Classify one text."""

    @classmethod
    @abstractmethod
    def classify_texts(cls, run: Run, model: Any, texts: Sequence[str]) -> ClassifiedTexts:
        """Classify many texts at once, each truncated to the model's context."""

    @abstractmethod
    def predict(self, model: Any, split: str) -> Predictions:
        """Predictions for every text of a split."""


class MatchesPictures(Ability):
    activity = "matching pictures and captions"

    @classmethod
    @abstractmethod
    def matcher(cls, run: Run, model: Any) -> Matcher:
        """The model, ready to embed pictures and captions from the user."""

    @classmethod
    @abstractmethod
    def look_at(cls, run: Run, model: Any, shown: Shown, caption: str) -> PictureMaps:
        """Attention maps of a picture and a caption, and what their match depends on."""

    @abstractmethod
    def shown(self, split: str, places: Sequence[int] | None) -> list[Shown]:
        """Pictures of a split, by index; None = all."""

    @abstractmethod
    def caption_of(self, split: str, place: int) -> str:
        """The (first) caption of a picture of a split."""
