"""Tables: the columns and rows of a file, and what is refused in them.

A column is given by name or by number. Nothing is guessed silently where a guess could be wrong: rows wider than their
header, duplicate column names and empty cells are refused, with the line and the recipe key that helps. How cells are
found in a file is in `table_formats.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError, did_you_mean
from headway.core.progress import say_once
from headway.data.table_formats import PLAIN, Line, TableFormat, lines_of

Column = int | str
"""A column by name, or by number from 1."""

_MISSING = ("nan", "na", "n/a", "null", "none", "nil", "#n/a", "-", "?")
_USUAL_NAMES = "text label class category sentence sentiment target title description review content body id label_id"
_USUAL_NAMES += " source src tgt trg translation reference en de fr es it nl english german french spanish italian"


def column_of(word: str) -> Column:
    """Parse a column as typed by the user."""
    return int(word) if word.isdecimal() and len(word) < 10 else word


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
    lines, fixed = lines_of(path, format, named)
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
