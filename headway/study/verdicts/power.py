"""Power analysis: the smallest effect that the seeds of a study can detect, before any run is trained.

It is computed from the variance between seeds in an earlier study or a pilot, pooled over all its arms. Because arms
are compared seed by seed, the effect that a seed has on all arms is removed first. This assumes that the new arms vary
as much as the earlier ones. The variance is an estimate, so the result has a confidence interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.scoring.metrics import metric_of
from headway.stats.intervals import LEVEL, MIN_FOR_POWER, POWER, noncentrality, visible
from headway.stats.stopping import ANY_TIME, FIXED_SEEDS
from headway.stats.tests import picked_among
from headway.study.design.questions import Best, Better, Depends, LadderQuestion, Ordered, Question
from headway.study.design.study import Study
from headway.study.results.evidence import Circumstances, column
from headway.study.results.results import Results
from headway.study.verdicts.wording import digits, fixed, seeds


@dataclass(frozen=True)
class SeedsCanShow:
    question: Question
    sentence: str
    effect: float | None = None
    """Detected with probability 0.8; None: unknown."""
    interval: tuple[float, float] | None = None
    unit: str = ""
    known_from: str = ""
    """The study from which the variance between seeds is known."""

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("sentence", "effect", "interval", "unit", "known_from")}
        return {"question": str(self.question), **found}


@dataclass(frozen=True)
class Spread:
    """The standard deviation of one seed's contrast, on the scale where effects are additive."""

    value: float
    freedom: int
    """The degrees of freedom of the estimate."""
    level: float
    """The mean of the scores it was estimated from."""
    of: Results


def what_seeds_can_show(study: Study, earlier: Sequence[Results]) -> list[SeedsCanShow]:
    """The power for every question of the study, from the earlier study with the most degrees of freedom for it."""
    return [_of(question, study, earlier) for question in study.asked]


def _of(question: Question, study: Study, earlier: Sequence[Results]) -> SeedsCanShow:
    if isinstance(question, LadderQuestion):
        return SeedsCanShow(question, "for a ladder this follows from its points, and is known once they are trained")
    count, known = len(study.seeds), [found for one in earlier if (found := _spread(question, study, one))]
    if count < 2:
        return SeedsCanShow(question, "one seed shows nothing: without spread, an effect cannot be told from chance")
    spread = max(known, key=lambda one: one.freedom, default=None)
    if spread is None or spread.freedom < MIN_FOR_POWER:
        return SeedsCanShow(
            question,
            f"how much {question.on} varies between seeds is not known yet; give --from STUDY, an earlier study with "
            "the same base or a pilot (two arms with 4 seeds give a rough estimate)",
        )
    level = LEVEL / max(1, len(study.asked)) / _picks(question, study)
    critical = (ANY_TIME if study.looks == "any" else FIXED_SEEDS).reach(count - 1, level)
    metric = metric_of(question.on)
    if not math.isfinite(critical):
        return SeedsCanShow(
            question,
            f"{seeds(count)} are too few to show any difference if you may look at any time (looks: any)",
        )
    natural = visible(noncentrality(count - 1, critical, POWER) * spread.value / math.sqrt(count), spread.freedom)
    percent = metric.is_ratio and isinstance(question, Depends)  # the unit that its verdict will have
    unit = "%" if percent else metric.unit
    effect, low, high = (
        100 * metric.relative(value) if percent else metric.in_units(value, spread.level)
        for value in (natural.effect, *natural.interval)
    )
    name, places = spread.of.folder.name, digits((low, high))
    shown = f"{fixed(effect, places)} [{fixed(low, places)}, {fixed(high, places)}] {unit}"
    other = "" if spread.of.study.base == study.base else ", which has another base recipe"
    how = f"with probability 0.8; computed from the spread in {name}{other}"
    sentence = f"{seeds(count)} can detect a difference of {shown} or more ({how})"
    return SeedsCanShow(question, sentence, effect, (low, high), unit, name)


def _picks(question: Question, study: Study) -> float:
    """The correction for picking the answer among several comparisons."""
    if isinstance(question, Best):
        return picked_among(len(study.arms))
    if isinstance(question, Depends):
        return math.prod(math.comb(len(levels), 2) for levels in _levels(question, study))
    return 1.0


def _levels(question: Depends, study: Study) -> tuple[set[str], set[str]]:
    of_effect, of_other = ({arm.levels[f] for arm in study.arms} for f in (question.effect, question.on_factor))
    return of_effect, of_other


def _spread(question: Question, study: Study, results: Results) -> Spread | None:
    """The standard deviation over seeds of the contrast that answers this question, estimated from these results."""
    if not set(question.scores) <= set(results.score_names):
        return None
    if isinstance(question, Ordered):
        first, second = (_values(results, score) for score in question.scores[-2:])
        both = {arm: first[arm].keys() & second[arm].keys() for arm in first}
        steps = {arm: {seed: first[arm][seed] - second[arm][seed] for seed in both[arm]} for arm in first}
        variance, freedom = _within_arms(steps)
        return _spread_of(variance, freedom, second, results)
    values = _values(results, question.on)
    if isinstance(question, Better) and question.than not in {arm.name for arm in study.arms}:
        return _spread_of(*_within_arms(values), values, results)  # a baseline has no spread of its own
    variance, freedom = _beside_seeds(values)
    if isinstance(question, Depends):
        cells = math.prod(map(len, _levels(question, study)))
        return _spread_of(4 * variance * cells / len(study.arms), freedom, values, results)
    return _spread_of(2 * variance, freedom, values, results)


Values = Mapping[str, Mapping[int, float]]


def _values(results: Results, score: str) -> dict[str, dict[int, float]]:
    about, metric = results.arms, metric_of(score)
    table = results.table(score).items()
    return {arm: column(values, about.get(arm, Circumstances()), metric).values for arm, values in table}


def _spread_of(variance: float, freedom: int, values: Values, results: Results) -> Spread | None:
    every = [value for column in values.values() for value in column.values()]
    return Spread(math.sqrt(variance), freedom, float(np.mean(every)), results) if variance > 0 else None


def _within_arms(values: Values) -> tuple[float, int]:
    """The variance of a score within an arm, pooled over arms, and its degrees of freedom."""
    arms = [np.array(list(column.values())) for column in values.values() if len(column) > 1]
    freedom = sum(len(arm) - 1 for arm in arms)
    return (sum(float(((arm - arm.mean()) ** 2).sum()) for arm in arms) / freedom if freedom else 0.0), freedom


def _beside_seeds(values: Values) -> tuple[float, int]:
    """The same after removing the effect of the seed on all arms; with a single arm nothing is removed."""
    arms = [column for column in values.values() if len(column) > 1]
    shared = sorted(set.intersection(*map(set, arms))) if arms else []
    if len(arms) < 2 or len(shared) < 2:
        return _within_arms(values)
    table = np.array([[column[seed] for seed in shared] for column in arms])
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    freedom = (len(arms) - 1) * (len(shared) - 1)
    return float((residuals**2).sum()) / freedom, freedom
