"""Verdicts on scaling laws: whose loss falls faster with compute, how much compute equal loss takes, the best size.

Each family's law has bootstrap resamples (`stats/scaling.py`). Those of two families use the same weights for the same
sizes, budgets and seeds, so the effect of a seed on both cancels in the difference. A p value is twice the share of
resamples on the other side of zero, and never less than one resample could show.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headway.core.errors import UserError
from headway.scaling.analysis import ScalingAnalysis
from headway.stats.intervals import LEVEL
from headway.stats.scaling import flops_for, loss_exponent, optimum, percentiles
from headway.study.design.questions import BestSize, LadderQuestion, NeedsCompute, Steeper
from headway.study.results.evidence import Correct, StudyEvidence
from headway.study.verdicts.analysis import Analysis, Family, Outcome, Verdict
from headway.study.verdicts.caveats import no_such_number, sees_the_future
from headway.study.verdicts.wording import amount, listed

FARTHEST = 30.0
"""How many times beyond the largest budget a verdict may extrapolate: the resamples do not cover other forms of law."""
NO_FLOOR = "the loss to reach is below the floor of its law"


class OfLadder(Analysis):
    """What all questions about laws share: an effect, resamples of it, and a sentence."""

    question: LadderQuestion

    def __init__(self, question: LadderQuestion, evidence: StudyEvidence, correct: Correct | None = None):
        super().__init__(question, evidence, correct)
        self.why_not, self.effect, self.drawn = "", 0.0, np.empty(0)
        try:
            laws = evidence.laws(question.on)
        except UserError as error:
            self.why_not = f"no law can be fitted: {error}"
            return
        wanted = [getattr(question, key) for key in ("family", "than") if key in type(question).model_fields]
        if missing := [name for name in wanted if name not in laws]:
            self.why_not = f"there is no finished run of {listed(missing)}"
            return
        self.found = [laws[name] for name in wanted]
        if flat := [one.table.source for one in self.found if min(one.fit.law.alpha, one.fit.law.beta) <= 0]:
            self.why_not = f"the fitted law of {listed(flat)} has an exponent that is not above 0"
            return
        self.compare()
        if not self.why_not:
            self.p = p_of(self.drawn)

    def compare(self) -> None:
        """Set `effect` and `drawn`, or `why_not`."""
        raise NotImplementedError

    @property
    def interval(self) -> tuple[float, float]:
        return percentiles(self.drawn)

    def outcome(self, family: Family) -> Outcome:
        if family.p >= LEVEL:
            return "not distinguishable"
        return "better" if self.effect > 0 else "worse"

    def sentence(self, outcome: Outcome) -> str:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        return {"effect": self.effect, "interval": self.interval}

    def verdict(self, family: Family) -> Verdict:
        notes = tuple(self._notes())
        if self.p is None:
            return Verdict(self.question, "cannot say", f"cannot say: {self.why_not}", notes)
        outcome = self.outcome(family)
        said = self.sentence(outcome)
        if seers := [arm for arm in self._arms() if sees_the_future(self.about(arm))]:
            outcome, said = (
                "not comparable",
                f"{seers[0]} {no_such_number(self.metric)}. Regardless of that: {said}",
            )
        points = sum(len(one.table.points) for one in self.found)
        return Verdict(
            self.question,
            outcome,
            said,
            notes,
            seeds=max((len(of_arm) for of_arm in self.table.values()), default=0),
            p=self.p,
            p_corrected=family.p,
            method=f"laws fitted to {points} points, {len(self.drawn):,} bootstrap resamples with random weights",
            **self.facts(),
        )

    def _arms(self) -> list[str]:
        wanted = [getattr(self.question, key, None) for key in ("family", "than")]
        return [arm for arm, about in self.evidence.arms.items() if about.levels.get("family", "") in wanted]

    def _notes(self) -> Iterator[str]:
        arms = self._arms()
        failed: dict[str, int] = {}
        for arm in arms:
            for audit in self.about(arm).failed_audits:
                failed[audit] = failed.get(audit, 0) + 1
        for audit, count in failed.items():
            yield f"{count} of {len(arms)} arms fail the audit {audit}"
        if not self.why_not:
            for one in self.found:
                yield from (f"{one.table.source}: {note}" for note in one.notes())


class SteeperLaw(OfLadder):
    answers = "steeper"
    question: Steeper  # pyright: ignore[reportIncompatibleVariableOverride]

    def compare(self) -> None:
        first, second = self.found
        self.powers = [float(loss_exponent(one.fit.law.row, one.fit.cost)) for one in self.found]
        self.effect = self.powers[0] - self.powers[1]
        self.drawn = _paired(first, second, lambda one: loss_exponent(one.fit.resamples, one.fit.cost))

    def sentence(self, outcome: Outcome) -> str:
        family, than = self.question.family, self.question.than
        powers = f"C^−{self.powers[0]:.3f} against C^−{self.powers[1]:.3f}"
        by = amount(self.effect, self.interval)
        if outcome == "not distinguishable":
            return f"not distinguishable: above their floors the losses fall as {powers}, a difference of {by}"
        word = "faster" if outcome == "better" else "more slowly"
        return f"{family} falls {word} with compute than {than}: above their floors as {powers}, a difference of {by}"

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "unit": "power of compute"}


class ComputeNeeded(OfLadder):
    answers = "compute"
    question: NeedsCompute  # pyright: ignore[reportIncompatibleVariableOverride]

    def compare(self) -> None:
        first, second = self.found
        self.spent = self.question.flops or float(first.table.points.flops.max())
        self.loss = float(optimum(first.fit.law.row, first.fit.cost, self.spent)[2])
        needed = float(flops_for(second.fit.law.row[None], second.fit.cost, self.loss)[0])
        if not np.isfinite(needed):
            self.why_not = f"{self.question.than} never gets there: {NO_FLOOR}"
            return
        self.effect = float(np.log10(needed / self.spent))

        def of_resamples(first: ScalingAnalysis, second: ScalingAnalysis) -> np.ndarray:
            many = min(len(first.fit.resamples), len(second.fit.resamples))
            losses = optimum(first.fit.resamples[:many], first.fit.cost, self.spent)[2]
            return np.log10(flops_for(second.fit.resamples[:many], second.fit.cost, losses) / self.spent)

        self.drawn = of_resamples(first, second)

    def sentence(self, outcome: Outcome) -> str:
        family, than = self.question.family, self.question.than
        ratio, (low, high) = 10**self.effect, (10**end for end in self.interval)
        reach = f"{ratio:.3g} [{low:.3g}, {high:.3g}] times the compute".replace("inf", "∞")
        at = f"for the loss of {self.loss:.4g} that {family} has at {self.spent:.3g} FLOPs"
        said = f"{than} needs {reach} {at}"
        largest = float(self.found[1].table.points.flops.max())
        if 10**self.effect * self.spent > 1.05 * largest:
            said += f", extrapolated by a factor of {10**self.effect * self.spent / largest:.2g}"
        return f"not distinguishable: {said}" if outcome == "not distinguishable" else said

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "unit": "decades of compute"}


class BestSizeOfLadder(OfLadder):
    answers = "best-size"
    question: BestSize  # pyright: ignore[reportIncompatibleVariableOverride]

    def compare(self) -> None:
        self.advice = self.found[0].advise(self.question.flops)
        if self.advice.beyond > FARTHEST:
            n = self.advice.parameters
            told = f"by the law it would be {n.value:.3g} [{n.low:.3g}, {n.high:.3g}], {self.advice.notes[0]}"
            self.why_not = f"{told}; that far out the interval is not valid, since other laws fit these points as well"
            return
        given = self.question.parameters
        self.effect = float(np.log10(self.advice.parameters.value / given))
        drawn = optimum(self.found[0].fit.resamples, self.found[0].fit.cost, self.question.flops)[0]
        self.drawn = np.log10(drawn / given)

    def outcome(self, family: Family) -> Outcome:
        if family.p >= LEVEL:
            return "not distinguishable"
        return "larger" if self.effect > 0 else "smaller"

    def sentence(self, outcome: Outcome) -> str:
        n, given = self.advice.parameters, self.question.parameters
        said = f"the best model for {self.question.flops:.3g} FLOPs has {n.value:.3g} [{n.low:.3g}, {n.high:.3g}] "
        said += f"parameters by the law, {n.value / given:.2g} times {given:.3g}"
        if self.advice.by_curves is not None:
            other = self.advice.by_curves[0]
            said += f"; {other.value:.3g} [{other.low:.3g}, {other.high:.3g}] by parabolas"
        said += "".join(f"; {note}" for note in self.advice.notes[:1])
        return f"not distinguishable: {said}" if outcome == "not distinguishable" else said

    def facts(self) -> dict[str, Any]:
        low, high = (10**end - 1 for end in self.interval)
        relative = {"relative": 10**self.effect - 1, "relative_interval": (low, high)}
        return {**super().facts(), **relative, "unit": "decades of parameters"}


def _paired(first: ScalingAnalysis, second: ScalingAnalysis, of: Any) -> np.ndarray:
    """The difference between two families, resample by resample."""
    a, b = of(first), of(second)
    many = min(len(a), len(b))
    return a[:many] - b[:many]


def p_of(drawn: Sequence[float] | np.ndarray) -> float:
    """The two-sided p value of an effect with these resamples: how often they lie on the other side of zero."""
    known = np.asarray(drawn)[~np.isnan(drawn)]
    if not len(known):
        return 1.0
    below, above = int((known <= 0).sum()), int((known >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(known) + 1))
