"""Whether the claims of a report hold, judged by the verdicts and audits of a study that repeats the experiment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headway.stats.intervals import LEVEL
from headway.study.design.claims import Claim
from headway.study.design.questions import Better
from headway.study.results.evidence import Circumstances
from headway.study.results.results import Results
from headway.study.verdicts.analysis import Verdict
from headway.study.verdicts.caveats import sees_the_future
from headway.study.verdicts.wording import listed

ClaimStatus = Literal["holds", "does not hold", "not shown", "cannot say"]
WORST_FIRST: tuple[ClaimStatus, ...] = ("does not hold", "cannot say", "not shown", "holds")


class Claimed(Protocol):
    """A claim about a study (claims.py) or about an exercise (exercise.py)."""

    @property
    def says(self) -> str: ...


@dataclass(frozen=True)
class Judgement:
    """One claim and whether it holds."""

    claim: Claimed
    status: ClaimStatus
    why: str
    """A sentence with the numbers."""

    def as_json(self) -> dict[str, Any]:
        return {"says": self.claim.says, "standing": self.status, "why": self.why}


def judge(results: Results, verdicts: Sequence[Verdict]) -> list[Judgement]:
    """Judge every claim of a case, in order."""
    return [
        _by_audit(claim, results) if claim.audit is not None else _by_verdict(claim, results, verdicts)
        for claim in results.study.claims
    ]


def overall(judgements: Sequence[Judgement]) -> ClaimStatus:
    """The status of a conclusion: the worst among its claims."""
    return next(one for one in WORST_FIRST if any(found.status == one for found in judgements))


def _by_verdict(claim: Claim, results: Results, verdicts: Sequence[Verdict]) -> Judgement:
    verdict = next((v for v in verdicts if v.question == claim.ask), None)
    if verdict is None or verdict.outcome == "cannot say":
        return Judgement(claim, "cannot say", "nothing was measured" if verdict is None else verdict.sentence)
    if verdict.outcome == "not comparable":
        status = "holds" if _worse_all_the_same(claim, results, verdict) else "does not hold"
        return Judgement(claim, status, verdict.sentence)
    if claim.within is not None:
        return within_margin(claim, claim.within, verdict)
    if verdict.outcome == claim.answer:
        return Judgement(claim, "holds", verdict.sentence)
    if verdict.outcome == "not distinguishable":
        return Judgement(claim, "not shown", verdict.sentence)
    return Judgement(claim, "does not hold", verdict.sentence)


def _worse_all_the_same(claim: Claim, results: Results, verdict: Verdict) -> bool:
    """Whether an arm that sees the future is significantly worse all the same. The leak only flatters its score, so the
    claim 'worse' holds."""
    question = claim.ask
    if not isinstance(question, Better) or claim.answer != "worse" or verdict.effect is None:
        return False
    arms = results.arms
    flattered = sees_the_future(arms[question.arm]) and not sees_the_future(arms.get(question.than, Circumstances()))
    return flattered and verdict.effect < 0 and (verdict.p_corrected or 0.0) < LEVEL


def within_margin(claim: Claim, margin: float, verdict: Verdict) -> Judgement:
    """Judge a claim of no difference (equivalence test). It holds if the whole interval lies within the margin. It does
    not hold if the whole interval lies outside. A significant difference smaller than the margin is no contradiction.
    """
    shown = verdict.relative_interval or verdict.interval
    assert shown is not None, "a verdict that says something has an interval"
    times, unit = (100, "%") if verdict.relative_interval else (1, verdict.unit)
    low, high = (times * end for end in shown)
    where = f"the difference lies between {low:.2g} and {high:.2g} {unit}, and up to {margin:g} counts as no difference"
    if -margin <= low and high <= margin:
        status: ClaimStatus = "holds"
    elif low > margin or high < -margin:
        status = "does not hold"
    else:
        status = "not shown"
    return Judgement(claim, status, f"{verdict.sentence}; {where}")


def _by_audit(claim: Claim, results: Results) -> Judgement:
    runs = [run for run in results.runs if claim.arm in (None, run.arm)]
    found = [(run, run.audit.finding(claim.audit or "")) for run in runs if run.audit]
    told = [(run, finding) for run, finding in found if finding is not None]
    if not told:
        reasons = dict.fromkeys(run.audit.not_run.get(claim.audit or "", "") for run in runs if run.audit)
        why = listed(filter(None, reasons)) if any(reasons) else "the runs were not audited"
        return Judgement(claim, "cannot say", f"the audit {claim.audit} was not run: {why}")
    failing = {run.arm: finding for run, finding in told if finding.verdict == "fail"}
    if failing:
        first = next(iter(failing.values()))
        return Judgement(claim, "does not hold", f"{listed(failing)}: {first.sentence}")
    return Judgement(claim, "holds", f"{told[0][1].sentence}; the audit failed in none of {len(told)} runs")
