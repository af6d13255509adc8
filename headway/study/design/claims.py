"""The figures and claims of an existing report, to be compared with what is measured.

    reported:
      conclusion: ALiBi makes no significant difference
      figures:
        alibi: {test.accuracy: 0.865}
    claims:
      - says: ALiBi classifies as well as learned positions
        ask: {kind: better, arm: alibi, than: learned, on: test.accuracy}
        answer: no difference
        within: 2                           # points of accuracy; percent of a perplexity
      - says: every row of the attention matrix sums to one
        audit: attention-rows

A claim is something that must be true for the conclusion to hold. It is given as a question of the study with the
report's answer, or as an audit that must pass, so that conclusions are judged by verdicts and audits alone.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from headway.core.spec import Problem, Spec
from headway.study.design.questions import (
    Best,
    BestSize,
    Better,
    BetterTuned,
    Depends,
    NeedsCompute,
    Ordered,
    PairedBootstrap,
    Question,
    Steeper,
)

Answer = Literal["better", "worse", "no difference", "in order", "depends"]
ANSWERS: dict[type, tuple[Answer, ...]] = {
    Better: ("better", "worse", "no difference"),
    PairedBootstrap: ("better", "worse", "no difference"),
    BetterTuned: ("better", "worse", "no difference"),
    Ordered: ("in order",),
    Depends: ("depends",),
    Steeper: ("better", "worse", "no difference"),
    NeedsCompute: ("better", "worse", "no difference"),
    BestSize: ("no difference",),
}


class Reported(Spec):
    """The conclusion and figures of a report."""

    conclusion: str
    """Its conclusion."""
    figures: dict[str, dict[str, float]] = Field(default={})
    """Reported figures: arm → score → value."""


class Claim(Spec):
    """One thing that a report states or takes for granted."""

    says: str
    """The claim as a sentence."""
    ask: Question | None = None
    """The question that tests it; it becomes one of the study's questions."""
    answer: Answer | None = None
    """The report's answer to that question."""
    within: float | None = Field(default=None, gt=0)
    """With 'no difference': the largest difference that still counts as none, in points of accuracy, percent of a
    perplexity, or the score's own unit. No number of seeds can show that there is no difference at all, only that it is
    smaller than this."""
    audit: str | None = None
    """Instead of a question: an audit that passes in every run if the claim is true."""
    arm: str | None = None
    """With `audit`: the claim is about this arm only."""

    def problems(self) -> Iterator[Problem]:
        if (self.ask is None) == (self.audit is None):
            yield Problem(("ask", "audit"), "give one of them: a question with its answer, or an audit")
        elif isinstance(self.ask, Best):
            yield Problem(("ask",), "a claim cannot ask which arm is best: ask whether one arm is better than another")
        elif self.ask is not None and self.answer not in ANSWERS[type(self.ask)]:
            allowed = " or ".join(f"'{one}'" for one in ANSWERS[type(self.ask)])
            yield Problem(("answer",), f"the report's answer to a question of kind {self.ask.kind} is {allowed}")
        elif (self.answer == "no difference") != (self.within is not None):
            reason = "needed with the answer 'no difference', and only then: the largest difference that counts as none"
            yield Problem(("within",), reason)
        elif self.ask is None and self.answer is not None:
            yield Problem(("answer",), "an audit passes or fails: there is no answer to give")


class Look(Spec):
    """A sentence whose attention maps the report shows."""

    text: str
    """The sentence."""
    arm: str | None = None
    """The arm whose maps are shown; null = the first."""
    layer: int | None = None
    """Only this layer, counted from 0; null = all."""
