"""A study is a folder too.

studies/NAME/
  study.yaml       the study, whole: its base recipe is written out
  plugins/         files of the user's own that it needs, if any
  budget.json      how many steps each arm may take, where something is to be equal; fixed when the study begins
  runs/            ARM.seed-K/ …, ordinary run folders
  failures/        ARM.seed-K.json: why a run did not end, and what is known besides
  events.jsonl     what happened, and when: it was opened, runs ended, it was closed
  ensembles.json   the seeds of every arm as one, once somebody asked for it
  looks.json       when verdicts were seen, with which seeds, and what they said; of studies that runs come from, too
  log.txt          what those who trained had to say: warnings, populations that had to be split
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import check_names, clean_up, locked, naming, write_json, write_whole
from headway.core.plugins import changed_since, concerning, used_by, write_into
from headway.core.status import State, Status
from headway.core.yaml import flat, what_changed, write_tree
from headway.run.record import DAMAGED, read_json
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
        """As it was when it began."""
        return load_study(self.path / "study.yaml")

    @contextmanager
    def taken(self, study: Study) -> Iterator[None]:
        """Make the folder for this study, or go on with what is there; nobody else does either meanwhile."""
        try:
            check_names([self.path.name], "a study")
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the study folder {self.path}: {error.strerror}") from None
        with locked(self.path):
            clean_up(self.path)
            clean_up(self.runs)
            if why_not := self.why_not(study):
                raise UserError(why_not)
            if not any(self.runs.iterdir()):
                (self.path / "budget.json").unlink(missing_ok=True)
            plugins = write_into(self.path, concerning(study, *study.recipes.values()))
            write_whole(self.path / "study.yaml", written(study, plugins))  # words and measures may have changed
            yield

    def why_not(self, study: Study) -> str:
        """Why this study cannot go on here: there are runs of another, and how it differs. Empty if it can."""
        if not self.runs.is_dir() or not any(self.runs.iterdir()):
            return ""
        changes = what_changed(*(_comparable(s) for s in (self.study, study)))
        changes = changes or changed_since(self.path, used_by(study, *study.recipes.values()))
        name = f"give the new one a name of its own with --name {self.path.name}-2"
        same = f"--reuse {self.path.name} takes over the runs that are the same"
        return changes and f"{self.path} holds runs of another study: {changes}; {name}; {same}"

    # --- budgets -----------------------------------------------------------------------------------------------------

    @property
    def budgets(self) -> dict[str, int] | None:
        """Steps by arm, if they were fixed before."""
        path = self.path / "budget.json"
        if not path.exists():
            return None
        try:
            return {str(arm): int(steps) for arm, steps in json.loads(path.read_text("utf-8")).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            raise UserError(f"{path} cannot be read: remove it together with {self.runs}, and begin again") from None

    @budgets.setter
    def budgets(self, steps: Mapping[str, int]) -> None:
        write_json(self.path / "budget.json", dict(steps))

    # --- looks -------------------------------------------------------------------------------------------------------

    def looks(self) -> list[EarlierLook]:
        """Every time that verdicts were seen. Of a study from before looks were noted, what it concluded last."""
        kept, verdicts = self.path / "looks.json", self.path / "verdicts.json"
        if kept.exists():
            try:
                return [_look(one) for one in read_json(kept)["looks"]]
            except (KeyError, TypeError, ValueError):
                raise UserError(f"{kept} cannot be read: {DAMAGED}") from None
        if not verdicts.exists():
            return []
        when = datetime.fromtimestamp(verdicts.stat().st_mtime, UTC).isoformat(timespec="seconds")
        found = json.loads(verdicts.read_text("utf-8"))
        answers = {one["question"]["words"]: one["outcome"] for one in found if one["outcome"] != "cannot say"}
        return [EarlierLook(self.path.name, when, tuple(self.study.seeds), answers)] if answers else []

    def note_look(self, outcomes: Mapping[str, str]) -> None:
        """That these verdicts were seen now: question → outcome. To see the same again is no new look."""
        answers, known = {q: o for q, o in outcomes.items() if o != "cannot say"}, self.looks()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        look = EarlierLook(self.path.name, now, tuple(self.study.seeds), answers)
        if answers and not any(replace(look, when=one.when) == one for one in known[-1:]):
            self._write_looks([*known, look])

    def take_over_looks(self, other: "StudyFolder") -> None:
        """Whoever takes over runs has seen what they showed."""
        known = self.looks()
        if new := [look for look in other.looks() if look not in known]:
            self._write_looks([*new, *known])

    def _write_looks(self, looks: Sequence[EarlierLook]) -> None:
        write_json(self.path / "looks.json", {"looks": [asdict(look) for look in looks]})

    # --- what happened -----------------------------------------------------------------------------------------------

    def write_log(self, text: str) -> None:
        with naming(self.path / "log.txt"), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")

    # --- failures ----------------------------------------------------------------------------------------------------

    def note_failure(self, run: str, status: Status, details: str = "") -> None:
        (self.path / "failures").mkdir(exist_ok=True)
        write_json(self.path / "failures" / f"{run}.json", {**status.as_json(), "details": details.splitlines()})

    def forget_failure(self, run: str) -> None:
        for kind in ("json", "txt"):
            (self.path / "failures" / f"{run}.{kind}").unlink(missing_ok=True)

    def failures(self) -> dict[str, Status]:
        """By run. Earlier versions wrote text files, with the reason on their first line."""
        noted, texts = ((self.path / "failures").glob(f"*.{kind}") for kind in ("json", "txt"))
        found = {file.stem: Status(State.FAILED, reason=file.read_text("utf-8").splitlines()[0]) for file in texts}
        return dict(sorted({**found, **{file.stem: Status.read(read_json(file)) for file in noted}}.items()))


def _look(stored: Mapping[str, Any]) -> EarlierLook:
    return EarlierLook(stored["study"], stored["when"], tuple(stored["seeds"]), dict(stored["outcomes"]))


def written(study: Study, plugins: Sequence[str] = ()) -> str:
    """A study as YAML, with everything in it."""
    needed = {"plugins": list(plugins)} if plugins else {}
    return write_tree({**needed, **study.model_dump(mode="json", by_alias=True)})


def _comparable(study: Study) -> dict[str, Any]:
    """What its runs depend on, and what is asked of them; the rest may change after they were made."""
    return flat(
        study.model_dump(
            mode="json",
            by_alias=True,
            exclude={"title", "about", "reported", "claims", "look", "measures", "ensembles"},
        )
    )
