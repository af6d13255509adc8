"""Tests the audits on a user's own recipe: plants every fault that it can show, and checks that the right audit fails.

First the clean recipe is audited: an audit that fails without a fault cannot detect one. Then each fault is planted, at
the recipe's own sizes and on its own data; what it affects is built again, and the audit meant for it is run. If that
audit passes, all other audits of its subject are run, and whether the fault changes anything here is checked.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.audit.audit import AUDITS, Finding, Report
from headway.audit.plants.library import faults
from headway.audit.plants.planting import Fault
from headway.core.errors import UserError, did_you_mean
from headway.core.format import duration
from headway.experiment.testbeds import TESTBEDS, Testbed, TestbedSetup, report_or_reason
from headway.recipe.recipe import Recipe

Outcome = Literal["seen", "not seen", "cannot show"]
WORSE = ("pass", "warn", "fail")


@dataclass(frozen=True)
class Trial:
    """The result of one fault."""

    fault: Fault
    outcome: Outcome
    sentence: str
    """What the audit meant for the fault says, or why the fault cannot show here."""
    instead: tuple[str, ...] = ()
    """Other audits that detected it, if the one meant for it did not."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        fault = self.fault
        return {
            "fault": fault.words,
            "kind": fault.kind,
            "audit": fault.caught_by,
            "outcome": self.outcome,
            "sentence": self.sentence,
            "instead": list(self.instead),
            "seconds": round(self.seconds, 2),
        }


def chosen(only: str | None) -> list[Fault]:
    """All faults, or those with this name, of this kind, or meant for this audit."""
    all_ = faults()
    for fault in all_:
        AUDITS.find(fault.caught_by)
    if only is None:
        return all_
    names = [name for fault in all_ for name in (fault.caught_by, fault.kind, fault.words)]
    found = [fault for fault in all_ if only in (fault.name, fault.words, fault.kind, fault.caught_by)]
    if not found:
        raise UserError(f"there is no fault, kind of fault or audit '{only}'{did_you_mean(only, dict.fromkeys(names))}")
    return found


class SelfTest:
    """The self-test of one recipe."""

    def __init__(self, recipe: Recipe, asked: Sequence[Fault], folder: Path):
        self.recipe, self.asked = recipe, list(asked)
        self.setup = TestbedSetup(recipe, folder)
        self.testbeds = [testbed(self.setup) for testbed in TESTBEDS]

    def testbed_of(self, fault: Fault) -> Testbed:
        subject = AUDITS.find(fault.caught_by).subject
        return next(testbed for testbed in self.testbeds if subject in testbed.subjects)

    @property
    def to_try(self) -> list[Fault]:
        return [fault for fault in self.asked if self.why_not(fault) is None]

    def why_not(self, fault: Fault) -> str | None:
        """Why a fault cannot show here, as far as that is known without trying; None if it may."""
        return fault.why_not(self.recipe) or self.testbed_of(fault).why_not(fault)

    def clean(self, tell: Callable[[str], object] = lambda text: None) -> Report:
        """The findings without any fault, of the audits that will be tested."""
        report = Report()
        for testbed in dict.fromkeys(map(self.testbed_of, self.to_try)):
            tell(f"without a fault: audits of {', '.join(testbed.subjects)}")
            report += testbed.clean
        return report

    def seconds(self) -> float:
        """Estimated seconds: twice each audit's time without a fault, plus half a second."""
        used = dict.fromkeys(map(self.testbed_of, self.to_try))
        took = {f.audit: f.seconds for testbed in used for f in testbed.clean.findings}
        return sum(0.5 + 2 * took.get(fault.caught_by, 0.0) for fault in self.to_try)

    def trials(self) -> Iterator[Trial]:
        """Try one fault after the other, in the order of the library."""
        for fault in self.asked:
            began = time.perf_counter()
            outcome, sentence, instead = self._tried(fault)
            yield Trial(fault, outcome, sentence, instead, time.perf_counter() - began)

    def _tried(self, fault: Fault) -> tuple[Outcome, str, tuple[str, ...]]:
        if (why := self.why_not(fault)) is not None:
            return "cannot show", why, ()
        testbed, meant = self.testbed_of(fault), AUDITS.find(fault.caught_by)
        clean = testbed.clean.finding(meant.name)
        if clean is None:
            why = testbed.clean.not_run.get(meant.name, "it does not apply to such a recipe")
            return "cannot show", f"{meant.name} does not apply: {why}", ()
        if clean.verdict == "fail":
            return "cannot show", f"{meant.name} fails even without it: {clean.sentence}", ()
        found = report_or_reason(meant, lambda: testbed.look(fault, [meant]))
        if isinstance(found, str):
            return "cannot show", f"with this fault nothing runs: {found}", ()
        here = found.finding(meant.name)
        if here is not None and _worse(here, clean):
            return "seen", here.sentence, ()
        others = report_or_reason(meant, lambda: testbed.look(fault))
        if not isinstance(others, str):
            instead = [f for f in others.findings if _worse(f, testbed.clean.finding(f.audit))]
            if instead:
                said = found.not_run.get(meant.name) or (here.sentence if here else "it reported nothing")
                more = f"; {instead[0].audit}: {instead[0].sentence}"
                return "not seen", f"{said}{more}", tuple(f.audit for f in instead)
        if not testbed.changes_something(fault):
            return "cannot show", "it changes nothing in this recipe", ()
        said = here.sentence if here is not None else found.not_run.get(meant.name, "it reported nothing")
        return "not seen", said, ()


def _worse(finding: Finding, clean: Finding | None) -> bool:
    return WORSE.index(finding.verdict) > (0 if clean is None else WORSE.index(clean.verdict))


@dataclass(frozen=True)
class Tested:
    """The result of a self-test."""

    clean: Report
    """The findings without any fault, of the audits that were tested."""
    trials: Sequence[Trial]
    stopped: bool = False
    """Interrupted by Ctrl-C before all faults were tried."""

    def by(self, outcome: Outcome) -> list[Trial]:
        return [trial for trial in self.trials if trial.outcome == outcome]

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean.as_json(),
            "faults": [trial.as_json() for trial in self.trials],
            "stopped": self.stopped,
        }


def self_test(
    recipe: Recipe,
    only: str | None = None,
    tell: Callable[[str], object] = lambda text: None,
    show: Callable[[Trial, int], object] = lambda trial, of: None,
) -> Tested:
    """Run a recipe's self-test. Writes nothing to the user's folders; after Ctrl-C, returns what was tried so far."""
    trials: list[Trial] = []
    clean = Report()
    with tempfile.TemporaryDirectory(prefix="headway-self-test-") as folder:
        test = SelfTest(recipe, chosen(only), Path(folder))
        try:
            clean = test.clean(tell)
            tell(f"{len(test.to_try)} of {len(test.asked)} faults to try, about {duration(test.seconds())}")
            for trial in test.trials():
                trials.append(trial)
                show(trial, len(test.asked))
        except KeyboardInterrupt:
            tell(f"stopped after {len(trials)} of {len(test.asked)} faults; all faults were removed again")
            return Tested(clean, trials, stopped=True)
    return Tested(clean, trials)
