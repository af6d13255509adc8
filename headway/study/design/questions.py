"""What can be asked of a study. Each question is answered by one verdict."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.scoring.metrics import LOSS, METRICS, metric_of, parsed


class Question(Variant):
    """What is asked of a study."""

    if TYPE_CHECKING:  # a setting of some, worked out by others
        on: Any
        """The score that speaks for the question."""
        scores: Any
        """Everything that must have been measured."""


class ScoreQuestion(Question):
    """What most questions have: the score they are asked of."""

    on: str = "valid.perplexity"
    """The score, as split.metric: valid.perplexity, test.accuracy. Choices are made on valid."""

    @property
    def scores(self) -> list[str]:
        """Everything that must have been measured."""
        return [self.on]

    def problems(self) -> Iterator[Problem]:
        try:
            metric_of(self.on)
        except UserError as error:
            yield Problem(("on",), str(error))


class Better(ScoreQuestion):
    """Is one arm better than another, or than a cheap method?"""

    kind: Literal["better"] = "better"
    arm: str
    """The arm in question."""
    than: str
    """What it is compared with: another arm, or one of the baselines that every score is set beside (bag of words,
    majority, 5-gram, unigram)."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.arm == self.than:
            yield Problem(("arm", "than"), f"'{self.arm}' would be compared with itself")

    def __str__(self) -> str:
        return f"Is {self.arm} better than {self.than} on {self.on}?"


class PairedBootstrap(Better):
    """Is one arm better than another, for other sentences of the same kind and other seeds? Sentences of the split are
    drawn anew, the same for both (https://aclanthology.org/W04-3250)."""

    kind: Literal["paired-bootstrap"] = "paired-bootstrap"  # pyright: ignore[reportIncompatibleVariableOverride]
    on: str = "test.bleu"
    """The score, as split.metric, which must be made up of sentences or rows: bleu, chrf, exact_match, accuracy."""

    def problems(self) -> Iterator[Problem]:
        found = list(super().problems())
        yield from found
        if not any("on" in problem.keys for problem in found):
            from headway.scoring.bleu import of_sums

            if of_sums(metric_of(self.on)) is None or parsed(self.on).part:
                reason = f"what single sentences add to {self.on} is not kept, and they cannot be drawn anew"
                known = [f"{parsed(self.on).split}.{name}" for name, one in METRICS.items() if of_sums(one) is not None]
                yield Problem(("on",), f"{reason}; it is of {', '.join(known)}")

    def __str__(self) -> str:
        return f"Is {self.arm} better than {self.than} on {self.on}, for other sentences and other seeds?"


class BetterTuned(ScoreQuestion):
    """Is one level of a factor better than another, each with what suits it best? Of the arms of a level, the one
    that is best on `chosen_on` stands for it, and what was chosen there is compared on another split."""

    kind: Literal["better-tuned"] = "better-tuned"
    factor: str
    """The factor whose levels are compared; each level is represented by the best of its arms."""
    level: str
    """The level in question."""
    than: str
    """The level it is compared with."""
    chosen_on: str = "valid.accuracy"
    """The score by which each level's best arm is chosen, by the mean over seeds."""
    on: str = "test.accuracy"
    """The score they are compared on, of another split: the one that chooses is biased by the choice."""

    @property
    def scores(self) -> list[str]:
        return [self.on, self.chosen_on]

    def problems(self) -> Iterator[Problem]:
        found = list(super().problems())
        yield from found
        try:
            metric_of(self.chosen_on)
        except UserError as error:
            yield Problem(("chosen_on",), str(error))
            return
        if self.level == self.than:
            yield Problem(("level", "than"), f"'{self.level}' would be compared with itself")
        if not found and parsed(self.on).split == parsed(self.chosen_on).split:
            reason = "what was chosen on a split looks better there than it is: compare on another"
            yield Problem(("on", "chosen_on"), reason)

    def __str__(self) -> str:
        return f"Is {self.level} better than {self.than} on {self.on}, each at its best on {self.chosen_on}?"


class Best(ScoreQuestion):
    """Which arm is best, and which cannot be told from it?"""

    kind: Literal["best"] = "best"

    def __str__(self) -> str:
        return f"Which is best on {self.on}?"


class Ordered(Question):
    """Are several scores of one arm in this order, each better than the next?"""

    kind: Literal["ordered"] = "ordered"
    arm: str
    """The arm in question."""
    scores: list[str] = Field(min_length=2)
    """The best first: train.perplexity, valid.perplexity."""

    @property
    def on(self) -> str:
        """The score that speaks for all of them: the last, which is the one of the split that is farthest away."""
        return self.scores[-1]

    def problems(self) -> Iterator[Problem]:
        for score in self.scores:
            try:
                metric_of(score)
            except UserError as error:
                yield Problem(("scores",), str(error))
                return
        kinds = {(metric_of(score).lower_is_better, metric_of(score).is_ratio) for score in self.scores}
        if len(kinds) > 1 or len(set(self.scores)) < len(self.scores):
            yield Problem(("scores",), "expected different scores of one kind, such as perplexities of several splits")

    def __str__(self) -> str:
        if len(self.scores) == 2:
            return f"Is {self.scores[0]} of {self.arm} better than its {self.scores[1]}?"
        return f"Is each of {', '.join(self.scores)} of {self.arm} better than the next?"


class Depends(ScoreQuestion):
    """Does the effect of one factor depend on another?"""

    kind: Literal["depends"] = "depends"
    effect: str
    """The factor whose effect is in question."""
    on_factor: str
    """The factor that it may depend on."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.effect == self.on_factor:
            yield Problem(("effect", "on_factor"), f"'{self.effect}' would be asked to depend on itself")

    def __str__(self) -> str:
        return f"Does the effect of {self.effect} on {self.on} depend on {self.on_factor}?"


# --- of ladders ------------------------------------------------------------------------------------------------------


class LadderQuestion(ScoreQuestion):
    """What is asked of the law that is fitted to a ladder."""

    on: str = "valid.loss"
    """The loss that the law is of."""
    family: str = ""
    """Which of the ladder's families; empty, where it has none."""

    def problems(self) -> Iterator[Problem]:
        found = list(super().problems())
        yield from found
        if not found and metric_of(self.on).name != LOSS.name:
            yield Problem(("on",), f"a law is of a loss, such as valid.loss, and not of {self.on}")


class TwoFamilies(LadderQuestion):
    than: str
    """The family that it is compared with."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.family == self.than:
            yield Problem(("family", "than"), f"'{self.family}' would be compared with itself")


class Steeper(TwoFamilies):
    """Does the loss of one family fall faster with FLOPs than another's? Of what is above the floor of each."""

    kind: Literal["steeper"] = "steeper"

    def __str__(self) -> str:
        return f"Does {self.on} of {self.family} fall faster with compute than that of {self.than}?"


class NeedsCompute(TwoFamilies):
    """How many times the compute does another family need for the same loss?"""

    kind: Literal["compute"] = "compute"
    flops: float | None = Field(default=None, gt=0)
    """The budget of the first family; the question is what the other needs for the same loss. null = the largest
    budget."""

    def __str__(self) -> str:
        spent = "the largest budget" if self.flops is None else f"{self.flops:.3g} FLOPs"
        return f"How many times the compute does {self.than} need for the {self.on} of {self.family} at {spent}?"


class BestSize(LadderQuestion):
    """Is the best model for so many FLOPs of this size?"""

    kind: Literal["best-size"] = "best-size"
    flops: float = Field(gt=0)
    """The budget."""
    parameters: float = Field(gt=0)
    """The size that was reported."""

    def __str__(self) -> str:
        of = f" of {self.family}" if self.family else ""
        return f"Has the best model{of} for {self.flops:.3g} FLOPs {self.parameters:.3g} parameters?"
