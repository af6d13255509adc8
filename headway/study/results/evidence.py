"""What verdicts rest on: the scores of every arm at every seed, and the circumstances they came about in."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from headway.core.status import State, Status
from headway.scaling.analysis import ScalingAnalysis
from headway.scoring.metrics import Metric, metric_of


@dataclass(frozen=True)
class Circumstances:
    """What should be known of an arm beside its scores."""

    levels: Mapping[str, str] = field(default_factory=dict)
    """The level of every factor, where the study has factors."""
    parameters: float | None = None
    flops: float | None = None
    """Of one run's training."""
    seconds: float | None = None
    """Of one run's training."""
    failed_audits: Mapping[str, str] = field(default_factory=dict)
    """The audits that failed, and what they said."""
    lost: Mapping[int, Status] = field(default_factory=dict)
    """Seeds without a number that counts, and how their runs stand: diverged, not begun …"""
    optimizer: tuple[str, float] | None = None
    """Its kind, and its learning rate."""


@dataclass(frozen=True)
class EarlierLook:
    """Verdicts that somebody saw before this study got other seeds than they had."""

    study: str
    when: str
    seeds: tuple[int, ...]
    """That were planned then."""
    outcomes: Mapping[str, str]
    """Question → what was concluded; those that could not be answered left out."""


class StudyEvidence(Protocol):
    """What a verdict asks of a study's results."""

    @property
    def arms(self) -> Mapping[str, Circumstances]: ...
    @property
    def test_scored(self) -> int:
        """How often the test split was looked at."""
        ...

    @property
    def looks(self) -> Literal["one", "any"]:
        """Whether the seeds were all planned, or may be added to after every look."""
        ...

    @property
    def earlier_looks(self) -> Sequence[EarlierLook]: ...

    def table(self, score: str) -> Mapping[str, Mapping[int, float]]:
        """Arm → seed → value of this score."""
        ...

    def cheap(self, score: str) -> Mapping[str, float]:
        """What cheap methods get for this score, by the method's name."""
        ...

    def laws(self, score: str) -> Mapping[str, ScalingAnalysis]:
        """Of a ladder: what follows from the points of each family."""
        ...


def best_arms(evidence: StudyEvidence, score: str, factor: str | None = None) -> dict[str, str]:
    """The arm with the best mean of a score over its seeds: of each level of a factor; or of all, under an empty name.
    An arm that diverged at a seed is none, nor is one without a number."""
    metric, table = metric_of(score), evidence.table(score)
    found: dict[str, tuple[float, str]] = {}
    for arm, about in evidence.arms.items():
        values = column(table.get(arm, {}), about, metric)
        if values.values and not values.diverged and (factor is None or factor in about.levels):
            level = "" if factor is None else about.levels[factor]
            mean = metric.sign * float(np.mean(list(values.values.values())))
            if level not in found or mean > found[level][0]:
                found[level] = mean, arm
    return {level: arm for level, (_, arm) in found.items()}


Correct = Callable[[str, str], Mapping[int, np.ndarray]]
"""Of an arm in a score of single rows: for each seed, which rows were right `[N]`; or, where a score is made of sums,
what each adds to them `[N, k]`. In the same order for all."""


@dataclass(frozen=True)
class Measured:
    """Evidence from plain numbers, for those who have them from elsewhere."""

    scores: Mapping[str, Mapping[str, Mapping[int, float]]]
    """Score → arm → seed → value."""
    arms: Mapping[str, Circumstances] = field(default_factory=dict)
    test_scored: int = 0

    cheap_methods: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Score → method → value."""
    looks: Literal["one", "any"] = "one"
    earlier_looks: Sequence[EarlierLook] = ()
    scaling: Mapping[str, ScalingAnalysis] = field(default_factory=dict)
    """By family, where the numbers are those of a ladder."""

    def table(self, score: str) -> Mapping[str, Mapping[int, float]]:
        return self.scores.get(score, {})

    def cheap(self, score: str) -> Mapping[str, float]:
        return self.cheap_methods.get(score, {})

    def laws(self, score: str) -> Mapping[str, ScalingAnalysis]:
        return self.scaling


@dataclass(frozen=True)
class Column:
    """One arm's values of one score, sorted out."""

    values: dict[int, float]
    """By seed, on the scale where effects add up; all finite."""
    diverged: dict[int, Status]
    """Seeds at which the arm was trained and failed, and how."""
    missing: dict[int, Status]
    """Seeds at which there is nothing, and why."""

    @property
    def seeds(self) -> int:
        """How many were meant to be."""
        return len(self.values) + len(self.diverged) + len(self.missing)


def column(values: Mapping[int, float], about: Circumstances, metric: Metric) -> Column:
    """Numbers of runs that diverged do not count, even where their last weights could be scored."""
    lost = dict(about.lost)
    for seed, value in values.items():
        if seed not in lost and not math.isfinite(metric.natural(value)):
            lost[seed] = Status(State.DIVERGED, reason=f"its score is {value}")
    kept = {seed: metric.natural(value) for seed, value in values.items() if seed not in lost}
    diverged = {seed: how for seed, how in lost.items() if how.is_diverged}
    return Column(kept, diverged, {seed: how for seed, how in lost.items() if seed not in diverged})
