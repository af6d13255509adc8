"""Ensembles of the seeds of every arm: the same as `headway score --ensemble` of these runs."""

import json

import pytest
from small import small_study
from tiny import reseal

from headway.core.errors import UserError
from headway.experiment.ensemble import score_together
from headway.run.folder import open_run
from headway.study.conclude import conclude
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.results.ensembles import FILE, kept
from headway.study.results.results import read_results


def test_the_ensemble_of_every_arm_equals_that_of_its_runs(workshop, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text), tmp_path / "m", InProcess())
    told = json.loads(command_line("study", "ensembles", "m", "--studies", str(tmp_path), "--json").out)
    by_arm = {one["arm"]: one for one in told["arms"]}
    assert by_arm.keys() == {"learned", "none"} and not told["none"]
    runs = [open_run(f"learned.seed-{seed}", tmp_path / "m" / "runs") for seed in by_arm["learned"]["seeds"]]
    (gain,) = score_together(runs).gains
    assert by_arm["learned"]["gains"]["valid.loss"]["gain"] == pytest.approx(gain.value, rel=1e-6)
    shown = command_line("study", "ensembles", "m", "--studies", str(tmp_path)).out
    assert "over the mean run" in shown and "learned" in shown


def test_the_report_shows_the_ensembles(workshop, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    folder = tmp_path / "m"
    execute(small_study(workshop.text), folder, InProcess())
    conclude(folder)
    assert "## Ensembles" not in (folder / "report.md").read_text()
    told = json.loads(command_line("study", "ensembles", "m", "--studies", str(tmp_path), "--json").out)
    report, gain = (folder / "report.md").read_text(), told["arms"][0]["gains"]["valid.loss"]
    assert "## Ensembles" in report and f"{gain['gain']:.4f} [" in report and "valid.perplexity" in report
    assert "Ensembles</h2>" in (folder / "report.html").read_text()
    told["arms"][0]["seeds"].pop()  # as if a run had been added since, so the stored ensemble is outdated
    (folder / FILE).write_text(json.dumps(told))
    reseal(folder)
    assert [one["arm"] for one in kept(read_results(folder))] == [told["arms"][1]["arm"]]
    (folder / FILE).write_text("{}")
    with pytest.raises(UserError, match=r"ensembles\.json cannot be read: its checksum differs"):
        kept(read_results(folder))
    reseal(folder)
    with pytest.raises(UserError, match=r"ensembles\.json cannot be read: remove it"):
        kept(read_results(folder))


def test_a_study_may_request_ensembles(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text).model_copy(update={"ensembles": True}), tmp_path / "m", InProcess())
    conclude(tmp_path / "m")
    assert "## Ensembles" in (tmp_path / "m" / "report.md").read_text()


def test_arms_with_one_run_have_no_ensemble(workshop, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text, seeds=1), tmp_path / "m", InProcess())
    answer = command_line("study", "ensembles", "m", "--studies", str(tmp_path))
    assert answer.code == 2 and "no arm of m has two finished runs" in answer.err
