"""Read pairs from a dataset on the hub: the same files as for running text, with two columns per row.

Parquet, JSON (an array or lines), CSV and TSV. The sides are columns (`en`, `de`) or parts of one column, as usual for
translation datasets on the hub: `{"translation": {"en": "…", "de": "…"}}`.
"""

from pathlib import Path
from typing import Any

from headway.core.errors import UserError, did_you_mean
from headway.core.hub import Address, fetch
from headway.data.pairs.sources import Sides, Splits, TextPair, in_a_line
from headway.data.running.hub import (
    SPLITS,
    choose,
    format_of,
    json_objects,
    parquet_library,
    split_of_file,
    table_objects,
)
from headway.data.running.sources import read_text


def from_hub(path: str, sides: Sides) -> Splits:
    """Pairs by split of `owner/name[@revision][/inside]`."""
    if sides.direction is None:
        raise UserError(f"which columns of '{path}' are the sides? Set data.direction, such as en-de")
    address = Address.parse(path, "dataset")
    folder, names = fetch(address, lambda names: choose(names, address))
    found: Splits = {}
    for split in SPLITS:
        files = [folder / name for name in names if (split_of_file(name) or "train") == split]
        pairs = [pair for file in files for pair in pairs_of(file, file.relative_to(folder).as_posix(), sides)]
        if files and not pairs:
            raise UserError(f"dataset '{address}': there are no pairs in split '{split}' ({files[0].name})")
        if files:
            found[split] = pairs
    return found


def pairs_of(file: Path, name: str, sides: Sides) -> list[TextPair]:
    """The pairs of one file; `name` is used in messages."""
    made = []
    for number, row in enumerate(_rows(file, name), start=1):
        both = [_side(row, side) for side in sides.both]
        if not all(isinstance(text, str) for text in both):
            missing = next(side for side, text in zip(sides.both, both, strict=True) if not isinstance(text, str))
            texts = _columns(row)
            hint = did_you_mean(missing, texts) if texts else "; no column holds text"
            raise UserError(f"{name}, row {number}: no text in a column '{missing}' (data.direction){hint}")
        made.append(TextPair(*(in_a_line(text.strip()) for text in both)))
    return made


def _side(row: dict[str, Any], side: str) -> Any:
    """The text of a side; empty if the cell is null, None if there is no such column."""
    parts = [row, *(part for part in row.values() if isinstance(part, dict))]
    found = next((part for part in parts if side in part), None)
    return None if found is None else "" if found[side] is None else found[side]


def _columns(row: dict[str, Any]) -> list[str]:
    """The columns that hold text."""
    inside = [name for part in row.values() if isinstance(part, dict) for name, text in part.items()]
    return [*(name for name, text in row.items() if isinstance(text, str)), *inside]


def _rows(file: Path, name: str) -> list[dict[str, Any]]:
    form = format_of(name)
    if form == "txt":
        raise UserError(f"{name} has no columns: use a file with both sides in each row (.parquet, .json, .csv, .tsv)")
    if form == "parquet":
        arrow, parquet = parquet_library()
        try:
            return parquet.read_table(file).to_pylist()
        except (arrow.ArrowException, OSError) as problem:
            raise UserError(f"{name} is not a complete parquet file: {str(problem).splitlines()[0]}") from None
    text = read_text(file)
    if form in ("csv", "tsv"):
        return table_objects(text, name, "\t" if form == "tsv" else ",")[0]
    return json_objects(text, name)
