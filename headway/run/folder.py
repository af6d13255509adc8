"""A run is a folder. It is the only thing that later stages read.

    runs/NAME/
      run.json           format, versions, when, how it ended
      recipe.yaml        the whole recipe
      environment.json   versions, device, git state, command
      plugins/           files of the user's own that the recipe needs, if any
      tokenizer.json     what text became ids with
      metrics.jsonl      a line per step, a line per evaluation; appended and flushed
      events.jsonl       what happened, and when: it began, was saved, ended
      checkpoints/       step-00001000/ …, the last two; best-00000750/ …, theirs and the newest, if the recipe keeps it
      scores.json        every score with its label
      seal.json          checksums of these files (`core/seal.py`)

Files and folders, the run's own too, are written whole and renamed into place. A lock that dies with its process keeps
a second one out; who has it cleans up after those that were killed.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core import plugins
from headway.core.environment import environment
from headway.core.errors import UserError, did_you_mean
from headway.core.events import FILE as EVENTS
from headway.core.files import (
    as_json,
    clean_up,
    locked,
    naming,
    remove_folder_whole,
    settle,
    write_folder_whole,
    write_json,
    write_whole,
)
from headway.core.reading import DAMAGED, UnreadableError, check_own, opened, opened_to_append, read_bytes
from headway.core.seal import (
    MOST_LINES,
    REMEDIES,
    SealedLength,
    is_sealed,
    read_sealed_lines,
    read_sealed_text,
    rewriting,
    seal_lines,
    seal_new,
    unseal_lines,
)
from headway.core.status import State, Status
from headway.core.yaml import read_tree
from headway.data.tokenizers import Tokenizer
from headway.recipe.recipe import Recipe, from_tree
from headway.recipe.text import annotated
from headway.run.record import FORMAT, RunRecord, run_names
from headway.scoring.metrics import is_test
from headway.scoring.score import Score
from headway.training import checkpoint as checkpoints
from headway.training.checkpoint import BrokenCheckpointError, Checkpoint

KEPT_CHECKPOINTS = 2
METRICS = "metrics.jsonl"


class Run(RunRecord):
    """A run folder, opened. `create` makes one, `open_run` finds one."""

    def __init__(self, folder: Path, recipe: Recipe | None = None):
        super().__init__(folder)
        if recipe is not None:
            self.recipe = recipe

    @cached_property
    def recipe(self) -> Recipe:
        """Read when it is asked for: how a run ended and what it scored can be told without it."""
        return _recipe_of(self.folder)

    @classmethod
    def create(cls, folder: Path, recipe: Recipe, device: str, **facts: Any) -> "Run":
        check_new(folder)
        run = cls(folder, recipe)

        def fill(partial: Path) -> None:
            (partial / "checkpoints").mkdir()
            write_whole(
                partial / "recipe.yaml", annotated(recipe, plugins.write_into(partial, plugins.concerning(recipe)))
            )
            write_json(partial / "environment.json", environment(device))
            created = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(
                partial / "run.json", run._facts_with({**Status(State.STARTED).as_json(), "created": created, **facts})
            )
            seal_new(partial)

        try:
            clean_up(folder.parent, folder.name)
            write_folder_whole(folder, fill, new=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None
        return run

    def keep_recipe(self) -> None:
        """Again, where it was damaged."""
        named = plugins.write_into(self.folder, plugins.concerning(self.recipe))
        with rewriting(self.folder) as new:
            new["recipe.yaml"] = annotated(self.recipe, named)

    # --- facts ---------------------------------------------------------------------------------------------------

    def note(self, **facts: Any) -> None:
        """Add to run.json."""
        with rewriting(self.folder) as new:
            new["run.json"] = as_json(self._facts_with(self.facts | facts))

    def _facts_with(self, more: dict[str, Any]) -> dict[str, Any]:
        facts = {"format": FORMAT, "headway": __version__, "name": self.name, "recipe_hash": self.recipe.hash}
        # The hash stays what it was: checkpoints are told by it, and another version may give the recipe another one.
        return {**facts, **more, "format": FORMAT, "headway": __version__, "name": self.name}

    @cached_property
    def mark(self) -> str:
        """What every checkpoint of this run bears, and that of no other recipe."""
        return str(self.facts.get("recipe_hash", self.recipe.hash))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizer_in("tokenizer.json")

    def tokenizer_in(self, name: str) -> Tokenizer:
        """One of several vocabularies, by its file."""
        path = self.folder / name
        try:
            text = read_sealed_text(path)
        except FileNotFoundError:
            raise UserError(f"{path} is missing: train --resume makes it again") from None
        try:
            return Tokenizer.from_json(text)
        except (UserError, ValueError) as error:
            raise UnreadableError(path, f"{error if text else 'it is empty'}; {DAMAGED}") from None

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self.keep_tokenizers({"tokenizer.json": tokenizer})

    def keep_tokenizers(self, named: Mapping[str, Tokenizer]) -> None:
        """By their files, unless they are there."""
        texts = {name: tokenizer.to_json() for name, tokenizer in named.items()}
        with rewriting(self.folder) as new:
            new.update({name: text for name, text in texts.items() if not self._holds(name, text)})

    def _holds(self, name: str, text: str) -> bool:
        try:
            return read_sealed_text(self.folder / name) == text
        except (FileNotFoundError, UserError):
            return False

    # --- metrics -------------------------------------------------------------------------------------------------

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        path = self.folder / METRICS
        with naming(path), opened_to_append(path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            file.flush()

    def metrics(self) -> list[dict[str, Any]]:
        return _read_metrics(read_sealed_lines(self.folder / METRICS))

    def metrics_until(self, step: int) -> list[dict[str, Any]]:
        """Whether or not they are what was written: a checkpoint can tell (`has_metrics_of`)."""
        return [line for line in _read_metrics(self._metrics_so_far().splitlines()) if line["step"] <= step]

    def has_metrics_of(self, saved: Checkpoint) -> bool:
        """Whether the lines that led to a checkpoint are still there, as they were."""
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
                settle(metrics)  # a checkpoint must not outlive the lines that led to it
        led_to_it = self._lines.first(made.facts["standing"].get("lines", 0), metrics)
        self._save(replace(made, facts={**made.facts, "metrics": led_to_it.as_json()}), "step")

    @cached_property
    def _lines(self) -> "_FirstLines":
        return _FirstLines()

    def save_best(self, made: Checkpoint) -> None:
        """To be scored, not trained on: without the optimizer, and without a state that training carries."""
        self._save(replace(made, optimizer={}, state={}), "best")

    def _save(self, made: Checkpoint, kind: str) -> None:
        check_own(self.folder, self.home)
        marked = replace(made, facts={**made.facts, "recipe": self.mark})
        checkpoints.save(checkpoints.step_folder(self.home, made.step, kind), marked)
        self._prune()

    def _prune(self) -> None:
        """The last checkpoints are kept, and the bests that somebody could ask for."""
        steps, bests = checkpoints.saved_steps(self.home), checkpoints.saved_steps(self.home, "best")
        kept = steps[:KEPT_CHECKPOINTS]
        # Who resumes from a kept checkpoint needs the best there was at that step.
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
            raise BrokenCheckpointError(f"{folder} is not of this run: another recipe's was put in its place")
        return saved

    def forget_after(self, step: int) -> int:
        """Before resuming: what came after this step is forgotten, for it will be made again. Gives the number of lines
        of metrics that are left."""
        for kind in ("step", "best"):
            self._remove(kind, {later for later in checkpoints.saved_steps(self.home, kind) if later > step})
        self._prune()
        kept = self.metrics_until(step)
        unseal_lines(self.folder, METRICS)
        write_whole(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))
        return len(kept)

    def good_checkpoints(self) -> Iterator[Checkpoint]:
        """Newest first; broken ones are named on stderr and passed over."""
        for step in checkpoints.saved_steps(self.home):
            try:
                yield self._load(step)
            except BrokenCheckpointError as error:
                print(f"passing over a broken checkpoint: {error}", file=sys.stderr)

    def resumable_checkpoints(self) -> Iterator[Checkpoint]:
        """The good ones from which training would end as it was going to: the best until then is there as well."""
        for saved in self.good_checkpoints():
            state = saved.facts["standing"]
            try:
                if self.recipe.training.keep_best and state.get("best", state.get("best_loss")) is not None:
                    self._load(state["best_step"], "best")
                yield saved
            except BrokenCheckpointError as error:
                print(f"passing over step {saved.step}, for the best before it is broken: {error}", file=sys.stderr)

    def checkpoint(self, which: str = "auto") -> Checkpoint:
        """`best`, `last`, a step number, or auto: the best where the recipe keeps it, else the last."""
        bests = checkpoints.saved_steps(self.home, "best")
        if which == "auto":
            which = "best" if self.recipe.training.keep_best and bests else "last"
        if which == "best" and not bests:
            raise UserError(f"{self.name} keeps no best checkpoint; train with training.keep_best=true")
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
            raise UserError(f"{self.name} has no checkpoint {'that is whole' if steps else 'yet'}")
        return found

    def weights(self, which: str = "auto") -> dict[str, Any]:
        """Which step a checkpoint is of, of how many, and by what it was chosen: to be said beside its scores."""
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

    # --- scores --------------------------------------------------------------------------------------------------

    def save_scores(self, scores: list[Score]) -> None:
        with rewriting(self.folder) as new:
            new["scores.json"] = as_json({s.name: s.to_keep() for s in scores})  # not a number: null

    def count_looks_at_test(self, *looks: Iterable[str], once_for: str | None = None) -> None:
        """Who looks at test often enough finds what they look for: it is counted, to be said beside its scores. Each
        look is at some splits. `once_for`: what is done again after a kill, and shown once."""
        count = sum(any(is_test(split) for split in splits) for splits in looks)
        if not count:
            return
        with rewriting(self.folder) as new:
            facts = self.facts
            total, known = int(facts.get("test_scored", 0)), dict(facts.get("test_looks", {}))
            if once_for is not None:
                total -= int(known.get(once_for, 0))
                known[once_for] = count
            told = {"test_scored": total + count} | ({"test_looks": known} if known else {})
            new["run.json"] = as_json(self._facts_with(facts | told))

    def seal(self) -> None:
        """Nothing more comes: what has grown is as long as it will be."""
        seal_lines(self.folder, METRICS, EVENTS)

    # --- one at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out, and put right what those that were killed have left."""
        check_own(self.folder, self.home)
        with locked(self.folder):
            for folder, name in ((self.folder.parent, self.name), (self.folder, None), (self.home, None)):
                clean_up(folder, name)
            yield


def check_new(folder: Path) -> None:
    """A new run needs a folder of its own."""
    other = f"give this run another name with --name {folder.name}-2"
    if (folder / "run.json").exists():
        raise UserError(f"{folder} exists: continue it with --resume, or {other}")
    if folder.exists():
        raise UserError(f"{folder} exists, but is no run (it has no run.json): remove it, or {other}")


def open_run(name: str, runs: Path = Path("runs"), trust: bool = False) -> Run:
    """A run by name in `runs`, or by the path of its folder. `trust`: run the code that lies there, if it needs any."""
    folder = runs / name if (runs / name).is_dir() else Path(name)
    if not folder.is_dir():
        names = run_names(runs)
        hint = did_you_mean(name, names) if names else f"; there are no runs in {runs} yet"
        raise UserError(f"there is no run '{name}'{hint}")
    if not (folder / "run.json").exists():
        raise UserError(f"{folder} is not a run folder: it has no run.json")
    record = RunRecord(folder)
    record.check_format()
    run = Run(folder, _recipe_of(folder, trust))
    if not is_sealed(folder):
        _check_unsealed(run)
    return run


def _check_unsealed(run: Run) -> None:
    """Of folders without a seal, run.json still tells which recipe made them."""
    facts = run.facts
    print(f"{run.folder} is not sealed: a change to its files would not be noticed", file=sys.stderr)
    if facts.get("recipe_hash") in (None, run.recipe.hash):
        return
    told = f"{run.folder / 'recipe.yaml'} is not the recipe that run.json tells of ({facts['recipe_hash']})"
    if facts.get("headway") == __version__:
        raise UserError(f"{told}: {DAMAGED}; {REMEDIES['recipe.yaml']}")
    print(f"warning: {told}: it was changed, or the version that wrote it counted otherwise", file=sys.stderr)


def _read_metrics(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a killed process
            continue
        if isinstance(read, dict) and isinstance(read.get("step"), int):
            found.append(read)
    return found


class _FirstLines:
    """The checksum of the first lines of a file that grows: read once, however often it is asked for."""

    def __init__(self) -> None:
        self.lines, self.bytes, self.sum = 0, 0, hashlib.sha256()

    def first(self, lines: int, path: Path) -> SealedLength:
        if lines < self.lines:  # it was cut short, and grows again
            self.__init__()
        if lines > self.lines:
            with opened(path) as file:
                file.seek(self.bytes)
                for line in itertools.islice(file, lines - self.lines):
                    self.sum.update(line)
                    self.bytes += len(line)
            self.lines = lines
        return SealedLength(self.bytes, self.sum.hexdigest())


def _recipe_of(folder: Path, trust: bool = False) -> Recipe:
    tree, _ = read_tree(RunRecord(folder).recipe_text(), f"{folder}/recipe.yaml")
    if not tree:
        raise UserError(f"{folder}/recipe.yaml cannot be read: it is empty; {DAMAGED}")
    plugins.load_named(tree, folder, str(folder), is_asked=trust)
    return from_tree(tree, f"{folder}/recipe.yaml")
