"""Every fault of masked tokens, of masked training and its scores is caught by the audit meant for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import TEXT, cache_in

from headway import tasks
from headway.audit.audit import AUDITS
from headway.audit.plants.library import faults
from headway.audit.plants.needs import MASKED
from headway.audit.plants.planting import Fault, planted
from headway.experiment.audit import audit_recipe, audit_run
from headway.experiment.self_test import SelfTest
from headway.experiment.train import train
from headway.recipe.recipe import Recipe, from_tree

OURS = [fault for fault in faults() if MASKED in fault.needs]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("hidden")
    (home / "text.txt").write_text(TEXT * 2, "utf-8")
    with cache_in(home / "cache"):
        yield home


def recipe(home: Path, *changes: str) -> Recipe:
    tree = {
        "data": {"source": "files", "path": str(home / "text.txt")},
        "model": {"kind": "masked-language-model", "layers": 1, "width": 16, "context": 24, "mixer": {"heads": 2}},
        "training": {"batch": 64, "duration": "12 steps", "optimizer": {"learning_rate": 1e-2}},
    }
    return from_tree(tree, "hidden", overrides=[one for one in changes if one not in MASKED.changes])


OF_BATCHES = [fault for fault in OURS if AUDITS[fault.caught_by].subject == "data"]
OTHERS = [fault for fault in OURS if fault not in OF_BATCHES]
QUICK = ("loss_of_all_tokens", "scored_with_nothing_hidden")


@pytest.mark.parametrize("fault", OF_BATCHES, ids=lambda fault: fault.name)
def test_planted_in_batches(fault: Fault, home):
    with planted(fault):
        report = tasks.load(recipe(home, *fault.changes)).gather_evidence().reading()
    failures = {f.audit: f.sentence for f in report.failures}
    assert fault.caught_by in failures, f"not caught; {report}"
    assert not set(failures) - {fault.caught_by, *fault.also}, failures


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow]) for one in OTHERS],
)
def test_planted(fault: Fault, home, tmp_path):
    (trial,) = SelfTest(recipe(home, *fault.changes), [fault], tmp_path).trials()
    assert trial.outcome == "seen", trial.sentence


CLEAN = [
    (),
    ("data.batches=lines", "training.accumulate=2"),
    ("data.tokenizer=word", "model.context=5", "model.masking.share=0.4"),
    ("data.tokenizer={kind: bpe, size: 300}", "data.batches=contiguous", "model.dropout=0.1"),
    ("model.masking={share: 0.3, masked: 1.0, random: 0.0}", "model.norm.placement=post"),
]


@pytest.mark.parametrize("changes", CLEAN, ids=" ".join)
def test_clean_batches_raise_no_alarm(changes, home):
    report = tasks.load(recipe(home, *changes)).gather_evidence().reading()
    assert {f.audit: f.verdict for f in report.findings} == dict.fromkeys(
        ("batches", "hidden-tokens", "masking"), "pass"
    ), report


@pytest.mark.parametrize(
    "changes", [pytest.param(CLEAN[0], marks=pytest.mark.slow, id="pieces"), pytest.param(CLEAN[1], id="lines")]
)
def test_a_clean_run_raises_no_alarm(changes, home, tmp_path):
    (run,) = train([recipe(home, *changes, "training.duration=60 steps")], ["clean"], tmp_path)
    report = audit_run(run)
    ours = {f.audit for f in report.failures if AUDITS[f.audit].subject not in ("training", "baselines")}
    assert ours <= {"repeated-text", "near-text"}, report  # about the text, which is repetitive
    assert {"scored-split", "scores-again", "padding", "batch-invariance", "hidden-tokens"} <= {
        f.audit for f in report.findings if f.verdict == "pass"
    }
    assert {"causality", "cache"} <= report.not_run.keys()


@pytest.mark.slow
def test_a_fresh_recurrence_raises_no_alarm(home, tmp_path):
    mixer = "model.mixer={kind: gru, bidirectional: true}"
    report = audit_recipe(recipe(home, mixer, "model.positions=none"))
    assert {f.audit for f in report.failures} <= {"repeated-text", "near-text"}
