"""Further measurements of a finished run, in addition to its recipe's scores: other segment lengths, sentences,
targets.

A model is trained on segments of one length but often used on others. Whatever depends on the length (untrained learned
positions, a norm over the sequence) only shows there. The specs are here; `results/measuring.py` takes the measurements
and stores them.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.scoring.metrics import LOSS, METRICS, PERPLEXITY, TOKEN_ACCURACY, Metric, metric_of, parsed
from headway.scoring.reading import Reading

if TYPE_CHECKING:
    from headway.scoring.score import Score
    from headway.tasks.abilities import ReadsSegments, Translates
    from headway.tasks.task import Task

MIN_SENTENCES = 8
"""How many sentences are joined together."""


class Measure(Variant):
    """A measurement of a finished run in addition to the scores of its recipe."""

    metrics: ClassVar[tuple[Metric, ...]]
    """The metrics computed for each of its `splits`."""

    split: str = "valid"
    """The split the text comes from."""

    @abstractmethod
    def check(self, task: "Task") -> None:
        """Raise a UserError if it cannot be measured on this task; called before anything is trained."""

    @property
    @abstractmethod
    def splits(self) -> list[str]:
        """The names its scores use as splits: `valid-16` …"""

    @property
    def told(self) -> list[str]:
        """Scores shown in the report even if no question is about them."""
        return []

    @abstractmethod
    def scores(self, model: Any, task: Any) -> "Iterator[Score]":
        """Measure one trained model."""


class Chosen(Measure):
    """Score only the chosen arm on a split: the best on another split by the mean over seeds, or the best arm of every
    level of a factor. This is done once all runs have ended; the other arms are never scored there."""

    kind: Literal["chosen"] = "chosen"
    split: str = "test"
    """The split that the chosen arm is scored on."""
    on: str = "valid.accuracy"
    """The score by which the best arm is chosen."""
    of: str | None = None
    """The factor for each level of which the best arm is chosen; null = one of all arms."""

    @property
    def metrics(self) -> tuple[Metric, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All metrics: which apply depends on the task."""
        return tuple(METRICS.values())

    def problems(self) -> Iterator[Problem]:
        try:
            metric_of(self.on)
        except UserError as error:
            yield Problem(("on",), str(error))
            return
        if parsed(self.on).split == self.split:
            yield Problem(("on", "split"), "an arm chosen on a split looks better there than it is: score another")

    def check(self, task: "Task") -> None:
        task.check_split(self.split)
        if self.split in task.scored_splits:
            reason = f"scoring.splits scores all arms on '{self.split}', not only the chosen one"
            raise UserError(f"measures: {reason}; leave it out there")

    @property
    def splits(self) -> list[str]:
        return [self.split]

    @property
    def told(self) -> list[str]:
        return [f"{self.split}.{parsed(self.on).metric}"]

    def scores(self, model: Any, task: "Task") -> "Iterator[Score]":
        (found,) = task.score(model, [self.split])
        yield from found


class TextMeasure(Measure):
    """A measurement on running text."""

    metrics = (LOSS, PERPLEXITY)

    def check(self, task: "Task") -> None:
        from headway.tasks.abilities import ReadsSegments

        if not isinstance(task, ReadsSegments):
            raise UserError(f"measures: segments, windows and sentences need running text, not a {task.kind}")
        task.check_split(self.split)


class Lengths(TextMeasure):
    """A split read in pieces of other lengths than in training."""

    lengths: list[int] = Field(min_length=1)
    """Lengths in tokens, none longer than the learned positions."""
    tokens: int = Field(default=8192, ge=2)
    """How many tokens of the split are read, from its beginning."""

    @abstractmethod
    def reading(self, length: int) -> Reading:
        """How the split is read in pieces of this length."""

    def problems(self) -> Iterator[Problem]:
        if min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            yield Problem(("lengths",), f"expected different lengths of at least 1, not {self.lengths}")

    def check(self, task: "Task") -> None:
        super().check(task)
        limit = task.recipe.model.limit
        if limit is not None and max(self.lengths) > limit:
            raise UserError(
                f"measures: segments of {max(self.lengths)} tokens are longer than the {limit} learned positions"
            )

    @property
    def told(self) -> list[str]:
        return [f"{split}.{PERPLEXITY.name}" for split in self.splits]

    def scores(self, model: Any, task: "ReadsSegments") -> "Iterator[Score]":
        names = [metric.name for metric in self.metrics]
        for length, name in zip(self.lengths, self.splits, strict=True):
            found = task.surprise(model, self.split, self.reading(length), self.tokens).scores(name)
            yield from (score for score in found if parsed(score.name).metric in names)


class Segments(Lengths):
    """The perplexity of a split read in consecutive, independent segments: `valid-16.perplexity`."""

    kind: Literal["segments"] = "segments"

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}" for length in self.lengths]

    def reading(self, length: int) -> Reading:
        return Reading(length, length)


class Sliding(Lengths):
    """The same in windows that move by a quarter of their length: `valid-16-sliding.perplexity`. Every token has at
    least three quarters of a window as context, so the gap to segments of that length is the cost of early tokens."""

    kind: Literal["sliding"] = "sliding"

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}-sliding" for length in self.lengths]

    def reading(self, length: int) -> Reading:
        return Reading(length, max(1, length // 4))


class CarriedOn(Lengths):
    """The same as one stream, in which each segment continues from the state of the one before:
    `valid-16-carried.perplexity`. Not measured for an arm without a recurrent state."""

    kind: Literal["carried"] = "carried"

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}-carried" for length in self.lengths]

    def reading(self, length: int) -> Reading:
        return Reading(length, length, carried=True)

    def scores(self, model: Any, task: "ReadsSegments") -> "Iterator[Score]":
        if model.spec.remembers:
            yield from super().scores(model, task)


class Sentences(TextMeasure):
    """Independent sentences: as they are (`sentences`), with their tokens in random order (`scrambled`), and eight
    joined together (`joined`)."""

    kind: Literal["sentences"] = "sentences"
    count: int = Field(default=40, ge=MIN_SENTENCES)
    """How many sentences, from the beginning of the split."""
    shortest: int = Field(default=10, ge=2)
    longest: int = Field(default=40, ge=2)
    """Only sentences of at most this many tokens."""

    def check(self, task: "Task") -> None:
        from headway.study.results.measuring import sentences_in

        super().check(task)
        found = len(sentences_in(task, self))
        if found < MIN_SENTENCES:
            lengths = f"{self.shortest} to {self.longest}"
            raise UserError(
                f"measures: '{self.split}' has {found} sentences of {lengths} tokens that end in '.', but at least "
                f"{MIN_SENTENCES} are needed"
            )

    @property
    def splits(self) -> list[str]:
        return ["sentences", "scrambled", "joined"]

    def scores(self, model: Any, task: "ReadsSegments") -> "Iterator[Score]":
        from headway.study.results.measuring import sentence_scores

        return sentence_scores(self, model, task)


class GivenTargets(Measure):
    """The loss and token accuracy of a translator with given targets (teacher forcing): `train-given.loss`. Also the
    token accuracy if padding is counted: `train-padded.token_accuracy`.

    A model predicts padding correctly as soon as it has learnt where texts end. In batches of texts of different
    lengths padding can be half of all tokens, so such an accuracy says little about the real tokens."""

    kind: Literal["given-targets"] = "given-targets"
    metrics = (LOSS, TOKEN_ACCURACY)
    tokens: int = Field(default=20_000, ge=1)
    """How many tokens are read, spread over the split."""
    batch: int = Field(default=16, ge=1)
    """How many consecutive pairs are padded to the longest among them."""

    def check(self, task: "Task") -> None:
        from headway.tasks.abilities import Translates

        if not isinstance(task, Translates):
            raise UserError(f"measures: given-targets needs a translator, not a {task.kind}")
        task.check_split(self.split)

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-given", f"{self.split}-padded"]

    @property
    def told(self) -> list[str]:
        given, padded = self.splits
        return [f"{given}.{LOSS.name}", f"{given}.{TOKEN_ACCURACY.name}", f"{padded}.{TOKEN_ACCURACY.name}"]

    def scores(self, model: Any, task: "Translates") -> "Iterator[Score]":
        from headway.study.results.measuring import scores_of_given

        return scores_of_given(self, model, task)
