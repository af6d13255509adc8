import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench_tools import add_lines, asker, make_run

from headway.answers.runs import RunsSchema
from headway.answers.workbench import OpenedRunSchema, RunTableSchema
from headway.workbench.bench import Bench
from headway.workbench.curves import Curves
from headway.workbench.events import _Table
from headway.workbench.runs import RunTable


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "studies" / "s" / "runs" / "arm.seed-0", layers=3)
    (tmp_path / "studies" / "s" / "study.yaml").write_text("title: s\n")
    return tmp_path


@pytest.fixture
def api(folder):
    return asker(Bench(folder))


def test_the_table_has_a_row_for_every_run_below_the_folder(api):
    told = api.get("/api/table").json()
    RunTableSchema.model_validate(told)
    rows = {row["name"]: row for row in told["runs"]}
    assert set(rows) == {"runs/one", "studies/s/runs/arm.seed-0"}
    one = rows["runs/one"]
    assert (one["state"], one["step"], one["recipe"]) == ("finished", 20, "demo")
    assert one["scores"] == [{"split": "valid", "value": 12.5}] and one["failed"] == ["fails causality"]
    assert rows["studies/s/runs/arm.seed-0"]["study"] == "studies/s"


def test_the_table_reports_what_has_changed_since(folder):
    table = Bench(folder).table
    assert len(table.refresh()[0]) == 2 and table.refresh() == ([], [])
    make_run(folder / "runs" / "two")
    assert [row.facts["name"] for row in table.refresh()[0]] == ["runs/two"]
    (folder / "runs" / "one").rename(folder / "runs" / "three")
    changed, gone = table.refresh()
    assert [row.facts["name"] for row in changed] == ["runs/three"] and gone == ["runs/one"]


def test_a_run_that_grows_is_read_again(folder):
    table = Bench(folder).table
    killed = make_run(folder / "runs" / "going", status="started")
    table.refresh()
    add_lines(killed, {"step": 21, "loss": 1.0})
    (row,), _ = table.refresh()
    assert (row.facts["state"], row.facts["step"]) == ("killed", 21)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}'])
def test_a_run_that_cannot_be_read_is_a_row_with_the_error(api, folder, damage):
    (folder / "runs" / "one" / "run.json").write_text(damage)
    (row,) = [row for row in api.get("/api/table").json()["runs"] if row["name"] == "runs/one"]
    assert row["state"] == "cannot be read" and "run.json" in row["reason"]
    answer = api.get("/api/run/runs/one")
    assert answer.status_code == 422 and "run.json" in answer.json()["error"]


def test_a_deleted_folder_is_distinguished_from_an_empty_one(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    api = asker(Bench(home))
    assert api.get("/api/table").json() == {"folder": str(home), "there": True, "unread": 0, "at": 0, "runs": []}
    home.rmdir()
    assert api.get("/api/table").json()["there"] is False


def test_a_run_has_the_data_of_headway_runs_and_more(api):
    listed = api.get("/api/runs").json()
    RunsSchema.model_validate(listed)
    told = api.get("/api/run/runs/one").json()
    OpenedRunSchema.model_validate(told)
    assert listed["runs"][0] in [{key: told[key] for key in listed["runs"][0]}]
    assert told["command"] == "headway train demo --name one" and told["began_from"] == "demo"
    keys = {key["key"]: (key["value"], key["meaning"]) for key in told["recipe"]}
    assert keys["model.layers"] == ("2", "How many blocks are stacked.")


def test_differences_between_recipes(api):
    told = api.get("/api/compare", params={"run": ["runs/one", "studies/s/runs/arm.seed-0"]}).json()
    assert told["keys"] == {"model.layers": ["2", "3"]}


def test_curves_have_the_requested_number_of_points_and_grow(api, folder):
    told = api.get("/api/metrics/runs/one", params={"points": 1000}).json()
    assert told["columns"]["loss"]["steps"] == list(range(1, 21)) and told["columns"]["valid.loss"]["values"] == [2.5]
    assert told["at"] == (folder / "runs" / "one" / "metrics.jsonl").stat().st_size
    few = api.get("/api/metrics/runs/one", params={"points": 5}).json()["columns"]["loss"]
    assert len(few["steps"]) <= 5 and few["steps"][-1] == 20
    add_lines(folder / "runs" / "one", {"step": 21, "loss": float("nan")})
    with (folder / "runs" / "one" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 22, "lo')  # a line that is still being written
    grown = api.get("/api/metrics/runs/one", params={"points": 1000}).json()["columns"]["loss"]
    assert grown["steps"][-1] == 21 and grown["values"][-1] is None


def test_requests_for_missing_things(api):
    for path in ("/api/run/runs/none", "/api/metrics/nothing", "/api/nothing"):
        answer = api.get(path)
        assert answer.status_code == 404 and answer.json()["error"], path


def test_openapi_has_the_schemas_of_the_json_answers(api):
    """The same fields with the same descriptions."""
    schemas = api.get("/api/openapi.json").json()["components"]["schemas"]
    own = RunsSchema.model_json_schema(mode="serialization")["$defs"]
    for name in ("ListedRunSchema", "ScoreSchema", "FindingSchema"):
        said = {key: value.get("description") for key, value in schemas[name]["properties"].items()}
        assert said == {key: value.get("description") for key, value in own[name]["properties"].items()}


def test_requests_do_not_wait_for_runs_that_were_never_read(folder):
    table = Bench(folder).table
    changed, _ = table.refresh(seconds=0)
    assert {row.facts["state"] for row in changed} == {"not read yet"} and table.unread == 2
    assert table.refresh(seconds=0) == ([], []) and table.unread == 2
    changed, _ = table.refresh()
    assert {row.facts["state"] for row in changed} == {"finished"} and table.unread == 0


def test_unread_runs_are_read_in_the_background(folder, monkeypatch):
    bench = Bench(folder)
    monkeypatch.setattr(bench.table, "refresh", lambda seconds=0.0: RunTable.refresh(bench.table, seconds))
    asker(bench).get("/api/table")  # with no time to read any run, though a thread may already have begun
    until = time.monotonic() + 20
    while bench.table.unread and time.monotonic() < until:
        time.sleep(0.01)
    assert {row.facts["state"] for row in bench.table.rows.values()} == {"finished"}


def test_the_newest_runs_are_read_first_and_have_their_final_place(folder, monkeypatch):
    """The page shows the newest runs first, so its first screen is complete at once, and rows do not move when they are
    read."""
    read = []
    monkeypatch.setattr(RunTable, "_read", lambda self, path: read.append(path.name) or self._unread(path, ()))
    for age, name in enumerate(("new", "old", "older")):
        made = make_run(folder / "runs" / name) / "run.json"
        os.utime(made, (2e9 - age, 2e9 - age))
    table = Bench(folder).table
    table.refresh(seconds=0)
    made = {path.name: row.facts["created"] for path, row in table.rows.items()}
    assert made["new"] == "2033-05-18T03:33:20+00:00" > made["old"] > made["older"] > made["one"]
    table.refresh()
    assert read[:3] == ["new", "old", "older"]


def test_the_next_server_reuses_what_was_read(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("headway.workbench.runs.WORTH_KEEPING", 1)
    first = RunTable(folder)
    first.refresh()
    (folder / "runs" / "one" / "run.json").write_text("{")
    monkeypatch.setattr(RunTable, "_read", lambda self, path: read.append(path.name) or self._unread(path, ()))
    read = []
    again = RunTable(folder)
    again.refresh()
    assert read == ["one"]  # it has changed in the meantime
    assert (
        again.rows[folder / "studies" / "s" / "runs" / "arm.seed-0"] == first.rows[folder / "studies/s/runs/arm.seed-0"]
    )
    (file,) = (tmp_path / "cache" / "workbench").iterdir()
    for damage in ("", "[]", '{"rows": 3}', '{"headway": "0", "rows": {}}'):
        file.write_text(damage)
        RunTable(folder).refresh()
        assert set(read) == {"one", "arm.seed-0"}


def test_invalid_text_hides_no_other_run(folder):
    """A name that is not UTF-8 cannot be requested; an unpaired surrogate in a file must not prevent an answer."""
    make_run(folder / "runs" / "cafe").rename(folder / "runs" / os.fsdecode(b"caf\xe9"))
    half = make_run(folder / "runs" / "half", status="diverged", reason="HALF") / "run.json"
    half.write_text(half.read_text().replace("HALF", "\\ud800"))
    rows = asker(Bench(folder)).get("/api/table").json()["runs"]
    assert {row["name"] for row in rows if row["name"].startswith("runs/")} >= {"runs/half"}
    assert all(row["name"].isprintable() for row in rows)


def test_a_curve_can_be_requested_concurrently(tmp_path):
    run, curves = make_run(tmp_path / "run", steps=3000), Curves()
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda _: curves.of(run).as_json(20_000)["columns"]["loss"]["steps"], range(16)))
    assert all(steps == list(range(1, 3001)) for steps in told)


def test_the_folder_may_be_a_run_or_a_study_or_inside_one(tmp_path):
    home = tmp_path / "s"
    run = make_run(home / "runs" / "-one.seed-0")
    (home / "study.yaml").write_text("title: Does two help?\n")
    for served, name, study, recipe in (
        (run, run.name, None, "../-one.seed-0/recipe.yaml"),
        (home / "runs", run.name, None, "./-one.seed-0/recipe.yaml"),
        (home, "runs/-one.seed-0", "s", "runs/-one.seed-0/recipe.yaml"),
        (tmp_path, "s/runs/-one.seed-0", "s", "s/runs/-one.seed-0/recipe.yaml"),
    ):
        bench = Bench(served)
        api = asker(bench)
        assert [row["name"] for row in api.get("/api/table").json()["runs"]] == [name]
        assert api.get(f"/api/run/{name}").json().get("study") == study
        assert bench.recipe_of(bench.run(name)) == recipe and (served / recipe).is_file()
        if study:
            assert api.get(f"/api/study/{study}").json()["ended"] == 1


def test_changes_found_by_one_page_are_sent_to_all_that_watch(folder):
    """Requesting the table reads the files; pages that watch must be notified nevertheless."""
    table = RunTable(folder)
    table.refresh()
    watching, late = _Table(table, None), table.version
    make_run(folder / "runs" / "new")
    shutil.rmtree(folder / "runs" / "one")
    table.refresh()
    (told,) = watching.look()
    found = json.loads(told.partition(b"data: ")[2])
    assert [row["name"] for row in found["changed"]] == ["runs/new"] and found["gone"] == ["runs/one"]
    assert watching.look() == [] and watching.missed(late) == [told] and watching.missed(found["at"]) == []
    assert len(json.loads(_Table(table, 1000).look()[0].partition(b"data: ")[2])["changed"]) == 2  # for another server
