"""Read tables: rows of cells, whatever program, encoding or delimiter they were saved with.

The file's ending says what it is. In .csv a cell may be quoted ("a, b") and may then hold commas, quotes ("") and line
ends. In .tsv and .txt nothing is quoted: a quotation mark is part of the text, and a line is a row. In .jsonl a line is
a JSON object whose keys are the columns. All may be gzipped.

The delimiter follows from the ending, unless the file itself shows another: `;` `|` and tabs are recognised in .csv,
and a note says so. Nothing is guessed silently where a guess could be wrong: rows wider than their header, duplicate
column names and empty cells are refused, with the line and the recipe key that helps.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.core.progress import say_once
from headway.data.running.sources import read_text

JSON_LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = tuple(f"{end}{gz}" for end in (".csv", ".tsv", ".txt", *JSON_LINES) for gz in ("", ".gz"))
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
Column = int | str
"""A column by name, or by number from 1."""

_SAMPLE_SIZE = 1 << 16  # characters examined to find the delimiter
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # characters beyond U+FFFF are written as two of these in JSON
_MISSING = ("nan", "na", "n/a", "null", "none", "nil", "#n/a", "-", "?")
_USUAL_NAMES = "text label class category sentence sentiment target title description review content body id label_id"
_USUAL_NAMES += " source src tgt trg translation reference en de fr es it nl english german french spanish italian"


def column_of(word: str) -> Column:
    """Parse a column as typed by the user."""
    return int(word) if word.isdecimal() and len(word) < 10 else word


class Line(NamedTuple):
    """The cells of a row, and the line of the file where they begin."""

    number: int
    cells: list[str]


@dataclass(frozen=True)
class TableFormat:
    """How a table is written, where the file does not show it."""

    encoding: str | None = None
    """null = UTF-8, or UTF-16 where the file begins with its byte order mark."""
    delimiter: str | None = None
    """null = by the ending, or as found in the file."""


PLAIN = TableFormat()


@dataclass(frozen=True)
class GivenTable:
    path: Path
    names: list[str] | None
    """The column names, if there is a header."""
    lines: list[Line]

    @property
    def width(self) -> int:
        return len(self.names) if self.names is not None else len(self.lines[0].cells)

    def place(self, key: str, column: Column, by_number: str = "data.text=1 data.label=2") -> int:
        """The index of a column given by name, or by number from 1. `by_number` is how the user would give numbers."""
        if isinstance(column, int):
            if not 1 <= column <= self.width:
                raise UserError(f"{key}{column}: '{self.path.name}' has columns 1 to {self.width}")
            return column - 1
        known = [name.strip() for name in self.names or []]
        if (many := known.count(column)) > 1:
            numbers = [str(k) for k, name in enumerate(known, 1) if name == column]
            raise UserError(
                f"{key}{column}: {many} columns of '{self.path.name}' have that name ({', '.join(numbers)}); give "
                f"its number, and say that there is a header: {key}{numbers[0]} data.header=true"
            )
        if column not in known:
            named = [name for name in known if name]
            there = f" (there are: {', '.join(named[:12])})" if len(named) > 1 else ""
            raise UserError(
                f"{key}{column}: '{self.path.name}' has no column of that name{did_you_mean(column, named) or there}"
                + ("" if len(named) > 1 else f"; if its first line is not a header, give numbers: {by_number}")
            )
        return known.index(column)

    def cell(self, line: Line, place: int) -> str:
        if place >= len(line.cells):
            have = f"{len(line.cells)} column{'s' if len(line.cells) > 1 else ''}"
            raise UserError(
                f"'{self.path}', line {line.number}: column {place + 1} is needed, but the line has only {have}"
            )
        return line.cells[place].strip()

    def called(self, place: int) -> str:
        return f"column {place + 1}" if self.names is None else f"column '{self.names[place].strip() or place + 1}'"

    def without_empty(self, places: Sequence[int], empty: str) -> "GivenTable":
        """Check that no row is empty in these columns: raise an error, or drop such rows if `empty` says so."""
        gaps = {line.number: place for line in self.lines for place in reversed(places) if not self.cell(line, place)}
        if not gaps:
            return self
        (number, place), count, n = next(iter(gaps.items())), len(gaps), len(self.lines)
        if empty != "drop":
            many = f" ({count:,} of {n:,} rows have an empty cell)" if count > 1 else ""
            raise UserError(
                f"'{self.path}', line {number}: {self.called(place)} is empty{many}; every row needs a text and a "
                f"label: data.empty=drop leaves {'them' if count > 1 else 'it'} out"
            )
        if count == n:
            raise UserError(f"'{self.path}': all {n:,} rows have an empty cell, so data.empty=drop leaves nothing")
        say_once(f"{self.path.name}: {count:,} of {n:,} rows have an empty cell and are left out (data.empty=drop)")
        return GivenTable(self.path, self.names, [line for line in self.lines if line.number not in gaps])


def read_table(path: Path, columns: Sequence[Column], header: bool | None, format: TableFormat = PLAIN) -> GivenTable:
    """Read a whole table, with a header if a column is given by name. Rows that do not fit are refused."""
    named = [column for column in columns if isinstance(column, str)]
    lines, fixed = _lines(path, format, named)
    has_header = fixed or (bool(named) if header is None else header)
    names = lines[0].cells if has_header and lines else None
    below = lines[1:] if has_header else lines
    if not below:
        raise UserError(f"'{path}' has no rows{' below its header' if has_header else ''}")
    table = GivenTable(path, names, below)
    if not fixed:
        _check_widths(table)
        if header is None and names is None:
            _check_no_header(table)
        elif header and names is not None and not named:
            _check_header(table)
    return table


def fields_of(path: Path, format: TableFormat = PLAIN) -> list[Line]:
    """The cells of every line that is not blank, including a header, with the line's number."""
    return _lines(path, format, [])[0]


# --- how a file is written -------------------------------------------------------------------------------------------


def _lines(path: Path, format: TableFormat, named: Sequence[str]) -> tuple[list[Line], bool]:
    """The lines, and whether the first is certainly a header."""
    content = read_text(path, format.encoding)
    if path.name.removesuffix(".gz").endswith(JSON_LINES):
        return _from_json(path, content), True
    if "\n" not in content:
        content = content.replace("\r", "\n")  # old Mac line ends
    quoted, natural = ".csv" in path.suffixes, "," if ".csv" in path.suffixes else "\t"
    skipped = 0
    if said := re.match(r"sep=(.)\n", content):  # as Excel writes it
        natural, content, skipped = said[1], content[said.end() :], 1
    delimiter = format.delimiter or _delimiter(content, natural, quoted, named)
    if delimiter != natural and not format.delimiter:
        say_once(
            f"{path.name}: cells are separated by {DELIMITERS[delimiter]} (data.delimiter), judging by the first lines"
        )
    found = _cut(path, content, delimiter, quoted or delimiter != "\t")
    return [Line(line.number + skipped, line.cells) for line in found], False


def _delimiter(content: str, natural: str, quoted: bool, named: Sequence[str]) -> str:
    """Find the delimiter: the one that gives the columns asked for by name, or rows of equal width."""
    whole = content.rfind("\n", 0, _SAMPLE_SIZE) + 1 if len(content) > _SAMPLE_SIZE else len(content)
    sample = content[: whole or _SAMPLE_SIZE]
    heads: dict[str, list[str]] = {}
    widths: dict[str, set[int]] = {}
    for one in dict.fromkeys((natural, *DELIMITERS)):
        try:
            lines = _cut(Path(), sample, one, quoted or one != "\t")
        except UserError:
            lines = _cut(Path(), sample, one, quoted=False)
        lines = lines[:-1] if len(sample) < len(content) and len(lines) > 1 else lines
        heads[one] = [cell.strip() for cell in lines[0].cells] if lines else []
        widths[one] = {len(line.cells) for line in lines}
    if named:
        return next((one for one, head in heads.items() if all(name in head for name in named)), natural)
    even = [one for one, found in widths.items() if len(found) == 1 and found != {1}]
    if natural in even or not even:
        return natural
    return max(even, key=lambda one: next(iter(widths[one])))


def _cut(path: Path, content: str, delimiter: str, quoted: bool) -> list[Line]:
    if not quoted:
        lines = ((number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip())
        return [Line(number, line.rstrip("\r").split(delimiter)) for number, line in lines]
    found: list[Line] = []
    reader = csv.reader(io.StringIO(content, newline=""), strict=True, delimiter=delimiter)
    try:
        csv.field_size_limit(2**31 - 1)
        begins = 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                found.append(Line(begins, cells))
            begins = reader.line_num + 1
    except csv.Error as problem:
        raise UserError(f"'{path}', line {reader.line_num}: this is not CSV ({problem})") from None
    return found


def _from_json(path: Path, content: str) -> list[Line]:
    """Read one object per line, or a list of objects. The columns are the keys, in order of appearance."""
    try:
        if content.lstrip().startswith("["):
            objects = list(enumerate(json.loads(content), 1))
        else:
            lines = enumerate(content.split("\n"), 1)
            objects = []
            for number, line in lines:
                if line.strip():
                    try:
                        objects.append((number, json.loads(line)))
                    except json.JSONDecodeError as problem:
                        raise UserError(f"'{path}', line {number}: not a JSON object ({problem.msg})") from None
    except (json.JSONDecodeError, RecursionError) as problem:
        raise UserError(f"'{path}' is not JSON ({problem})") from None
    except ValueError as problem:  # an integer of thousands of digits
        raise UserError(f"'{path}' cannot be read ({str(problem).partition(';')[0]})") from None
    for number, one in objects:
        if not isinstance(one, dict):
            raise UserError(f'\'{path}\', line {number}: expected an object such as {{"text": …, "label": …}}')
    names = list(dict.fromkeys(name for _, one in objects for name in one))
    found = [Line(0, names)]
    for number, one in objects:
        found.append(Line(number, [_as_cell(one.get(name)) for name in names]))
    for number, cells in found if _HALF.search(content) else ():
        try:
            "".join(cells).encode()
        except UnicodeEncodeError as problem:
            half = f"\\u{ord(problem.object[problem.start]):04x}"
            where = f", line {number}" if number else ""
            raise UserError(
                f"'{path}'{where}: {half} is half of a surrogate pair, and the other half is missing"
            ) from None
    return found


def _as_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


# --- what people get wrong -------------------------------------------------------------------------------------------


def _check_widths(table: GivenTable) -> None:
    """Check that no row is wider than the header or, without one, than most rows. Empty cells at the end are
    ignored."""
    widths = [_filled(line.cells) for line in table.lines]
    usual = table.width if table.names is not None else Counter(widths).most_common(1)[0][0]
    wide = [line for line, width in zip(table.lines, widths, strict=True) if width > usual]
    if not wide:
        return
    first = wide[0]
    cells = " | ".join(_short(cell.strip()) for cell in first.cells)
    than = f"the header names {usual}" if table.names is not None else f"most rows have {usual}"
    many = f"; the same in {len(wide):,} of {len(table.lines):,} rows" if len(wide) > 1 else ""
    if ".csv" in table.path.suffixes:
        remedy = 'put quotes around a cell that has a comma in it: "Hello, nice film",good'
    else:
        remedy = "replace a tab inside a text by a space"
    raise UserError(
        f"'{table.path}', line {first.number}: {len(first.cells)} cells ({cells}), but {than}{many}; {remedy}. If "
        "cells are separated by something else, set data.delimiter"
    )


def _filled(cells: Sequence[str]) -> int:
    """The width of a row without empty cells at its end."""
    return max((k for k, cell in enumerate(cells, 1) if cell.strip()), default=0)


def _check_no_header(table: GivenTable) -> None:
    """Raise an error if columns are given by number but the first line looks like a header."""
    first, rest = table.lines[0].cells, table.lines[1:]
    usual = {cell.strip().lower() for cell in first} & set(_USUAL_NAMES.split())
    over_numbers = any(
        cell.strip() and not is_number(cell) and rest and all(k < len(x.cells) and is_number(x.cells[k]) for x in rest)
        for k, cell in enumerate(first)
    )
    if len(usual) > 1 or (over_numbers and len(rest) > 1):
        shown = " | ".join(_short(cell.strip()) for cell in first)
        raise UserError(
            f"'{table.path}', line {table.lines[0].number} ({shown}) looks like a header, but columns are given by "
            "number: give them by name, or set data.header=true, or data.header=false if it is a row like the others"
        )


def _check_header(table: GivenTable) -> None:
    """Give a note if the first line is declared a header but looks like a row."""
    assert table.names is not None
    again = [
        name.strip()
        for k, name in enumerate(table.names)
        if name.strip()
        and sum(k < len(line.cells) and line.cells[k].strip() == name.strip() for line in table.lines) > 1
    ]
    if again:
        say_once(
            f"{table.path.name}: the first line is read as a header (data.header=true), but '{_short(again[0])}' "
            "also occurs below it: if it is a row like the others, set data.header=false"
        )


def doubts_about_labels(labels: Sequence[str]) -> list[str]:
    """Warnings about classes that may be meant as the same one, or as missing."""
    counts, found = Counter(labels), []
    for name, same in (("the same number", _number_of), ("the same except for case", lambda label: label.casefold())):
        groups: dict[object, list[str]] = {}
        for label in counts:
            if (key := same(label)) is not None:
                groups.setdefault(key, []).append(label)
        for group in groups.values():
            if len(group) > 1:
                shown = " and ".join(f"'{label}' ({counts[label]:,})" for label in sorted(group)[:4])
                found.append(f"the classes {shown} are {name} but count as different: should they be one class?")
    if missing := [label for label in counts if label.casefold() in _MISSING]:
        shown = ", ".join(f"'{label}' ({counts[label]:,})" for label in missing)
        found.append(
            f"{shown} counts as a class: if it means a missing label, empty those cells and set data.empty=drop"
        )
    return found


def _number_of(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def is_number(cell: str) -> bool:
    return _number_of(cell) is not None


def _short(cell: str) -> str:
    cell = " ".join(cell.split())
    return cell if len(cell) <= 24 else cell[:23] + "…"
