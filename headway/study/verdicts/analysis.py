"""The base class of the analyses that turn one question and its measurements into a verdict, and the verdict itself.

To add a kind of question, write a spec (`design/questions.py`) and an `Analysis` whose `answers` is that kind. Defining
the class registers it.
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
NEEDS_MORE_SEEDS = "with one run there is no spread, so an effect cannot be told from chance; run 5 seeds or more"


@dataclass(frozen=True)
class Verdict:
    question: Question
    outcome: Outcome
    sentence: str
    """The answer, in plain words."""
    notes: tuple[str, ...] = ()
    """Caveats: costs that differ, audits that failed, seeds that were lost."""
    effect: float | None = None
    """How much better, in `unit`; None if nothing can be concluded."""
    interval: Range | None = None
    """95 % confidence interval, by Student's t."""
    unit: str = ""
    relative: float | None = None
    """The effect relative to the arm compared with, for perplexities: 0.04 = 4 % lower."""
    relative_interval: Range | None = None
    factor: float | None = None
    """The effect as a factor, for perplexities: 2 = half the perplexity of the arm compared with."""
    factor_interval: Range | None = None
    bootstrap: Range | None = None
    """The same as `interval`, by bootstrap over the seeds."""
    seeds: int = 0
    """How many seeds were used."""
    p: float | None = None
    p_corrected: float | None = None
    """Corrected for all questions of the study (Holm)."""
    p_permutation: float | None = None
    """If the scores are skewed: from a permutation test instead of Student's t, not corrected."""
    smallest_visible: float | None = None
    """The effect that these seeds detect with probability 0.8, at the corrected level; None below 4 seeds."""
    smallest_visible_interval: Range | None = None
    """95 % confidence interval: the standard deviation it is computed from is itself an estimate."""
    smallest_visible_factor: float | None = None
    """`smallest_visible` as a factor."""
    method: str = ""
    earlier_looks: tuple[str, ...] = ()
    """Verdicts on this question that were seen before the study had these seeds."""
    arms: tuple[str, ...] = ()
    """For `best`: the best arm, and those not distinguishable from it."""

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "question"}
        lists = {name: list(map(_finite, value)) for name, value in found.items() if isinstance(value, tuple)}
        asked = {**self.question.model_dump(mode="json"), "words": str(self.question)}
        return {"question": asked, **{name: _finite(value) for name, value in found.items()}, **lists}


def _finite(value: Any) -> Any:
    """JSON has no infinity or NaN: null instead."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def notes_once(verdicts: Sequence[Verdict]) -> Iterator[tuple[Verdict, list[str]]]:
    """Each verdict with the notes that no earlier verdict has: questions of one study share many notes."""
    said = set[str]()
    for verdict in verdicts:
        yield verdict, [note for note in verdict.notes if note not in said]
        said.update(verdict.notes)


@dataclass(frozen=True)
class Family:
    """The multiple-testing correction of one question among all."""

    size: int
    """How many questions have a p value."""
    p: float
    """The corrected p value of this question."""

    @property
    def level(self) -> float:
        """The significance level one question must reach if it is the only one with an effect (Bonferroni)."""
        return LEVEL / max(1, self.size)

    def correction_note(self, p: float) -> str:
        """What to add if the effect is significant only before correction; otherwise empty."""
        if not p < LEVEL <= self.p:
            return ""
        counted = f", not significant after correcting for {self.size} questions"
        return f"{counted} ({chance(p)}, corrected {self.p:.2g})"


ANALYSES: "Registry[type[Analysis]]" = Registry("answer to a question of the kind")


class Analysis(ABC):
    """One question with its measurements. Computes its p value first, and the verdict once all p values are known."""

    answers: ClassVar[str]
    """The kind of question."""
    p: float | None = None
    """None if nothing can be concluded."""

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
            raise UserError(f"no arm has the score '{question.on}', so this cannot be answered: {question}")

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
        """The verdict on these arms, with its caveats."""
        columns = {arm: self.column(arm) for arm in about}
        valid, sentence = qualified(sentence, self.metric, columns, self.evidence)
        notes = (*found.pop("notes", ()), *self._sequential_notes(), *caveats(self.question, about, self.evidence))
        if self.looks:
            sentence += "; seeds were added after a verdict had been seen"
        found["earlier_looks"] = tuple(map(self._told, self.looks))
        return Verdict(self.question, outcome if valid else "not comparable", sentence, notes, **found)

    def _sequential_notes(self) -> Iterator[str]:
        holds = "so the interval is a confidence sequence: wider, and valid whenever you stop adding seeds"
        if self.looks:
            yield f"verdicts seen before the last seeds were added: {'; '.join(map(self._told, self.looks))}, {holds}"
        elif self.stopping is ANY_TIME:
            yield f"seeds may be added to this study after verdicts were seen (looks: any), {holds}"

    def _told(self, look: EarlierLook) -> str:
        return f"{look.study}, {seeds(len(look.seeds))}, {look.when}: {look.outcomes[str(self.question)]}"


def why_not(found: Contrast | None, columns: dict[str, Column]) -> str:
    """Why nothing can be concluded from these columns; empty if something can."""
    for arm, values in columns.items():
        if not values.values and values.diverged:
            return f"{arm} diverged at every seed, so there is no number to compare"
        if not values.values:
            return f"there is no finished run of {arm}"
    if found is None:
        few = [f"{arm} has {seeds(len(c.values))}" for arm, c in columns.items() if len(c.values) < 2]
        return f"{' and '.join(few)}: {NEEDS_MORE_SEEDS}"
    if not found.has_spread:
        if abs(found.estimate) <= NO_SPREAD * max(found.size, 1e-300):
            return f"the scores are identical at all {seeds(len(found.seeds))}: check that these arms differ at all"
        return (
            f"the difference is the same at all {seeds(len(found.seeds))}: the seed has no influence on the score, so "
            f"this is one measurement, not {len(found.seeds)}"
        )
    return ""


def seed_notes(found: Contrast, columns: dict[str, Column]) -> tuple[str, ...]:
    """Caveats about the seeds: unpaired, left out, or too few."""
    notes = []
    if not found.paired:
        notes.append("the arms share too few seeds for a paired test: Welch's unpaired test was used, with less power")
    elif any(len(c.values) > len(found.seeds) for c in columns.values()):
        notes.append(f"compared on the {len(found.seeds)} seeds that all arms have; the others are left out")
    if found.degrees_of_freedom < 2:
        notes.append("with 2 seeds the interval has one degree of freedom: correct, but too wide to be of much use")
    return tuple(notes)


def method(found: Contrast, metric: Metric) -> str:
    test = "paired t" if found.paired else "Welch's t"
    sequence = "" if found.stopping is FIXED_SEEDS else ", a confidence sequence"
    scale = " on logarithms (averages are geometric)" if metric.is_ratio else ""
    freedom = f"{found.degrees_of_freedom:.3g} degree{'s' * (found.degrees_of_freedom != 1)} of freedom"
    return f"{test}{scale}, {freedom}{sequence}"
