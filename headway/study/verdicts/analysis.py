"""One question, with what was measured for it, on its way to a verdict; and what a verdict is.

A new kind of question is a spec (`design/questions.py`) and an `Analysis` that says which kind it `answers`: written
down, it is known.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headway.core.errors import UserError, did_you_mean
from headway.core.variants import Registry
from headway.scoring.metrics import Metric, metric_of
from headway.stats.intervals import LEVEL, NO_SPREAD, Contrast
from headway.stats.stopping import ANY_TIME, FIXED_SEEDS
from headway.study.design.questions import Question
from headway.study.results.evidence import Circumstances, Column, Correct, EarlierLook, StudyEvidence, column
from headway.study.verdicts.caveats import caveats, qualified
from headway.study.verdicts.wording import chance, seeds

Outcome = Literal[
    "better",
    "worse",
    "best",
    "in order",
    "not in order",
    "depends",
    "larger",
    "smaller",
    "not distinguishable",
    "not comparable",
    "cannot say",
]
Range = tuple[float, float]
NO_CHANCE = "one run shows no spread, and without it chance cannot be told from effect; run 5 seeds or more"


@dataclass(frozen=True)
class Verdict:
    question: Question
    outcome: Outcome
    sentence: str
    """The answer, in plain words."""
    notes: tuple[str, ...] = ()
    """What must be known with it: costs that differ, audits that failed, seeds that were lost."""
    effect: float | None = None
    """How much better, in `unit`; None where nothing can be said."""
    interval: Range | None = None
    """95 %, by Student's t."""
    unit: str = ""
    relative: float | None = None
    """The effect as a share of what is compared with, for perplexities: 0.04 = 4 % lower."""
    relative_interval: Range | None = None
    factor: float | None = None
    """The effect as a factor, for perplexities: 2 = half as much as what is compared with."""
    factor_interval: Range | None = None
    bootstrap: Range | None = None
    """The same interval as `interval`, by resampling the seeds."""
    seeds: int = 0
    """How many were used."""
    p: float | None = None
    p_corrected: float | None = None
    """For all questions of the study."""
    p_permutation: float | None = None
    """Without Student's t, where the scores are skewed; of this question alone."""
    smallest_visible: float | None = None
    """The effect that these seeds would have shown with probability 0.8, at the corrected level; None below 4 seeds."""
    smallest_visible_interval: Range | None = None
    """95 %: the spread that it follows from is itself estimated."""
    smallest_visible_factor: float | None = None
    """The same as a factor."""
    method: str = ""
    earlier_looks: tuple[str, ...] = ()
    """Verdicts on this question that were seen before the study had these seeds."""
    arms: tuple[str, ...] = ()
    """For `best`: the best arm, and those that cannot be told from it."""

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "question"}
        lists = {name: list(map(_finite, value)) for name, value in found.items() if isinstance(value, tuple)}
        asked = {**self.question.model_dump(mode="json"), "words": str(self.question)}
        return {"question": asked, **{name: _finite(value) for name, value in found.items()}, **lists}


def _finite(value: Any) -> Any:
    """JSON knows no infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def notes_once(verdicts: Sequence[Verdict]) -> Iterator[tuple[Verdict, list[str]]]:
    """Each verdict with those of its notes that none before it has: questions of one study have many in common."""
    said = set[str]()
    for verdict in verdicts:
        yield verdict, [note for note in verdict.notes if note not in said]
        said.update(verdict.notes)


@dataclass(frozen=True)
class Family:
    """How one question stands among all."""

    size: int
    """How many questions have an answer."""
    p: float
    """Of this question, corrected."""

    @property
    def level(self) -> float:
        """What one question alone must reach, if it is the only one with anything to show."""
        return LEVEL / max(1, self.size)

    def undoes(self, p: float) -> str:
        """What is said of an effect that would be one if nothing else were asked; empty of others."""
        if not p < LEVEL <= self.p:
            return ""
        counted = f", not significant after correcting for {self.size} questions"
        return f"{counted} ({chance(p)}, corrected {self.p:.2g})"


ANALYSES: "Registry[type[Analysis]]" = Registry("answer to a question of the kind")


class Analysis(ABC):
    """One question with what was measured for it. Finds its p value first; gives the verdict once all are known."""

    answers: ClassVar[str]
    """Questions of this kind."""
    p: float | None = None
    """None: nothing can be said."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "answers" in vars(cls):
            ANALYSES.add(cls.answers, cls, cls.__module__)

    def __init__(self, question: Any, evidence: StudyEvidence, correct: Correct | None = None):
        self.question, self.evidence, self.correct = question, evidence, correct
        self.metric = metric_of(question.on)
        self.table = evidence.table(question.on)
        self.looks = [look for look in evidence.earlier_looks if str(question) in look.outcomes]
        self.stopping = ANY_TIME if self.looks or evidence.looks == "any" else FIXED_SEEDS
        if not self.table:
            raise UserError(f"'{question.on}' was measured of no arm; {question}")

    @abstractmethod
    def verdict(self, family: Family) -> Verdict: ...

    def column(self, arm: str) -> Column:
        if arm not in self.table and arm not in self.evidence.arms:
            known = {*self.table, *self.evidence.arms}
            raise UserError(f"there is no arm '{arm}' in this study{did_you_mean(arm, known)}")
        return column(self.table.get(arm, {}), self.about(arm), self.metric)

    def about(self, arm: str) -> Circumstances:
        return self.evidence.arms.get(arm, Circumstances())

    def cannot_say(self, why: str, arms: Sequence[str]) -> Verdict:
        notes = caveats(self.question, arms, self.evidence)
        return Verdict(self.question, "cannot say", f"cannot say: {why}", notes)

    def concluded(self, about: Sequence[str], outcome: Outcome, sentence: str, **found: Any) -> Verdict:
        """The verdict on these arms, with all that qualifies it."""
        columns = {arm: self.column(arm) for arm in about}
        valid, sentence = qualified(sentence, self.metric, columns, self.evidence)
        notes = (*found.pop("notes", ()), *self._sequential_notes(), *caveats(self.question, about, self.evidence))
        if self.looks:
            sentence += "; seeds were added after a verdict had been seen"
        found["earlier_looks"] = tuple(map(self._told, self.looks))
        return Verdict(self.question, outcome if valid else "not comparable", sentence, notes, **found)

    def _sequential_notes(self) -> Iterator[str]:
        holds = "so the interval is one that holds whenever one stops (a confidence sequence), and longer for that"
        if self.looks:
            yield f"seen before the last seeds were added, {'; '.join(map(self._told, self.looks))}: {holds}"
        elif self.stopping is ANY_TIME:
            yield f"this study may be looked at and added to at any time (looks: any), {holds}"

    def _told(self, look: EarlierLook) -> str:
        return f"{look.study}, {seeds(len(look.seeds))}, {look.when}: {look.outcomes[str(self.question)]}"


def why_not(found: Contrast | None, columns: dict[str, Column]) -> str:
    """Why nothing can be concluded from these; empty if something can."""
    for arm, values in columns.items():
        if not values.values and values.diverged:
            return f"{arm} diverged at every seed, so there is no number to compare"
        if not values.values:
            return f"there is no finished run of {arm}"
    if found is None:
        few = [f"{arm} has {seeds(len(c.values))}" for arm, c in columns.items() if len(c.values) < 2]
        return f"{' and '.join(few)}: {NO_CHANCE}"
    if not found.has_spread:
        if abs(found.estimate) <= NO_SPREAD * max(found.size, 1e-300):
            return (
                f"the scores are identical at all {seeds(len(found.seeds))}: is anything different between these arms?"
            )
        return (
            f"the difference is the same at all {seeds(len(found.seeds))}: the seeds change nothing that is scored, so "
            f"this is one measurement and not {len(found.seeds)}"
        )
    return ""


def seed_notes(found: Contrast, columns: dict[str, Column]) -> tuple[str, ...]:
    """What the seeds do not bear."""
    notes = []
    if not found.paired:
        notes.append("the arms share too few seeds to be compared seed by seed: unpaired (Welch), which shows less")
    elif any(len(c.values) > len(found.seeds) for c in columns.values()):
        notes.append(f"compared on the {len(found.seeds)} seeds that all arms have; the others are left out")
    if found.degrees_of_freedom < 2:
        notes.append("2 seeds bear an interval on one degree of freedom: it is right, and too wide to be of much use")
    return tuple(notes)


def method(found: Contrast, metric: Metric) -> str:
    test = "paired t" if found.paired else "Welch's t"
    sequence = "" if found.stopping is FIXED_SEEDS else ", a confidence sequence"
    scale = " on logarithms (averages are geometric)" if metric.is_ratio else ""
    freedom = f"{found.degrees_of_freedom:.3g} degree{'s' * (found.degrees_of_freedom != 1)} of freedom"
    return f"{test}{scale}, {freedom}{sequence}"
