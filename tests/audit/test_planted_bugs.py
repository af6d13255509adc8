"""Every planted fault is caught by the audit meant for it, and by no unrelated audit."""

import pytest
from examined import OF_WEIGHTS, examine

from headway.audit.audit import AUDITS
from headway.audit.plants.library import faults
from headway.audit.plants.needs import MASKED, MATCHER, ONE_STACK, TRANSLATOR
from headway.audit.plants.planting import Fault, planted
from headway.audit.runner import MODEL_AUDITS, audit_model

OF_MODELS = [  # those of translators and masked models: test_planted_translators.py, test_planted_masking.py
    fault
    for fault in faults()
    if AUDITS[fault.caught_by].subject == "model" and not {MASKED, MATCHER, ONE_STACK, TRANSLATOR} & {*fault.needs}
]


@pytest.mark.parametrize("fault", OF_MODELS, ids=lambda fault: fault.name)
def test_planted(fault: Fault):
    with planted(fault):
        probe = examine(*fault.changes, *fault.recipe, steps=3)
        fault.spoil(probe.model)
        audits = MODEL_AUDITS if fault.caught_by in ("initial-loss", "one-batch") else OF_WEIGHTS
        report = audit_model(probe, audits)
    failures = {f.audit: f.sentence for f in report.failures}
    assert fault.caught_by in failures, f"not caught; {report}"
    unrelated = set(failures) - {fault.caught_by, *fault.also, "definition"}  # "definition" checks every part
    assert not unrelated, {name: failures[name] for name in unrelated}


def test_every_model_audit_catches_something():
    assert {one.name for one in MODEL_AUDITS} == {fault.caught_by for fault in OF_MODELS}
