"""What can be asked of some kinds of models and not of others. A task can do what the abilities it derives from say.

able(run, Writes).write(…)      or a UserError that says of which models one may ask this, and what to try instead
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
    asked: ClassVar[str]
    """The beginning of "… asked of language models"."""


class ReadingWindow(NamedTuple):
    """How a text is read, where that is not to be as the recipe says."""

    segment: int | None = None
    stride: int | None = None
    state: State | None = None


class ReadsSegments(Ability):
    """Running text can be read in segments of any length."""

    asked = "segments and strides are"

    @abstractmethod
    def in_segments(self, model: Any, window: ReadingWindow) -> Self:
        """The same task, scored in other segments, if the model can read such."""

    @abstractmethod
    def surprise(self, model: Any, split: str, reading: Reading, at_most: int) -> Surprise:
        """Of the beginning of a split that is read in this way, for the first replica."""

    @abstractmethod
    def running(self, split: str) -> tuple[Tensor, Tokenizer]:
        """The tokens of a split, as they follow each other."""

    @abstractmethod
    def nats(self, model: Any, rows: Tensor) -> Tensor:
        """Of every token but the first of rows [1, N, T]."""


class FollowsGradients(Ability):
    """Gradients can be followed back from the last token of a row, by distance."""

    asked = "how far gradients reach is"

    @abstractmethod
    def followed(self, split: str, most: int) -> GradientRows:
        """At most so many rows from all over a split, and whose loss is followed back in them."""


@dataclass(frozen=True)
class ScoredTogether:
    """One split, as several models together see it."""

    scores: list[Score]
    members: list[list[Score]]
    """Of each alone."""
    gains: list[Gain]


class JoinsOthers(Ability):
    """The answers of several models can be averaged."""

    asked = "the mean of several models is"

    @abstractmethod
    def told(self, model: Any, split: str) -> list[Any]:
        """What every replica says of a split, as `together` wants it."""

    @abstractmethod
    def together(self, split: str, told: Sequence[Any]) -> ScoredTogether:
        """The mean of what several models said of a split."""


@dataclass(frozen=True)
class GivenFile:
    """A file that somebody brings, and how it is to be read where that is not as the recipe says."""

    path: Path
    encoding: str | None = None
    columns: tuple[int | str, ...] = ()
    """Of a table: those that are the text."""
    label: int | str | None = None
    """Of a table: the one that is the class."""

    def text(self) -> str:
        """Of a file that is running text."""
        if self.columns or self.label is not None:
            raise UserError("columns are those of a table, and this run reads running text")
        return read_text(self.path, self.encoding, key="--encoding ")


class ScoresFiles(Ability):
    asked = "scores of files are"

    @classmethod
    @abstractmethod
    def score_file(cls, run: Run, model: Any, file: GivenFile, window: ReadingWindow) -> list[Score]:
        """Of a file, as a whole."""


class ScoresText(ScoresFiles):
    """A text has a score, with no answer known."""

    asked = "the perplexity of a text is"

    @classmethod
    @abstractmethod
    def score_text(cls, run: Run, model: Any, text: str, window: ReadingWindow) -> ScoredText:
        """Token by token."""


@dataclass(frozen=True)
class Draw:
    """How a text is drawn from a model."""

    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


class Writes(Ability):
    asked = "to write is"

    @classmethod
    @abstractmethod
    def write(
        cls, run: Run, model: Any, prompt: str, how: Draw, show: Callable[[str], object]
    ) -> tuple[str, str | None]:
        """The prompt and what follows it, shown piece by piece; and why it was slow, if it was."""

    @classmethod
    @abstractmethod
    def write_many(cls, run: Run, model: Any, prompt: str, how: Draw, count: int) -> list[str]:
        """So many texts that begin with the prompt, drawn side by side; the first is the one that `write` gives."""


@dataclass(frozen=True)
class Classified:
    """What a classifier makes of a text somebody typed."""

    chances: dict[str, float]
    """The probability of each class, likeliest first."""
    tokens: int
    unknown: int
    """How many of the tokens stand for words outside the vocabulary."""
    notes: list[str]
    """What should be known before the answer is believed."""

    def as_json(self) -> dict[str, Any]:
        return {"classes": self.chances, "tokens": self.tokens, "unknown": self.unknown, "notes": self.notes}


@dataclass(frozen=True)
class ClassifiedTexts:
    """What a classifier makes of many texts."""

    classes: tuple[str, ...]
    chances: Float[np.ndarray, "N C"]
    cut: int
    """How many were longer than the model reads."""
    strange: int
    """How many have no word that it knows."""


@dataclass(frozen=True)
class Translation:
    """What a translator makes of one text."""

    source: str
    hypotheses: list[tuple[str, float]]
    """The best first, each with its score: the logarithm of its chance, as the decoding divides it by the length."""
    notes: list[str]
    """What should be known before it is believed."""

    @property
    def text(self) -> str:
        return self.hypotheses[0][0]

    def as_json(self) -> dict[str, Any]:
        found = [{"text": text, "score": score} for text, score in self.hypotheses]
        return {"source": self.source, "text": self.text, "hypotheses": found, "notes": self.notes}


class Translates(Ability):
    asked = "translations are"

    @classmethod
    @abstractmethod
    def translate(
        cls, run: Run, model: Any, texts: Sequence[str], how: DecodingSpec, told: Callable[[int], object]
    ) -> list[Translation]:
        """Of each of these texts; `told` hears how many are done."""

    @classmethod
    @abstractmethod
    def joined(cls, models: Sequence[Any]) -> Any:
        """Several models that write as one, the mean of their probabilities at every step: for `translate` a model."""

    @abstractmethod
    def sentences(self, model: Any, split: str, how: DecodingSpec) -> list[list[str]]:
        """A table with a row for every pair of a split, a header first."""

    @abstractmethod
    def forced(self, model: Any, split: str, at_most: int) -> Forced:
        """What the first replica says of targets that are given: of pairs with at most so many tokens, from all over a
        split."""


@dataclass(frozen=True)
class Filled:
    """What a model puts in the place of what is hidden in a text."""

    text: str
    """As it was typed."""
    filled: str
    """With the likeliest token at every place."""
    guesses: list[list[tuple[str, float]]]
    """For every place, tokens and their probabilities, likeliest first."""
    notes: list[str]
    """What should be known before it is believed."""

    def as_json(self) -> dict[str, Any]:
        places = [[{"token": token, "probability": chance} for token, chance in place] for place in self.guesses]
        return {"text": self.text, "filled": self.filled, "places": places, "notes": self.notes}


class FillsIn(Ability):
    asked = "hidden tokens are"

    @classmethod
    @abstractmethod
    def fill_in(cls, run: Run, model: Any, text: str, most: int) -> Filled:
        """What may stand where a text has [MASK]: at most so many guesses for each."""


class Classifies(Ability):
    asked = "classes are"

    @classmethod
    @abstractmethod
    def classify(cls, run: Run, model: Any, text: str) -> Classified:
        """Which class a text is of."""

    @classmethod
    @abstractmethod
    def classify_texts(cls, run: Run, model: Any, texts: Sequence[str]) -> ClassifiedTexts:
        """The same for many at once, each cut where the model ends."""

    @abstractmethod
    def predict(self, model: Any, split: str) -> Predictions:
        """What the model says of every text of a split."""


class MatchesPictures(Ability):
    asked = "pictures and captions are"

    @classmethod
    @abstractmethod
    def matcher(cls, run: Run, model: Any) -> Matcher:
        """The model, ready to embed what somebody brings."""

    @classmethod
    @abstractmethod
    def look_at(cls, run: Run, model: Any, shown: Shown, caption: str) -> PictureMaps:
        """Where it looks in a picture and a caption, and what their match hangs on."""

    @abstractmethod
    def shown(self, split: str, places: Sequence[int] | None) -> list[Shown]:
        """Pictures of a split, by their places; None = all."""

    @abstractmethod
    def caption_of(self, split: str, place: int) -> str:
        """What is said of a picture of a split; of several captions, the first."""
