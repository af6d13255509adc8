"""Sends metrics to experiment trackers: TensorBoard, trackio, MLflow. Chosen with --track, not in the recipe.

    runs/tracked/tensorboard/NAME/    event files, one folder per run
    runs/tracked/trackio/             trackio's database (TRACKIO_DIR, if that is set)
    runs/tracked/mlflow.db            MLflow's database (MLFLOW_TRACKING_URI, if that is set)

The run folder remains the reference, and whatever a tracker lacks is read from it: a run that is resumed, or tracked
only from its middle on, has its whole curve. A tracker that fails is reported once and dropped; training continues.
"""

import contextvars
import hashlib
import importlib.util
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headway.core.errors import UserError, did_you_mean
from headway.core.events import Began, Ended, Event, Listener, Logged, Noted, Warned, tell
from headway.core.status import State, Status
from headway.core.yaml import flat
from headway.recipe.text import annotated
from headway.run.folder import Run, open_run
from headway.scoring.score import Score

POINTS_PER_CURVE = 1000
"""About how many losses of single steps a tracker gets. It gets every evaluation; the run folder has everything."""


class Point(NamedTuple):
    step: int
    values: dict[str, float]


class Tracker(Protocol):
    """One run in one tracker."""

    def start(self, run: Run, resumed: bool) -> int:
        """Start tracking, or continue the same run. Returns the last step that the tracker already has, or -1."""
        ...

    def metrics(self, points: Sequence[Point]) -> None: ...
    def scores(self, step: int, scores: Sequence[Score]) -> None: ...
    def end(self, status: Status) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path):
        self.folder = folder / "tensorboard"

    def start(self, run: Run, resumed: bool) -> int:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step=0 makes readers drop all points of older files, since the whole curve is written again.
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
        os.environ.setdefault("TRACKIO_DIR", str(self.folder.resolve()))  # trackio reads it once, on import
        import trackio  # pyright: ignore[reportMissingImports]
        from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

        # trackio ends its current run when another starts; in its own context, each is the first.
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
    AT_ONCE = 1000  # MLflow's limit of metrics per call

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, run: Run, resumed: bool) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # send nothing without being asked
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
    """A listener that passes events to every chosen tracker. No tracker can stop the training."""

    def __init__(self, names: Sequence[str], runs: Path, listeners: Sequence[Listener] = ()):
        self.names, self.folder, self.listeners = list(dict.fromkeys(names)), runs / "tracked", listeners
        for name in self.names:
            if name not in KINDS:
                raise UserError(f"unknown tracker '{name}'{did_you_mean(name, KINDS)}")
            missing = [package for package in KINDS[name].packages if importlib.util.find_spec(package) is None]
            if missing:
                raise UserError(f"--track {name} needs {' and '.join(missing)}: pip install 'headway[{name}]'")
        self.live: dict[str, dict[str, Tracker]] = {}
        """Trackers, by their name and the run's."""
        self.known: dict[str, dict[str, int]] = {}
        """The last step that each tracker has of each run."""
        self.runs: dict[str, Run] = {}
        self.every = 1

    def __call__(self, event: Event) -> None:
        match event:
            case Began():
                self._start(event)
            case Logged():
                self._metrics(event.of[0], event.lines)
            case Ended():
                self._end(event.of[0], event.status)
            case _:
                pass

    def _start(self, began: Began) -> None:
        self.runs = {name: open_run(name, Path(began.folder)) for name in began.of}
        self.every = -(-began.total // POINTS_PER_CURVE)
        for name in list(self.names):
            self.live[name] = {run: KINDS[name].build(self.folder) for run in began.of}
            self._safely(name, lambda name=name: self._begin(name, began.resumed))
            if name in self.live:
                tell(self.listeners, Noted(of=began.of, text=f"tracked: {KINDS[name].look.format(folder=self.folder)}"))

    def _begin(self, name: str, resumed: bool) -> None:
        trackers = self.live[name]
        self.known[name] = {run: tracker.start(self.runs[run], resumed) for run, tracker in trackers.items()}
        for run, tracker in trackers.items():
            tracker.metrics(self._points(self.runs[run].metrics(), after=self.known[name][run]))

    def _metrics(self, run: str, lines: Sequence[Mapping[str, Any]]) -> None:
        for name, trackers in list(self.live.items()):
            points = self._points(lines, after=self.known[name][run])
            if points:
                self._safely(name, lambda tracker=trackers[run], points=points: tracker.metrics(points))

    def _end(self, run: str, status: Status) -> None:
        for name, trackers in list(self.live.items()):
            if run in trackers:
                done = trackers.pop(run)
                self._safely(name, lambda done=done: self._conclude(done, self.runs[run], status))

    def _conclude(self, tracker: Tracker, run: Run, status: Status) -> None:
        scores, reached = [score for score in run.scores() if _finite(score.value)], run.status.step
        if scores and reached is not None:
            tracker.scores(reached, scores)
        tracker.end(status)

    def _points(self, lines: Sequence[Mapping[str, Any]], after: int) -> list[Point]:
        """Lines of metrics.jsonl under names by which trackers group: train/loss, valid/loss."""
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
            with redirect_stdout(io.StringIO()):  # trackio and MLflow print, but stdout is for scores and JSON
                action()
        except Exception as problem:  # an error in a tracker must not end the training
            self.live.pop(name, None)
            self.names.remove(name)
            said = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            text = f"{name} failed and is no longer used; training continues: {said}"
            tell(self.listeners, Warned(of=tuple(self.runs), text=text))


def _final(score: Score) -> str:
    return f"final/{score.name}"


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def _identity(run: Run) -> str:
    """An identifier of this run that does not depend on its folder, and differs for other runs of the same name."""
    made_of = f"{run.name}\n{run.facts.get('created')}\n{run.recipe.hash}"
    return hashlib.sha256(made_of.encode()).hexdigest()[:24]


def _as_block(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())  # a code block in Markdown
