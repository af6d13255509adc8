"""Read text from a dataset on the hub: find its data files, their splits, and the text column.

Parquet, JSON (an array or lines), CSV and TSV have columns, one of which is the text; a row becomes a line. Text files
are read as they are. The files are chosen from the repository's listing before anything is downloaded. A choice that
only the user can make (one of several sets, one of several columns) is an error that lists the options.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from headway.core.errors import UserError, did_you_mean
from headway.core.hub import Address, fetch
from headway.data.running.sources import Splits, hold_out, is_blank, read_text

_ENDING = re.compile(r"\.(parquet|(?:jsonl?|csv|tsv|txt)(?:\.gz)?)$")
_NOT_DATA = re.compile(r"(?i)(dataset_infos?\.json|state\.json|(readme|licen[sc]e|requirements|notice)\.txt)")
_SPLIT_WORD = re.compile(r"(?<![a-z])(?:(train(?:ing)?)|(valid(?:ation)?|val|dev)|(test(?:ing)?))(?![a-z])")
SPLITS = ("train", "valid", "test")


def read_splits(path: str, valid_fraction: float) -> Splits:
    """Text by split of `owner/name[@revision][/inside][#column]`. If there is no `valid`, the end of `train` is held
    out."""
    place, _, named = path.partition("#")
    address, column = Address.parse(place, "dataset"), named or None
    folder, names = fetch(address, lambda names: choose(names, address))
    splits: Splits = {}
    for split in SPLITS:
        files = [folder / name for name in names if (split_of_file(name) or "train") == split]
        if files:
            splits[split] = "".join(_text_of(file, file.relative_to(folder).as_posix(), column) for file in files)
            if is_blank(splits[split]):
                raise UserError(f"dataset '{address}': there is no text in split '{split}' ({files[0].name})")
    if "valid" not in splits:
        held_out = hold_out(splits["train"], valid_fraction, path)
        splits = {**held_out, **{split: text for split, text in splits.items() if split != "train"}}
    return splits


# --- which files -----------------------------------------------------------------------------------------------------


def choose(names: Sequence[str], address: Address) -> list[str]:
    """The files to read, sorted by name, or an error that lists what the user can choose from."""
    inside = [name for name in names if _is_within(name, address.within)]
    data = [name for name in inside if _ENDING.search(name) and not _NOT_DATA.fullmatch(PurePosixPath(name).name)]
    if not data:
        place = f"in '{address.within}' of dataset '{address}'" if address.within else f"in dataset '{address}'"
        others = ", ".join(sorted(inside or names)[:8])
        raise UserError(
            f"there is no file {place} that can be read: expected .parquet, .json, .jsonl, .csv, .tsv or .txt, the "
            f"last five also with .gz; {'there are: ' + others if others else 'it is empty'}"
        )
    # As in a local folder: if some file names tell their split, the other files are ignored.
    data = [name for name in data if split_of_file(name)] or data
    splits = {split_of_file(name) or "train" for name in data}
    if "train" not in splits:
        raise UserError(f"dataset '{address}' has no train files, only {' and '.join(sorted(splits))}: {data[0]} …")
    sets = sorted({_set_of(name) for name in data})
    if len(sets) > 1 and not re.search(r"[*?\[]", address.within):
        listed = ", ".join(name or "(the top folder)" for name in sets[:12]) + (" …" if len(sets) > 12 else "")
        first = next(name for name in sets if name)
        raise UserError(
            f"dataset '{address}' has {len(sets)} sets: {listed}; choose one, as in data.path={address}/{first}"
            f" (data.path='{address}/*' takes all)"
        )
    formats = sorted({format_of(name) for name in data})
    if len(formats) > 1:
        raise UserError(
            f"dataset '{address}' has files in several formats: {', '.join(formats)}; "
            f"choose one with a pattern, as in data.path='{address}/*.{formats[0]}'"
        )
    if formats == ["parquet"]:
        parquet_library()  # fails now rather than after the download
    return sorted(data)


def _is_within(name: str, within: str) -> bool:
    return not within or name == within or name.startswith(within + "/") or fnmatchcase(name, within)


def split_of_file(name: str) -> str | None:
    """The split, from the file's name or else from the nearest folder's."""
    for part in reversed(PurePosixPath(name.lower()).parts):
        if found := _SPLIT_WORD.search(part):
            return next(split for split, word in zip(SPLITS, found.groups(), strict=True) if word)
    return None


def _set_of(name: str) -> str:
    """The folders that identify one set of splits: `wikitext-2/train/0.parquet` belongs to `wikitext-2`."""
    folders = PurePosixPath(name).parts[:-1]
    return "/".join(part for part in folders if part != "data" and not _SPLIT_WORD.search(part.lower()))


def format_of(name: str) -> str:
    found = _ENDING.search(name)
    assert found is not None, "only such files are chosen"
    return found[1].removesuffix(".gz")


# --- what is in a file -----------------------------------------------------------------------------------------------


def _text_of(file: Path, name: str, column: str | None) -> str:
    format = format_of(name)
    if format == "txt":
        return read_text(file)
    if format == "parquet":
        rows = _parquet_rows(file, name, column)
    elif format in ("csv", "tsv"):
        rows = _table_rows(read_text(file), name, column, "\t" if format == "tsv" else ",")
    else:
        rows = _json_rows(read_text(file), name, column)
    lines = (row.replace("\r\n", "\n") for row in rows)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _text_column(asked: str | None, holds_text: Mapping[str, bool], name: str) -> str:
    """The column asked for, or `text`, or the only one that holds text."""
    if asked is not None and asked not in holds_text:
        raise UserError(f"{name} has no column '{asked}'{did_you_mean(asked, holds_text)}")
    if asked is not None and not holds_text[asked]:
        raise UserError(f"column '{asked}' of {name} does not hold text{_columns_with_text(holds_text)}")
    texts = [column for column, is_text in holds_text.items() if is_text]
    if asked is not None or "text" in texts:
        return asked or "text"
    if len(texts) != 1:
        many = "several columns that could be the text" if texts else "no column that holds text"
        listed = ", ".join(texts or holds_text) or "none"
        raise UserError(
            f"{name} has {many}: {listed}" + (f"; choose one, as in data.path=owner/name#{texts[-1]}" if texts else "")
        )
    return texts[0]


def _columns_with_text(holds_text: Mapping[str, bool]) -> str:
    texts = [column for column, is_text in holds_text.items() if is_text]
    return f"; these do: {', '.join(texts)}" if texts else "; no other column does either"


def _table_rows(text: str, name: str, column: str | None, delimiter: str) -> Iterator[str]:
    rows, names = table_objects(text, name, delimiter)
    chosen = _text_column(column, dict.fromkeys(names, True), name)
    return (row[chosen] for row in rows if row[chosen] is not None)


def table_objects(text: str, name: str, delimiter: str) -> tuple[list[dict[str, str]], list[str]]:
    """The rows of a table with a header, and its columns."""
    limit = csv.field_size_limit(sys.maxsize)  # documents exceed csv's default limit
    try:
        # A tab-separated file has no quotes around its fields, so a lone one is part of the text.
        quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
        rows = list(reader)
    except csv.Error as problem:
        raise UserError(f"{name} is not a table of comma- or tab-separated values: {problem}") from None
    finally:
        csv.field_size_limit(limit)
    return rows, list(reader.fieldnames or [])


def _json_rows(text: str, name: str, column: str | None) -> Iterator[str]:
    rows = json_objects(text, name)
    found: dict[str, set[bool]] = {}
    for row in rows:
        for key, value in row.items():
            found.setdefault(key, set()).update(() if value is None else (isinstance(value, str),))
    chosen = _text_column(column, {key: kinds == {True} for key, kinds in found.items()}, name)
    return (row[chosen] for row in rows if row.get(chosen) is not None)


def json_objects(text: str, name: str) -> list[dict[str, Any]]:
    """The rows of an array, of one object per line, or of the only array inside an object."""
    try:
        rows = json.loads(text)
    except ValueError:
        rows = _json_lines(text, name)
    if isinstance(rows, dict):
        inside = [value for value in rows.values() if _are_objects(value)]
        rows = inside[0] if len(inside) == 1 else [rows]
    if rows and not _are_objects(rows):
        raise UserError(f"{name} is JSON, but not rows: expected an array of objects, or an object per line")
    return rows


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _json_lines(text: str, name: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as problem:
            raise UserError(f"{name} is not JSON, nor an object per line: line {number}: {problem}") from None
    return rows


def _parquet_rows(file: Path, name: str, column: str | None) -> Iterable[str]:
    arrow, parquet = parquet_library()
    try:
        table = parquet.ParquetFile(file)
        types = {field.name: field.type for field in table.schema_arrow}
        chosen = _text_column(column, {key: _is_text(arrow, kind) for key, kind in types.items()}, name)
        batches = table.iter_batches(columns=[chosen])
        return [row for batch in batches for row in batch.column(0).to_pylist() if row is not None]
    except (arrow.ArrowException, OSError) as problem:
        raise UserError(f"{name} is not a complete parquet file: {str(problem).splitlines()[0]}") from None


def _is_text(arrow: Any, kind: Any) -> bool:
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return arrow.types.is_string(kind) or arrow.types.is_large_string(kind)


def parquet_library() -> tuple[Any, Any]:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
        import pyarrow.types  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "reading parquet needs the package pyarrow, which is not installed: pip install 'headway[hub]'"
        ) from None
    return pyarrow, pyarrow.parquet
