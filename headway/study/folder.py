"""The folder of a study.

studies/NAME/
  study.yaml       the complete study, with its base recipe written out
  plugins/         user-defined files that it needs, if any
  budget.json      steps per arm if budgets are equalized; fixed when the study begins
  runs/            ARM.seed-K/ …, ordinary run folders
  failures/        ARM.seed-K.json: why a run failed, with details
  events.jsonl     what happened and when: opened, runs ended, closed
  ensembles.json   the seeds of every arm as an ensemble, once requested
  looks.json       when verdicts were read, with which seeds, and what they said; also from studies that are reused
  log.txt          messages of the training processes: warnings, populations that had to be split
  seal.json        checksums of the files that are read again (`core/seal.py`)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import as_json, check_names, clean_up, locked, naming, write_json
from headway.core.reading import DAMAGED, UnreadableError, check_own, opened_to_append, read_text
from headway.core.reading import read_json as read_unsealed_json
from headway.core.seal import read_sealed, read_sealed_json, rewriting
from headway.core.status import State, Status
from headway.core.yaml import flat, what_changed, write_tree
from headway.recipe.plugins import FOLDER, changed_since, concerning, used_by, write_into
from headway.run.record import read_json
from headway.study.design.study import Study, load_study
from headway.study.results.evidence import EarlierLook


class StudyFolder:
    def __init__(self, path: Path):
        self.path = path

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def study(self) -> Study:
        """The study as it was when it began; its checksum is verified."""
        with suppress(FileNotFoundError):
            read_sealed(self.path / "study.yaml")
        return load_study(self.path / "study.yaml")

    @contextmanager
    def taken(self, study: Study) -> Iterator[None]:
        """Create the folder for this study, or continue with what is there, under a lock."""
        try:
            check_names([self.path.name], "a study")
            check_own(self.path, self.runs, self.path / "failures", self.path / FOLDER)
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the study folder {self.path}: {error.strerror}") from None
        is_new = not (self.path / "study.yaml").exists()
        with locked(self.path):
            clean_up(self.path)
            clean_up(self.runs)
            if why_not := self.why_not(study):
                raise UserError(why_not)
            plugins = write_into(self.path, concerning(study, *study.recipes.values()))
            with rewriting(self.path, new=is_new) as new:
                new["study.yaml"] = written(study, plugins)  # texts and measures may have changed
                if not any(self.runs.iterdir()) and (self.path / "budget.json").exists():
                    new["budget.json"] = None
            yield

    def why_not(self, study: Study) -> str:
        """Why this study cannot continue here: the folder has runs of another study, and how it differs. Empty if it
        can."""
        if not self.runs.is_dir() or not any(self.runs.iterdir()):
            return ""
        changes = what_changed(*(_comparable(s) for s in (self.study, study)))
        changes = changes or changed_since(self.path, used_by(study, *study.recipes.values()))
        name = f"give the new study another name (--name {self.path.name}-2) or another folder (--studies)"
        same = f"--reuse {self.path} takes over the runs that are the same"
        return changes and f"{self.path} holds runs of another study: {changes}; {name}; {same}"

    # --- budgets -----------------------------------------------------------------------------------------------------

    @property
    def budgets(self) -> dict[str, int] | None:
        """Steps per arm, if they were fixed before."""
        path = self.path / "budget.json"
        try:
            return {str(arm): int(steps) for arm, steps in read_sealed_json(path).items()}
        except FileNotFoundError:
            return None
        except (UserError, ValueError, AttributeError, TypeError):
            raise UserError(f"{path} cannot be read: remove it together with {self.runs}, and start again") from None

    @budgets.setter
    def budgets(self, steps: Mapping[str, int]) -> None:
        with rewriting(self.path) as new:
            new["budget.json"] = as_json(dict(steps))

    # --- looks -------------------------------------------------------------------------------------------------------

    def looks(self) -> list[EarlierLook]:
        """Every time that verdicts were read. For a study older than looks.json: its last verdicts."""
        kept, verdicts = self.path / "looks.json", self.path / "verdicts.json"
        if kept.exists():
            try:
                return [_look(one) for one in read_json(kept)["looks"]]
            except (KeyError, TypeError, ValueError):
                raise UnreadableError(kept, DAMAGED) from None
        if not verdicts.exists():
            return []
        when = datetime.fromtimestamp(verdicts.stat().st_mtime, UTC).isoformat(timespec="seconds")
        found = read_unsealed_json(verdicts)
        try:
            answers = {one["question"]["words"]: one["outcome"] for one in found if one["outcome"] != "cannot say"}
        except (KeyError, TypeError):
            raise UnreadableError(verdicts, DAMAGED) from None
        return [EarlierLook(self.path.name, when, tuple(self.study.seeds), answers)] if answers else []

    def note_look(self, outcomes: Mapping[str, str]) -> None:
        """Record that these verdicts (question → outcome) were read now. Reading the same ones again is no new look."""
        answers, known = {q: o for q, o in outcomes.items() if o != "cannot say"}, self.looks()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        look = EarlierLook(self.path.name, now, tuple(self.study.seeds), answers)
        if answers and not any(replace(look, when=one.when) == one for one in known[-1:]):
            self._write_looks([*known, look])

    def take_over_looks(self, other: "StudyFolder") -> None:
        """Add the looks of a study whose runs are taken over: its verdicts have been read."""
        known = self.looks()
        if new := [look for look in other.looks() if look not in known]:
            self._write_looks([*new, *known])

    def _write_looks(self, looks: Sequence[EarlierLook]) -> None:
        with rewriting(self.path) as new:
            new["looks.json"] = as_json({"looks": [asdict(look) for look in looks]})

    # --- log ---------------------------------------------------------------------------------------------------------

    def write_log(self, text: str) -> None:
        shown = "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
        line = shown.replace("\n", "\n    ")  # indent further lines, so that the text stays one entry
        with naming(self.path / "log.txt"), opened_to_append(self.path / "log.txt") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n".encode())

    # --- failures ----------------------------------------------------------------------------------------------------

    def note_failure(self, run: str, status: Status, details: str = "") -> None:
        check_own(self.path, self.path / "failures")
        (self.path / "failures").mkdir(exist_ok=True)
        write_json(self.path / "failures" / f"{run}.json", {**status.as_json(), "details": details.splitlines()})

    def forget_failure(self, run: str) -> None:
        check_own(self.path / "failures")
        for kind in ("json", "txt"):
            (self.path / "failures" / f"{run}.{kind}").unlink(missing_ok=True)

    def failures(self) -> dict[str, Status]:
        """Failed runs with their status. Earlier versions wrote text files, with the reason on the first line."""
        found = {}
        for file in sorted((self.path / "failures").glob("*.*"), key=lambda file: file.suffix, reverse=True):
            try:
                if file.suffix == ".json":
                    found[file.stem] = Status.read(read_json(file))
                elif file.suffix == ".txt":
                    reason = (read_text(file).splitlines() or ["no reason is given"])[0]
                    found[file.stem] = Status(State.FAILED, reason=reason)
            except UserError as error:
                found[file.stem] = Status(State.FAILED, reason=str(error))
        return dict(sorted(found.items()))


def _look(stored: Mapping[str, Any]) -> EarlierLook:
    return EarlierLook(stored["study"], stored["when"], tuple(stored["seeds"]), dict(stored["outcomes"]))


def written(study: Study, plugins: Sequence[str] = ()) -> str:
    """The complete study as YAML."""
    needed = {"plugins": list(plugins)} if plugins else {}
    return write_tree({**needed, **study.model_dump(mode="json", by_alias=True)})


def _comparable(study: Study) -> dict[str, Any]:
    """The part of a study that must not change once it has runs: what runs depend on, and the questions."""
    return flat(
        study.model_dump(
            mode="json",
            by_alias=True,
            exclude={"title", "about", "reported", "claims", "look", "measures", "ensembles"},
        )
    )
