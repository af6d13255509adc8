"""What somebody found when they did this, and what they concluded: to be set beside what is measured.

    reported:
      conclusion: ALiBi makes no significant difference
      figures:
        alibi: {test.accuracy: 0.865}
    claims:
      - says: ALiBi classifies as well as learned positions
        ask: {kind: better, arm: alibi, than: learned, on: test.accuracy}
        answer: no difference
        within: 2                           # points of accuracy; percent of a perplexity
      - says: every row of attention sums to one
        audit: attention-rows

A claim is what must be true for the conclusion to stand, as a question of the study with the answer the report gave to
it, or as an audit that must pass. So a conclusion is judged by verdicts and audits, and by nobody's opinion.
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
    """What a report says."""

    conclusion: str
    """What it concludes."""
    figures: dict[str, dict[str, float]] = Field(default={})
    """Reported figures: arm → score → value."""


class Claim(Spec):
    """One thing that a report says or takes for granted."""

    says: str
    """The claim, in words."""
    ask: Question | None = None
    """The question that tests it; it becomes one of the study's questions."""
    answer: Answer | None = None
    """The report's answer to that question."""
    within: float | None = Field(default=None, gt=0)
    """With 'no difference': the largest difference that still counts as none, in points of accuracy, percent of a
    perplexity, or the score's own unit. Seeds can never show that there is no difference at all; they can show that it
    is smaller than this."""
    audit: str | None = None
    """Instead of a question: an audit that passes in every run if the claim is true."""
    arm: str | None = None
    """With `audit`: the claim is about this arm alone."""

    def problems(self) -> Iterator[Problem]:
        if (self.ask is None) == (self.audit is None):
            yield Problem(("ask", "audit"), "give one of them: a question with the answer to it, or an audit")
        elif isinstance(self.ask, Best):
            yield Problem(
                ("ask",), "a claim says of an arm that it is better, or worse: ask that, and not which is best"
            )
        elif self.ask is not None and self.answer not in ANSWERS[type(self.ask)]:
            allowed = " or ".join(f"'{one}'" for one in ANSWERS[type(self.ask)])
            yield Problem(("answer",), f"the report's answer to a question of kind {self.ask.kind} is {allowed}")
        elif (self.answer == "no difference") != (self.within is not None):
            reason = "goes with the answer 'no difference', and says up to how much counts as no difference"
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
