"""Exercises: cases that are solved by hand instead of trained. The reported answer is checked here.

An exercise is a Python file in `library/` with one `EXERCISE`. Its claims are what the report states or takes for
granted. Each has a function that checks it on random instances (and on instructive ones picked by hand) and returns a
status like that of a study's claim: holds, does not hold. What the report was asked but did not answer is a question:
Headway answers it, but it does not count in the judgement.

    EXERCISE = Exercise(
        title="Does …?", about="…", answered="W = 0, b = ln 2",
        reported=Reported(conclusion="…"),
        claims=(ExerciseClaim("W = 0 computes the mean", check_the_mean),),
        questions=(ExerciseQuestion("And at the ends?", look_at_the_ends),),
    )

A check takes the number of instances and, as a second argument with a default, the answer to check, so that a test can
pass a wrong answer and see it caught.
"""

import base64
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from headway.core import random
from headway.stats.intervals import wilson
from headway.study.design.claims import Reported
from headway.study.report.figures import Figure
from headway.study.report.tables import Table, TableRow
from headway.study.verdicts.judgement import ClaimStatus, Judgement, overall
from headway.study.verdicts.wording import fixed

QUICK, FULL = 300, 3000
"""The number of random instances behind every row of the table."""


@dataclass(frozen=True)
class Reach:
    """A row of the table: what each answer reaches."""

    quantity: str
    """The quantity measured: 'share reached', 'largest error'."""
    of: str
    """The kind of instance."""
    instances: int
    """The number of random instances; 1 for one picked by hand."""
    reported: str
    headway: str
    possible: str
    """The best that any answer could reach."""


@dataclass(frozen=True, kw_only=True)
class ExerciseFinding:
    """The result of checking the instances."""

    why: str
    """A sentence with the numbers."""
    reached: Sequence[Reach] = ()
    derivation: Sequence[str] = ()
    """One instance worked out, one step per line."""
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, kw_only=True)
class Ruling(ExerciseFinding):
    """A finding that decides a claim."""

    status: ClaimStatus


@dataclass(frozen=True)
class ExerciseClaim:
    says: str
    """The report's claim as a sentence."""
    check: Callable[[int], Ruling]
    """A function of the number of instances."""


@dataclass(frozen=True)
class ExerciseQuestion:
    """A question that the report left unanswered, or a follow-up question."""

    asks: str
    answer: Callable[[int], ExerciseFinding]


@dataclass(frozen=True)
class Exercise:
    title: str
    about: str
    """The task, and how the answer is checked."""
    answered: str
    """The report's answer: a formula, a matrix or a procedure."""
    reported: Reported
    claims: Sequence[ExerciseClaim]
    questions: Sequence[ExerciseQuestion] = ()


@dataclass(frozen=True)
class WorkedExercise:
    """An exercise with the results of all its checks."""

    exercise: Exercise
    instances: int
    rulings: Sequence[Ruling]
    """For the claims, in order."""
    answers: Sequence[ExerciseFinding]
    """For the questions, in order."""
    seconds: float

    @property
    def judgements(self) -> list[Judgement]:
        return [
            Judgement(claim, ruling.status, ruling.why)
            for claim, ruling in zip(self.exercise.claims, self.rulings, strict=True)
        ]

    @property
    def status(self) -> ClaimStatus:
        return overall(self.judgements)

    @property
    def rows(self) -> list[Reach]:
        return [row for finding in (*self.rulings, *self.answers) for row in finding.reached]

    @property
    def table(self) -> Table:
        return reach_table(self.rows)

    def as_json(self) -> dict[str, Any]:
        claims = [one.as_json() | _details(ruling) for one, ruling in zip(self.judgements, self.rulings, strict=True)]
        answers = [
            {"asks": question.asks, "answer": found.why} | _details(found)
            for question, found in zip(self.exercise.questions, self.answers, strict=True)
        ]
        return {
            "title": self.exercise.title,
            "conclusion": self.exercise.reported.conclusion,
            "answered": self.exercise.answered,
            "standing": self.status,
            "instances": self.instances,
            "seconds": round(self.seconds, 2),
            "claims": claims,
            "answers": answers,
        }


def work_out(exercise: Exercise, instances: int, say: Callable[[str], None] = lambda text: None) -> WorkedExercise:
    """Check every claim and answer every question; progress is passed to `say`."""
    began = time.monotonic()
    rulings, answers = [], []
    for claim in exercise.claims:
        say(f"checking: {claim.says}")
        rulings.append(claim.check(instances))
    for question in exercise.questions:
        say(f"answering: {question.asks}")
        answers.append(question.answer(instances))
    return WorkedExercise(exercise, instances, rulings, answers, time.monotonic() - began)


def reach_table(rows: Sequence[Reach]) -> Table:
    caption = "What each answer reaches; shares are of random instances, with 95 % confidence intervals (Wilson)"
    cells = [
        TableRow(
            "" if before and before.quantity == row.quantity else row.quantity,
            [row.of, f"{row.instances:,}", row.reported, row.headway, row.possible],
        )
        for before, row in zip([None, *rows], rows, strict=False)
    ]
    return Table(caption, ["", "kind of instance", "instances", "as reported", "Headway", "best possible"], cells)


def _details(finding: ExerciseFinding) -> dict[str, Any]:
    return {"reached": [vars(row) for row in finding.reached], "derivation": list(finding.derivation)}


# --- helpers for checks ----------------------------------------------------------------------------------------------


def drawn_by(*facts: int | str) -> np.random.Generator:
    """A generator of random instances, the same for the same facts on every machine."""
    return np.random.default_rng(random.key("exercise", *facts))


def share(hits: int, n: int) -> str:
    """`66 % [60, 71]`; near 0 and 100 with one more digit if there are enough instances: `99.6 % [99.3, 99.7]`."""
    ends = wilson(hits, n)
    if ends is None:
        return "–"
    places = 1 if n >= 1000 and min(hits, n - hits) < 0.05 * n else 0
    low, high = (fixed(100 * end, places) for end in ends)
    return f"{fixed(100 * hits / n, places)} % [{low}, {high}]"


def picture(draw: Callable[[Path], Path], caption: str) -> Figure:
    """A drawing by `headway.solve`, embedded in the page."""
    with tempfile.TemporaryDirectory() as folder:
        svg = draw(Path(folder) / "picture.svg").read_bytes()
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return Figure(f'<img alt="{escape(caption)}" src="{source}">', caption)
