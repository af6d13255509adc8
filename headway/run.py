"""A run is a folder. It is the only thing that later stages read.

    runs/NAME/
      run.json           format, versions, when, how it ended
      recipe.yaml        the whole recipe
      environment.json   versions, device, git state, command
      tokenizer.json     what text became ids with
      metrics.jsonl      a line per step, a line per evaluation; appended and flushed
      checkpoints/       step-00001000/ …, the last two; best/, if the recipe keeps it
      scores.json        every score with its label

Files are written whole and renamed into place. A lock that dies with its process keeps a second one out.
"""

import fcntl
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headway import __version__
from headway.data.text import Tokenizer
from headway.errors import UserError, did_you_mean
from headway.files import write_json, write_whole
from headway.recipe import Recipe, from_tree
from headway.recipe_text import annotated
from headway.scoring.score import Score
from headway.training import checkpoint as checkpoints
from headway.training.checkpoint import BrokenCheckpointError, Checkpoint
from headway.yaml_tree import read_tree

FORMAT = 1
KEPT_CHECKPOINTS = 2


class Run:
    """A run folder, opened. `create` makes one, `open_run` finds one."""

    def __init__(self, folder: Path, recipe: Recipe):
        self.folder, self.recipe = folder, recipe

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def create(cls, folder: Path, recipe: Recipe, device: str) -> "Run":
        check_new(folder)
        run = cls(folder, recipe)
        try:
            (folder / "checkpoints").mkdir(parents=True)
            try:
                write_whole(folder / "recipe.yaml", annotated(recipe))
                write_json(folder / "environment.json", environment(device))
                run.note(status="started", created=datetime.now(UTC).isoformat(timespec="seconds"))
            except BaseException:  # half a run folder would only be in the way
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None
        return run

    # --- facts ---------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        return _read_json(self.folder / "run.json")

    def note(self, **facts: Any) -> None:
        """Add to run.json."""
        path = self.folder / "run.json"
        known = _read_json(path) if path.exists() else {}
        base = {"format": FORMAT, "headway": __version__, "name": self.name, "recipe_hash": self.recipe.hash}
        write_json(path, {**known, **base, **facts})

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_json((self.folder / "tokenizer.json").read_text("utf-8"))

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        write_whole(self.folder / "tokenizer.json", tokenizer.to_json())

    # --- metrics -------------------------------------------------------------------------------------------------

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:  # the last line of a killed process
                continue
        return found

    def forget_after(self, step: int) -> None:
        """Before resuming from a checkpoint: what came after it will be written again."""
        home = self.folder / "checkpoints"
        for later in (s for s in checkpoints.saved_steps(home) if s > step):
            shutil.rmtree(checkpoints.step_folder(home, later))
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(self, made: Checkpoint) -> None:
        home = self.folder / "checkpoints"
        checkpoints.save(checkpoints.step_folder(home, made.step), made)
        for step in checkpoints.saved_steps(home)[KEPT_CHECKPOINTS:]:
            shutil.rmtree(checkpoints.step_folder(home, step))

    def save_best(self, made: Checkpoint) -> None:
        checkpoints.save(self.folder / "checkpoints" / "best", made)

    def good_checkpoints(self) -> Iterator[Checkpoint]:
        """Newest first; broken ones are named on stderr and passed over."""
        home = self.folder / "checkpoints"
        for step in checkpoints.saved_steps(home):
            try:
                yield checkpoints.load(checkpoints.step_folder(home, step))
            except BrokenCheckpointError as error:
                print(f"passing over a broken checkpoint: {error}", file=sys.stderr)

    def checkpoint(self, which: str = "auto") -> Checkpoint:
        """`best`, `last`, a step number, or auto: the best where the recipe keeps it, else the last."""
        home = self.folder / "checkpoints"
        if which == "auto":
            which = "best" if self.recipe.training.keep_best and (home / "best").exists() else "last"
        if which == "best" and not (home / "best").exists():
            raise UserError(f"{self.name} keeps no best checkpoint; train with training.keep_best=true")
        if which == "best":
            return checkpoints.load(home / "best")
        if which != "last":
            steps = checkpoints.saved_steps(home)
            if not which.isdigit() or int(which) not in steps:
                raise UserError(
                    f"{self.name} has no checkpoint '{which}'; there are: last, {', '.join(map(str, steps))}"
                )
            return checkpoints.load(checkpoints.step_folder(home, int(which)))
        found = next(self.good_checkpoints(), None)
        if found is None:
            which_one = "that is whole" if checkpoints.saved_steps(home) else "yet"
            raise UserError(f"{self.name} has no checkpoint {which_one}")
        return found

    # --- scores --------------------------------------------------------------------------------------------------

    def save_scores(self, scores: list[Score]) -> None:
        write_json(self.folder / "scores.json", {s.name: s.as_json() for s in scores})  # not a number: null

    def scores(self) -> list[Score]:
        path = self.folder / "scores.json"
        stored = _read_json(path) if path.exists() else {}
        return [Score(name, math.nan if s["value"] is None else s["value"], s["label"]) for name, s in stored.items()]

    # --- one at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. The system drops the lock when the process dies, however it dies."""
        with (self.folder / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise UserError(f"{self.folder} is being written by process {file.read().strip() or '?'}") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def check_new(folder: Path) -> None:
    """A new run needs a folder of its own."""
    other = f"give this run another name with --name {folder.name}-2"
    if (folder / "run.json").exists():
        raise UserError(f"{folder} exists: continue it with --resume, or {other}")
    if folder.exists():
        raise UserError(f"{folder} exists, but is no run (it has no run.json): remove it, or {other}")


def open_run(name: str, runs: Path) -> Run:
    """A run by name in `runs`, or by the path of its folder."""
    folder = runs / name if (runs / name).is_dir() else Path(name)
    if not folder.is_dir():
        names = [run.parent.name for run in runs.glob("*/run.json")]
        hint = did_you_mean(name, names) if names else f"; there are no runs in {runs} yet"
        raise UserError(f"there is no run '{name}'{hint}")
    if not (folder / "run.json").exists():
        raise UserError(f"{folder} is not a run folder: it has no run.json")
    facts = _read_json(folder / "run.json")
    if not isinstance(facts.get("format"), int) or facts["format"] > FORMAT:
        raise UserError(
            f"{folder} was written by Headway {facts.get('headway', '?')} in format {facts.get('format')}; this is "
            f"{__version__}, which reads formats up to {FORMAT}: use a newer Headway"
        )
    try:
        tree, _ = read_tree((folder / "recipe.yaml").read_text("utf-8"), f"{folder}/recipe.yaml")
    except FileNotFoundError:
        raise UserError(f"{folder} is not a whole run: recipe.yaml is missing") from None
    return Run(folder, from_tree(tree, f"{folder}/recipe.yaml"))


def all_runs(runs: Path) -> list[Run]:
    """Every readable run in a folder, oldest first."""
    found = []
    for path in runs.glob("*/run.json"):
        try:
            found.append(open_run(path.parent.name, runs))
        except UserError as error:
            print(f"passing over {path.parent.name}: {error}", file=sys.stderr)
    return sorted(found, key=lambda run: (run.facts.get("created", ""), run.name))


def environment(device: str) -> dict[str, Any]:
    """What a reader needs to know to get the same figures."""
    packages = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "device": device,
        "versions": {"headway": __version__, **{package: version(package) for package in packages}},
        "git": _git_state(),
    }


def _git_state() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        answer = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
