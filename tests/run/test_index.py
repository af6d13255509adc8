"""The list of runs is the same with an index as without, whatever changes and whoever writes concurrently."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import cut, flip, reseal

from headway.core.files import locked
from headway.run import index
from headway.run.folder import open_run
from headway.run.index import list_runs, listed


@pytest.fixture
def runs(workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "MOMENT", -1.0)  # so that files just made by the test count as old
    for k in range(4):
        shutil.copytree(workshop.run.folder, tmp_path / "runs" / f"run-{k}")
    return tmp_path / "runs"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of runs whose files were read."""
    names: list[str] = []

    def noted(folder: Path) -> index.ListedRun:
        names.append(folder.name)
        return listed(folder)

    monkeypatch.setattr(index, "listed", noted)
    return names


def as_read(rows) -> list:
    return [
        (r.name, r.created, r.headline, r.scores, r.failed, r.warned, r.sealed, str(r.state), r.damage) for r in rows
    ]


def test_a_second_listing_reads_no_run_and_is_the_same(runs: Path, looked: list[str]):
    first = list_runs(runs)
    assert sorted(looked) == [f"run-{k}" for k in range(4)] and first[0].scores
    looked.clear()
    assert as_read(list_runs(runs)) == as_read(first) and looked == []


def test_only_what_has_changed_is_read_again(runs: Path, looked: list[str]):
    list_runs(runs)
    looked.clear()
    open_run("run-1", runs).note(created="1999")
    shutil.rmtree(runs / "run-2")
    shutil.copytree(runs / "run-0", runs / "new")
    (runs / "run-3" / "audit.json").write_text("{}")  # in place, as editors write
    reseal(runs / "run-3")
    rows = list_runs(runs)
    assert sorted(looked) == ["new", "run-1", "run-3"]
    assert rows[0].name == "run-1" and "run-2" not in {row.name for row in rows}
    assert as_read(rows) == as_read(sorted(map(listed, runs.iterdir()), key=lambda row: (row.created, row.name)))


@pytest.mark.parametrize("name", ["run.json", "scores.json", "audit.json", "recipe.yaml", "seal.json", "events.jsonl"])
@pytest.mark.parametrize("damage", [flip, cut, lambda file: (file.unlink(), os.mkfifo(file))])
def test_damage_of_one_run_is_reported_and_hides_no_other(runs: Path, name: str, damage, command_line):
    list_runs(runs)
    damage(runs / "run-2" / name)
    rows = {row.name: row for row in list_runs(runs)}
    assert name in rows["run-2"].damage and not any(rows[f"run-{k}"].damage for k in (0, 1, 3))
    for words in ([], ["--json"]):
        answer = command_line("runs", "--runs", str(runs), *words)
        assert answer.code == 0 and f"skipping run-2: {runs / 'run-2'}" in answer.err
        assert all(f"run-{k}" in answer.out for k in (0, 1, 3))


def test_a_run_without_its_facts_is_named_and_other_folders_are_not(runs: Path, command_line):
    list_runs(runs)
    (runs / "run-2" / "run.json").unlink()
    (runs / "photos").mkdir()
    (runs / "study").mkdir()
    (runs / "study" / "seal.json").write_text("{}")
    answer = command_line("runs", "--runs", str(runs))
    assert "skipping run-2" in answer.err and "run.json cannot be read: it is missing" in answer.err
    assert "photos" not in answer.err + answer.out and "study" not in answer.err + answer.out


def test_a_run_in_training_is_never_indexed(runs: Path, looked: list[str]):
    list_runs(runs)
    with locked(runs / "run-1"):
        for _ in range(2):
            looked.clear()
            assert [str(row.state).split(",")[0] for row in list_runs(runs)].count("running") == 1
            assert looked == ["run-1"]
    assert all(row.state and not row.state.is_running for row in list_runs(runs))


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink, lambda f: f.write_text("[]"), lambda f: f.write_text("")])
def test_a_damaged_index_is_rebuilt(runs: Path, looked: list[str], damage):
    first = list_runs(runs)
    (home,) = (Path(os.environ["HEADWAY_CACHE"]) / "runs").iterdir()
    damage(home)
    looked.clear()
    assert as_read(list_runs(runs)) == as_read(first) and len(looked) == 4


def test_without_a_cache_it_is_only_slower(runs: Path, monkeypatch: pytest.MonkeyPatch):
    first = list_runs(runs)
    monkeypatch.setenv("HEADWAY_CACHE", "/dev/null/nowhere")
    assert as_read(list_runs(runs)) == as_read(first)


def test_unsealed_runs_are_listed_and_marked(runs: Path, command_line):
    (runs / "run-1" / "seal.json").unlink()
    answer = command_line("runs", "--runs", str(runs))
    assert answer.code == 0 and "1 of 4 runs are not sealed" in answer.err and "run-1" in answer.out


@pytest.mark.slow
def test_five_thousand_runs_are_listed_in_a_second(runs: Path):
    """CPU time of this process, because the machine may be busy."""
    for k in range(5000):
        (runs / f"many-{k}").mkdir()
        for file in (runs / "run-0").iterdir():
            if file.is_file():
                shutil.copyfile(file, runs / f"many-{k}" / file.name)
    time.sleep(0.2)
    command = [sys.executable, "-m", "headway.cli", "runs", "--runs", str(runs)]
    told = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
    told += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", told, *command])) for _ in range(2)]
    assert seconds[1] < 2.0 and seconds[0] < 15.0, seconds


def test_a_list_needs_no_torch(runs: Path):
    code = "import sys; sys.argv = ['headway', 'runs', '--runs', sys.argv[1], '--json']; from headway.cli import main\n"
    code += "try: main()\nexcept SystemExit as end: assert not end.code\nprint('torch' in sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code, str(runs)], text=True).splitlines()
    assert said[-1] == "False" and len(json.loads(said[0])["runs"]) == 4
