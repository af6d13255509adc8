"""An audit is one named check; a finding is its result: a verdict, the number it rests on, and a sentence.

A check is a function of what it examines (a model, a corpus, a run), and its docstring is its documentation: the first
line says what must hold, the rest how it is checked, why the threshold is where it is, and what to do when it fails.
`headway audit --explain NAME` prints it.

    @audit("model")
    def causality(probe: Probe) -> Outcome:
        '''No output depends on a later token.

        Tokens after a position are exchanged …
        '''
        if probe.how.looks_ahead:
            raise DoesNotApply("an encoder may look ahead")
        …
        return failed(change, f"changing later tokens moved earlier outputs by {change:.2g} of their spread")

A check that does not apply raises `DoesNotApply` with the reason, and the report lists it under "not run". A check that
rests on another (`rests_on=("determinism",)`) is not run where that one failed, because its result would mean nothing.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headway.core import plugins
from headway.core.errors import UserError, did_you_mean
from headway.core.files import as_json
from headway.core.reading import UnreadableError
from headway.core.seal import read_sealed_json, rewriting
from headway.core.variants import Registry
from headway.scoring.score import Score

Verdict = Literal["pass", "warn", "fail"]
Subject = Literal["model", "population", "data", "baselines", "training", "scores"]
Asked = Literal["once", "of each", "of each alone"]
"""How an audit treats the replicas of a population. "once": on one replica that stands for all, since they share an
architecture. "of each": on all replicas in one batched pass, each getting its own result (`populations/members.py`).
"of each alone": on every replica by itself."""
FILE = "audit.json"
NOT_CARRIED_OUT = "the check could not be carried out"
"""How the sentence of an audit begins that raised an exception."""


class Outcome(NamedTuple):
    """What a check returns; made by `passed`, `warned` and `failed`."""

    verdict: Verdict
    value: float | None
    sentence: str
    short: str | None = None


def passed(value: float | None, sentence: str) -> Outcome:
    return Outcome("pass", value, sentence)


def warned(value: float | None, sentence: str) -> Outcome:
    return Outcome("warn", value, sentence)


def failed(value: float | None, sentence: str, short: str | None = None) -> Outcome:
    return Outcome("fail", value, sentence, short)


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst outcome; the first one where several are equally bad."""
    return max(outcomes, key=lambda outcome: ("pass", "warn", "fail").index(outcome.verdict))


class DoesNotApply(Exception):  # noqa: N818 (no error: there is nothing to check)
    """Raised by a check that does not apply to what it was given, with the reason."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one audit."""

    audit: str
    """The name of the check."""
    verdict: Verdict
    value: float | None
    """The number the verdict rests on; None where there is none, or where it is not finite."""
    sentence: str
    """One sentence that says what was found, with the number."""
    seconds: float = 0.0
    """How long the check took."""
    short: str | None = None
    """About three words, shown beside a name in a table: 'sees the future'."""

    @property
    def remark(self) -> str:
        return self.short or f"fails {self.audit}"


@dataclass(frozen=True)
class Baseline:
    """The score of one cheap method."""

    method: str
    """unigram, 5-gram, majority, bag of words."""
    score: Score


@dataclass(frozen=True)
class Report:
    """The results of a set of audits, in the order they were run."""

    findings: tuple[Finding, ...] = ()
    not_run: dict[str, str] = field(default_factory=dict)
    """Audits that do not apply, and why."""
    baselines: tuple[Baseline, ...] = ()
    """Scores of the same name are compared with these."""

    def __add__(self, other: "Report") -> "Report":
        not_run, baselines = {**self.not_run, **other.not_run}, self.baselines + other.baselines
        return Report(self.findings + other.findings, not_run, baselines)

    @property
    def failures(self) -> list[Finding]:
        return [f for f in self.findings if f.verdict == "fail"]

    @property
    def warnings(self) -> list[Finding]:
        return [f for f in self.findings if f.verdict == "warn"]

    def as_json(self) -> dict[str, Any]:
        baselines = [{"method": b.method, "name": b.score.name, **b.score.as_json()} for b in self.baselines]
        return {"findings": [asdict(f) for f in self.findings], "not_run": self.not_run, "baselines": baselines}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Report":
        """The report that `as_json` gave; KeyError or TypeError for anything else."""
        baselines = [Baseline(b["method"], Score.from_json(b["name"], b)) for b in stored["baselines"]]
        findings = tuple(Finding(**one) for one in stored["findings"])
        return cls(findings, dict(stored["not_run"]), tuple(baselines))

    def finding(self, name: str) -> Finding | None:
        return next((f for f in self.findings if f.audit == name), None)


@dataclass(frozen=True)
class Audit:
    """One check."""

    name: str
    subject: Subject
    about: str
    """One line: what must hold."""
    explanation: str
    """How it is checked, why the threshold is where it is, and what to do when it fails."""
    check: Callable[[Any], Outcome]
    rests_on: tuple[str, ...] = ()
    """Audits, run earlier, that must have passed for this one to mean anything."""
    asked: Asked = "once"
    """How the replicas of a population are treated."""

    def run(self, given: Any) -> Report:
        """The one finding, or the one reason why there is none."""
        began = time.perf_counter()
        try:
            outcome = self.check(given)
        except DoesNotApply as reason:
            return Report(not_run={self.name: str(reason)})
        except Exception as error:  # a check that breaks must not take the run it checks with it
            outcome = failed(None, f"{NOT_CARRIED_OUT}: {type(error).__name__}: {_first_line(error)}", "not checked")
        value = outcome.value if outcome.value is not None and math.isfinite(outcome.value) else None
        seconds = round(time.perf_counter() - began, 3)
        return Report((Finding(self.name, outcome.verdict, value, outcome.sentence, seconds, outcome.short),))


AUDITS: Registry[Audit] = Registry("audit")


def of_plugins(subject: Subject | None = None) -> list[Audit]:
    """Audits from the user's own files, which are added to those of their subject."""
    found = [AUDITS[name] for plugin in plugins.loaded() for name in AUDITS.of_module(plugin.module)]
    return [one for one in found if subject in (None, one.subject)]


def audit(
    subject: Subject, rests_on: tuple[str, ...] = (), asked: Asked = "once"
) -> Callable[[Callable[[Any], Outcome]], Audit]:
    """Make a check an audit. The function's name becomes the audit's, its docstring the audit's documentation."""

    def made(check: Callable[[Any], Outcome]) -> Audit:
        about, _, explanation = cleandoc(check.__doc__ or "").partition("\n\n")
        name = check.__name__.replace("_", "-")
        one = Audit(name, subject, about.replace("\n", " "), explanation, check, rests_on, asked)
        return AUDITS.add(name, one, check.__module__)

    return made


def run_audits(audits: Iterable[Audit], given: Any) -> Report:
    """Run these audits on one thing, except those that rest on one that failed."""
    report, silent = Report(), set[str]()
    for one in audits:
        silent |= {finding.audit for finding in report.failures}
        if shaken := [name for name in one.rests_on if name in silent]:
            silent.add(one.name)
            report += Report(not_run={one.name: f"it rests on {' and '.join(shaken)}, which failed"})
        else:
            report += one.run(given)
    return report


def find_audit(name: str, audits: Sequence[Audit]) -> Audit:
    """The audit of that name."""
    found = next((one for one in audits if one.name == name), None)
    if found is None:
        hint = did_you_mean(name, [one.name for one in audits]) or "; `headway audit RUN` lists them"
        raise UserError(f"there is no audit '{name}'{hint}")
    return found


def write_report(folder: Path, report: Report) -> None:
    """Write `audit.json` atomically."""
    with rewriting(folder) as new:
        new[FILE] = as_json(report.as_json())


def read_report(folder: Path) -> Report | None:
    """The report in `audit.json`; None where there is none yet."""
    path = folder / FILE
    try:
        stored = read_sealed_json(path, needed=False)
    except FileNotFoundError:
        return None
    try:
        return Report.from_json(stored)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(path, f"{_first_line(error)}; remove it, and audit again") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no more is known"])[0]
