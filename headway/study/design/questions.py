"""The kinds of questions a study can ask. Each question is answered by one verdict."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.scoring.metrics import LOSS, METRICS, metric_of, parsed


class Question(Variant):
    """A question of a study."""

    if TYPE_CHECKING:  # a field of some kinds, a property of others
        on: Any
        """The main score of the question."""
        scores: Any
        """All scores that must have been measured."""


class ScoreQuestion(Question):
    """A question about one score."""

    on: str = "valid.perplexity"
    """The score, as split.metric: valid.perplexity, test.accuracy. Make choices on valid."""

    @property
    def scores(self) -> list[str]:
        """All scores that must have been measured."""
        return [self.on]

    def problems(self) -> Iterator[Problem]:
        try:
            metric_of(self.on)
        except UserError as error:
            yield Problem(("on",), str(error))


class Better(ScoreQuestion):
    """Is one arm better than another, or than a simple baseline?"""

    kind: Literal["better"] = "better"
    arm: str
    """The arm in question."""
    than: str
    """What it is compared with: another arm, or one of the baselines computed for every score (bag of words, majority,
    5-gram, unigram)."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.arm == self.than:
            yield Problem(("arm", "than"), f"'{self.arm}' would be compared with itself")

    def __str__(self) -> str:
        return f"Is {self.arm} better than {self.than} on {self.on}?"


class PairedBootstrap(Better):
    """Is one arm better than another, for other sentences of the same kind and other seeds? By bootstrap over the
    sentences of the split, with the same samples for both arms (https://aclanthology.org/W04-3250)."""

    kind: Literal["paired-bootstrap"] = "paired-bootstrap"  # pyright: ignore[reportIncompatibleVariableOverride]
    on: str = "test.bleu"
    """The score, as split.metric. It must be computed from sentences or rows: bleu, chrf, exact_match, accuracy."""

    def problems(self) -> Iterator[Problem]:
        found = list(super().problems())
        yield from found
        if not any("on" in problem.keys for problem in found):
            from headway.scoring.bleu import of_sums

            if of_sums(metric_of(self.on)) is None or parsed(self.on).part:
                reason = f"the bootstrap needs statistics per sentence, which are not stored for {self.on}"
                known = [f"{parsed(self.on).split}.{name}" for name, one in METRICS.items() if of_sums(one) is not None]
                yield Problem(("on",), f"{reason}; they are stored for {', '.join(known)}")

    def __str__(self) -> str:
        return f"Is {self.arm} better than {self.than} on {self.on}, for other sentences and other seeds?"


class BetterTuned(ScoreQuestion):
    """Is one level of a factor better than another, each at its best settings? Each level is represented by its best
    arm on `chosen_on`, and these arms are compared on another split."""

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
    """The score they are compared on, of another split: on the split of `chosen_on` the selection biases the scores."""

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
            reason = "an arm chosen on a split looks better there than it is: compare on another split"
            yield Problem(("on", "chosen_on"), reason)

    def __str__(self) -> str:
        return f"Is {self.level} better than {self.than} on {self.on}, each at its best on {self.chosen_on}?"


class Best(ScoreQuestion):
    """Which arm is best, and which arms are not distinguishable from it?"""

    kind: Literal["best"] = "best"

    def __str__(self) -> str:
        return f"Which is best on {self.on}?"


class Ordered(Question):
    """Are several scores of one arm in this order, each better than the next?"""

    kind: Literal["ordered"] = "ordered"
    arm: str
    """The arm in question."""
    scores: list[str] = Field(min_length=2)
    """The scores in the expected order, best first: train.perplexity, valid.perplexity."""

    @property
    def on(self) -> str:
        """The main score: the last one, expected to be the worst."""
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
            yield Problem(("effect", "on_factor"), f"effect and on_factor are both '{self.effect}': give two factors")

    def __str__(self) -> str:
        return f"Does the effect of {self.effect} on {self.on} depend on {self.on_factor}?"


# --- about ladders ---------------------------------------------------------------------------------------------------


class LadderQuestion(ScoreQuestion):
    """A question about the scaling law fitted to a ladder."""

    on: str = "valid.loss"
    """The loss that the law describes."""
    family: str = ""
    """One of the ladder's families; empty if it has none."""

    def problems(self) -> Iterator[Problem]:
        found = list(super().problems())
        yield from found
        if not found and metric_of(self.on).name != LOSS.name:
            yield Problem(("on",), f"a scaling law needs a loss, such as valid.loss, not {self.on}")


class TwoFamilies(LadderQuestion):
    than: str
    """The family that it is compared with."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.family == self.than:
            yield Problem(("family", "than"), f"'{self.family}' would be compared with itself")


class Steeper(TwoFamilies):
    """Does the loss of one family fall faster with FLOPs than another's? Each loss is taken above its floor."""

    kind: Literal["steeper"] = "steeper"

    def __str__(self) -> str:
        return f"Does {self.on} of {self.family} fall faster with compute than that of {self.than}?"


class NeedsCompute(TwoFamilies):
    """How many times the compute does another family need for the same loss?"""

    kind: Literal["compute"] = "compute"
    flops: float | None = Field(default=None, gt=0)
    """The budget of the first family; the other family's compute for the same loss is estimated. null = the largest
    budget."""

    def __str__(self) -> str:
        spent = "the largest budget" if self.flops is None else f"{self.flops:.3g} FLOPs"
        return f"How many times the compute does {self.than} need for the {self.on} of {self.family} at {spent}?"


class BestSize(LadderQuestion):
    """Does the best model for a budget of FLOPs have this many parameters?"""

    kind: Literal["best-size"] = "best-size"
    flops: float = Field(gt=0)
    """The budget."""
    parameters: float = Field(gt=0)
    """The size that was reported."""

    def __str__(self) -> str:
        of = f" of {self.family}" if self.family else ""
        return f"Has the best model{of} for {self.flops:.3g} FLOPs {self.parameters:.3g} parameters?"
