"""Are several scores of one arm in a given order?"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.scoring.metrics import METRICS, metric_of, parsed
from headway.stats.intervals import LEVEL, contrast
from headway.study.design.questions import Ordered
from headway.study.results.evidence import Correct, StudyEvidence, column
from headway.study.verdicts.analysis import Analysis, Family, Outcome, Verdict, method, why_not
from headway.study.verdicts.effects import measured, said, visible
from headway.study.verdicts.wording import plain, seeds


class OrderedScores(Analysis):
    """Test every step of the order. The p value is the largest of the steps' p values: since all steps are claimed at
    once, it needs no correction for their number. A step in the opposite direction is one finding among several, so its
    p value is corrected (Bonferroni)."""

    answers = "ordered"
    question: Ordered

    def __init__(self, question: Ordered, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        arm, sign = question.arm, self.metric.sign
        self.columns = columns = {
            score: column(evidence.table(score).get(arm, {}), self.about(arm), self.metric) for score in question.scores
        }
        pairs = list(itertools.pairwise(question.scores))
        self.steps = {
            pair: contrast([columns[score].values for score in pair], [sign, -sign], self.stopping) for pair in pairs
        }
        doubts = (why_not(found, {score: columns[score] for score in pair}) for pair, found in self.steps.items())
        self.why_not = next(filter(None, doubts), "")
        if not self.why_not:
            self.found = {pair: found for pair, found in self.steps.items() if found is not None}
            self.p = max(found.p if found.estimate > 0 else 1.0 for found in self.found.values())

    def verdict(self, family: Family) -> Verdict:
        if self.p is None:
            return self.cannot_say(self.why_not, [self.question.arm])
        narrowest = min(self.found, key=lambda pair: self.found[pair].t)
        found, scale = self.found[narrowest], self.metric
        worst = min(1.0, found.p * len(self.found) * family.size)
        outcome: Outcome = "not distinguishable"
        if family.p < LEVEL:
            outcome = "in order"
        elif found.estimate < 0 and worst < LEVEL:
            outcome = "not in order"
        level = float(np.mean(list(self.columns[narrowest[1]].values.values())))
        facts = measured(found, scale, level) | {"unit": self._unit}
        return self.concluded(
            [self.question.arm],
            outcome,
            self._sentence(outcome, narrowest, facts, seeds(len(found.seeds))) + family.correction_note(self.p),
            **facts,
            seeds=len(found.seeds),
            p=self.p,
            p_corrected=family.p,
            **visible(found, family.level, scale, lambda natural: scale.in_units(natural, level)),
            method=method(found, scale) + self._of_several(", of the narrowest of {} steps"),
        )

    def _sentence(self, outcome: Outcome, narrowest: tuple[str, str], facts: Mapping[str, Any], count: str) -> str:
        names = self._names
        values = ", ".join(f"{names[score]} {self._mean(score)}" for score in self.question.scores)
        first, second = (names[score] for score in narrowest)
        place = "ahead of" if facts["effect"] >= 0 else "behind"
        step = f"{first} is {place} {second} by {said(facts)}"
        return f"{outcome}: {values}; {self._of_several('the narrowest of {} steps: ')}{step}, {count}"

    @property
    def _names(self) -> dict[str, str]:
        """The names of the scores: just the split, if that is unique."""
        splits = {score: parsed(score).split for score in self.question.scores}
        return splits if len(set(splits.values())) == len(splits) else {score: score for score in splits}

    @property
    def _unit(self) -> str:
        """The unit of the difference; if the metrics differ, that of the form they share."""
        metrics = {metric_of(score) for score in self.question.scores}
        widest = {METRICS[metric.form_of] if metric.form_of else metric for metric in metrics}
        return next(iter(widest)).unit if len(metrics) > 1 == len(widest) else self.metric.unit

    def _of_several(self, words: str) -> str:
        return words.format(len(self.found)) if len(self.found) > 1 else ""

    def _mean(self, score: str) -> str:
        natural = float(np.mean(list(self.columns[score].values.values())))
        return plain(self.metric.back(natural))
