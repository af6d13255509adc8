"""What somebody found when they did this, and what they concluded: to be set beside what is measured.

    reported:
      conclusion: ALiBi makes no significant difference
      figures:
        alibi: {test.accuracy: 0.865}
    claims:
      - says: ALiBi classifies as well as learned positions
        ask: {kind: better, arm: alibi, than: learned, on: test.accuracy}
        answer: no difference
      - says: every row of attention sums to one
        audit: attention-rows

A claim is what must be true for the conclusion to stand, as a question of the study with the answer the report gave to
it, or as an audit that must pass. So a conclusion is judged by verdicts and audits, and by nobody's opinion.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from headway.spec import Problem, Spec
from headway.study.questions import Best, Better, Depends, Ordered, Question

Answer = Literal["better", "worse", "no difference", "in order", "depends"]
ANSWERS: dict[type, tuple[Answer, ...]] = {
    Better: ("better", "worse", "no difference"),
    Best: ("no difference",),
    Ordered: ("in order",),
    Depends: ("depends", "no difference"),
}


class Reported(Spec):
    """What a report says."""

    conclusion: str
    """What it concluded."""
    figures: dict[str, dict[str, float]] = Field(default={})
    """Arm → score → value."""


class Claim(Spec):
    """One thing that a report says or takes for granted."""

    says: str
    """In words."""
    ask: Question | None = None
    """The question it is an answer to; it is one of the study's questions."""
    answer: Answer | None = None
    """The answer that it gives."""
    audit: str | None = None
    """Instead of a question: the audit that passes if it is true, in every run."""
    arm: str | None = None
    """With `audit`: of this arm alone."""

    def problems(self) -> Iterator[Problem]:
        if (self.ask is None) == (self.audit is None):
            yield Problem(("ask", "audit"), "give one of them: a question with the answer to it, or an audit")
        elif self.ask is not None and self.answer not in ANSWERS[type(self.ask)]:
            allowed = " or ".join(f"'{one}'" for one in ANSWERS[type(self.ask)])
            yield Problem(("answer",), f"the report's answer to a question of kind {self.ask.kind} is {allowed}")
        elif self.ask is None and self.answer is not None:
            yield Problem(("answer",), "an audit passes or fails: there is no answer to give")


class Look(Spec):
    """A sentence whose attention maps the report shows."""

    text: str
    """The sentence."""
    arm: str | None = None
    """Of this arm; null = of the first."""
    layer: int | None = None
    """Only this layer, counted from 0; null = all."""
