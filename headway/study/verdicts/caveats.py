"""What qualifies or invalidates a verdict: failed audits, diverged runs, unequal costs, weights that all seeds share, a
test split looked at too often."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from headway.audit.audit import NOT_CARRIED_OUT
from headway.scoring.metrics import Metric, is_test, parsed
from headway.study.design.questions import Best, Question
from headway.study.results.evidence import Circumstances, Column, StudyEvidence
from headway.study.verdicts.wording import large, listed, seeds

LOOKING_AHEAD = ("causality", "causal-gradient")
"""Audits whose failure makes a score incomparable: the model has seen the tokens it predicts."""
UNEQUAL = {"parameters": 1.005, "flops": 1.005, "seconds": 1.1}
"""Cost ratios between arms above which a note is added; measured times are never quite equal."""


def qualified(
    sentence: str, metric: Metric, columns: Mapping[str, Column], evidence: StudyEvidence
) -> tuple[bool, str]:
    """Whether the scores of these arms are comparable, and the sentence with everything that restricts it."""
    about = {arm: evidence.arms.get(arm, Circumstances()) for arm in columns}
    for arm, values in columns.items():
        if values.diverged:
            where = f"{arm} diverged at {len(values.diverged)} of {seeds(values.seeds)}"
            sentence += f"; {where}, so this holds only for the seeds that finished"
    seers = [arm for arm in columns if sees_the_future(about[arm])]
    failures = {
        arm: tuple(name for name in facts.failed_audits if not _ahead(name, facts)) for arm, facts in about.items()
    }
    for failing, others in _together(failures).items():
        if others:
            sentence += f"; {_fail(failing, columns)} the audit{'s' * (len(others) > 1)} {listed(others)}"
    if not seers:
        return True, sentence
    return False, f"{'; '.join(f'{arm} {no_such_number(metric)}' for arm in seers)}. Regardless of that: {sentence}"


def sees_the_future(about: Circumstances) -> bool:
    return any(_ahead(name, about) for name in about.failed_audits)


def _ahead(failed: str, about: Circumstances) -> bool:
    """Whether this failure shows it; an audit that crashed shows nothing about the model."""
    return failed in LOOKING_AHEAD and not about.failed_audits[failed].startswith(NOT_CARRIED_OUT)


def no_such_number(metric: Metric) -> str:
    return f"sees the future, so its number is not the {metric.noun} of a left-to-right model"


def caveats(question: Question, arms: Sequence[str], evidence: StudyEvidence) -> tuple[str, ...]:
    """The notes that go with any verdict on these arms."""
    about = {arm: evidence.arms.get(arm, Circumstances()) for arm in arms}
    failures = _together({arm: tuple(facts.failed_audits.items()) for arm, facts in about.items()})
    notes = [f"{_fail(failing, arms)} {name}: {said}" for failing, found in failures.items() for name, said in found]
    for arm in arms:
        for why in dict.fromkeys(about[arm].lost.values()):
            at = [seed for seed, reason in about[arm].lost.items() if reason == why]
            notes.append(f"{arm}, seed{'s' * (len(at) > 1)} {listed(at)}: {why}")
    notes += [note for what, most in UNEQUAL.items() if (note := _unequal(what, most, about))]
    notes += [note for note in (_one_rate(about), _one_pretraining(about)) if note]
    if is_test(parsed(question.on).split):
        times = evidence.test_scored
        notes.append(
            f"test was scored {times} times, including evaluations during training: each time you change something "
            "after looking at it, its scores become more optimistic"
            if times > 1
            else "test was scored once"
        )
        if isinstance(question, Best):
            notes.append("the best arm is picked on test here: pick on valid, then score the picked arm on test")
    return tuple(notes)


def _one_rate(about: Mapping[str, Circumstances]) -> str | None:
    """A note if different optimizers are compared at a single learning rate."""
    known = [facts.optimizer for facts in about.values() if facts.optimizer is not None]
    kinds, rates = list(dict.fromkeys(kind for kind, _ in known)), {rate for _, rate in known}
    if len(kinds) < 2 or len(rates) > 1:
        return None
    both = f"{listed(kinds)} share one learning rate ({rates.pop():g})"
    return f"{both}: this shows which one it suits, not which is better; compare each at its own best (better-tuned)"


def _one_pretraining(about: Mapping[str, Circumstances]) -> str | None:
    """A note if arms that start from different weights are compared: a pretrained model is a sample of one."""
    lent = {arm: facts.pretrained_as for arm, facts in about.items() if facts.pretrained_as is not None}
    if not lent or len({facts.pretrained_as for facts in about.values()}) < 2:
        return None
    arms_of = {name: [arm for arm in lent if lent[arm] == name] for name in dict.fromkeys(lent.values())}
    whose = ", those of ".join(f"{listed(arms)} start from '{name}'" for name, arms in arms_of.items())
    return f"all seeds of {whose}: how much another pretraining would change the result is not part of the interval"


T = TypeVar("T")


def _together(by_arm: Mapping[str, tuple[T, ...]]) -> dict[tuple[str, ...], list[T]]:
    """Group by arms, so that what several arms share is said once: arms → what exactly these arms have."""
    every = dict.fromkeys(one for found in by_arm.values() for one in found)
    groups: dict[tuple[str, ...], list[T]] = {}
    for one in every:
        groups.setdefault(tuple(arm for arm, found in by_arm.items() if one in found), []).append(one)
    return groups


def _fail(failing: Sequence[str], arms: Collection[str]) -> str:
    if len(failing) == 1:
        return f"{failing[0]} fails"
    return "all arms fail" if len(failing) == len(arms) else f"{listed(failing)} fail"


def _unequal(what: str, most: float, about: Mapping[str, Circumstances]) -> str | None:
    costs = {arm: cost for arm, facts in about.items() if (cost := getattr(facts, what))}
    if len(costs) < 2:
        return None
    least, largest = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
    ratio = costs[largest] / costs[least]
    if ratio <= most:
        return None
    name = {"flops": "training FLOPs"}.get(what, what)
    more = f"{100 * (ratio - 1):.0f} % more" if ratio < 2 else f"{ratio:,.{1 if ratio < 20 else 0}f} times as many"
    return f"unequal {name}: {largest} has {large(costs[largest])}, {least} {large(costs[least])} ({more})"
