"""Texts with labels from a table: one row per text, in a file of comma- or tab-separated columns.

What a file is says its ending. In .csv a field may be quoted ("a, b") and may then hold commas, quotes ("") and line
ends. In .tsv nothing is quoted: a quotation mark is part of the text, and a line is a row. Either may be gzipped.
Columns go by the names in the first line, or by number from 1.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.data.marks import BETWEEN
from headway.data.running.sources import read_text

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
Column = int | str
"""By name, or by number from 1."""


class Row(NamedTuple):
    text: str
    label: str


def read_table(path: Path, text: Column | Sequence[Column], label: Column, header: bool) -> list[Row]:
    """The columns that matter; every row has a text (or two, which become one string with BETWEEN in it) and a label,
    or one message says which has not."""
    lines = fields_of(path)
    names = lines.pop(0)[1] if header else None
    if not lines:
        raise UserError(f"'{path}' has no rows{' below its header' if header else ''}")
    columns = [text] if isinstance(text, int | str) else list(text)
    *texts, of_label = [
        _place(path, key, names, lines[0][1], column)
        for key, column in (*(("text", column) for column in columns), ("label", label))
    ]
    if of_label in texts:
        raise UserError(f"data.text and data.label are the same column of '{path.name}', {label!r}")
    if len(set(texts)) < len(texts):
        raise UserError(f"data.text: both texts of a pair are the same column of '{path.name}', {columns[0]!r}")
    rows = []
    for number, fields in lines:
        cells = [_cell(path, fields, number, place) for place in texts]
        if len(cells) > 1 and any(BETWEEN.strip() in cell for cell in cells):
            raise UserError(f"'{path}', line {number}: a text has {BETWEEN.strip()} in it, which stands between two")
        rows.append(Row(BETWEEN.join(cells), _cell(path, fields, number, of_label)))
    if len(texts) == 1:
        _check_text(path, rows, columns[0], names, lines[0][1])
    return rows


def fields_of(path: Path) -> list[tuple[int, list[str]]]:
    """The fields of every line that is not blank, with the line's number."""
    content = read_text(path)
    if ".csv" not in path.suffixes:
        lines = ((number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip())
        return [(number, line.rstrip("\r").split("\t")) for number, line in lines]
    found: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        csv.field_size_limit(2**31 - 1)
        begins = 1
        for fields in reader:
            if any(field.strip() for field in fields):
                found.append((begins, fields))
            begins = reader.line_num + 1
    except csv.Error as problem:
        raise UserError(f"'{path}', line {reader.line_num}: this is not CSV ({problem})") from None
    return found


def _place(path: Path, key: str, names: list[str] | None, first: list[str], column: Column) -> int:
    """The place of a column that is given by name or by number from 1."""
    if isinstance(column, int):
        if not 1 <= column <= len(first):
            raise UserError(f"data.{key}={column}: '{path.name}' has columns 1 to {len(first)}")
        return column - 1
    known = [name.strip() for name in names or []]
    if column not in known:
        named = [name for name in known if name]
        raise UserError(
            f"data.{key}={column}: '{path.name}' has no column of that name{did_you_mean(column, named)}"
            + ("" if len(named) > 1 else "; if its first line is no header, give numbers: data.text=1 data.label=2")
        )
    return known.index(column)


def _cell(path: Path, fields: list[str], number: int, place: int) -> str:
    if place >= len(fields):
        have = f"{len(fields)} column{'s' if len(fields) > 1 else ''}"
        raise UserError(f"'{path}', line {number}: column {place + 1} is asked for, and there is only {have}")
    cell = fields[place].strip()
    if not cell:
        raise UserError(f"'{path}', line {number}: column {place + 1} is empty; every row needs a text and a label")
    return cell


def _check_text(path: Path, rows: Sequence[Row], text: Column, names: list[str] | None, first: list[str]) -> None:
    """A column of nothing but numbers is not the text: somebody has miscounted."""
    if not all(_is_number(row.text) for row in rows):
        return
    others = [
        f"data.text={names[k].strip() or k + 1 if names else k + 1}"
        for k, field in enumerate(first)
        if field.strip() and not _is_number(field)
    ]
    hint = f"; did you mean {' or '.join(others)}?" if others else ""
    raise UserError(f"data.text={text}: in '{path.name}' this column holds numbers ({rows[0].text} …), not text{hint}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
