"""Every planted fault is caught by the audit meant for it, and by none that has nothing to do with it."""

import pytest
from examined import OF_WEIGHTS, examine
from plants import PLANTS, Plant

from headway.audit.runner import MODEL_AUDITS, audit_model


@pytest.mark.parametrize("planted", PLANTS, ids=lambda planted: planted.name)
def test_planted(planted: Plant, monkeypatch: pytest.MonkeyPatch):
    if planted.plant:
        planted.plant(monkeypatch)
    probe = examine(*planted.recipe, steps=3)
    if planted.spoil:
        planted.spoil(probe)
    audits = MODEL_AUDITS if planted.caught_by in ("initial-loss", "one-batch") else OF_WEIGHTS
    report = audit_model(probe, audits)
    failures = {f.audit: f.sentence for f in report.failures}
    assert planted.caught_by in failures, f"not caught; {report}"
    unrelated = set(failures) - {planted.caught_by, *planted.also, "definition"}  # that one looks at every piece
    assert not unrelated, {name: failures[name] for name in unrelated}


def test_every_model_audit_catches_something():
    assert {one.name for one in MODEL_AUDITS} == {planted.caught_by for planted in PLANTS} | {"causal-gradient"}


def test_a_leak_too_small_to_move_an_answer_has_a_gradient(monkeypatch: pytest.MonkeyPatch):
    """A ten-millionth of the mean over time: below what float32 shows in an answer."""
    from headway.nn import heads

    def forward(self, given, padding_mask=None):
        return heads.side_by_side(given + 1e-9 * given.mean(3, keepdim=True))

    monkeypatch.setattr(heads.Fusion, "forward", forward)
    assert [f.audit for f in audit_model(examine()).failures] == ["causal-gradient"]
