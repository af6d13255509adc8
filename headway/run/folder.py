"""Run folders: create, open and write them. Later stages read runs only from here.

    runs/NAME/
      run.json           format, versions, times, status
      recipe.yaml        the whole recipe
      environment.json   versions, device, git state, command
      plugins/           the user's own code that the recipe needs, if any
      tokenizer.json     the vocabulary
      metrics.jsonl      a line per step and per evaluation; appended and flushed
      events.jsonl       events with their times: begun, saved, ended
      checkpoints/       step-00001000/ …, the last two; best-00000750/ …, the best up to each and the newest, if kept
      scores.json        every score with its label
      seal.json          checksums of these files (`core/seal.py`)

Files and folders, including the run folder, are written under another name and then renamed. A lock, released when its
process dies, keeps other processes out; whoever takes it cleans up after killed ones.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core.environment import environment
from headway.core.errors import UserError, did_you_mean
from headway.core.events import FILE as EVENTS
from headway.core.files import as_json, clean_up, locked, side_by_side, write_folder_whole
from headway.core.reading import DAMAGED, UnreadableError, check_own
from headway.core.seal import REMEDIES, is_sealed, read_sealed_text, rewriting, seal_lines, seal_new
from headway.core.status import State, Status
from headway.data.tokenizers import Tokenizer
from headway.recipe import plugins
from headway.recipe.recipe import Recipe
from headway.recipe.text import annotated
from headway.run.checkpoints import METRICS, CheckpointedRun, recipe_of
from headway.run.record import FORMAT, RunRecord, run_names
from headway.scoring.metrics import is_test
from headway.scoring.score import Score


class Run(CheckpointedRun):
    """An open run folder. `create` makes one, `create_together` those of a population, `open_run` finds one."""

    @classmethod
    def create(cls, folder: Path, recipe: Recipe, device: str, **facts: Any) -> "Run":
        run = cls(folder, recipe)
        create_together([run], device, {}, **facts)
        return run

    def _own_files(self, facts: Mapping[str, Any]) -> dict[str, str]:
        """The initial files that are specific to this run."""
        named = plugins.named_in_folders(plugins.concerning(self.recipe))
        born = {**Status(State.STARTED).as_json(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
        return {"recipe.yaml": annotated(self.recipe, named), "run.json": as_json(self._facts_with({**born, **facts}))}

    def _create(self, files: Mapping[str, str]) -> None:
        """Create the folder with these files. They are written directly, since the folder is invisible until
        `write_folder_whole` has synced them to disk and renamed it."""
        check_new(self.folder)

        def fill(folder: Path) -> None:
            (folder / "checkpoints").mkdir()
            plugins.write_into(folder, plugins.concerning(self.recipe))
            for name, text in files.items():
                (folder / name).write_bytes(text.encode())
            seal_new(folder)

        try:
            clean_up(self.folder.parent, self.name)
            write_folder_whole(self.folder, fill, new=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {self.folder}: {error.strerror}") from None

    def keep_recipe(self) -> None:
        """Write recipe.yaml again, after it was damaged."""
        named = plugins.write_into(self.folder, plugins.concerning(self.recipe))
        with rewriting(self.folder) as new:
            new["recipe.yaml"] = annotated(self.recipe, named)

    # --- facts ---------------------------------------------------------------------------------------------------

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        with rewriting(self.folder) as new:
            new["run.json"] = as_json(self._facts_with(self.facts | facts))

    def _facts_with(self, more: dict[str, Any]) -> dict[str, Any]:
        facts = {"format": FORMAT, "headway": __version__, "name": self.name, "recipe_hash": self.recipe.hash}
        # The hash never changes: checkpoints refer to it, and another version may compute another hash for the recipe.
        return {**facts, **more, "format": FORMAT, "headway": __version__, "name": self.name}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizer_in("tokenizer.json")

    def tokenizer_in(self, name: str) -> Tokenizer:
        """A tokenizer by its file name."""
        path = self.folder / name
        try:
            text = read_sealed_text(path)
        except FileNotFoundError:
            raise UserError(f"{path} is missing: train with --resume to recreate it") from None
        try:
            return Tokenizer.from_json(text)
        except (UserError, ValueError) as error:
            raise UnreadableError(path, f"{error if text else 'it is empty'}; {DAMAGED}") from None

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self.keep_tokenizers({"tokenizer.json": tokenizer})

    def keep_tokenizers(self, named: Mapping[str, Tokenizer]) -> None:
        """Write tokenizers by file name, except those already there."""
        texts = {name: tokenizer.to_json() for name, tokenizer in named.items()}
        with rewriting(self.folder) as new:
            new.update({name: text for name, text in texts.items() if not self._holds(name, text)})

    def _holds(self, name: str, text: str) -> bool:
        try:
            return read_sealed_text(self.folder / name) == text
        except (FileNotFoundError, UserError):
            return False

    # --- scores --------------------------------------------------------------------------------------------------

    def save_scores(self, scores: list[Score]) -> None:
        with rewriting(self.folder) as new:
            new["scores.json"] = as_json({s.name: s.to_keep() for s in scores})  # not a number: null

    def count_looks_at_test(self, *looks: Iterable[str], once_for: str | None = None) -> None:
        """Count how often test was scored, to be reported with its scores, since repeated looks at test bias the
        selection. Each of `looks` is a list of splits. `once_for` names work that is repeated after a kill but counts
        once."""
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
        """Seal the files that were appended to, once nothing more will be added."""
        seal_lines(self.folder, METRICS, EVENTS)

    # --- one at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out, and clean up after killed ones."""
        check_own(self.folder, self.home)
        with locked(self.folder):
            for folder, name in ((self.folder.parent, self.name), (self.folder, None), (self.home, None)):
                clean_up(folder, name)
            yield


def create_together(runs: Sequence[Run], device: str, vocabularies: Mapping[str, Tokenizer], /, **facts: Any) -> None:
    """Create the folders of runs that begin together, with these vocabularies by file name. The common facts are
    collected once, since asking git and every package takes as long as writing a folder."""
    same = {"environment.json": as_json(environment(device))} if runs else {}
    same |= {name: tokenizer.to_json() for name, tokenizer in vocabularies.items()}
    files = [{**same, **run._own_files(facts)} for run in runs]
    side_by_side([partial(run._create, own) for run, own in zip(runs, files, strict=True)])


def check_new(folder: Path) -> None:
    """Raise a UserError if the folder of a new run exists already."""
    other = f"give this run another name with --name {folder.name}-2"
    if (folder / "run.json").exists():
        raise UserError(f"{folder} exists: continue it with --resume, or {other}")
    if folder.exists():
        raise UserError(f"{folder} exists but is not a run (it has no run.json): remove it, or {other}")


def open_run(name: str, runs: Path = Path("runs"), trust: bool = False) -> Run:
    """Open a run by name in `runs`, or by the path of its folder. `trust`: run the plugin code in it, if it needs
    any."""
    folder = runs / name if (runs / name).is_dir() else Path(name)
    if not folder.is_dir():
        names = run_names(runs)
        hint = (
            did_you_mean(name, names)
            if names
            else f"; there are no runs in {runs} yet: train one with headway train RECIPE"
        )
        raise UserError(f"there is no run '{name}'{hint}")
    if not (folder / "run.json").exists():
        raise UserError(f"{folder} is not a run folder: it has no run.json")
    record = RunRecord(folder)
    record.check_format()
    run = Run(folder, recipe_of(folder, trust))
    if not is_sealed(folder):
        _check_unsealed(run)
    return run


def _check_unsealed(run: Run) -> None:
    """Check the recipe of a folder without a seal against the hash in run.json."""
    facts = run.facts
    print(f"{run.folder} is not sealed: a change to its files would not be noticed", file=sys.stderr)
    if facts.get("recipe_hash") in (None, run.recipe.hash):
        return
    told = f"{run.folder / 'recipe.yaml'} does not match the recipe hash in run.json ({facts['recipe_hash']})"
    if facts.get("headway") == __version__:
        raise UserError(f"{told}: {DAMAGED}; {REMEDIES['recipe.yaml']}")
    print(f"warning: {told}: it was changed, or written by a version that computed hashes differently", file=sys.stderr)
