"""Searches: in batches, pruned, killed and resumed, chosen on dev; test is scored once."""

import csv
import json
import signal

import optuna
import pytest
from tiny import RECIPE, TEXT, cache_in, tiny_recipe
from typer.testing import CliRunner

from headway.cli import app
from headway.core.errors import UserError
from headway.core.events import Scored
from headway.core.files import locked
from headway.tuning import tune as tuning
from headway.tuning.search import Search
from headway.tuning.space import Among, Between, check_space, grid, over, read_space
from headway.tuning.tune import populations, tune

RATES = "training.optimizer.learning_rate=1e-3..1e-1:log"


@pytest.fixture(autouse=True)
def cached(workshop):
    with cache_in(workshop.cache):
        yield


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Charts are only drawn in tests of random search, grids and pruning; elsewhere they would take as long as
    training."""
    drawn = ("trains_in_batches", "a_grid_search", "hopeless_trials")
    if not any(words in request.node.name for words in drawn):
        monkeypatch.setattr(tuning, "draw", lambda *given: None)


@pytest.fixture(scope="session")
def splits(tmp_path_factory):
    """A text with a test split."""
    folder = tmp_path_factory.mktemp("splits")
    for name, part in (("train", TEXT), ("valid", TEXT[:900]), ("test", TEXT[900:1800])):
        (folder / f"{name}.txt").write_text(part, "utf-8")
    return folder


@pytest.fixture
def base(splits):
    return tiny_recipe(splits)


def search(base, *overs, **options):
    return Search(base, over(overs or [RATES]), "valid.perplexity", **options)


def table(folder):
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_ranges_and_choices_are_read(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("rate: {key: a.rate, low: 1e-4, high: 1e-1, log: true}\nn: {key: b, choices: [1, null, word]}\n")
    space = read_space(file)
    assert space["rate"] == Between(key="a.rate", low=1e-4, high=1e-1, log=True)
    assert space["n"].labels == ["1", "null", "word"] and space["n"].value("null") is None
    assert over(["a.rate=1e-4..1e-1:log"])["rate"] == space["rate"]
    assert over(["a.layers=1..4"])["layers"].is_whole
    assert over(["a.kind=x,y", "b.kind=1,2"]) == {
        "kind": Among(key="a.kind", choices=["x", "y"]),
        "b.kind": Among(key="b.kind", choices=[1, 2]),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "write KEY=LOW..HIGH"),
        ("a=3..1", "from 3 to 1 is empty"),
        ("a=0..1:log", "cannot start at 0"),
        ("a=x", "expected at least 2 of them"),
        ("a=x..y", "low: expected a number, not 'x'"),
    ],
)
def test_invalid_ranges_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        over([text])


def test_keys_must_be_in_the_recipe(base):
    with pytest.raises(UserError, match=r"no key 'learning_rate'.*did you mean 'training.optimizer.learning_rate'"):
        check_space(over(["learning_rate=1e-3..1e-2"]), base)
    with pytest.raises(UserError, match="layers: expected"):
        check_space(over(["model.layers=0..3"]), base)
    with pytest.raises(UserError, match="given twice"):
        check_space({"a": Between(key="seed", low=1, high=2), "b": Between(key="seed", low=3, high=4)}, base)
    with pytest.raises(UserError, match="nothing to search"):
        check_space({}, base)


def test_a_grid_is_every_combination():
    space = over(["a=1..3", "b=x,y", "c=1e-4..1e-2:log"])
    assert len(grid(space)) == 3 * 2 * 5
    assert space["c"].grid == pytest.approx([1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2])
    assert over(["w=16..256:log"])["w"].grid == [16, 32, 64, 128, 256]


def test_trials_are_chosen_on_dev_only(base):
    with pytest.raises(UserError, match="must not choose by test"):
        Search(base, over([RATES]), "test.perplexity").check()
    with pytest.raises(UserError, match="look at test during training"):
        search(base.with_changes(["training.evaluate_on=[valid, test]"])).check()
    with pytest.raises(UserError, match="needs evaluations on valid"):
        search(base.with_changes(["training.evaluate_on=[]"])).check()
    search(base.with_changes(["training.evaluate_on=[]"]), pruning="none").check()


def test_trials_that_differ_in_rates_only_are_one_population(base):
    changes = ["model.dropout=0.1", "model.layers=2", "training.optimizer.learning_rate=0.5", "model.width=32"]
    assert populations([base, *(base.with_changes([change]) for change in changes)]) == [[0, 1, 3], [2], [4]]


def test_a_search_trains_in_batches_and_scores_test_once(base, tmp_path, monkeypatch):
    batches, looks = [], []
    train, score = tuning.train_in_turns, tuning.score_splits_again
    monkeypatch.setattr(tuning, "train_in_turns", lambda r, *a, **k: batches.append(len(r)) or train(r, *a, **k))
    monkeypatch.setattr(tuning, "score_splits_again", lambda run, *a: looks.append(run.name) or score(run, *a))
    found = tune(search(base, RATES, "model.dropout=0.0..0.5"), tmp_path / "s", trials=6, together=3)
    assert batches == [3, 3] and sum(found.trials.values()) == 6
    assert looks == [found.best.name] and found.test_scored == 1 and "test.perplexity" in found.test
    assert {score.name.partition(".")[0] for score in found.best.scores()} == {"valid"}
    rows = table(tmp_path / "s")
    assert found.value == min(float(row["valid.perplexity"]) for row in rows if row["valid.perplexity"])
    assert sum(found.importance.values()) == pytest.approx(1)
    assert (tmp_path / "s" / "importance.png").stat().st_size > 5000
    stored = json.loads((tmp_path / "s" / "result.json").read_text())
    assert stored["test_scored"] == 1 and stored["suggested"] == found.suggested

    again = tune(search(base, RATES, "model.dropout=0.0..0.5"), tmp_path / "s", trials=6, together=3)
    assert batches == [3, 3] and looks == [found.best.name], "finished trials are not trained again"
    assert again.as_json() == found.as_json()


def test_the_best_recipe_can_be_trained_directly(base, tmp_path):
    from headway.recipe.recipe import load

    found = tune(search(base), tmp_path / "s", trials=2)
    best = load(str(tmp_path / "s" / "best.yaml"))
    assert best.training.optimizer.learning_rate == found.suggested["learning_rate"]
    assert best.scoring.splits is None, "the search scored dev only; its best need not"


def test_a_grid_search_tries_all_combinations_once(base, tmp_path):
    asked = search(base, "model.layers=1..2", "model.positions=none,alibi", grid=True, pruning="none")
    found = tune(asked, tmp_path / "s", trials=99)
    tried = [(row["layers"], row["positions"]) for row in table(tmp_path / "s")]
    assert sorted(tried) == [("1", "alibi"), ("1", "none"), ("2", "alibi"), ("2", "none")]
    assert found.trials == {"complete": 4}


def test_hopeless_trials_are_pruned(base, tmp_path):
    rates = [0.03, 0.02, 0.01, 0.005, 1e-7]
    space = {"rate": Among(key="training.optimizer.learning_rate", choices=rates)}
    found = tune(Search(base, space, "valid.perplexity", "median", grid=True), tmp_path / "s", trials=5)
    hopeless = table(tmp_path / "s")[-1]
    assert hopeless["ended"].startswith("pruned at step 8") and hopeless["valid.perplexity"] == ""
    assert found.trials == {"complete": 4, "pruned": 1}


def test_halving_prunes_inside_a_population_without_affecting_the_others(base, tmp_path):
    longer = base.with_changes(["training.evaluate_every=1steps"])
    space = {"rate": Among(key="training.optimizer.learning_rate", choices=[0.03, 0.02, 0.01, 0.003, 1e-7, 1e-8])}
    tune(Search(longer, space, "valid.perplexity", "halving", grid=True), tmp_path / "s", trials=6, together=6)
    rows = table(tmp_path / "s")
    assert any(row["ended"].startswith("pruned") for row in rows)
    kept = next(row for row in rows if row["ended"] == "finished")
    alone = longer.with_changes([f"training.optimizer.learning_rate={kept['rate']}", "scoring.splits=[valid]"])
    from headway.experiment.train import train

    (run,) = train([alone], ["alone"], tmp_path / "runs")
    value = next(score.value for score in run.scores() if score.name == "valid.perplexity")
    assert float(kept["valid.perplexity"]) == pytest.approx(value, rel=1e-5)


def test_a_diverged_trial_is_never_the_best_and_does_not_end_the_search(base, tmp_path):
    sgd = base.with_changes(["training.optimizer=sgd", "training.clip=null"])
    space = {"rate": Among(key="training.optimizer.learning_rate", choices=[0.1, 1e30])}
    found = tune(Search(sgd, space, "valid.perplexity", "none", grid=True), tmp_path / "s", trials=2, together=2)
    assert found.suggested == {"rate": "0.1"} and found.trials == {"complete": 1, "pruned": 1}
    assert "diverged" in table(tmp_path / "s")[1]["ended"]


@pytest.mark.audited
def test_a_model_that_sees_the_future_cannot_win(base, tmp_path):
    space = {"fusion": Among(key="model.mixer.fusion", choices=["concat", "reweight"])}
    found = tune(Search(base, space, "valid.perplexity", "none", grid=True), tmp_path / "s", trials=2)
    assert found.suggested == {"fusion": "concat"} and found.trials == {"complete": 1, "pruned": 1}
    assert table(tmp_path / "s")[1]["ended"].startswith("sees the future")


def test_a_search_that_is_extended_counts_its_looks_at_test(base, tmp_path):
    first = tune(search(base, pruning="none"), tmp_path / "s", trials=1)
    found = tune(search(base, pruning="none"), tmp_path / "s", trials=5)
    assert found.best.name != first.best.name and found.value < first.value
    assert found.test_scored == 2 and any("scored 2 times" in note for note in found.notes)


def test_ctrl_c_saves_and_the_same_search_can_be_resumed(base, tmp_path):
    def pressed(event):
        if isinstance(event, Scored):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(tuning.Interrupted):
        tune(search(base), tmp_path / "s", trials=2, listeners=[pressed])
    assert tune(search(base), tmp_path / "s", trials=2).trials == {"complete": 2}
    tune(search(base), tmp_path / "whole", trials=2)
    assert table(tmp_path / "s") == table(tmp_path / "whole")


def test_trials_trained_but_not_recorded_are_not_trained_again(base, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_report", lambda *told: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(search(base), tmp_path / "s", trials=2, together=2)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train_in_turns", lambda *trained: 1 / 0)
        assert tune(search(base), tmp_path / "s", trials=2, together=2).trials == {"complete": 2}


def test_an_interrupted_look_at_test_counts(base, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "score_splits_again", lambda *asked: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(search(base), tmp_path / "s", trials=1)
    assert tune(search(base), tmp_path / "s", trials=1).test_scored == 2


def test_one_process_at_a_time(base, tmp_path):
    (tmp_path / "s").mkdir()
    with locked(tmp_path / "s"), pytest.raises(UserError, match="is being written by process"):
        tune(search(base), tmp_path / "s", trials=1)


@pytest.mark.parametrize("damaged", ["search.json", "trials.db"])
def test_a_damaged_search_is_a_clear_message(base, tmp_path, damaged):
    tune(search(base), tmp_path / "s", trials=1)
    (tmp_path / "s" / damaged).write_bytes(b"{ no such thing" * 500)
    with pytest.raises(UserError, match=f"{damaged} cannot be"):
        tune(search(base), tmp_path / "s", trials=2)


def test_a_run_of_other_values_is_not_taken_for_the_trial(base, tmp_path):
    """Its storage was removed, so new trials are drawn, while the runs still exist."""
    tune(search(base, pruning="none"), tmp_path / "s", trials=1)
    (tmp_path / "s" / "trials.db").unlink()
    (tmp_path / "s" / "search.json").unlink()
    with pytest.raises(UserError, match="made with a different recipe"):
        tune(search(base, "training.optimizer.learning_rate=1e-3..1e-2", pruning="none"), tmp_path / "s", trials=1)


@pytest.mark.parametrize(
    ("over_what", "on", "message"),
    [
        ("seed=0..3", "valid.perplexity", "a search over seeds finds the luckiest"),
        ("data.tokenizer=char,word", "valid.perplexity", "valid.bits_per_byte compares tokenizers"),
        ("data.valid_fraction=0.1..0.2", "valid.bits_per_byte", "changes the text or tokens"),
        ("scoring.stride=4..8", "valid.perplexity", "changes how a model is scored"),
        ("training.evaluate_tokens=64..128", "valid.perplexity", "changes how a model is scored"),
        ("model.width=16,32", "valid.accuracy", "'valid.accuracy' is not a score of a language-model; there are"),
    ],
)
def test_scores_that_cannot_compare_trials_are_refused(base, over_what, on, message):
    with pytest.raises(UserError, match=message):
        Search(base, over([over_what]), on).check()


def test_tokenizers_are_compared_by_scores_independent_of_tokens(base):
    Search(base, over(["data.tokenizer=char,word"]), "valid.bits_per_byte").check()


def test_impossible_combinations_are_skipped(base, tmp_path):
    """18 is not a multiple of 4 heads: neither value alone is wrong, and 6 heads only work with a width of 18."""
    asked = search(base, "model.width=16,18", "model.mixer.heads=4,6", grid=True, pruning="none")
    found = tune(asked, tmp_path / "s", trials=4, together=2)
    assert found.trials == {"complete": 2, "pruned": 2}
    ended = {(row["width"], row["heads"]): row["ended"] for row in table(tmp_path / "s")}
    assert ended["16", "4"] == ended["18", "6"] == "finished"
    assert ended["18", "4"].startswith("impossible: ") and "heads" in ended["16", "6"]


def test_another_search_needs_another_name(base, tmp_path):
    tune(search(base), tmp_path / "s", trials=1)
    with pytest.raises(UserError, match=r"a different search: space.dropout.high was None and is 0.5"):
        tune(search(base, "model.dropout=0.0..0.5"), tmp_path / "s", trials=1)


def written(folder):
    """When each trial was last trained."""
    return {
        file.parent.name: file.stat().st_mtime_ns
        for file in (folder / "runs").glob("*/metrics.jsonl")
        if (file.parent / "scores.json").exists()
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from headway.recipe.recipe import load
from headway.tuning import tune
from headway.tuning.search import Search
from headway.tuning.space import over
from headway.run.folder import Run

recipe, folder, when = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
count, saved = 0, Run.save_checkpoint
def save(self, made):
    global count
    saved(self, made)
    count += 1
    if count == when:
        os.kill(os.getpid(), signal.SIGKILL)
Run.save_checkpoint = save
search = Search(load(recipe), over(["training.optimizer.learning_rate=1e-3..1e-1:log"]), "valid.perplexity")
tune.tune(search, folder, trials=4, together=2)
"""


@pytest.mark.parametrize("when", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_a_killed_and_resumed_search_equals_an_uninterrupted_one(forge, splits, tmp_path, when):
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE.format(path=splits), "utf-8")
    died = forge.at(tmp_path).run(str(recipe), str(tmp_path / "s"), str(when), code=KILLED)
    assert died.code == -signal.SIGKILL, died.err
    from headway.recipe.recipe import load

    asked = search(load(str(recipe)))
    done = written(tmp_path / "s")
    tune(asked, tmp_path / "s", trials=4, together=2)
    tune(asked, tmp_path / "whole", trials=4, together=2)
    assert table(tmp_path / "s") == table(tmp_path / "whole")
    assert written(tmp_path / "s").items() >= done.items(), "finished trials are not trained again"
    assert len(done) == (2 if when == 9 else 0)


def test_from_the_command_line(workshop, tmp_path):
    words = ["tune", str(workshop.recipe), "--over", "model.dropout=0,0.1", "--grid", "--searches", str(tmp_path)]
    answer = CliRunner().invoke(app, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["trials"] == {"complete": 2} and found["test_scored"] == 0
    assert "no test split" in found["notes"][1]
    shown = CliRunner().invoke(app, words)
    assert "importance" in shown.stdout and "best of 2 trials, so it is optimistic" in shown.stdout


def test_mistakes_on_the_command_line(workshop):
    for words, message in (
        (["--prune", "medien"], "expected none, median or halving; did you mean 'median'"),
        (["--space", "nowhere.yaml"], "there is no file nowhere.yaml"),
        ([], "nothing to search"),
    ):
        answer = CliRunner().invoke(app, ["tune", str(workshop.recipe), *words])
        assert isinstance(answer.exception, UserError) and message in str(answer.exception)


def test_the_storage_can_be_read_by_optuna(base, tmp_path):
    tune(search(base), tmp_path / "s", trials=1)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 's' / 'trials.db'}")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
