"""The seeds of every arm as one: what `headway score --ensemble` says of the same runs."""

import json

import pytest
from small import small_study

from headway.experiment.ensemble import score_together
from headway.run.folder import open_run
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess


def test_every_arm_is_scored_as_its_runs_are_as_one(workshop, tmp_path, monkeypatch, command_line):
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


def test_arms_of_one_run_are_none(workshop, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text, seeds=1), tmp_path / "m", InProcess())
    answer = command_line("study", "ensembles", "m", "--studies", str(tmp_path))
    assert answer.code == 2 and "no arm of m has two runs" in answer.err
