"""Sources of labelled texts: docstrings of the running Python, known sets under HEADWAY_DATA, the user's tables.

All give rows by split, "train" first. If a set has no `valid`, a share of train is held out for it, because nothing may
be selected on test. For a single table a `test` is held out as well, because results selected on valid should not be
reported on it. See `held_out.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.core.progress import say_once
from headway.data.embedded import arithmetic, python_modules
from headway.data.labelled.held_out import HeldOut, by_text
from headway.data.labelled.tables import Row, labelled_rows
from headway.data.running.sources import known_files, split_of_stem
from headway.data.table_formats import ENDINGS, PLAIN, TableFormat
from headway.data.tables import Column, doubts_about_labels

Splits = dict[str, list[Row]]


class KnownTable(NamedTuple):
    """Files in a folder under HEADWAY_DATA."""

    files: dict[str, str]
    """The file of each split, train first."""
    text: Column
    label: Column
    header: bool
    names: dict[str, str]
    """The meaning of the labels in the files."""


EMBEDDED: dict[str, Callable[[], Splits]] = {
    "python-modules": lambda: {
        split: [Row(*row) for row in rows] for split, rows in python_modules.labelled_splits().items()
    },
    "arithmetic-in-words": lambda: {
        split: [Row(*row) for row in rows] for split, rows in arithmetic.labelled_splits().items()
    },
}

KNOWN_TABLES = {
    "cse256-speeches": KnownTable(
        {"train": "train_CLS.tsv", "test": "test_CLS.tsv"}, 2, 1, False, {"0": "obama", "1": "wbush", "2": "hbush"}
    ),
    "sst2": KnownTable(
        {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"},
        1,
        2,
        False,
        {"0": "negative", "1": "positive"},
    ),
    "verbal-arithmetic": KnownTable(
        {"train": "PA03_data_20_train.csv", "test": "PA03_data_20_test.csv"},
        "input",
        "label",
        True,
        {"0": "negative", "1": "zero", "2": "positive"},
    ),
}

FILES = "files"

LABELLED_SETS = (*EMBEDDED, *KNOWN_TABLES, FILES)
"""Every valid `source` of labelled texts."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold texts and labels, and the table's format."""

    text: Column | list[Column] = "text"
    """Several columns: then every row is a pair of texts."""
    label: Column = "label"
    header: bool | None = None
    """null = yes, if a column is given by name."""
    format: TableFormat = PLAIN
    empty: str = "refuse"
    """What to do with rows that have empty cells: refuse, drop."""

    def read(self, file: Path) -> list[Row]:
        return labelled_rows(file, self.text, self.label, self.header, self.format, self.empty)


def read_rows(source: str, path: str | None, columns: Columns, held_out: HeldOut) -> tuple[Splits, str]:
    """Rows by split, and a note on what was held out of train."""
    if source in EMBEDDED:
        splits = EMBEDDED[source]()
    elif source in KNOWN_TABLES:
        splits = _from_known_table(source)
    else:
        assert path is not None
        splits = _from_path(Path(path).expanduser(), columns)
    name, told = path or source, ""
    if "valid" not in splits and held_out.valid > 0 and (source != FILES or held_out.seed is None):
        splits, told = by_text(splits, held_out.valid, name)
    elif source == FILES and held_out.seed is not None:
        splits, told = held_out.by_class(splits, name, single=Path(name).expanduser().is_file())
    _check(splits, name)
    if source == FILES:
        for doubt in doubts_about_labels([row.label for rows in splits.values() for row in rows]):
            say_once(f"{Path(name).name}: {doubt}")
    return splits, told


def _from_known_table(name: str) -> Splits:
    known = KNOWN_TABLES[name]
    found = {
        split: labelled_rows(file, known.text, known.label, known.header)
        for split, file in known_files(name, known.files).items()
    }
    return {split: [Row(text, known.names.get(label, label)) for text, label in rows] for split, rows in found.items()}


def _from_path(path: Path, columns: Columns) -> Splits:
    try:
        if not path.exists():
            raise UserError(f"there is no file or folder '{path}'")
        files = _in_folder(path) if path.is_dir() else {"train": path}
    except PermissionError:
        raise UserError(f"'{path}' may not be read: permission denied") from None
    return {split: columns.read(file) for split, file in files.items()}


def _in_folder(folder: Path) -> dict[str, Path]:
    """The files whose names tell their split, train first."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        ending = next((ending for ending in ENDINGS if file.name.endswith(ending)), None)
        split = split_of_stem(file.name.removesuffix(ending)) if ending else None
        if split in found:
            raise UserError(f"folder '{folder}' has two files for split '{split}': {found[split].name} and {file.name}")
        if split is not None:
            found[split] = file
    if "train" not in found:
        raise UserError(f"folder '{folder}' has no train file: expected train.tsv, train.csv or train.jsonl in it")
    return {split: found[split] for split in sorted(found, key=lambda s: (s != "train", s != "valid", s))}


def _check(splits: Mapping[str, list[Row]], name: str) -> None:
    known = {row.label for row in splits["train"]}
    if len(known) == 1:
        n, only = len(splits["train"]), next(iter(known))
        raise UserError(f"'{name}': all {n:,} texts of train have the same class, '{only}': there is nothing to learn")
    for split, rows in splits.items():
        strange = [row.label for row in rows if row.label not in known]
        if strange:
            hint = did_you_mean(strange[0], known)
            what = f"{strange.count(strange[0]):,} texts of '{split}' have the class '{strange[0]}'"
            raise UserError(f"'{name}': {what}, which does not occur in train{hint}")
