"""Does the effect of one factor depend on another?"""

import itertools

import numpy as np

from headway.core.errors import UserError, did_you_mean
from headway.stats.intervals import LEVEL, Contrast, contrast
from headway.study.design.questions import Depends
from headway.study.results.evidence import Column, Correct, StudyEvidence
from headway.study.verdicts.analysis import (
    Analysis,
    Family,
    Outcome,
    Verdict,
    method,
    seed_notes,
    why_not,
)
from headway.study.verdicts.effects import detectable, visible
from headway.study.verdicts.wording import amount, digits, fixed, seeds

Levels = tuple[str, str]


class Interaction(Analysis):
    """With two levels per factor: the difference of the two effects, seed by seed. With more: the most significant of
    these differences, with a p value and an interval corrected for having picked it (Bonferroni, which also holds for
    unequal variances). Both follow from one rule, so the verdict is "depends" exactly if the interval excludes 0; an F
    test would sometimes contradict the interval. Cells are averaged over the other factors.

    The effect is how much more one step (old → new) gains at the level where it gains more, so it is never negative.
    """

    answers = "depends"
    question: Depends

    def __init__(self, question: Depends, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        self.arms = list(evidence.arms)
        self.rows, self.places = self._levels(question.effect), self._levels(question.on_factor)
        self.cells = {where: self._cell(*where) for where in itertools.product(self.rows, self.places)}
        self.why_not = self._incomplete()
        if self.why_not:
            return
        self.choices = list(
            itertools.product(itertools.combinations(self.rows, 2), itertools.combinations(self.places, 2))
        )
        self.steps, self.pair, self.found = self._plainest()
        self.why_not = why_not(self.found, {", ".join(where): cell for where, cell in self.cells.items()})
        if self.found is not None and not self.why_not:
            self.p = min(1.0, len(self.choices) * self.found.p)

    def _levels(self, factor: str) -> list[str]:
        known = list(dict.fromkeys(name for facts in self.evidence.arms.values() for name in facts.levels))
        if factor not in known:
            hint = did_you_mean(factor, known) if known else "; it has arms but no factors"
            raise UserError(f"there is no factor '{factor}' in this study{hint}")
        every = (facts.levels[factor] for facts in self.evidence.arms.values() if factor in facts.levels)
        return list(dict.fromkeys(every))

    def _members(self, row: str, place: str) -> list[str]:
        wanted = {self.question.effect: row, self.question.on_factor: place}
        return [arm for arm, facts in self.evidence.arms.items() if wanted.items() <= dict(facts.levels).items()]

    def _cell(self, row: str, place: str) -> Column:
        """The mean over the arms that have both levels, by seed."""
        columns = [self.column(arm) for arm in self._members(row, place)]
        shared = sorted(set.intersection(*(set(column.values) for column in columns))) if columns else []
        values = {seed: float(np.mean([column.values[seed] for column in columns])) for seed in shared}
        diverged = {seed: why for column in columns for seed, why in column.diverged.items()}
        missing = {seed: why for column in columns for seed, why in column.missing.items()}
        return Column(values, diverged, missing)

    def _incomplete(self) -> str:
        for factor, levels in ((self.question.effect, self.rows), (self.question.on_factor, self.places)):
            if len(levels) < 2:
                return f"{factor} has only one level"
        for row, place in self.cells:
            if not self._members(row, place):
                return f"there is no arm with {self.question.effect}={row} and {self.question.on_factor}={place}"
        return ""

    def _plainest(self) -> tuple[Levels, Levels, Contrast | None]:
        """The step and the two levels between which its gain differs most significantly, the smaller gain first."""
        found = {choice: self._difference(*choice) for choice in self.choices}

        def plainness(choice: tuple[Levels, Levels]) -> tuple[float, float]:
            difference = found[choice]
            return (
                (-difference.p, abs(difference.t)) if difference is not None and difference.has_spread else (-2.0, 0.0)
            )

        steps, (less, more) = choice = max(self.choices, key=plainness)
        difference = found[choice]
        if difference is not None and difference.estimate < 0:
            return steps, (more, less), self._difference(steps, (more, less))
        return steps, (less, more), difference

    def _difference(self, steps: Levels, places: Levels) -> Contrast | None:
        """The gain of the step at the second level minus its gain at the first."""
        (old, new), (here, there), sign = steps, places, self.metric.sign
        four = [self.cells[where].values for where in ((new, there), (old, there), (new, here), (old, here))]
        return contrast(four, [sign, -sign, -sign, sign], self.stopping)

    def verdict(self, family: Family) -> Verdict:
        if self.p is None or self.found is None:
            return self.cannot_say(self.why_not, self.arms)
        found, scale = self.found, self.metric
        low, high = found.interval(LEVEL / len(self.choices))
        effect, interval = self._units(found.estimate), (self._units(low), self._units(high))
        smallest = visible(found, family.level / len(self.choices), scale, self._units)
        outcome: Outcome = "depends" if family.p < LEVEL else "not distinguishable"
        example = f"{self._example(interval)}, {seeds(len(found.seeds))}"
        if outcome == "depends":
            sentence = f"the effect of {self.question.effect} depends on {self.question.on_factor}: {example}"
        else:
            sentence = f"not distinguishable: {example}{family.correction_note(self.p)}; "
            sentence += detectable(smallest, digits(interval))
        resampled = found.bootstrap if len(self.choices) == 1 else None
        at_once = f", for all {len(self.choices)} differences at once" if len(self.choices) > 1 else ""
        return self.concluded(
            self.arms,
            outcome,
            sentence,
            effect=effect,
            interval=interval,
            unit="%" if scale.is_ratio else scale.unit,
            bootstrap=resampled and (self._units(resampled[0]), self._units(resampled[1])),
            seeds=len(found.seeds),
            p=self.p,
            p_corrected=family.p,
            **smallest,
            method=method(found, scale) + at_once,
            notes=seed_notes(found, {", ".join(where): cell for where, cell in self.cells.items()}),
        )

    def _units(self, natural: float) -> float:
        """Percent for ratio metrics: at different levels a difference in units would not be comparable."""
        return 100 * self.metric.relative(natural) if self.metric.is_ratio else self.metric.in_units(natural, 0.0)

    def _example(self, interval: tuple[float, float]) -> str:
        assert self.found is not None
        (old, new), unit = self.steps, "%" if self.metric.is_ratio else self.metric.unit
        gains = []
        for place in self.pair:
            before, after = (np.mean(list(self.cells[row, place].values.values())) for row in (old, new))
            gain = self._units(self.metric.sign * float(after - before))
            which = "better" if gain >= 0 else "worse"
            gains.append(f"{which} by {fixed(abs(gain), digits(interval))} {unit} at {place}")
        further = "a relative difference of" if self.metric.is_ratio else "a difference of"
        shown = amount(self._units(self.found.estimate), interval, unit)
        return f"{old} → {new} is {gains[0]} and {gains[1]}, {further} {shown}"
