"""The basics of audits: checks return findings, and findings are written to audit.json."""

import json
import math

import pytest

from headway.audit.audit import (
    Audit,
    DoesNotApply,
    Finding,
    Report,
    audit,
    failed,
    find_audit,
    passed,
    read_report,
    run_audits,
    warned,
    write_report,
)
from headway.audit.runner import ALL_AUDITS
from headway.core.errors import UserError


@audit("data")
def size_of_it(given: float):
    """It is not too large.

    Sizes above ten are too large, because they are.
    """
    if given < 0:
        raise DoesNotApply("there is no size below zero")
    if given == 7:
        raise RuntimeError("seven is\nunlucky")
    return failed(given, f"{given} is above 10") if not given <= 10 else passed(given, f"{given} is fine")


@audit("data")
def always_warns(given: float):
    """It is seen."""
    return warned(None, "seen")


def test_an_audit_is_documented_by_its_check():
    assert size_of_it.name == "size-of-it"
    assert size_of_it.about == "It is not too large."
    assert size_of_it.explanation == "Sizes above ten are too large, because they are."


def test_findings_carry_verdict_number_sentence_and_time():
    (finding,) = size_of_it.run(12).findings
    assert (finding.audit, finding.verdict, finding.value, finding.sentence) == (
        "size-of-it",
        "fail",
        12,
        "12 is above 10",
    )
    assert 0 <= finding.seconds < 1


def test_a_check_that_does_not_apply_is_listed_with_its_reason():
    assert size_of_it.run(-1) == Report((), {"size-of-it": "there is no size below zero"})


def test_a_check_that_breaks_is_a_failure_and_does_not_stop_the_others():
    report = run_audits((size_of_it, always_warns), 7)
    assert [f.audit for f in report.findings] == ["size-of-it", "always-warns"]
    assert report.failures[0].sentence == "the check could not be carried out: RuntimeError: seven is"
    assert report.warnings == [report.finding("always-warns")]


def test_a_value_that_is_not_finite_is_none():
    (finding,) = size_of_it.run(math.nan).findings
    assert finding.verdict == "fail" and finding.value is None


def test_a_report_is_read_back_as_it_was_written(tmp_path):
    report = run_audits((size_of_it, always_warns), 3) + size_of_it.run(-1)
    write_report(tmp_path, report)
    assert read_report(tmp_path) == report
    assert json.loads((tmp_path / "audit.json").read_text())["findings"][0]["sentence"] == "3 is fine"


def test_no_report_yet(tmp_path):
    assert read_report(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"findings": [{}]}', '{"findings": [], "not_run": 3}'])
def test_the_user_is_told_to_remove_a_damaged_report(tmp_path, content):
    (tmp_path / "audit.json").write_text(content)
    with pytest.raises(UserError, match=r"audit.json cannot be read: .*; remove it, and audit again"):
        read_report(tmp_path)


def test_an_audit_is_found_by_name():
    assert find_audit("causality", ALL_AUDITS).subject == "model"
    with pytest.raises(UserError, match=r"there is no audit 'casuality'; did you mean 'causality'\?"):
        find_audit("casuality", ALL_AUDITS)


def test_every_audit_has_a_unique_name_and_an_explanation():
    names = [one.name for one in ALL_AUDITS]
    assert len(set(names)) == len(names)
    for one in ALL_AUDITS:
        assert one.about.endswith(".") and len(one.about) < 120, one.name
        assert len(one.explanation) > 200, one.name


def test_two_findings_of_one_audit_are_not_mixed_up():
    one, two = Finding("a", "pass", 1, "one"), Finding("b", "fail", 2, "two")
    assert (Report((one,)) + Report((two,), {"c": "no"})) == Report((one, two), {"c": "no"})


def test_an_audit_is_not_run_if_one_it_rests_on_failed():
    asked = []

    def check(verdict):
        return lambda given: asked.append(verdict.__name__) or verdict(0, "")

    sure = Audit("sure", "model", "", "", check(passed))
    shaken = Audit("shaken", "model", "", "", check(failed))
    above = Audit("above", "model", "", "", check(passed), rests_on=("shaken", "sure"))
    top = Audit("top", "model", "", "", check(passed), rests_on=("above",))
    report = run_audits([sure, shaken, above, top], None)
    assert [f.audit for f in report.findings] == ["sure", "shaken"]
    assert asked == ["passed", "failed"]
    assert "shaken" in report.not_run["above"] and "sure" not in report.not_run["above"]
    assert "above" in report.not_run["top"]
    assert run_audits([sure, above], None).not_run == {}


def test_what_an_audit_rests_on_is_run_before_it():
    names = [one.name for one in ALL_AUDITS]
    for one in ALL_AUDITS:
        assert all(names.index(needed) < names.index(one.name) for needed in one.rests_on)
