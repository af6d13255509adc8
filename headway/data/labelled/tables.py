"""Read labelled texts from a table, one row per text. Columns and checks are those of `data/tables.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError
from headway.data.marks import BETWEEN
from headway.data.table_formats import PLAIN, TableFormat
from headway.data.tables import Column, GivenTable, is_number, read_table


class Row(NamedTuple):
    text: str
    label: str


def labelled_rows(
    path: Path,
    text: Column | Sequence[Column],
    label: Column,
    header: bool | None = None,
    format: TableFormat = PLAIN,
    empty: str = "refuse",
    keys: tuple[str, str] = ("data.text=", "data.label="),
) -> list[Row]:
    """Read the text and label columns. Several texts become one string, joined by BETWEEN. Rows that lack a text or
    label are refused or dropped."""
    columns = [text] if isinstance(text, int | str) else list(text)
    table = read_table(path, [*columns, label], header, format)
    texts = [table.place(keys[0], column) for column in columns]
    of_label = table.place(keys[1], label)
    if of_label in texts:
        raise UserError(f"data.text and data.label are the same column of '{path.name}', {label!r}")
    if len(set(texts)) < len(texts):
        raise UserError(f"data.text: both texts of a pair are the same column of '{path.name}', {columns[0]!r}")
    table = table.without_empty([*texts, of_label], empty)
    rows = [
        Row(joined(table, line.number, [table.cell(line, place) for place in texts]), table.cell(line, of_label))
        for line in table.lines
    ]
    if len(texts) == 1:
        _check_text(table, rows, columns[0])
    return rows


def joined(table: GivenTable, number: int, cells: Sequence[str]) -> str:
    """Join the texts of one row into one string."""
    if len(cells) > 1 and any(BETWEEN.strip() in cell for cell in cells):
        raise UserError(f"'{table.path}', line {number}: a text contains the separator {BETWEEN.strip()}")
    return BETWEEN.join(cells)


def _check_text(table: GivenTable, rows: Sequence[Row], text: Column) -> None:
    """Raise an error if the text column has only numbers: the user probably miscounted the columns."""
    if not all(is_number(row.text) for row in rows):
        return
    names = table.names
    others = [
        f"data.text={names[k].strip() or k + 1 if names else k + 1}"
        for k, cell in enumerate(table.lines[0].cells)
        if cell.strip() and not is_number(cell)
    ]
    hint = f"; did you mean {' or '.join(others)}?" if others else ""
    name = table.path.name
    raise UserError(f"data.text={text}: in '{name}' this column holds numbers ({rows[0].text} …), not text{hint}")
