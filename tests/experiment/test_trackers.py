"""Tracking: each real tracker offline, read back with its own tools; and that no tracker can stop a run."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from listening import Interrupting, Told
from tiny import cache_in, tiny_recipe

from headway.core.errors import UserError
from headway.experiment import trackers
from headway.experiment.population import train_in_turns
from headway.experiment.trackers import KINDS, Tracking
from headway.experiment.train import train
from headway.run.folder import Run

Curves = dict[str, list[tuple[int, float]]]


# --- reading each tracker back ---------------------------------------------------------------------------------------


def from_tensorboard(runs: Path, name: str) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs / "tracked" / "tensorboard" / name), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def from_trackio(runs: Path, name: str) -> Curves:
    from trackio.sqlite_storage import SQLiteStorage

    curves: Curves = {}
    for row in SQLiteStorage.get_logs("headway", name):
        for key in row.keys() - {"step", "timestamp"}:
            curves.setdefault(key, []).append((row["step"], row[key]))
    return curves


def mlflow_run(runs: Path, name: str) -> tuple[Any, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs / 'tracked' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("headway")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return client, run


def from_mlflow(runs: Path, name: str) -> Curves:
    client, run = mlflow_run(runs, name)
    keys = run.data.metrics
    return {key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in keys}


READ: dict[str, Callable[[Path, str], Curves]] = {
    "tensorboard": from_tensorboard,
    "trackio": from_trackio,
    "mlflow": from_mlflow,
}
# MLflow itself warns when it opens its database with the newest SQLAlchemy, and does not close its connections.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all tests of this file: trackio keeps using its first one, and MLflow takes seconds to create its
    database."""
    home = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch, cache_in(home / "cache"):
        patch.setenv("TRACKIO_DIR", str(home / "runs" / "tracked" / "trackio"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield home / "runs"


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    for package in KINDS[request.param].packages:
        pytest.importorskip(package, reason=f"the extra '{request.param}' is not installed")
    return request.param


def expected(run: Run) -> Curves:
    """The metrics of the run folder, under the names of a tracker."""
    curves: Curves = {}
    for line in run.metrics():
        values = {f"train/{key}": line[key] for key in ("loss", "norm", "rate") if key in line}
        values |= {key.replace(".", "/"): value for key, value in line.get("scores", {}).items()}
        for key, value in values.items():
            curves.setdefault(key, []).append((line["step"], value))
    return curves


def without_final(curves: Curves) -> Curves:
    return {key: points for key, points in curves.items() if not key.startswith("final/")}


def same(found: Curves, wanted: Curves) -> bool:
    assert {key: [step for step, _ in points] for key, points in found.items()} == {
        key: [step for step, _ in points] for key, points in wanted.items()
    }
    return all(
        value == pytest.approx(other, rel=1e-6)  # TensorBoard stores 32 bits
        for key in wanted
        for (_, value), (_, other) in zip(found[key], wanted[key], strict=True)
    )


# --- each real tracker -----------------------------------------------------------------------------------------------


def test_every_run_of_a_population_is_tracked_under_its_own_name(kind: str, runs: Path, workshop):
    recipes = [tiny_recipe(workshop.text, f"seed={seed}") for seed in (0, 1)]
    names, told = [f"{kind}-{seed}" for seed in (0, 1)], Told()
    made = train(recipes, names, runs, listeners=[told, Tracking([kind], runs, [told])])
    assert told.warned == []
    assert any(line.startswith("tracked: ") and kind in line for line in told.said)
    for run in made:
        found = READ[kind](runs, run.name)
        assert same(without_final(found), expected(run))
        assert len(found["train/loss"]) == 12 and [step for step, _ in found["valid/loss"]] == [4, 8, 12]
        finals = {f"final/{score.name}": score.value for score in run.scores()}
        assert {key: points[-1] for key, points in found.items() if key in finals} == {
            key: (12, pytest.approx(value)) for key, value in finals.items()
        }
    assert READ[kind](runs, names[0]) != READ[kind](runs, names[1])


def test_a_resumed_run_continues_the_same_curve(kind: str, runs: Path, workshop):
    recipe, name = tiny_recipe(workshop.text, "seed=2"), f"{kind}-resumed"
    (run,) = train([recipe], [name], runs, listeners=[Interrupting(8), Tracking([kind], runs)])
    assert str(run.status).startswith("interrupted")
    assert len(READ[kind](runs, name)["train/loss"]) < 12
    told = Told()
    (run,) = train([recipe], [name], runs, resume=True, listeners=[Tracking([kind], runs, [told])])
    assert told.warned == [] and str(run.status) == "finished"
    assert same(without_final(READ[kind](runs, name)), expected(run))


def test_tracking_switched_on_half_way_gets_the_whole_curve(kind: str, runs: Path, workshop):
    recipe, name = tiny_recipe(workshop.text, "seed=3"), f"{kind}-late"
    train([recipe], [name], runs, listeners=[Interrupting(4)])
    (run,) = train([recipe], [name], runs, resume=True, listeners=[Tracking([kind], runs)])
    assert same(without_final(READ[kind](runs, name)), expected(run))


def test_mlflow_gets_recipe_labels_and_outcome(runs: Path, workshop):
    for package in KINDS["mlflow"].packages:
        pytest.importorskip(package, reason="the extra 'mlflow' is not installed")
    recipe = tiny_recipe(workshop.text, "seed=4")
    listeners = [Interrupting(4), Tracking(["mlflow"], runs)]
    (run,) = train([recipe], ["facts"], runs, listeners=listeners)
    _, found = mlflow_run(runs, "facts")
    assert found.info.status == "KILLED" and found.data.tags["headway.status"].startswith("interrupted at step")
    (run,) = train([recipe], ["facts"], runs, resume=True, listeners=[Tracking(["mlflow"], runs)])
    _, found = mlflow_run(runs, "facts")
    assert found.info.status == "FINISHED"
    assert found.data.params["model.width"] == "16" and found.data.params["seed"] == "4"
    assert found.data.tags["headway.recipe"] == recipe.hash
    label = next(score.label for score in run.scores() if score.name == "valid.perplexity")
    assert found.data.tags["label.valid.perplexity"] == label


def test_tracking_does_not_change_a_run(kind: str, runs: Path, workshop):
    (run,) = train([tiny_recipe(workshop.text)], [f"{kind}-same"], runs, listeners=[Tracking([kind], runs)])
    assert run.metrics() == workshop.run.metrics()
    assert run.recipe.hash == workshop.run.recipe.hash
    assert (run.folder / "scores.json").read_bytes() == (workshop.run.folder / "scores.json").read_bytes()


# --- trackers that fail ----------------------------------------------------------------------------------------------


class Recording:
    """A tracker that records its calls and fails where it is told to."""

    fails_in: str = ""
    points: list[int]

    def __init__(self, folder: Path):
        self.points, self.calls = [], []
        made.append(self)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        print("a line nobody asked for")
        if name == self.fails_in:
            raise RuntimeError(f"no {name} today\nand a long story")

    def start(self, run: Run, resumed: bool) -> int:
        self._call("start")
        return -1

    def metrics(self, points) -> None:
        self._call("metrics")
        self.points += [point.step for point in points if "train/loss" in point.values]

    def scores(self, step: int, scores) -> None:
        self._call("scores")

    def end(self, status: str) -> None:
        self._call("end")


made: list[Recording] = []


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    made.clear()
    monkeypatch.setitem(KINDS, "recording", trackers.Kind(Recording, (), "look at {folder}"))
    return Recording


@pytest.mark.parametrize("where", ["start", "metrics", "scores", "end"])
def test_a_tracker_that_fails_is_reported_once_and_not_called_again(
    recording, where: str, tmp_path, workshop, monkeypatch
):
    monkeypatch.setattr(recording, "fails_in", where)
    told = Told()
    recipes = [tiny_recipe(workshop.text, f"seed={seed}") for seed in (0, 1)]
    finished = train(recipes, ["a", "b"], tmp_path, listeners=[Tracking(["recording"], tmp_path, [told])])
    assert [str(run.status) for run in finished] == ["finished", "finished"]
    sentence = f"recording failed and is no longer used; training continues: no {where} today"
    assert told.warned == [sentence]
    assert sum(tracker.calls.count(where) for tracker in made) == 1


def test_a_tracker_is_ended_when_training_fails(recording, tmp_path, workshop, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save_checkpoint", broken)
    with pytest.raises(OSError, match="No space"):
        train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[Tracking(["recording"], tmp_path)])
    assert made[0].calls[-1] == "end"


@pytest.mark.parametrize("fails_in", ["", "metrics"])
def test_replicas_that_train_in_turns_are_all_tracked(recording, fails_in, tmp_path, workshop, monkeypatch):
    monkeypatch.setattr(recording, "fails_in", fails_in)
    recipes, told = [tiny_recipe(workshop.text, f"seed={seed}") for seed in (0, 1)], Told()
    tracking = Tracking(["recording"], tmp_path, [told])
    train_in_turns(recipes, ["a", "b"], tmp_path, listeners=[tracking], together=1)
    assert len(told.warned) == (1 if fails_in else 0)  # once, and not once per turn
    assert [tracker.calls[-1] for tracker in made] == (["metrics"] if fails_in else ["end", "end"])


def test_long_runs_are_thinned(recording, tmp_path, workshop, monkeypatch):
    monkeypatch.setattr(trackers, "POINTS_PER_CURVE", 4)
    train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[Tracking(["recording"], tmp_path)])
    assert made[0].points == [1, 3, 6, 9, 12]


def test_points_a_tracker_has_are_not_sent_again(recording, tmp_path, workshop, monkeypatch):
    monkeypatch.setattr(recording, "start", lambda self, run, resumed: 5)
    train([tiny_recipe(workshop.text)], ["a"], tmp_path, listeners=[Tracking(["recording"], tmp_path)])
    assert made[0].points == list(range(6, 13))


# --- the command line ------------------------------------------------------------------------------------------------


def test_stdout_stays_json_whatever_a_tracker_prints(recording, tmp_path, workshop, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    assert command_line("train", str(workshop.recipe), "--track", "recording", "--json").json["status"] == "finished"
    assert made[0].calls[-1] == "end"


def test_unknown_trackers_and_missing_packages_are_reported_before_training(
    workshop, tmp_path, monkeypatch, command_line
):
    monkeypatch.chdir(tmp_path)
    code, _, said = command_line("train", str(workshop.recipe), "--track", "tensorbord")
    assert code == 2 and "unknown tracker 'tensorbord'; did you mean 'tensorboard'?" in said
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    for kind in KINDS:
        with pytest.raises(UserError, match=rf"--track {kind} needs {kind}.*pip install 'headway\[{kind}\]'"):
            Tracking([kind], tmp_path)
    assert not (tmp_path / "runs").exists()
