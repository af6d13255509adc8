"""Curves for people who watch them elsewhere: TensorBoard, trackio, MLflow. Asked for with --track, beside the recipe.

    runs/tracked/tensorboard/NAME/    event files, one folder per run
    runs/tracked/trackio/             trackio's database (TRACKIO_DIR, if that is set)
    runs/tracked/mlflow.db            MLflow's database (MLFLOW_TRACKING_URI, if that is set)

The run folder stays the truth, and whatever a tracker lacks is taken from there: a run that is resumed, or tracked from
its second half on, has its whole curve. A tracker that fails is reported once and left alone; training goes on.
"""

import contextvars
import hashlib
import importlib.util
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headway.core.errors import UserError, did_you_mean
from headway.core.progress import Reporter
from headway.core.status import State, Status
from headway.core.yaml import flat
from headway.recipe.text import annotated
from headway.run.folder import Run
from headway.scoring.score import Score

POINTS_PER_CURVE = 1000
"""Of the losses of single steps a tracker gets about so many; every evaluation; the run folder has them all."""


class Point(NamedTuple):
    step: int
    values: dict[str, float]


class Observer(Protocol):
    """Somebody whom `experiment.train` tells what happens; from start to end once for every turn of a population."""

    def start(self, members: Sequence[Run], resumed: bool, total: int, reporter: Reporter) -> None: ...
    def metrics(self, replica: int, lines: Sequence[dict[str, Any]]) -> str | None:
        """May give a reason why this replica needs no further step (asked after evaluations)."""
        ...

    def end(self) -> None: ...


class Tracker(Protocol):
    """One run in one tracker."""

    def start(self, run: Run, resumed: bool) -> int:
        """Begin, or go on where the same run ended; gives the last step that is already there, or -1."""
        ...

    def metrics(self, points: Sequence[Point]) -> None: ...
    def scores(self, step: int, scores: Sequence[Score]) -> None: ...
    def end(self, status: Status) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path):
        self.folder = folder / "tensorboard"

    def start(self, run: Run, resumed: bool) -> int:
        from torch.utils.tensorboard import SummaryWriter

        # Readers forget the points from purge_step on that older files hold, so what follows is the whole curve.
        self.writer = SummaryWriter(str(self.folder / run.name), purge_step=0, flush_secs=10)
        self.writer.add_text("recipe", _as_block(annotated(run.recipe)), 0)
        return -1

    def metrics(self, points: Sequence[Point]) -> None:
        for step, values in points:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def scores(self, step: int, scores: Sequence[Score]) -> None:
        self.metrics([Point(step, {_final(s): s.value for s in scores})])
        self.writer.add_text("final", _as_block("\n".join(f"{s.value:10.4f}  {s.label}" for s in scores)), step)

    def end(self, status: Status) -> None:
        self.writer.close()


class Trackio:
    PROJECT = "headway"

    def __init__(self, folder: Path):
        self.folder = folder / "trackio"

    def start(self, run: Run, resumed: bool) -> int:
        os.environ.setdefault("TRACKIO_DIR", str(self.folder.resolve()))  # trackio looks once, when it is imported
        import trackio  # pyright: ignore[reportMissingImports]
        from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

        # trackio has one current run and ends it when the next begins; in a context of its own, each is the first.
        self.run = contextvars.copy_context().run(
            trackio.init,
            project=self.PROJECT,
            name=run.name,
            config=flat(run.recipe.model_dump(mode="json")) | {"recipe_hash": run.recipe.hash},
            resume="allow" if resumed else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        known = SQLiteStorage.get_max_step_for_run(self.PROJECT, self.run.name, run_id=self.run.id) if resumed else None
        return -1 if known is None else known

    def metrics(self, points: Sequence[Point]) -> None:
        for step, values in points:
            self.run.log(values, step=step)

    def scores(self, step: int, scores: Sequence[Score]) -> None:
        self.run.log({_final(s): s.value for s in scores}, step=step)

    def end(self, status: Status) -> None:
        self.run.finish()


class MLflow:
    EXPERIMENT = "headway"
    AT_ONCE = 1000  # metrics that MLflow takes in one call

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, run: Run, resumed: bool) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for a message to the outside
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        self.folder.mkdir(parents=True, exist_ok=True)
        beside = f"sqlite:///{(self.folder / 'mlflow.db').resolve()}"
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or beside)
        found = self.client.get_experiment_by_name(self.EXPERIMENT)
        experiment = found.experiment_id if found else self.client.create_experiment(self.EXPERIMENT)
        identity = _identity(run)
        same = self.client.search_runs([experiment], f"tags.`headway.run` = '{identity}'", max_results=1)
        if same:
            self.id = same[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            histories = (self.client.get_metric_history(self.id, name) for name in same[0].data.metrics)
            return max((metric.step for history in histories for metric in history), default=-1)
        tags = {
            "headway.run": identity,
            "headway.recipe": run.recipe.hash,
            "headway.folder": str(run.folder),
        }
        self.id = self.client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        recipe = flat(run.recipe.model_dump(mode="json"))
        self.client.log_batch(self.id, params=[Param(key, str(value)[:500]) for key, value in recipe.items()])
        return -1

    def metrics(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        made = [Metric(name, value, now, step) for step, values in points for name, value in values.items()]
        for k in range(0, len(made), self.AT_ONCE):
            self.client.log_batch(self.id, metrics=made[k : k + self.AT_ONCE])

    def scores(self, step: int, scores: Sequence[Score]) -> None:
        self.metrics([Point(step, {_final(s): s.value for s in scores})])
        for score in scores:
            self.client.set_tag(self.id, f"label.{score.name}", score.label)

    def end(self, status: Status) -> None:
        self.client.set_tag(self.id, "headway.status", str(status))
        outcomes = {State.FINISHED: "FINISHED", State.STOPPED: "FINISHED", State.INTERRUPTED: "KILLED"}
        self.client.set_terminated(self.id, outcomes.get(status.state, "FAILED"))


class Kind(NamedTuple):
    build: Callable[[Path], Tracker]
    packages: tuple[str, ...]
    look: str
    """The command that shows what was tracked in {folder}."""


KINDS = {
    "tensorboard": Kind(TensorBoard, ("tensorboard",), "tensorboard --logdir {folder}/tensorboard"),
    "trackio": Kind(Trackio, ("trackio",), "TRACKIO_DIR={folder}/trackio trackio show"),
    "mlflow": Kind(
        MLflow, ("mlflow", "sqlalchemy", "alembic"), "mlflow ui --backend-store-uri sqlite:///{folder}/mlflow.db"
    ),
}


class Tracking:
    """Tells every tracker asked for, each run apart, and none of them can stop the training."""

    def __init__(self, names: Sequence[str], runs: Path):
        self.names, self.folder = list(dict.fromkeys(names)), runs / "tracked"
        for name in self.names:
            if name not in KINDS:
                raise UserError(f"there is no tracker '{name}'{did_you_mean(name, KINDS)}")
            missing = [package for package in KINDS[name].packages if importlib.util.find_spec(package) is None]
            if missing:
                raise UserError(
                    f"--track {name} needs {' and '.join(missing)}, not installed: pip install 'headway[{name}]'"
                )
        self.live: dict[str, list[Tracker]] = {}
        self.known: dict[str, list[int]] = {}
        """The last step that each tracker has of each run."""

    def start(self, members: Sequence[Run], resumed: bool, total: int, reporter: Reporter) -> None:
        self.members, self.reporter, self.every = members, reporter, -(-total // POINTS_PER_CURVE)
        for name in list(self.names):
            self.live[name] = [KINDS[name].build(self.folder) for _ in members]
            self._safely(name, lambda name=name: self._begin(name, resumed))
            if name in self.live:
                reporter.say(f"tracked: {KINDS[name].look.format(folder=self.folder)}")

    def _begin(self, name: str, resumed: bool) -> None:
        pairs = list(zip(self.live[name], self.members, strict=True))
        self.known[name] = [tracker.start(run, resumed) for tracker, run in pairs]
        for r, (tracker, run) in enumerate(pairs):
            tracker.metrics(self._points(run.metrics(), after=self.known[name][r]))

    def metrics(self, replica: int, lines: Sequence[dict[str, Any]]) -> None:
        for name, trackers in list(self.live.items()):
            points = self._points(lines, after=self.known[name][replica])
            if points:
                self._safely(name, lambda tracker=trackers[replica], points=points: tracker.metrics(points))

    def end(self) -> None:
        for name, trackers in list(self.live.items()):
            self._safely(name, lambda trackers=trackers: self._conclude(trackers))
        self.live.clear()

    def _conclude(self, trackers: Sequence[Tracker]) -> None:
        for tracker, run in zip(trackers, self.members, strict=True):
            status, scores = run.status, [score for score in run.scores() if _finite(score.value)]
            if scores and status.step is not None:
                tracker.scores(status.step, scores)
            tracker.end(status)

    def _points(self, lines: Sequence[dict[str, Any]], after: int) -> list[Point]:
        """Lines of metrics.jsonl under the names trackers group by: train/loss, valid/loss."""
        points = []
        for line in lines:
            step = line["step"]
            if step <= after:
                continue
            if "scores" in line:
                points.append(Point(step, {name.replace(".", "/", 1): v for name, v in line["scores"].items()}))
            elif "loss" in line and (step == 1 or step % self.every == 0):
                points.append(Point(step, {f"train/{name}": v for name, v in line.items() if name != "step"}))
        return points

    def _safely(self, name: str, action: Callable[[], None]) -> None:
        try:
            with redirect_stdout(io.StringIO()):  # trackio and MLflow talk, and stdout is for scores and JSON
                action()
        except Exception as problem:  # whatever it is: somebody else's code, and not worth a training run
            del self.live[name]
            self.names.remove(name)
            said = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            self.reporter.warn(f"{name} failed and is no longer told anything, training goes on: {said}")


def _final(score: Score) -> str:
    return f"final/{score.name}"


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def _identity(run: Run) -> str:
    """Which run this is, wherever its folder is moved and whoever else uses its name."""
    made_of = f"{run.name}\n{run.facts.get('created')}\n{run.recipe.hash}"
    return hashlib.sha256(made_of.encode()).hexdigest()[:24]


def _as_block(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())  # Markdown for "as it is"
