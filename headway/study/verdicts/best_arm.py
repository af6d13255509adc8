"""Which arm is best, and which arms are not distinguishable from it?"""

from typing import Any

import numpy as np

from headway.stats.intervals import LEVEL, Contrast, contrast
from headway.stats.tests import picked_among, shrunk_best
from headway.study.design.questions import Best
from headway.study.results.evidence import Correct, StudyEvidence
from headway.study.verdicts.analysis import (
    NEEDS_MORE_SEEDS,
    Analysis,
    Family,
    Outcome,
    Verdict,
    method,
    seed_notes,
)
from headway.study.verdicts.caveats import no_such_number, sees_the_future
from headway.study.verdicts.effects import detectable, measured, said, visible
from headway.study.verdicts.wording import digits, listed, plain, seeds


class BestArm(Analysis):
    """Compare the best arm with every other by a test that allows for its having been picked after the fact. The truly
    best arm is among those named with probability 0.95, and if two arms are equally good, one of them is called best in
    at most 5 % of studies. An arm that diverged at any seed is excluded, because no average includes the cost of
    divergence. So is an arm that sees the future.
    """

    answers = "best"
    question: Best

    def __init__(self, question: Best, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        self.arms = list(dict.fromkeys([*evidence.arms, *self.table]))
        self.columns = {arm: self.column(arm) for arm in self.arms}
        self.out = {arm: why for arm in self.arms if (why := self._why_out(arm))}
        self.running = {arm: column.values for arm, column in self.columns.items() if arm not in self.out}
        if len(self.running) < 2:
            return
        shared = sorted(set.intersection(*map(set, self.running.values())))
        self.shared = shared if len(shared) >= 2 else []
        self.means = {
            arm: float(np.mean([values[seed] for seed in self.shared or values]))
            for arm, values in self.running.items()
        }
        sign = self.metric.sign
        self.best, *others = sorted(self.means, key=lambda arm: -sign * self.means[arm])
        self.correction = picked_among(len(self.running))
        self.against = {arm: self._contrast(arm) for arm in others}
        chances = {arm: self._chance(found) for arm, found in self.against.items()}
        self.p = max(chances.values())
        # The closest arm is the one hardest to distinguish from the best. It need not have the next best mean.
        self.closest = max(others, key=lambda arm: (chances[arm], -self.against[arm].estimate))

    def _contrast(self, arm: str) -> Contrast:
        sign = self.metric.sign
        found = contrast([self.running[self.best], self.running[arm]], [sign, -sign], self.stopping)
        assert found is not None, "arms with fewer than two seeds are out"
        return found

    def _chance(self, found: Contrast) -> float:
        """The p value of an arm against the best, corrected for the pick."""
        if not found.has_spread or found.estimate <= 0:  # on the seeds that these two share, the arm may even lead
            return 1.0
        return min(1.0, found.p * self.correction)

    def verdict(self, family: Family) -> Verdict:
        if self.p is None:
            few = [arm for arm in self.arms if len(self.columns[arm].values) == 1]
            why = f": {NEEDS_MORE_SEEDS}" if len(few) > 1 else ""
            return self.cannot_say(f"fewer than two arms can be compared; left out: {self._left_out}{why}", self.arms)
        # The same factor for every pair, so that a single arm is named exactly if the corrected p value is significant.
        factor = family.p / self.p if self.p > 0 else family.size
        tied = [arm for arm, found in self.against.items() if min(1.0, factor * self._chance(found)) >= LEVEL]
        found = self.against[self.closest]
        facts = self._against_the_closest(found, family) if found.has_spread else {}
        outcome: Outcome = "not distinguishable" if tied else "best"
        return self.concluded(
            list(self.running),
            outcome,
            self._sentence(tied, facts),
            p=self.p,
            p_corrected=family.p,
            seeds=len(found.seeds),
            arms=(self.best, *tied),
            notes=(*self._selection_bias(), *seed_notes(found, {arm: self.columns[arm] for arm in self.running})),
            **facts,
        )

    def _against_the_closest(self, found: Contrast, family: Family) -> dict[str, Any]:
        """The lead of the best arm, with an interval that allows for its having been picked."""
        scale, level = self.metric, self.means[self.closest]
        return {
            **measured(found, scale, level, LEVEL / self.correction),
            **visible(found, family.level / self.correction, scale, lambda natural: scale.in_units(natural, level)),
            "method": f"{method(found, scale)}, corrected for picking the best of {len(self.running)}",
        }

    def _sentence(self, tied: list[str], facts: dict[str, Any]) -> str:
        of, count = f"of {len(self.running)}", seeds(len(self.against[self.closest].seeds))
        if not tied:
            told = f"{self.best} is best {of}: better than the closest, {self.closest}, by {said(facts)}, {count}"
        else:
            told = f"not distinguishable: {self.best} has the best mean {of}, but {listed(tied)} cannot "
            told += f"be told from it with {count}"
            if facts:
                told += f"; {self._lead(facts)}, and {detectable(facts, digits(facts['interval']))}"
        return f"{told}; left out: {self._left_out}" if self.out else told

    def _lead(self, facts: dict[str, Any]) -> str:
        if facts["effect"] >= 0:
            return f"it is ahead of {self.closest} by {said(facts)}"
        return f"on the seeds that these two share it is behind {self.closest} by {said(facts)}"

    def _selection_bias(self) -> list[str]:
        """A note on the winner's curse, with a number if there is one."""
        if len(self.running) < 3:
            return []
        told = f"{self.best} was picked as the best of {len(self.running)}, so its mean is probably optimistic"
        if not self.shared:
            return [f"{told}: score it again, with new seeds or on test"]
        table = np.array([[values[seed] for values in self.running.values()] for seed in self.shared])
        expected, seen = shrunk_best(table, self.metric.lower_is_better), self.means[self.best]
        seen, expected = (plain(self.metric.back(natural)) for natural in (seen, expected))
        return [f"{told}: {seen} was measured, expect about {expected} from new seeds"]

    def _why_out(self, arm: str) -> str:
        """Why an arm is excluded; empty if it is not."""
        column = self.columns[arm]
        if column.diverged:
            return f"diverged at {len(column.diverged)} of {seeds(column.seeds)}"
        if len(column.values) < 2:
            return "one seed" if column.values else "no finished run"
        return no_such_number(self.metric) if sees_the_future(self.about(arm)) else ""

    @property
    def _left_out(self) -> str:
        return listed(f"{arm} ({why})" for arm, why in self.out.items())
