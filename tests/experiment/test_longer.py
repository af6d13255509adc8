"""`headway continue`: finished runs trained for longer."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
from tiny import tiny_recipe

from headway import tasks
from headway.audit.training.trained import schedule
from headway.core.errors import UserError
from headway.experiment.train import train
from headway.run.folder import open_run
from headway.training.schedule import Duration

CONSTANT = ("training.schedule={kind: constant, warmup: 2 steps}", "training.checkpoint_every=4 steps")


@pytest.fixture
def home(workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))

    def made(name: str, *changes: str):
        (run,) = train([tiny_recipe(workshop.text, *changes)], [name])
        return run

    return made


def same_weights(one, other) -> bool:
    ours, theirs = one.checkpoint("last"), other.checkpoint("last")
    both = [(ours.weights, theirs.weights), (ours.optimizer, theirs.optimizer)]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in both)


@pytest.mark.parametrize("by", ["6 steps", "384 tokens"])
def test_with_a_constant_rate_it_equals_a_run_of_the_whole_length(home, command_line, by):
    home("short", *CONSTANT, "training.duration=6 steps")
    whole = home("whole", *CONSTANT, "training.duration=12 steps")
    answer = command_line("continue", "short", "--for", by, "--json")
    assert answer.json["run"] == "runs/short-12-steps"
    first, *_ = answer.err.splitlines()
    assert {"short-12-steps", "runs/short", "6"} <= {*first.split()}
    assert "stays at" in answer.err
    longer = open_run("short-12-steps")
    assert longer.recipe == whole.recipe
    assert same_weights(longer, whole)
    assert not same_weights(longer, open_run("short"))
    losses = [[line["loss"] for line in run.metrics() if "loss" in line] for run in (longer, whole)]
    assert losses[0] == losses[1] and len(losses[0]) == 12
    assert {s.name: s.value for s in longer.scores()} == {s.name: s.value for s in whole.scores()}
    assert longer.facts["continued_from"]["step"] == 6


def test_epochs_are_added_to_epochs(home, command_line):
    home("short", *CONSTANT, "training.duration=1 epoch", "training.batch=32")
    command_line("continue", "short", "--for", "2 epochs")
    assert open_run("short-3-epochs").recipe.training.duration == Duration(3, "epochs")


def test_by_default_the_rate_follows_the_longer_schedule_which_is_reported(home, command_line):
    short = home("short", "training.duration=6 steps")
    whole = home("whole", "training.duration=12 steps")
    answer = command_line("continue", "short", "--for", "6 steps")
    assert (answer.code, "10% of" in answer.words, "differs from 12 steps" in answer.words) == (0, True, True)
    rates = [
        [line["rate"] for line in run.metrics() if "rate" in line] for run in (short, open_run("short-12-steps"), whole)
    ]
    assert rates[1] == [*rates[0], *rates[2][6:]]


def test_the_rate_can_stay_where_it_ended(home, command_line):
    home("short", "training.duration=6 steps")
    assert command_line("continue", "short", "--for", "3 steps", "--rate", "last", "--name", "held").code == 0
    rates = [line["rate"] for line in open_run("held").metrics() if "rate" in line]
    assert len(set(rates[5:])) == 1 and rates[4] != rates[5]


def test_the_audit_of_schedules_knows_that_it_was_continued(home, command_line):
    home("short", "training.duration=6 steps")
    command_line("continue", "short", "--for", "3 steps")
    run = open_run("short-9-steps")
    curve = tasks.load(run.recipe).evidence.curve(run, run.metrics())
    assert schedule.check(curve).verdict == "pass"
    assert schedule.check(replace(curve, rates=curve.rates * 1.1)).verdict == "fail"


def test_several_runs_continue_as_one_population(home, command_line, workshop):
    train([tiny_recipe(workshop.text, *CONSTANT, f"seed={seed}") for seed in (0, 1)], ["a", "b"])
    assert len(command_line("continue", "a", "b", "--for", "2 steps", "--json").json["runs"]) == 2
    assert [open_run(f"{name}-14-steps").checkpoint("last").step for name in "ab"] == [14, 14]


def test_the_earlier_best_checkpoint_is_kept(home, command_line):
    home("short", *CONSTANT, "training.keep_best=true", "training.optimizer.learning_rate=0.001")
    before = open_run("short").checkpoint("best").step
    command_line("continue", "short", "--for", "2 steps")
    assert open_run("short-14-steps").checkpoint("best").step >= before


def test_patience_starts_again(home, command_line):
    stopped = home("short", "training.patience=1", "training.optimizer.learning_rate=0", "training.keep_best=true")
    assert str(stopped.status.state) == "stopped"
    assert command_line("continue", "short", "--for", "4 steps").code == 0
    assert open_run(f"short-{stopped.status.step + 4}-steps").checkpoint("last").step > stopped.status.step


def test_after_a_killed_start_the_same_command_starts_again(home, command_line):
    home("short", *CONSTANT, "training.duration=6 steps")
    whole = home("whole", *CONSTANT, "training.duration=12 steps")
    words = ("continue", "short", "--for", "6 steps")
    command_line(*words)
    longer = open_run("short-12-steps")
    longer._remove("step", {8, 12})  # as if it had been killed before the first checkpoint
    (longer.folder / "metrics.jsonl").write_text("")
    assert command_line(*words).code == 0
    assert same_weights(open_run("short-12-steps"), whole)


def test_copied_files_are_sealed_and_looks_at_test_stay_counted(home, command_line):
    home("short", "training.duration=6 steps").note(test_scored=5, test_looks={"training": 2})
    assert command_line("continue", "short", "--for", "3 steps").code == 0
    longer = open_run("short-9-steps")
    # Looks at test before the start are not among those of its own training, which a new start would subtract and count
    # again.
    assert longer.facts["test_scored"] == 5 and "test_looks" not in longer.facts
    vocabulary = longer.folder / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text("utf-8") + " ", "utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read: its checksum differs"):
        longer.tokenizer  # noqa: B018


def test_runs_that_cannot_be_continued_are_refused(home, command_line):
    home("short", *CONSTANT)
    for name in ("other", "begun"):
        home(name, *CONSTANT, "seed=4")
    open_run("begun").note(status="interrupted")
    home("bad", "training.optimizer.learning_rate=1e30")
    for words, message in REFUSED:
        answer = command_line("continue", *shlex.split(words))
        assert answer.code == 2
        assert message in answer.words
    assert json.loads((open_run("other").folder / "run.json").read_text()).get("continued_from") is None


REFUSED = [
    ("short --for 5", "--for 5: expected a length such as '500 steps'"),
    ("short --for '-5 steps'", "expected a length"),
    ("short --for '5 steps' --rate lst", "expected longer or last; did you mean 'last'?"),
    ("shrot --for '5 steps'", "did you mean 'short'?"),
    ("short --for '5 steps' --name other", "does not continue short"),
    ("short --for '5 steps' --name a/b", "cannot be the name of a run"),
    ("short other --for '5 steps' --name x", "leave it out"),
    ("short short --for '5 steps'", "two runs would both be called"),
    ("begun --for '5 steps'", "has not ended"),
    ("bad --for '5 steps'", "diverged at step"),
]
