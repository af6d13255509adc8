"""The evidence for verdicts: the scores of every arm at every seed, and what else is known about each arm."""

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
    """What is known about an arm besides its scores."""

    levels: Mapping[str, str] = field(default_factory=dict)
    """The level of every factor, if the study has factors."""
    parameters: float | None = None
    flops: float | None = None
    """Training FLOPs of one run."""
    seconds: float | None = None
    """Training time of one run."""
    failed_audits: Mapping[str, str] = field(default_factory=dict)
    """The audits that failed, with their sentences."""
    lost: Mapping[int, Status] = field(default_factory=dict)
    """Seeds without a valid score, with the status of their runs: diverged, not begun …"""
    optimizer: tuple[str, float] | None = None
    """The kind of optimizer and its learning rate."""
    pretrained_as: str | None = None
    """The name of the pretrained model that all of its seeds start from; None = each draws its own weights."""


@dataclass(frozen=True)
class EarlierLook:
    """Verdicts that were read before the seeds of this study changed."""

    study: str
    when: str
    seeds: tuple[int, ...]
    """The seeds planned at that time."""
    outcomes: Mapping[str, str]
    """Question → outcome, without questions that could not be answered."""


class StudyEvidence(Protocol):
    """What verdicts need from a study's results."""

    @property
    def arms(self) -> Mapping[str, Circumstances]: ...
    @property
    def test_scored(self) -> int:
        """How often the test split was scored."""
        ...

    @property
    def looks(self) -> Literal["one", "any"]:
        """Whether all seeds were planned, or seeds may be added after every look."""
        ...

    @property
    def earlier_looks(self) -> Sequence[EarlierLook]: ...

    def table(self, score: str) -> Mapping[str, Mapping[int, float]]:
        """Arm → seed → value of this score."""
        ...

    def cheap(self, score: str) -> Mapping[str, float]:
        """The values of the simple baselines for this score, by method name."""
        ...

    def laws(self, score: str) -> Mapping[str, ScalingAnalysis]:
        """The scaling analysis of each family of a ladder."""
        ...


def best_arms(evidence: StudyEvidence, score: str, factor: str | None = None) -> dict[str, str]:
    """The arm with the best mean score over its seeds: per level of a factor, or among all arms under an empty name.
    Arms that diverged at any seed or have no score are excluded."""
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
"""From an arm and a score to per-row results by seed: which rows were right `[N]`, or for a score computed from sums,
what each row adds to them `[N, k]`. The rows are in the same order for all."""


@dataclass(frozen=True)
class Measured:
    """Evidence given as plain numbers, from any source."""

    scores: Mapping[str, Mapping[str, Mapping[int, float]]]
    """Score → arm → seed → value."""
    arms: Mapping[str, Circumstances] = field(default_factory=dict)
    test_scored: int = 0

    cheap_methods: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Score → method → value."""
    looks: Literal["one", "any"] = "one"
    earlier_looks: Sequence[EarlierLook] = ()
    scaling: Mapping[str, ScalingAnalysis] = field(default_factory=dict)
    """Scaling analyses by family, if the numbers are from a ladder."""

    def table(self, score: str) -> Mapping[str, Mapping[int, float]]:
        return self.scores.get(score, {})

    def cheap(self, score: str) -> Mapping[str, float]:
        return self.cheap_methods.get(score, {})

    def laws(self, score: str) -> Mapping[str, ScalingAnalysis]:
        return self.scaling


@dataclass(frozen=True)
class Column:
    """One arm's values of one score, split into valid, diverged and missing seeds."""

    values: dict[int, float]
    """By seed, on the scale where effects are additive; all finite."""
    diverged: dict[int, Status]
    """Seeds at which training diverged."""
    missing: dict[int, Status]
    """Seeds without a result, with the reason."""

    @property
    def seeds(self) -> int:
        """How many seeds were planned."""
        return len(self.values) + len(self.diverged) + len(self.missing)


def column(values: Mapping[int, float], about: Circumstances, metric: Metric) -> Column:
    """Sort one arm's values by seed. Runs that diverged do not count, even if their last weights could be scored."""
    lost = dict(about.lost)
    for seed, value in values.items():
        if seed not in lost and not math.isfinite(metric.natural(value)):
            lost[seed] = Status(State.DIVERGED, reason=f"its score is {value}")
    kept = {seed: metric.natural(value) for seed, value in values.items() if seed not in lost}
    diverged = {seed: how for seed, how in lost.items() if how.is_diverged}
    return Column(kept, diverged, {seed: how for seed, how in lost.items() if seed not in diverged})
