"""An audit is one check with a name; a finding is what it found: a verdict, the number it rests on, and a sentence.

A check is a function of what it is about (a model, a corpus, a run), and its docstring is its documentation: the first
line says what is asked, the rest what is done, why the threshold is where it is, and what to do when it fails.
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

A check that does not apply is not run: it raises `DoesNotApply` with the reason, and the report lists it apart. Nor is
one that rests on another (`rests_on=("determinism",)`), where that one failed: it cannot say anything, then.
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
"""Of the models of a population: of one that stands for all, since they share an architecture; of every member, which
takes its share of what all are asked at once (`populations/members.py`); or of every member by itself."""
FILE = "audit.json"
NOT_CARRIED_OUT = "the check could not be carried out"
"""How the sentence begins of an audit that broke."""


class Outcome(NamedTuple):
    """What a check gives; made by `passed`, `warned` and `failed`."""

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
    """The first of those that are worst."""
    return max(outcomes, key=lambda outcome: ("pass", "warn", "fail").index(outcome.verdict))


class DoesNotApply(Exception):  # noqa: N818 (no error: there is nothing to check)
    """Raised by a check that has nothing to say about what it was given, with the reason."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one audit."""

    audit: str
    """The name of the check."""
    verdict: Verdict
    value: float | None
    """The number the verdict rests on; None where there is none, or where it is not finite."""
    sentence: str
    """One sentence with that number, in plain words."""
    seconds: float = 0.0
    """What the check took."""
    short: str | None = None
    """In three words, beside a name in a table: 'sees the future'."""

    @property
    def remark(self) -> str:
        return self.short or f"fails {self.audit}"


@dataclass(frozen=True)
class Baseline:
    """What one cheap method got."""

    method: str
    """unigram, 5-gram, majority, bag of words."""
    score: Score


@dataclass(frozen=True)
class Report:
    """What a set of audits found, in the order they were run."""

    findings: tuple[Finding, ...] = ()
    not_run: dict[str, str] = field(default_factory=dict)
    """Audits that do not apply, and why."""
    baselines: tuple[Baseline, ...] = ()
    """What every score of the same name is set beside."""

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
        """What `as_json` gave; KeyError or TypeError for anything else."""
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
    """One line: what is asked."""
    explanation: str
    """What is done, why the threshold is where it is, and what to do when it fails."""
    check: Callable[[Any], Outcome]
    rests_on: tuple[str, ...] = ()
    """Audits, run earlier, without whose pass this one cannot say anything."""
    asked: Asked = "once"
    """Of whom, where models were trained as one."""

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
    """Those in files of the user's own, which join those of their subject."""
    found = [AUDITS[name] for plugin in plugins.loaded() for name in AUDITS.of_module(plugin.module)]
    return [one for one in found if subject in (None, one.subject)]


def audit(
    subject: Subject, rests_on: tuple[str, ...] = (), asked: Asked = "once"
) -> Callable[[Callable[[Any], Outcome]], Audit]:
    """Make an audit of a check. The function's name is the audit's, its docstring the audit's documentation."""

    def made(check: Callable[[Any], Outcome]) -> Audit:
        about, _, explanation = cleandoc(check.__doc__ or "").partition("\n\n")
        name = check.__name__.replace("_", "-")
        one = Audit(name, subject, about.replace("\n", " "), explanation, check, rests_on, asked)
        return AUDITS.add(name, one, check.__module__)

    return made


def run_audits(audits: Iterable[Audit], given: Any) -> Report:
    """All of these checks of one thing; those that rest on one that failed cannot say anything."""
    report, silent = Report(), set[str]()
    for one in audits:
        silent |= {finding.audit for finding in report.failures}
        if shaken := [name for name in one.rests_on if name in silent]:
            silent.add(one.name)
            report += Report(not_run={one.name: f"cannot say: it rests on {' and '.join(shaken)}, which failed"})
        else:
            report += one.run(given)
    return report


def find_audit(name: str, audits: Sequence[Audit]) -> Audit:
    """The audit of that name."""
    found = next((one for one in audits if one.name == name), None)
    if found is None:
        raise UserError(f"there is no audit '{name}'{did_you_mean(name, [one.name for one in audits])}")
    return found


def write_report(folder: Path, report: Report) -> None:
    """As `audit.json`, whole."""
    with rewriting(folder) as new:
        new[FILE] = as_json(report.as_json())


def read_report(folder: Path) -> Report | None:
    """What `audit.json` holds; None where there is none yet."""
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
