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

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from headway import __version__
from headway.core import plugins
from headway.core.environment import environment
from headway.core.errors import UserError, did_you_mean
from headway.core.events import FILE as EVENTS
from headway.core.files import as_json, clean_up, locked, side_by_side, write_folder_whole
from headway.core.reading import DAMAGED, UnreadableError, check_own
from headway.core.seal import REMEDIES, is_sealed, read_sealed_text, rewriting, seal_lines, seal_new
from headway.core.status import State, Status
from headway.data.tokenizers import Tokenizer
from headway.recipe.recipe import Recipe
from headway.recipe.text import annotated
from headway.run.checkpoints import METRICS, CheckpointedRun, recipe_of
from headway.run.record import FORMAT, RunRecord, run_names
from headway.scoring.metrics import is_test
from headway.scoring.score import Score


class Run(CheckpointedRun):
    """A run folder, opened. `create` makes one, `create_together` those of a population, `open_run` finds one."""

    @classmethod
    def create(cls, folder: Path, recipe: Recipe, device: str, **facts: Any) -> "Run":
        run = cls(folder, recipe)
        create_together([run], device, {}, **facts)
        return run

    def _own_files(self, facts: Mapping[str, Any]) -> dict[str, str]:
        """What its folder holds at first that that of no other run does."""
        named = plugins.named_in_folders(plugins.concerning(self.recipe))
        born = {**Status(State.STARTED).as_json(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
        return {"recipe.yaml": annotated(self.recipe, named), "run.json": as_json(self._facts_with({**born, **facts}))}

    def _create(self, files: Mapping[str, str]) -> None:
        """The folder, with these in it. Nobody sees them before it has its name, so they are written plainly:
        `write_folder_whole` sees to it that all of them are on the disk by then."""
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


def create_together(runs: Sequence[Run], device: str, vocabularies: Mapping[str, Tokenizer], /, **facts: Any) -> None:
    """Folders for runs that begin together, at one place, with these vocabularies by their files. What is the same in
    all of them is found out once: to ask git and every package takes as long as to write a folder."""
    same = {"environment.json": as_json(environment(device))} if runs else {}
    same |= {name: tokenizer.to_json() for name, tokenizer in vocabularies.items()}
    files = [{**same, **run._own_files(facts)} for run in runs]
    side_by_side([partial(run._create, own) for run, own in zip(runs, files, strict=True)])


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
    run = Run(folder, recipe_of(folder, trust))
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
