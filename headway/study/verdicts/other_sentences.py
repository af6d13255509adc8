"""Is one arm better than another, for other sentences as well as other seeds? Koehn's paired bootstrap, with seeds.

A test set is a sample of sentences, seeds are a sample of training runs, and a lead can be due to either. The bootstrap
over sentences (Koehn 2004) takes two trained models as given: it says which of the two would win on other sentences,
but nothing about retraining them. Seeds on one test set say nothing about other sentences. Here both sources of
variance are included (`stats/resampled.py`), so the interval is wider than with either alone and covers both.
"""

from collections.abc import Callable, Iterator

import numpy as np

from headway.scoring.bleu import of_sums
from headway.stats.intervals import LEVEL, MIN_TO_RESAMPLE
from headway.stats.resampled import FEWEST, RESAMPLES, PairedResamples, paired
from headway.stats.stopping import FIXED_SEEDS
from headway.study.design.questions import PairedBootstrap
from headway.study.results.evidence import Correct, StudyEvidence
from headway.study.verdicts.analysis import Range, why_not
from headway.study.verdicts.two_arms import TwoArms
from headway.study.verdicts.wording import amount, chance, mirrored


class OnOtherSentences(TwoArms):
    answers = "paired-bootstrap"
    question: PairedBootstrap  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, question: PairedBootstrap, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        of_seeds, self.p, self.drawn = self.contrast, None, None
        kept = self.kept_rows()
        if kept is None:
            self.contrast = None
            self.why_not = self.why_not or f"the statistics of {question.on} per sentence were not stored for both arms"
            return
        shared, first, second = kept
        if first.shape[1] < FEWEST:
            self.contrast = None
            self.why_not = f"there are {first.shape[1]} sentences, but the bootstrap needs at least {FEWEST}"
            return
        score = of_sums(self.metric)
        assert score is not None, "questions about other metrics are refused"
        self.drawn = paired(_counts(first), _counts(second), score)
        if len(shared) < 2 or of_seeds is None:
            self.contrast = None
            self.why_not = f"{self.why_not}; {self._alone(self.drawn)}"
            return
        size = max(abs(value) for column in self.columns for value in column.values.values())
        self.contrast = self.drawn.contrast(shared, size, self.metric.sign, self.stopping)
        self.why_not = why_not(self.contrast, dict(zip(self.arms, self.columns, strict=True)))
        self.p = None if self.why_not else self.contrast.p

    def _alone(self, drawn: PairedResamples) -> str:
        """The result for a single pair of models."""
        effect, interval = drawn.effect, drawn.over_rows
        ahead, other = self.arms if effect >= 0 else self.arms[::-1]
        shown = amount(abs(effect), interval if effect >= 0 else mirrored(interval), self.metric.unit)
        p = chance(drawn.p_by_seed[0])
        return f"for these two models, {ahead} leads {other} by {shown} on other sentences ({p}, paired bootstrap)"

    @property
    def resampled(self) -> Range | None:
        if self.drawn is None or len(self.drawn.differences) < MIN_TO_RESAMPLE or self.stopping is not FIXED_SEEDS:
            return None
        return self._turned(self.drawn.over_both)

    @property
    def method(self) -> str:
        return f"{super().method}; over seeds and {RESAMPLES:,} bootstrap samples of the sentences, paired"

    def more_notes(self, units: Callable[[float], float]) -> Iterator[str]:
        assert self.drawn is not None
        low, high = (units(end) for end in self._turned(self.drawn.over_rows))
        differing = sum(p < LEVEL for p in self.drawn.p_by_seed)
        count = len(self.drawn.differences)
        over = f"for these models and other sentences the difference is between {low:.2f} and {high:.2f}"
        yield f"{over}; over sentences alone (Koehn's test) {differing} of {count} pairs of models differ significantly"

    def on_rows(self) -> None:
        """None: the bootstrap includes the rows already."""

    def _turned(self, interval: Range) -> Range:
        return interval if self.metric.sign > 0 else mirrored(interval)


def _counts(kept: np.ndarray) -> np.ndarray:
    """Rows that are right or wrong as sums: [right, 1]."""
    if kept.ndim == 3:
        return kept
    return np.stack([kept.astype(np.float64), np.ones(kept.shape)], -1)
