"""The report of an exercise, in the same form as a study's, in studies/ID/.

report.html     everything in one file: no network, no scripts
report.md       the same as text and tables
table.tex       the table for LaTeX (booktabs)
verdicts.json   claims with their status, table rows, derivations, and the environment
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.cases.exercise import Reach, WorkedExercise
from headway.core.environment import environment
from headway.core.errors import UserError
from headway.core.files import clean_up, locked, write_json, write_whole
from headway.core.reading import UnreadableError, read_json
from headway.study.report import tables
from headway.study.report.report import rendered, weakest_of
from headway.study.verdicts.wording import sentence

FILE = "verdicts.json"


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Create the folder or reuse an existing one, under a lock, before anything is computed."""
    if (folder / "study.yaml").exists():
        raise UserError(f"{folder} holds a study; choose another place for the exercise with --studies")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}") from None
    with locked(folder):
        clean_up(folder)
        yield


def write_report(outcome: WorkedExercise, folder: Path) -> Path:
    """Write all files into this folder, which must be `taken`; returns the HTML file."""
    made = environment("cpu")
    exercise = outcome.exercise
    claimed = [(claim.says, ruling) for claim, ruling in zip(exercise.claims, outcome.rulings, strict=True)]
    answers = [(one.asks, found) for one, found in zip(exercise.questions, outcome.answers, strict=True)]
    given = {
        "exercise": exercise,
        "outcome": outcome,
        "name": folder.name,
        "short": weakest_of(outcome.judgements, sentence),
        "say": sentence,
        "answers": answers,
        "worked": [(says, found) for says, found in (*claimed, *answers) if found.derivation or found.figures],
        "command": shlex.join(["headway", *made["command"][1:]]),
        "env": made,
    }
    page = folder / "report.html"
    write_json(folder / FILE, {**outcome.as_json(), "environment": made})
    write_whole(page, rendered("exercise.html", **given))
    write_whole(folder / "report.md", rendered("exercise.md", **given))
    write_whole(folder / "table.tex", tables.latex(outcome.table, folder.name))
    return page


def read_verdicts(folder: Path) -> dict[str, Any] | None:
    """What `write_report` stored, with the rows of its table; None if no exercise was run there."""
    path = folder / FILE
    if not path.exists() or (folder / "study.yaml").exists():
        return None
    try:
        found = read_json(path)
        told = [*found["claims"], *found["answers"]]
        return found | {"rows": [Reach(**row) for one in told for row in one["reached"]]}
    except (UnreadableError, OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} cannot be read: run the exercise again, which takes seconds") from None
