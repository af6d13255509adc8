"""What is measured of a finished run beside the scores of its recipe: shorter segments, sentences, given targets.

A model is trained on segments of one length, and people read it on others. Whatever depends on the length (learned
positions nobody trained, a norm that runs over the sequence) shows there, and nowhere else. What is asked for stands
here; `results/measuring.py` keeps what was found.
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

FEWEST_SENTENCES = 8
"""So many are joined together."""


class Measure(Variant):
    """What is measured of a finished run beside the scores of its recipe."""

    metrics: ClassVar[tuple[Metric, ...]]
    """What each of its `splits` is measured in."""

    split: str = "valid"
    """Where the text comes from."""

    @abstractmethod
    def check(self, task: "Task") -> None:
        """That it can be measured there, before anything is trained."""

    @property
    @abstractmethod
    def splits(self) -> list[str]:
        """What its scores are of: `valid-16` …"""

    @property
    def told(self) -> list[str]:
        """Scores that a report gives, whether or not they are asked about."""
        return []

    @abstractmethod
    def scores(self, model: Any, task: Any) -> "Iterator[Score]":
        """Of one trained model."""


class Chosen(Measure):
    """A split that only what was chosen is scored on: the arm that is best on another, by the mean of its seeds; or of
    every level of a factor, its best arm. Once all runs have ended, and never of the others."""

    kind: Literal["chosen"] = "chosen"
    split: str = "test"
    """The split that it is scored on."""
    on: str = "valid.accuracy"
    """The score by which the best arm is chosen."""
    of: str | None = None
    """The factor for each level of which the best arm is chosen; null = one of all arms."""

    @property
    def metrics(self) -> tuple[Metric, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the task, whichever it is."""
        return tuple(METRICS.values())

    def problems(self) -> Iterator[Problem]:
        try:
            metric_of(self.on)
        except UserError as error:
            yield Problem(("on",), str(error))
            return
        if parsed(self.on).split == self.split:
            yield Problem(("on", "split"), "what is chosen on a split looks better there than it is: score another")

    def check(self, task: "Task") -> None:
        task.check_split(self.split)
        if self.split in task.scored_splits:
            reason = f"all arms are scored on '{self.split}' (scoring.splits), not what was chosen alone"
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
    """What every measure of running text has."""

    metrics = (LOSS, PERPLEXITY)

    def check(self, task: "Task") -> None:
        from headway.tasks.abilities import ReadsSegments

        if not isinstance(task, ReadsSegments):
            raise UserError(f"measures: segments, windows and sentences are of running text, not of a {task.kind}")
        task.check_split(self.split)


class Lengths(TextMeasure):
    """A split that is read in pieces of other lengths than those of training."""

    lengths: list[int] = Field(min_length=1)
    """In tokens, none longer than learned positions go."""
    tokens: int = Field(default=8192, ge=2)
    """How much of the split is read, from its beginning."""

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
                f"measures: segments of {max(self.lengths)} tokens, but the learned positions end at {limit}"
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
    """The perplexity of a split that is read in segments, one after the other, each alone: `valid-16.perplexity`."""

    kind: Literal["segments"] = "segments"

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}" for length in self.lengths]

    def reading(self, length: int) -> Reading:
        return Reading(length, length)


class Sliding(Lengths):
    """The same by windows that move by a quarter of their length: `valid-16-sliding.perplexity`. No token has seen less
    than three quarters of a window; what segments of that length lose beside it, their early tokens lose."""

    kind: Literal["sliding"] = "sliding"

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}-sliding" for length in self.lengths]

    def reading(self, length: int) -> Reading:
        return Reading(length, max(1, length // 4))


class CarriedOn(Lengths):
    """The same as one stream, in which each segment goes on from the state of the one before:
    `valid-16-carried.perplexity`. Of an arm that carries no state, nothing is measured."""

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
    """Single sentences, each read alone: as they are (`sentences`), with their tokens in random order (`scrambled`),
    and eight joined together (`joined`)."""

    kind: Literal["sentences"] = "sentences"
    count: int = Field(default=40, ge=FEWEST_SENTENCES)
    """How many sentences, from the beginning of the split."""
    shortest: int = Field(default=10, ge=2)
    longest: int = Field(default=40, ge=2)
    """Only sentences of at most this many tokens."""

    def check(self, task: "Task") -> None:
        from headway.study.results.measuring import sentences_in

        super().check(task)
        found = len(sentences_in(task, self))
        if found < FEWEST_SENTENCES:
            lengths = f"{self.shortest} to {self.longest}"
            raise UserError(
                f"measures: '{self.split}' has {found} sentences of {lengths} tokens that end in '.', and "
                f"{FEWEST_SENTENCES} are needed"
            )

    @property
    def splits(self) -> list[str]:
        return ["sentences", "scrambled", "joined"]

    def scores(self, model: Any, task: "ReadsSegments") -> "Iterator[Score]":
        from headway.study.results.measuring import sentence_scores

        return sentence_scores(self, model, task)


class GivenTargets(Measure):
    """Of a translator, the loss and the token accuracy of targets that are given, where nothing need be translated:
    `train-given.loss`. Beside them the accuracy that one gets who counts padding, too: `train-padded.token_accuracy`.

    Padding is told right as soon as a model has learnt where texts end, and in batches of unlike texts it is half of
    all: such an accuracy says little of the other half."""

    kind: Literal["given-targets"] = "given-targets"
    metrics = (LOSS, TOKEN_ACCURACY)
    tokens: int = Field(default=20_000, ge=1)
    """How many tokens, spread over the split."""
    batch: int = Field(default=16, ge=1)
    """How many consecutive pairs are padded to the longest of them."""

    def check(self, task: "Task") -> None:
        from headway.tasks.abilities import Translates

        if not isinstance(task, Translates):
            raise UserError(f"measures: targets are given to translators, not to a {task.kind}")
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
