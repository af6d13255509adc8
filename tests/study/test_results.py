"""Results are read from run folders alone."""

import json
import math
import time
from pathlib import Path

import pytest
from small import QUICK, small_study

from headway.audit.audit import Finding, Report, write_report
from headway.core.errors import UserError
from headway.core.files import write_json
from headway.core.status import State, Status
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.folder import StudyFolder, written
from headway.study.report.tables import estimate
from headway.study.results.results import Results, ending, find_study, read_results
from headway.study.verdicts.analyse import analyse


def stub(folder: Path, value: float, status: str = "finished", **facts) -> Path:
    """A run folder as left by training, made without training."""
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"status": status, "step": 4, "seconds": 2.0, **facts})
    score = {"value": value if math.isfinite(value) else None, "label": "perplexity, whole"}
    write_json(folder / "scores.json", {"valid.perplexity": score})
    return folder


@pytest.fixture
def home(workshop, tmp_path) -> StudyFolder:
    (tmp_path / "runs").mkdir()
    (tmp_path / "study.yaml").write_text(written(small_study(workshop.text, seeds=3)), "utf-8")
    return StudyFolder(tmp_path)


def test_values_by_arm_and_seed_with_facts_and_audits(home):
    for seed in range(3):
        stub(home.runs / f"none.seed-{seed}", 9.0 + seed, parameters=10, flops_per_step=100, test_scored=seed)
    leaky = stub(home.runs / "learned.seed-1", 8.0, status="stopped at step 4: no new lowest loss", parameters=12)
    write_report(leaky, Report((Finding("causality", "fail", 1.0, "it sees the future"),)))
    found = read_results(home.path)
    assert found.table("valid.perplexity") == {"none": {0: 9.0, 1: 10.0, 2: 11.0}, "learned": {1: 8.0}}
    assert found.label("valid.perplexity") == "perplexity, whole"
    assert found.missing == dict.fromkeys(["learned.seed-0", "learned.seed-2"], Status(State.NOT_BEGUN))
    none, learned = found.arms["none"], found.arms["learned"]
    assert (none.parameters, none.flops, none.seconds, none.lost) == (10, 400, 2.0, {})
    assert (learned.parameters, learned.flops) == (12, None)
    assert learned.failed_audits == {"causality": "it sees the future"}
    assert learned.lost == dict.fromkeys([0, 2], Status(State.NOT_BEGUN))
    assert found.test_scored == 2
    assert found.as_json()["runs"]["learned.seed-1"]["failed_audits"] == ["causality"]
    json.dumps(found.as_json(), allow_nan=False)


def test_unfinished_runs_are_listed_with_the_reason(home):
    stub(home.runs / "none.seed-0", math.nan, status="diverged at step 3: the loss is no longer a finite number")
    stub(home.runs / "none.seed-1", 9.0, status="interrupted at step 2")
    (stub(home.runs / "none.seed-2", 9.0) / "scores.json").unlink()  # killed before it was scored
    stub(home.runs / "learned.seed-0", 9.0, status="started")
    home.note_failure(
        "learned.seed-1", Status(State.FAILED, reason="its process was killed"), "a traceback\nof many lines"
    )
    found = read_results(home.path)
    assert found.runs == []
    assert found.as_json()["missing"] == {
        "none.seed-0": "diverged at step 3: the loss is no longer a finite number",
        "none.seed-1": "interrupted at step 2",
        "none.seed-2": "not scored",
        "learned.seed-0": "not finished",
        "learned.seed-1": "its process was killed",
        "learned.seed-2": "not begun",
    }
    assert not any(ending(folder) for folder in home.runs.iterdir())
    for folder in home.runs.iterdir():
        write_report(folder, Report())
    assert [folder.name for folder in home.runs.iterdir() if ending(folder)] == ["none.seed-0"]
    assert found.table("valid.perplexity") == {"none": {}, "learned": {}}


def test_results_are_evidence_for_verdicts(home):
    for seed in range(3):
        stub(home.runs / f"none.seed-{seed}", 9.0 + seed)
        stub(home.runs / f"learned.seed-{seed}", 4.0 + seed / 2)
    (verdict,) = analyse(home.study.questions, read_results(home.path))
    assert "learned" in verdict.sentence and verdict.seeds == 3


def test_an_unknown_score_gets_the_nearest_name(home):
    stub(home.runs / "none.seed-0", 9.0)
    with pytest.raises(UserError, match=r"has the score 'valid.perplexit'; did you mean 'valid.perplexity'\?"):
        read_results(home.path).table("valid.perplexit")


@pytest.mark.parametrize("name", ["run.json", "scores.json"])
def test_a_damaged_file_is_named_and_hides_no_other_run(home, name):
    (stub(home.runs / "none.seed-0", 9.0) / name).write_text("{")
    stub(home.runs / "none.seed-1", 8.0)
    found = read_results(home.path)
    assert f"{name} cannot be read" in str(found.missing["none.seed-0"])
    assert [run.seed for run in found.runs] == [1]


def test_a_study_is_found_by_name_or_folder(home):
    assert find_study(home.path.name, home.path.parent) == home.path
    assert find_study(str(home.path), Path("elsewhere")) == home.path
    with pytest.raises(UserError, match="there is no study 'x'"):
        find_study("x", home.path.parent)


def test_five_hundred_runs_are_read_in_a_moment(workshop, tmp_path):
    study = small_study(workshop.text, seeds=250)
    for run in study.runs():
        stub(tmp_path / "runs" / run.name, 9.0)
    began = time.process_time()
    found = read_results(tmp_path, study)
    assert len(found.runs) == 500 and len(found.arms) == 2
    assert time.process_time() - began < 2


# --- looks at test ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("watched", "looks"), [("[valid]", 1), ("[valid, test]", 1 + 2), ("[test]", 1 + 2)])
def test_evaluations_during_training_count_as_looks_at_test_and_are_reported(
    workshop, tmp_path, monkeypatch, watched, looks
):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(workshop.text.read_text("utf-8"), "utf-8")
    changes = [*QUICK, "training.evaluate_every=2 steps", f"training.evaluate_on={watched}", "scoring.splits=[test]"]
    question = {"kind": "better", "arm": "learned", "than": "none", "on": "test.perplexity"}
    study = small_study(tmp_path, changes=changes, questions=[question])
    assert any("evaluated during training" in warning for warning in study.warnings()) == (looks > 1)
    execute(study, tmp_path / "s", InProcess())
    (verdict,) = analyse(study.asked, read_results(tmp_path / "s"))
    said = "test was scored once" if looks == 1 else f"test was scored {looks} times"
    assert any(note.startswith(said) for note in verdict.notes)


@pytest.mark.parametrize(("values", "end"), [((0.999, 1.0), 1), ((0.0, 0.01), 0)])
def test_no_interval_of_an_accuracy_leaves_0_to_1(workshop, tmp_path, monkeypatch, values, end):
    results = Results(small_study(workshop.text), tmp_path, [], {})
    monkeypatch.setattr(Results, "table", lambda *_: {"none": dict(enumerate(values))})
    found = estimate(results, "none", "valid.accuracy")
    assert found is not None and found.interval is not None
    assert found.interval[end] == end and found.interval[0] < found.mean < found.interval[1]
