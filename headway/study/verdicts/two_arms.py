"""Is one arm better than another, or than a simple baseline?"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from headway.stats.intervals import LEVEL, contrast
from headway.stats.paired import RowsAndSeeds, rows_and_seeds
from headway.stats.skew import is_skewed, permutation_p, sign_flip_p
from headway.stats.stopping import FIXED_SEEDS
from headway.study.design.questions import Better
from headway.study.results.evidence import Column, Correct, StudyEvidence
from headway.study.verdicts.analysis import (
    Analysis,
    Family,
    Outcome,
    Range,
    Verdict,
    method,
    seed_notes,
    why_not,
)
from headway.study.verdicts.effects import detectable, is_beyond_units, measured, said, visible
from headway.study.verdicts.wording import chance, digits, percent, seeds


class TwoArms(Analysis):
    """Is one arm better than another?"""

    answers = "better"
    question: Better

    def __init__(self, question: Better, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        self.arms = (question.arm, question.than)
        self.trained = [arm for arm in self.arms if arm in self.table or arm in evidence.arms]
        self.columns = [self.column(question.arm), self._opponent()]
        sign = self.metric.sign
        self.contrast = contrast([c.values for c in self.columns], [sign, -sign], self.stopping)
        self.why_not = why_not(self.contrast, dict(zip(self.arms, self.columns, strict=True)))
        if self.contrast is not None and not self.why_not:
            self.p = self.contrast.p

    def _opponent(self) -> Column:
        """The other arm, or a simple baseline. A baseline has no seeds: every seed is compared with the same number."""
        than, cheap = self.question.than, self.evidence.cheap(self.question.on)
        if than in self.trained or than not in cheap:
            return self.column(than)
        value = self.metric.natural(cheap[than])
        return Column(dict.fromkeys(self.column(self.question.arm).values, value), {}, {})

    def verdict(self, family: Family) -> Verdict:
        if self.contrast is None or self.p is None:
            return self.cannot_say(self.why_not, self.trained)
        found, scale = self.contrast, self.metric
        used = [v for seed, v in self.columns[1].values.items() if not found.paired or seed in found.seeds]
        level = sum(used) / len(used)

        def units(natural: float) -> float:
            return scale.in_units(natural, level)

        facts = measured(found, scale, level) | visible(found, family.level, scale, units)
        outcome: Outcome = "not distinguishable"
        if family.p < LEVEL:
            outcome = "better" if found.estimate > 0 else "worse"
        sentence = self._sentence(outcome, facts, family)
        lost, lost_by_other = (len(column.diverged) for column in self.columns)
        if (outcome == "better" and lost > lost_by_other) or (outcome == "worse" and lost < lost_by_other):
            outcome, sentence = "not comparable", f"not comparable: {sentence}"  # the winner is also the less reliable
        rows = self.on_rows() if self.metric.is_of_rows else None
        if rows is not None and outcome in ("better", "worse") and rows.outcome != "different":
            sentence += "; this holds for the rows of this split, and may not hold for other rows"
        resampled, relabelled = self.resampled, self._permutation_p()
        return self.concluded(
            self.trained,
            outcome,
            sentence,
            bootstrap=resampled and (units(resampled[0]), units(resampled[1])),
            seeds=len(found.seeds),
            p=self.p,
            p_corrected=family.p,
            p_permutation=relabelled,
            **facts,
            method=self.method,
            notes=(
                *self.more_notes(units),
                *seed_notes(found, dict(zip(self.arms, self.columns, strict=True))),
                *self._skew_notes(relabelled),
                *([f"row by row, {rows.sentence}"] if rows else []),
            ),
        )

    @property
    def resampled(self) -> Range | None:
        """The bootstrap interval of the effect over seeds, on the scale where effects are additive."""
        return None if self.contrast is None else self.contrast.bootstrap

    @property
    def method(self) -> str:
        assert self.contrast is not None
        return method(self.contrast, self.metric)

    def more_notes(self, units: Callable[[float], float]) -> Iterator[str]:
        """Further notes of a subclass; `units` converts an effect to the metric's units."""
        yield from ()

    def kept_rows(self) -> tuple[list[int], np.ndarray, np.ndarray] | None:
        """The seeds that both arms have, and for each arm what is stored per row: [S, N] or [S, N, k]. None if nothing
        is stored, or not for the same rows."""
        if self.correct is None:
            return None
        first, second = (self.correct(arm, self.question.on) for arm in self.arms)
        shared = [seed for seed in self.columns[0].values if seed in self.columns[1].values]
        shared = [seed for seed in shared if seed in first and seed in second]
        answers = [[of_arm[seed] for seed in shared] for of_arm in (first, second)]
        if not shared or len({rows.shape for of_arm in answers for rows in of_arm}) > 1:
            return None
        return shared, np.stack(answers[0]), np.stack(answers[1])

    def on_rows(self) -> RowsAndSeeds | None:
        """The comparison over rows as well as seeds, if per-row results are stored: seeds alone do not show whether the
        difference generalizes to other rows."""
        kept = self.kept_rows()
        return None if kept is None or len(kept[0]) < 2 else rows_and_seeds(*kept[1:])

    @cached_property
    def _skewed(self) -> bool:
        """Tested on all arms of the study together: a few seeds of two arms would not show skewness."""
        return is_skewed([np.array(list(self.column(arm).values.values())) for arm in self.table])

    def _permutation_p(self) -> float | None:
        """A permutation p value if the scores are skewed. A baseline cannot be exchanged with an arm, and a permutation
        test does not allow for seeds added after a look, so these have none."""
        found = self.contrast
        if found is None or not self._skewed or self.stopping is not FIXED_SEEDS or len(self.trained) < 2:
            return None
        if found.differences is not None:
            return sign_flip_p(found.differences)
        first, second = (np.array(list(column.values.values())) for column in self.columns)
        return permutation_p(first, second)

    def _skew_notes(self, relabelled: float | None) -> Iterator[str]:
        if not self._skewed or self.contrast is None:
            return
        told = "the scores of this study are skewed, so 95 % t intervals may cover the true effect less often"
        if relabelled is not None:
            how = "sign-flip test" if self.contrast.paired else "permutation test"
            told += f"; a {how}, which assumes no distribution, gives {chance(relabelled)} (uncorrected)"
        yield told

    def _sentence(self, outcome: Outcome, facts: Mapping[str, Any], family: Family) -> str:
        assert self.contrast is not None and self.p is not None
        arm, than = self.arms
        count = seeds(len(self.contrast.seeds))
        if not self.contrast.paired:
            count = " and ".join(str(len(column.values)) for column in self.columns) + " seeds"
        if outcome != "not distinguishable":
            in_units = "relative" in facts and not is_beyond_units(facts)
            share = f" ({percent(abs(facts['relative']))})" if in_units else ""
            return f"{arm} is {outcome} than {than} by {said(facts)}{share}, {count}"
        place = "ahead of" if facts["effect"] >= 0 else "behind"
        told = f"not distinguishable: {arm} is {place} {than} by {said(facts)}, {count}"
        return f"{told}{family.correction_note(self.p)}; {detectable(facts, digits(facts['interval']))}"
