"""The metrics and checkpoints in a run's folder.

A checkpoint records the hash of its run's recipe, and a checksum of the metrics lines up to its step.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import naming, remove_folder_whole, settle, write_whole
from headway.core.reading import DAMAGED, check_own, opened, opened_to_append, read_bytes
from headway.core.seal import MOST_LINES, SealedLength, read_sealed_lines, unseal_lines
from headway.core.yaml import read_tree
from headway.recipe import plugins
from headway.recipe.recipe import Recipe, from_tree
from headway.run.record import RunRecord
from headway.training import checkpoint as checkpoints
from headway.training.checkpoint import BrokenCheckpointError, Checkpoint

KEPT_CHECKPOINTS = 2
METRICS = "metrics.jsonl"
_RAW_DECODE = json.JSONDecoder().raw_decode


class CheckpointedRun(RunRecord):
    """A run with its metrics and checkpoints; `folder.Run` adds the rest."""

    def __init__(self, folder: Path, recipe: Recipe | None = None):
        super().__init__(folder)
        if recipe is not None:
            self.recipe = recipe

    @cached_property
    def recipe(self) -> Recipe:
        """Read on first use: status and scores do not need it."""
        return recipe_of(self.folder)

    @cached_property
    def mark(self) -> str:
        """The recipe hash that all checkpoints of this run record."""
        return str(self.facts.get("recipe_hash", self.recipe.hash))

    # --- metrics -------------------------------------------------------------------------------------------------

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        path = self.folder / METRICS
        with naming(path), opened_to_append(path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            file.flush()

    def metrics(self) -> list[dict[str, Any]]:
        return _read_metrics(read_sealed_lines(self.folder / METRICS))

    def evaluations(self) -> list[dict[str, Any]]:
        """The metrics lines with scores. The others, one for each step, are skipped without parsing them."""
        lines = read_sealed_lines(self.folder / METRICS)
        return [line for line in _read_metrics(one for one in lines if b'"scores"' in one) if "scores" in line]

    def metrics_until(self, step: int) -> list[dict[str, Any]]:
        """The metrics up to a step, without checking them; `has_metrics_of` checks them against a checkpoint."""
        return [line for line in _read_metrics(self._metrics_so_far().splitlines()) if line["step"] <= step]

    def has_metrics_of(self, saved: Checkpoint) -> bool:
        """Whether the metrics lines up to a checkpoint are still there, unchanged."""
        if isinstance(told := saved.facts.get("metrics"), dict):
            return SealedLength.from_json(told).fits(self._metrics_so_far())
        return len(self.metrics_until(saved.step)) >= saved.facts["standing"].get("lines", 0)

    def _metrics_so_far(self) -> bytes:
        try:
            return read_bytes(self.folder / METRICS, MOST_LINES)
        except FileNotFoundError:
            return b""

    # --- checkpoints ---------------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def has_checkpoints(self) -> bool:
        return bool(checkpoints.saved_steps(self.home))

    @property
    def has_best(self) -> bool:
        return bool(checkpoints.saved_steps(self.home, "best"))

    def save_checkpoint(self, made: Checkpoint) -> None:
        if (metrics := self.folder / METRICS).exists():
            with naming(metrics):
                settle(metrics)  # metrics must reach the disk before the checkpoint
        led_to_it = self._lines.first(made.facts["standing"].get("lines", 0), metrics)
        self._save(replace(made, facts={**made.facts, "metrics": led_to_it.as_json()}), "step")

    @cached_property
    def _lines(self) -> "_FirstLines":
        return _FirstLines()

    def save_best(self, made: Checkpoint) -> None:
        """Save a checkpoint for scoring, without the optimizer and without carried state."""
        self._save(replace(made, optimizer={}, state={}), "best")

    def _save(self, made: Checkpoint, kind: str) -> None:
        check_own(self.folder, self.home)
        marked = replace(made, facts={**made.facts, "recipe": self.mark})
        checkpoints.save(checkpoints.step_folder(self.home, made.step, kind), marked)
        self._prune()

    def _prune(self) -> None:
        """Remove all but the last checkpoints and the best ones that are still needed."""
        steps, bests = checkpoints.saved_steps(self.home), checkpoints.saved_steps(self.home, "best")
        kept = steps[:KEPT_CHECKPOINTS]
        # Resuming from a kept checkpoint needs the best one up to that step.
        needed = {*bests[:1], *(next((best for best in bests if best <= step), -1) for step in kept)}
        self._remove("step", set(steps) - set(kept))
        self._remove("best", set(bests) - needed)

    def _remove(self, kind: str, steps: set[int]) -> None:
        check_own(self.folder, self.home)
        for step in sorted(steps, reverse=True):
            remove_folder_whole(checkpoints.step_folder(self.home, step, kind))

    def _load(self, step: int, kind: str = "step") -> Checkpoint:
        folder = checkpoints.step_folder(self.home, step, kind)
        saved = checkpoints.load(folder)
        if saved.facts.get("recipe", self.mark) != self.mark:
            raise BrokenCheckpointError(f"{folder} belongs to another recipe, not to this run")
        return saved

    def forget_after(self, step: int) -> int:
        """Before resuming, remove checkpoints and metrics after this step, since they will be made again. Returns the
        number of remaining metrics lines."""
        for kind in ("step", "best"):
            self._remove(kind, {later for later in checkpoints.saved_steps(self.home, kind) if later > step})
        self._prune()
        kept = self.metrics_until(step)
        unseal_lines(self.folder, METRICS)
        write_whole(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))
        return len(kept)

    def good_checkpoints(self) -> Iterator[Checkpoint]:
        """Checkpoints that can be read, newest first; broken ones are reported on stderr and skipped."""
        for step in checkpoints.saved_steps(self.home):
            try:
                yield self._load(step)
            except BrokenCheckpointError as error:
                print(f"skipping a broken checkpoint: {error}", file=sys.stderr)

    def resumable_checkpoints(self) -> Iterator[Checkpoint]:
        """Good checkpoints whose best checkpoint, if needed, is good as well, so that resuming gives the same result as
        an uninterrupted run."""
        for saved in self.good_checkpoints():
            state = saved.facts["standing"]
            try:
                if self.recipe.training.keep_best and state.get("best", state.get("best_loss")) is not None:
                    self._load(state["best_step"], "best")
                yield saved
            except BrokenCheckpointError as error:
                print(
                    f"skipping step {saved.step}, because the best checkpoint before it is broken: {error}",
                    file=sys.stderr,
                )

    def checkpoint(self, which: str = "auto") -> Checkpoint:
        """Load a checkpoint: `best`, `last`, a step number, or auto = the best if the recipe keeps it, else the
        last."""
        bests = checkpoints.saved_steps(self.home, "best")
        if which == "auto":
            which = "best" if self.recipe.training.keep_best and bests else "last"
        if which == "best" and not bests:
            raise UserError(f"{self.name} has no best checkpoint; train with training.keep_best=true")
        if which == "best":
            return self._load(bests[0], "best")
        steps = checkpoints.saved_steps(self.home)
        if which != "last":
            if not which.isdecimal() or len(which) > 20 or int(which) not in steps:
                there_are = ", ".join(["best"] * bool(bests) + ["last", *map(str, steps)])
                raise UserError(f"{self.name} has no checkpoint '{which}'; there are: {there_are}")
            return self._load(int(which))
        found = next(self.good_checkpoints(), None)
        if found is None:
            raise UserError(f"{self.name} has no {'intact checkpoint' if steps else 'checkpoint yet'}")
        return found

    def weights(self, which: str = "auto") -> dict[str, Any]:
        """The step of a checkpoint, the total steps, and how it was chosen, for reporting with scores."""
        bests, steps = (checkpoints.saved_steps(self.home, kind) for kind in ("best", "step"))
        training = self.recipe.training
        if which == "auto":
            which = "best" if training.keep_best and bests else "last"
        if which == "best":
            found, by = bests[:1], f"the best by {training.evaluate_on[0]}.{training.best_by}"
        elif which == "last":
            found, by = steps[:1], "the last" if training.averaging is None else "the last, averaged"
        else:
            found, by = [int(which)], "as asked for"
        return {"step": found[0] if found else None, "of": self.facts.get("steps"), "chosen": by}


def recipe_of(folder: Path, trust: bool = False) -> Recipe:
    tree, _ = read_tree(RunRecord(folder).recipe_text(), f"{folder}/recipe.yaml")
    if not tree:
        raise UserError(f"{folder}/recipe.yaml cannot be read: it is empty; {DAMAGED}")
    plugins.load_named(tree, folder, str(folder), is_asked=trust)
    return from_tree(tree, f"{folder}/recipe.yaml")


def _read_metrics(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            read = _read_line(line)
        except (ValueError, RecursionError):  # the last line of a killed process
            continue
        if isinstance(read, dict) and isinstance(read.get("step"), int):
            found.append(read)
    return found


def _read_line(line: bytes) -> Any:
    """`json.loads`, in half the time for lines as Headway writes them: there is one per step."""
    try:
        text = line.decode()
        read, end = _RAW_DECODE(text)
        if end == len(text):
            return read
    except ValueError:
        pass
    return json.loads(line)


class _FirstLines:
    """The checksum of the first lines of a growing file, updated incrementally."""

    def __init__(self) -> None:
        self.lines, self.bytes, self.sum = 0, 0, hashlib.sha256()

    def first(self, lines: int, path: Path) -> SealedLength:
        if lines < self.lines:  # the file was truncated
            self.__init__()
        if lines > self.lines:
            with opened(path) as file:
                file.seek(self.bytes)
                for line in itertools.islice(file, lines - self.lines):
                    self.sum.update(line)
                    self.bytes += len(line)
            self.lines = lines
        return SealedLength(self.bytes, self.sum.hexdigest())
