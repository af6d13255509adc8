"""Every planted fault of data is caught by the audit meant for it, and clean variants raise no alarm."""

from functools import cache

import pytest

from headway.audit.audit import Report, run_audits
from headway.audit.data.row_set import RowSet
from headway.audit.data.rows import ROW_AUDITS
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.plants.data.clean import clean_rows, clean_texts, sums
from headway.audit.plants.library import faults
from headway.audit.plants.planting import Fault
from headway.data.embedded import python_modules
from headway.data.running import sources

OF_DATA = [fault for fault in faults() if fault.of in (RowSet, TextSet)]
AUDITS = {RowSet: ROW_AUDITS, TextSet: TEXT_AUDITS}
NOT_SEEN = {"a blank at the end, in 40% of a class"}  # docstrings of other classes end with a blank as well


@cache
def clean(kind: type) -> RowSet | TextSet:
    if kind is TextSet:
        return TextSet(sources.read_splits("python-docs", None, 0.1))
    splits = python_modules.labelled_splits()
    rows, labels = ({split: [row[k] for row in part] for split, part in splits.items()} for k in (0, 1))
    return RowSet(rows, labels)


def one_of_each() -> list[Fault]:
    return list({plant.caught_by: plant for plant in OF_DATA}.values())


def alarms(report: Report) -> list[str]:
    """Findings that fail or warn, without the warning that a class has few rows, which is true of these sets."""
    return [f"{f.audit}: {f.sentence}" for f in (*report.failures, *report.warnings) if f.audit != "class-balance"]


@pytest.mark.parametrize("plant", one_of_each(), ids=lambda plant: plant.caught_by)
def test_each_audit_sees_a_fault_that_is_meant_for_it(plant):
    meant = [one for one in AUDITS[plant.of] if one.name == plant.caught_by]
    (finding,) = run_audits(meant, plant.into(clean(plant.of))).findings
    assert finding.verdict != "pass", finding.sentence


def test_plants_are_pure_functions_of_data_and_seed():
    before = clean(RowSet).rows
    for plant in (plant for plant in OF_DATA if plant.of is RowSet):
        first, second = plant.into(sums(), 3), plant.into(sums(), 3)
        assert (first.rows, first.labels) == (second.rows, second.labels)
    assert clean(RowSet).rows is before and len(OF_DATA) >= 40


def test_sums_and_few_rows_raise_no_alarm():
    for name in ("50 rows", "100 rows", "sums"):
        assert alarms(run_audits(ROW_AUDITS, clean_rows(clean(RowSet))[name])) == [], name


@pytest.mark.slow
@pytest.mark.parametrize("plant", OF_DATA, ids=lambda plant: plant.name)
def test_a_planted_fault_is_seen(plant):
    report = run_audits(AUDITS[plant.of], plant.into(clean(plant.of)))
    finding = report.finding(plant.caught_by)
    assert finding is not None, report.not_run
    print(f"{plant.name} → {plant.caught_by} → {finding.sentence}")  # shown with -s: the table
    assert (finding.verdict != "pass") == (plant.name not in NOT_SEEN), finding.sentence
    assert not [f for f in report.findings if "could not be carried out" in f.sentence]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RowSet, TextSet])
def test_clean_variants_raise_no_alarm(kind):
    variants = clean_rows(clean(kind)) if kind is RowSet else clean_texts(clean(kind))
    for name, data in variants.items():
        assert alarms(run_audits(AUDITS[kind], data)) == [], name
