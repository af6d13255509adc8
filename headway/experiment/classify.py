"""Classifies a whole file: a table comes in, and goes out with predictions and the probability of each class.

    text,predicted,probability,p(good),p(bad)
    fine film,good,0.9713,0.9713,0.0287

A .txt file, or stdin, has one text per line. If the model reads several texts, they are separated by tabs.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import tasks
from headway.core.errors import UserError
from headway.data.labelled.tables import joined
from headway.data.marks import BETWEEN
from headway.data.running.sources import decoded, read_text
from headway.data.table_formats import JSON_LINES, Line, TableFormat
from headway.data.tables import GivenTable, read_table
from headway.experiment.load import load_model
from headway.run.folder import Run
from headway.tasks.abilities import ClassifiedTexts, Classifies, GivenFile

AT_ONCE = 512
"""Rows per call, so that progress is shown and memory does not grow with the file."""
MAX_CLASSES = 100
"""With more classes, a table has only the most likely class and its probability, without a column for each."""
ANSWERS = ("predicted", "probability")


@dataclass(frozen=True)
class InputTexts:
    """A file as rows, and the text of each row; None if a cell is empty."""

    names: list[str]
    rows: list[list[str]]
    texts: list[str | None]


def texts_of_file(run: Run, file: GivenFile) -> InputTexts:
    """Read a table, using the given columns or those of the recipe."""
    data = run.recipe.data
    if file.path.name.removesuffix(".gz").endswith(".txt") and not file.columns:
        return texts_of_lines(run, read_text(file.path, file.encoding, "--encoding "))
    own = data.source == "files"
    asked = list(file.columns) or (data.text if isinstance(data.text, list) else [data.text])
    header = data.header if own and not file.columns else None
    written = TableFormat(file.encoding or (data.encoding if own else None), data.delimiter if own else None)
    table = read_table(file.path, asked, header, written)
    places = [table.place("--column ", column) for column in asked]
    names = (
        [name.strip() for name in table.names] if table.names else [f"column {k}" for k in range(1, table.width + 1)]
    )
    if taken := [name for name in ANSWERS if name in names]:
        raise UserError(f"'{file.path.name}' already has a column '{taken[0]}': rename or remove it")
    texts = [_text(table, line, places) for line in table.lines]
    rows = [(line.cells + [""] * len(names))[: len(names)] for line in table.lines]
    return InputTexts(names, rows, texts)


def texts_of_lines(run: Run, content: str) -> InputTexts:
    """One text per line; empty lines keep their place."""
    several = isinstance(run.recipe.data.text, list)
    lines = content.removesuffix("\n").split("\n")
    texts = [BETWEEN.join(part.strip() for part in line.split("\t")) if several else line.strip() for line in lines]
    return InputTexts(["text"], [[line] for line in lines], [text if text.strip() else None for text in texts])


def text_from_pipe(content: bytes, encoding: str | None) -> str:
    return decoded(content, Path("stdin"), encoding, "--encoding ")


def classify_rows(
    run: Run, brought: InputTexts, which: str = "auto", told: Callable[[int, int], object] = lambda done, of: None
) -> Iterator[tuple[Sequence[int], ClassifiedTexts]]:
    """Yield chunks of rows: their indices, and the model's answers. Rows without a text are left out."""
    task = tasks.able(run, Classifies)
    model, _ = load_model(run, which)
    full = [k for k, text in enumerate(brought.texts) if text is not None]
    for first in range(0, len(full), AT_ONCE):
        some = full[first : first + AT_ONCE]
        yield some, task.classify_texts(run, model, [brought.texts[k] or "" for k in some])
        told(first + len(some), len(full))


@dataclass
class ClassifiedFile:
    """The output, row by row, with notes on what limits it."""

    brought: InputTexts
    path: Path | None
    classes: tuple[str, ...] = ()
    cut: int = 0
    strange: int = 0

    def __post_init__(self) -> None:
        self.found: list[dict[str, Any]] = [{} for _ in self.brought.rows]

    def add(self, places: Sequence[int], told: ClassifiedTexts) -> None:
        self.classes, self.cut, self.strange = told.classes, self.cut + told.cut, self.strange + told.strange
        for place, chances in zip(places, told.chances.tolist(), strict=True):
            best = max(range(len(chances)), key=chances.__getitem__)
            self.found[place] = {"predicted": told.classes[best], "probability": chances[best], "chances": chances}

    @property
    def notes(self) -> list[str]:
        n, empty = len(self.found), sum(not one for one in self.found)
        notes = [f"{empty:,} of {n:,} rows have no text and get no class"] if empty else []
        notes += [f"{self.strange:,} of {n:,} texts contain no word that the model knows"] if self.strange else []
        notes += [f"{self.cut:,} of {n:,} texts are longer than the model's context and were cut"] if self.cut else []
        if len(self.classes) > MAX_CLASSES:
            notes.append(f"{len(self.classes):,} classes: only the probability of the most likely class is written")
        return notes

    def as_objects(self) -> list[dict[str, Any]]:
        """One object per row, for JSON."""
        objects = []
        for cells, one in zip(self.brought.rows, self.found, strict=True):
            made: dict[str, Any] = dict(zip(self.brought.names, cells, strict=True))
            made |= {name: one.get(name) for name in ANSWERS}
            if one and len(self.classes) <= MAX_CLASSES:
                made["classes"] = dict(zip(self.classes, one["chances"], strict=True))
            objects.append(made)
        return objects

    def as_text(self) -> str:
        """The table in the format of the file's ending; CSV if there is none."""
        name = "" if self.path is None else self.path.name
        if name.endswith(JSON_LINES):
            return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in self.as_objects())
        each = self.classes if len(self.classes) <= MAX_CLASSES else ()
        lines = [[*self.brought.names, *ANSWERS, *(f"p({name})" for name in each)]]
        for cells, one in zip(self.brought.rows, self.found, strict=True):
            shares = [f"{one['probability']:.6f}", *(f"{p:.6f}" for p in one["chances"][: len(each)])] if one else []
            lines.append([*cells, *([one["predicted"], *shares] if one else [""] * (2 + len(each)))])
        if name.endswith(".tsv"):
            return "".join("\t".join(" ".join(cell.split()) for cell in line) + "\n" for line in lines)
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(lines)
        return written.getvalue()


def _text(table: GivenTable, line: Line, places: Sequence[int]) -> str | None:
    cells = [table.cell(line, place) for place in places]
    return joined(table, line.number, cells) if all(cells) else None
