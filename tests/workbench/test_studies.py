import json

import pytest
from bench_tools import asker, make_run

from headway.answers.workbench import OpenedStudySchema, StudiesSchema
from headway.core.files import write_json
from headway.workbench.bench import Bench
from headway.workbench.studies import outcomes, seconds_left, title_of

ARM_OF = {f"{arm}.seed-{seed}": arm for arm in ("one", "two") for seed in range(2)}


@pytest.fixture
def home(tmp_path):
    """A study of two arms and two seeds: one run has ended, one was killed, one failed, and one was not started."""
    home = tmp_path / "studies" / "s"
    make_run(home / "runs" / "one.seed-0", seconds=10.0)
    make_run(home / "runs" / "one.seed-1", status="started")
    (home / "study.yaml").write_text("title: >-\n  Does two\n  help?\nbase: {}\n")
    told = {"event": "opened", "of": ["s"], "time": "2026-01-01T00:00:00+00:00", "arm_of": ARM_OF, "done": []}
    (home / "events.jsonl").write_text(json.dumps(told) + "\n")
    (home / "failures").mkdir()
    write_json(home / "failures" / "two.seed-0.json", {"status": "failed", "step": None, "reason": "out of memory"})
    return home


def test_the_state_of_a_study_is_read_from_its_folder(home):
    api = asker(Bench(home.parent.parent))
    (told,) = api.get("/api/studies").json()["studies"]
    StudiesSchema.model_validate({"studies": [told]})
    assert told["title"] == "Does two help?" and (told["runs"], told["ended"], told["failed"]) == (4, 1, 1)
    study = api.get("/api/study/studies/s").json()
    OpenedStudySchema.model_validate(study)
    states = {name: cell["state"] for name, cell in study["cells"].items()}
    assert list(states.values()) == ["finished", "killed", "failed", "not begun"] and list(states) == list(ARM_OF)
    assert study["cells"]["two.seed-0"]["reason"] == "out of memory"
    assert study["process"] is None and study["seconds_left"] is None
    assert study["command"] == "headway study run s --studies studies"


def test_the_time_left_is_estimated_from_finished_runs(home):
    table = Bench(home.parent.parent).table
    table.refresh()
    rows = {path.name: row for path, row in table.rows.items()}
    # A whole run of `one` takes 10 s: nothing is left of the killed one (20 of 20 steps), and two are not started.
    assert seconds_left(ARM_OF, rows) == pytest.approx(20.0)
    assert seconds_left(ARM_OF, {"one.seed-1": rows["one.seed-1"]}) is None


@pytest.mark.parametrize("broken", ["", "title: [", "title: {a: b}", "\0", "title:\n"])
def test_a_study_that_cannot_be_read_is_listed_nevertheless(home, broken):
    (home / "study.yaml").write_text(broken)
    (home / "verdicts.json").write_text("{")
    (home / "failures" / "two.seed-0.json").write_text("[")
    api = asker(Bench(home.parent.parent))
    (told,) = api.get("/api/studies").json()["studies"]
    assert told["name"] == "studies/s" and told["title"] and told["outcomes"] == []
    assert api.get("/api/study/studies/s").json()["cells"]["two.seed-0"]["state"] == "failed"


def test_outcomes_of_verdicts_and_of_exercises(tmp_path):
    write_json(tmp_path / "verdicts.json", [{"outcome": "better"}, {"outcome": "cannot say"}])
    assert outcomes(tmp_path) == ["better", "cannot say"]
    write_json(tmp_path / "verdicts.json", {"title": "An exercise", "claims": [{"standing": "holds"}]})
    assert outcomes(tmp_path) == ["holds"] and title_of(tmp_path) == "An exercise"


def test_resuming_and_cases_start_the_usual_commands(home, monkeypatch):
    bench = Bench(home.parent.parent)
    started = []
    job = {"job": "j", "command": "", "process": 1, "started": 0.0, "running": True, "code": None, "said": ""}
    monkeypatch.setattr(bench.jobs, "start", lambda words: (started.append(words), job)[1])
    api = asker(bench)
    assert api.post("/api/resume/study/studies/s").status_code == 200
    assert api.post("/api/case/B7", json={}).status_code == 200
    assert api.post("/api/case/Z9", json={}).status_code == 404
    assert api.post("/api/train", json={"recipe": "demo", "changes": ["seed=1"], "name": "x"}).status_code == 200
    assert api.post("/api/resume/run/studies/s/runs/one.seed-1").status_code == 200
    studies, runs = str(home.parent), str(home / "runs")
    assert started == [
        ["study", "run", "s", "--studies", studies],
        ["case", "B7", "--quick", "--studies", studies],
        ["train", "demo", "seed=1", "--runs", str(bench.runs), "--name=x"],
        ["train", "studies/s/runs/one.seed-1/recipe.yaml", "--name", "one.seed-1", "--runs", runs, "--resume"],
    ]


def test_cases_equal_those_of_headway_cases(home):
    cases = asker(Bench(home)).get("/api/cases").json()["cases"]
    assert len(cases) >= 31 and cases["B7"]["quick"]
