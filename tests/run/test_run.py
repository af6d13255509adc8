import json
import math
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tiny import reseal, snapshot

import headway
from headway.core.errors import UserError
from headway.core.seal import damages
from headway.data.vocabularies import Word
from headway.recipe.recipe import Recipe
from headway.run.checkpoints import KEPT_CHECKPOINTS
from headway.run.folder import Run, create_together, environment, open_run
from headway.run.record import FORMAT, all_runs
from headway.scoring.score import Score
from headway.training.checkpoint import Checkpoint


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "runs" / "mine", Recipe(seed=3), "cpu")


def checkpoint(step: int) -> Checkpoint:
    weights = {"w": torch.full((2,), float(step))}
    return Checkpoint(step, {"standing": {"ended": None}}, weights, {"w.mean": torch.zeros(2)})


def rewrite(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes))
    reseal(path.parent)


# --- making and finding ----------------------------------------------------------------------------------------------


def test_a_run_is_found_by_name_and_by_path(run):
    for name, runs in [("mine", run.folder.parent), (str(run.folder), Path("elsewhere"))]:
        found = open_run(name, runs)
        assert (found.folder, found.recipe, found.name) == (run.folder, Recipe(seed=3), "mine")


def test_a_new_run_describes_itself(run):
    facts = run.facts
    assert facts["format"] == FORMAT
    assert facts["recipe_hash"] == Recipe(seed=3).hash
    assert facts["status"] == "started"
    assert facts["created"].endswith("+00:00")


def test_runs_created_together_are_complete_and_shared_facts_are_gathered_once(tmp_path, monkeypatch):
    asked, settled = [], []
    monkeypatch.setattr("headway.run.folder.environment", lambda device: asked.append(device) or {"device": device})
    monkeypatch.setattr("os.fsync", settled.append)
    runs = [Run(tmp_path / f"seed-{seed}", Recipe(seed=seed)) for seed in range(3)]
    words = Word().learn("to be or not")
    create_together(runs, "cpu", {"tokenizer.json": words}, corpus="ours")
    assert asked == ["cpu"]
    for run in runs:
        files = ("environment.json", "recipe.yaml", "run.json", "seal.json", "tokenizer.json")
        assert {file.name for file in run.folder.iterdir()} == {*files, "checkpoints"}
        assert (run.tokenizer.size, run.facts["corpus"], damages(run.folder)) == (words.size, "ours", [])
        assert open_run(str(run.folder)).recipe == run.recipe
    # One fsync per file, two for folders, and one for the name: no more than necessary.
    assert len(settled) == len(runs) * (len(files) + 3)


def test_writing_a_fact_keeps_the_others(run):
    run.note(status="finished", step=7)
    assert (str(run.status), run.facts["step"]) == ("finished", 7)
    assert "created" in run.facts


def test_an_existing_run_is_not_changed_and_the_message_says_how_to_resume(run):
    before = snapshot(run.folder)
    with pytest.raises(UserError, match=r"mine exists: continue it with --resume, or .* --name mine-2"):
        Run.create(run.folder, Recipe(), "cpu")
    assert snapshot(run.folder) == before


def test_a_folder_that_is_no_run_is_not_changed(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(UserError, match=r"photos exists but is not a run \(it has no run.json\)"):
        Run.create(tmp_path / "photos", Recipe(), "cpu")
    assert snapshot(tmp_path) == {"photos/cat.jpg": b"cat"}


def test_a_run_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.run.folder.seal_new", full)
    with pytest.raises(UserError, match=r"cannot make the run folder .*mine: No space left on device"):
        Run.create(tmp_path / "mine", Recipe(), "cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_run_cannot_be_made_inside_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the run folder"):
        Run.create(tmp_path / "file" / "mine", Recipe(), "cpu")


def test_a_name_without_a_run_gets_the_nearest(run):
    with pytest.raises(UserError, match=r"there is no run 'mime'; did you mean 'mine'\?"):
        open_run("mime", run.folder.parent)
    with pytest.raises(UserError, match="there is no run 'mine'; there are no runs in nowhere yet"):
        open_run("mine", Path("nowhere"))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is not a run folder: it has no run\.json"):
        open_run(str(tmp_path), tmp_path)


@pytest.mark.parametrize("format", [FORMAT + 1, None, "new"])
def test_a_run_of_a_newer_version_is_refused_and_not_changed(run, format):
    rewrite(run.folder / "run.json", format=format, headway="9.9")
    before = snapshot(run.folder)
    with pytest.raises(UserError, match=rf"written by Headway 9\.9 in format {format}; .* use a newer Headway"):
        open_run("mine", run.folder.parent)
    assert snapshot(run.folder) == before


def test_a_run_without_its_recipe_is_refused(run):
    (run.folder / "recipe.yaml").unlink()
    with pytest.raises(UserError, match=r"recipe\.yaml cannot be read: it is missing"):
        open_run("mine", run.folder.parent)


def test_a_run_with_truncated_facts_is_refused(run):
    (run.folder / "run.json").write_text('{"format": 1, ')
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        open_run("mine", run.folder.parent)


def test_runs_are_listed_oldest_first_and_broken_ones_are_named(run, capsys):
    runs = run.folder.parent
    for name, created in [("newer", "2999"), ("older", "1999"), ("broken", "2000")]:
        Run.create(runs / name, Recipe(), "cpu").note(created=created)
    rewrite(runs / "broken" / "run.json", format=99)
    assert [r.name for r in all_runs(runs)] == ["older", "mine", "newer"]
    assert "skipping broken: " in capsys.readouterr().err
    assert all_runs(runs / "nowhere") == []


def test_the_environment_has_what_reproducing_needs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/headway", "train", "x.yaml"])
    found = environment("cpu")
    assert found["command"] == ["headway", "train", "x.yaml"]
    assert found["versions"]["headway"] == headway.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["device"] == "cpu" and found["processors"] >= 1 and found["platform"]
    json.dumps(found)


def test_the_git_state_has_the_commit_and_whether_files_were_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment("cpu")["git"] is None
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    clean = environment("cpu")["git"]
    assert len(clean["commit"]) == 40 and clean["changed"] is False
    (tmp_path / "new").write_text("")
    assert environment("cpu")["git"] == {**clean, "changed": True}


# --- contents -----------------------------------------------------------------------------------------------------


def test_metrics_are_appended_and_read_back(run):
    assert run.metrics() == []
    run.append_metrics([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}])
    run.append_metrics([{"step": 2, "scores": {"valid.loss": 2.0}}])
    assert [line["step"] for line in run.metrics()] == [1, 2, 2]


def test_the_half_line_of_a_killed_process_is_skipped(run):
    run.append_metrics([{"step": 1, "loss": 2.5}])
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.metrics() == [{"step": 1, "loss": 2.5}]
    run.forget_after(5)
    run.append_metrics([{"step": 2, "loss": 2.25}])
    assert [line["step"] for line in run.metrics()] == [1, 2]


def test_unusual_lines_are_read_as_by_json_loads(run):
    text = [
        '{"step": 1, "loss": NaN}',
        '\t{"step": 2} ',
        '{"step": 3}{"step": 4}',
        '{"step": 5},{"step": 6}',
        '{"step": 7, "é": ["\\u00e9", 1e400]}',
        '\ufeff{"step": 8}',
        '{"step": "9"}',
        "[10]",
        "",
    ]
    lines = [*(one.encode() for one in text), '{"step": 11}'.encode("utf-16-le"), b'{"step": 12, "\xff": 0}']
    (run.folder / "metrics.jsonl").write_bytes(b"\n".join([*lines, b"[" * 100_000]))
    expected = []
    for line in lines:
        with suppress(ValueError):
            expected += [read] if isinstance(read := json.loads(line), dict) and read["step"] != "9" else []
    assert [line["step"] for line in expected] == [1, 2, 7, 8, 11]
    assert repr(run.metrics()) == repr(expected)


def test_evaluations_are_the_lines_with_scores(run):
    assert run.evaluations() == []
    run.append_metrics([{"step": 1, "loss": 2.5}, {"step": 1, "scores": {"valid.loss": 2.0}}])
    run.append_metrics([{"step": 2, "ended": "stopped", "reason": 'no "scores"'}])
    assert run.evaluations() == [{"step": 1, "scores": {"valid.loss": 2.0}}]
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "scores": {"val')
    assert len(run.evaluations()) == 1


def test_metrics_after_a_restored_checkpoint_are_removed(run):
    run.append_metrics([{"step": k} for k in range(1, 6)])
    run.forget_after(3)
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    run.forget_after(0)
    assert run.metrics() == []


def test_checkpoints_after_the_restored_one_are_removed(run):
    for step in (5, 10):
        run.save_checkpoint(checkpoint(step))
    run.forget_after(5)
    assert [c.step for c in run.good_checkpoints()] == [5]


def test_the_last_checkpoints_are_kept(run):
    for step in (5, 10, 15, 20):
        run.save_checkpoint(checkpoint(step))
    assert [c.step for c in run.good_checkpoints()] == [20, 15]
    assert KEPT_CHECKPOINTS == 2


def test_a_checkpoint_is_chosen_by_name_or_step(run):
    run.save_checkpoint(checkpoint(10))
    run.save_checkpoint(checkpoint(20))
    run.save_best(checkpoint(5))
    chosen = {which: run.checkpoint(which).step for which in ("auto", "last", "best", "10", "20")}
    assert chosen == {"auto": 20, "last": 20, "best": 5, "10": 10, "20": 20}
    with pytest.raises(UserError, match="mine has no checkpoint '7'; there are: best, last, 20, 10"):
        run.checkpoint("7")
    with pytest.raises(UserError, match="mine has no checkpoint 'lats'"):
        run.checkpoint("lats")


def test_the_best_checkpoint_is_used_if_the_recipe_keeps_it(tmp_path):
    run = Run.create(tmp_path / "keeper", Recipe().with_changes(["training.keep_best=true"]), "cpu")
    run.save_checkpoint(checkpoint(20))
    assert run.checkpoint().step == 20
    run.save_best(checkpoint(5))
    assert run.checkpoint().step == 5


def test_kept_best_checkpoints_are_the_newest_and_those_of_kept_checkpoints(run):
    for step in (2, 4, 5, 6, 8, 10, 11, 12):
        if step % 5:
            run.save_best(checkpoint(step))
        else:
            run.save_checkpoint(checkpoint(step))
    assert sorted(f.name for f in run.home.iterdir()) == [f"best-{step:08d}" for step in (4, 8, 12)] + [
        f"step-{step:08d}" for step in (5, 10)
    ]
    assert run.checkpoint("best").step == 12 and run.checkpoint("best").optimizer == {}
    run.append_metrics([{"step": step} for step in (4, 5, 6)])
    assert run.forget_after(5) == 2
    assert sorted(f.name for f in run.home.iterdir()) == ["best-00000004", "step-00000005"]
    assert run.checkpoint("best").step == 4


def test_a_checkpoint_of_another_recipe_is_refused(run, tmp_path, capsys):
    other = Run.create(tmp_path / "runs" / "other", Recipe(seed=4), "cpu")
    twin = Run.create(tmp_path / "runs" / "twin", Recipe(seed=3), "cpu")
    for made in (other, twin):
        made.save_checkpoint(checkpoint(10))
    shutil.copytree(other.home, run.home, dirs_exist_ok=True)
    with pytest.raises(UserError, match="no intact checkpoint"):
        run.checkpoint()
    assert "step-00000010 belongs to another recipe" in capsys.readouterr().err
    shutil.copytree(twin.home, run.home, dirs_exist_ok=True)
    assert run.checkpoint().step == 10


def test_without_checkpoints_the_message_names_what_is_missing(run):
    with pytest.raises(UserError, match="mine has no checkpoint yet"):
        run.checkpoint()
    with pytest.raises(UserError, match=r"has no best checkpoint; train with training\.keep_best=true"):
        run.checkpoint("best")


def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(run, capsys):
    run.save_checkpoint(checkpoint(10))
    run.save_checkpoint(checkpoint(20))
    broken = run.folder / "checkpoints" / "step-00000020" / "weights.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1] + b"\x01")
    assert run.checkpoint("last").step == 10
    assert f"skipping a broken checkpoint: {broken} is damaged" in capsys.readouterr().err
    (run.folder / "checkpoints" / "step-00000010" / "checkpoint.json").unlink()
    with pytest.raises(UserError, match="mine has no intact checkpoint"):
        run.checkpoint("last")


def test_scores_are_read_back_with_their_labels(run):
    assert run.scores() == []
    scores = [Score("valid.loss", 1.5, "nats per token (char) · valid"), Score("test.loss", 2.0, "…")]
    run.save_scores(scores)
    assert run.scores() == scores


def test_a_score_that_is_not_finite_is_stored_as_standard_json(run):
    run.save_scores([Score("valid.loss", math.nan, "a"), Score("valid.perplexity", math.inf, "b")])

    def refuse(word):
        raise AssertionError(word)

    stored = json.loads((run.folder / "scores.json").read_text(), parse_constant=refuse)
    assert [s["value"] for s in stored.values()] == [None, None]
    assert [math.isnan(s.value) for s in run.scores()] == [True, True]


def test_the_tokenizer_is_read_back(run):
    run.tokenizer = Word().learn("a b c\n")
    assert run.tokenizer.to_json() == Word().learn("a b c\n").to_json()


# --- locking ----------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from contextlib import suppress
from pathlib import Path
from headway.run.folder import open_run
with open_run(sys.argv[1], Path()).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_locked_out_until_the_first_has_ended(forge, run):
    other = forge.start(str(run.folder), code=HOLD)
    try:
        other.wait_until(lambda: other.said("out") == "locked\n")
        with pytest.raises(UserError, match=f"mine is being written by process {other.pid}"), run.locked():
            pass
    finally:
        other.kill()
    with run.locked():
        pass


def test_a_lock_ends_with_its_block(run):
    with pytest.raises(ZeroDivisionError), run.locked():
        raise ZeroDivisionError
    with run.locked():
        pass
