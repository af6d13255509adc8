"""`headway audit` on the command line."""

import json
import shutil

import pytest
from tiny import reseal

from headway import cli
from headway.audit.audit import read_report
from headway.run.folder import open_run


@pytest.fixture
def runs(workshop, tmp_path):
    """A copy, because reports are written into it."""
    return shutil.copytree(workshop.runs, tmp_path / "runs")


@pytest.fixture
def audit(workshop, runs, monkeypatch, capsys):
    """Runs `headway audit …` and returns the exit code, stdout and stderr."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["headway", "audit", *words, "--runs", str(runs)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_a_run_is_audited_and_the_report_stored(audit, runs):
    code, out, _ = audit("tiny")
    assert code == 0 and "2 failed" in out and "causality" in out
    kept = read_report(open_run("tiny", runs).folder)
    assert kept is not None and [f.audit for f in kept.failures] == ["beats-chance", "did-it-train"]
    assert audit("tiny", "--strict")[0] == 1


def test_a_recipe_is_audited_before_it_is_trained(audit, workshop):
    code, out, _ = audit(str(workshop.recipe), "model.mixer.fusion=reweight", "--strict")
    assert code == 1
    assert "sees the future" in out and "not run: this model has no cache" in out


def test_as_json(audit, workshop):
    code, out, _ = audit(str(workshop.recipe), "model.mixer.fusion=reweight", "--json")
    found = json.loads(out)
    assert code == 0  # not strict
    assert {f["audit"] for f in found["findings"] if f["verdict"] == "fail"} == {"causality", "causal-gradient"}
    assert "cache" in found["not_run"]


def test_an_audit_explains_itself(audit):
    code, out, _ = audit("--explain", "causality")
    assert code == 0 and out.startswith("causality (model): No output depends on a later token.")
    assert "millionth" in out


def test_mistakes_are_clear_messages(audit):
    assert audit()[0::2] == (2, "headway: give a run or a recipe to audit, or --explain AUDIT\n")
    assert "did you mean 'causality'?" in audit("--explain", "causalty")[2]
    assert "'tinny' is neither a run nor a recipe; did you mean 'tiny'?" in audit("tinny")[2]
    assert "'dem' is neither a run nor a recipe; did you mean 'demo'?" in audit("dem")[2]
    assert "tiny is a run, so seed=3 can no longer be changed" in audit("tiny", "seed=3")[2]


def test_the_heads_of_imported_weights_are_audited_too(audit, runs):
    """They were trained, though not by this recipe."""
    facts = json.loads((runs / "tiny" / "run.json").read_text())
    (runs / "tiny" / "run.json").write_text(json.dumps(facts | {"imported_from": "elsewhere"}))
    reseal(runs / "tiny")
    found = json.loads(audit("tiny", "--json")[1])
    assert "collapsed-heads" in {f["audit"] for f in found["findings"]} and "moved" in found["not_run"]
