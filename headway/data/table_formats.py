"""How a table is written: .csv, .tsv, .txt or .jsonl, in whatever encoding and with whatever delimiter.

The file's ending says what it is. In .csv a cell may be quoted ("a, b") and may then hold commas, quotes ("") and line
ends. In .tsv and .txt nothing is quoted: a quotation mark is part of the text, and a line is a row. In .jsonl a line is
a JSON object whose keys are the columns. All may be gzipped.

The delimiter follows from the ending, unless the file itself shows another: `;` `|` and tabs are recognised in .csv,
and a note says so. What the rows and columns mean is in `tables.py`.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError
from headway.core.progress import say_once
from headway.data.running.sources import read_text

JSON_LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = tuple(f"{end}{gz}" for end in (".csv", ".tsv", ".txt", *JSON_LINES) for gz in ("", ".gz"))
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

_SAMPLE_SIZE = 1 << 16  # characters examined to find the delimiter
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # characters beyond U+FFFF are written as two of these in JSON


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


def lines_of(path: Path, format: TableFormat, named: Sequence[str]) -> tuple[list[Line], bool]:
    """The lines, and whether the first is certainly a header. `named`: the columns asked for by name, if any."""
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


def fields_of(path: Path, format: TableFormat = PLAIN) -> list[Line]:
    """The cells of every line that is not blank, including a header, with the line's number."""
    return lines_of(path, format, [])[0]


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
