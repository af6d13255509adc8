"""Where labelled texts come from: docstrings of the running Python, known sets under HEADWAY_DATA, the user's tables.

Everything here ends in rows by split, "train" first. A set without a `valid` of its own gives up a share of train for
it, for nothing may be chosen by looking at test: all rows of one text go to the same side.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.data.embedded import arithmetic, python_modules
from headway.data.labelled.tables import ENDINGS, Column, Row, read_table
from headway.data.running.sources import known_files, split_of_stem

Splits = dict[str, list[Row]]


class KnownTable(NamedTuple):
    """Files in a folder under HEADWAY_DATA."""

    files: dict[str, str]
    """The file of each split, train first."""
    text: Column
    label: Column
    header: bool
    names: dict[str, str]
    """What the labels in the files stand for."""


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
    text: Column | list[Column] = "text"
    """Or two of them: then every row is a pair of texts."""
    label: Column = "label"
    header: bool = True


def read_rows(source: str, path: str | None, columns: Columns, valid_fraction: float) -> tuple[Splits, bool]:
    """Rows by split, and whether `valid` was held out of train."""
    if source in EMBEDDED:
        splits = EMBEDDED[source]()
    elif source in KNOWN_TABLES:
        splits = _from_known_table(source)
    else:
        assert path is not None
        splits = _from_path(Path(path).expanduser(), columns)
    name = path or source
    held_out = "valid" not in splits and valid_fraction > 0
    if held_out:
        splits = _with_valid(splits, valid_fraction, name)
    _check(splits, name)
    return splits, held_out


def normalised(text: str) -> str:
    """Two texts are the same if they differ in nothing but white space."""
    return " ".join(text.split())


def _from_known_table(name: str) -> Splits:
    known = KNOWN_TABLES[name]
    found = {
        split: read_table(file, known.text, known.label, known.header)
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
    return {split: read_table(file, columns.text, columns.label, columns.header) for split, file in files.items()}


def _in_folder(folder: Path) -> dict[str, Path]:
    """The files whose names say which split they are, train first."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        ending = next((ending for ending in ENDINGS if file.name.endswith(ending)), None)
        split = split_of_stem(file.name.removesuffix(ending)) if ending else None
        if split in found:
            raise UserError(f"folder '{folder}' has two files for split '{split}': {found[split].name} and {file.name}")
        if split is not None:
            found[split] = file
    if "train" not in found:
        raise UserError(f"folder '{folder}' has no train file: expected train.tsv or train.csv in it")
    return {split: found[split] for split in sorted(found, key=lambda s: (s != "train", s != "valid", s))}


def _with_valid(splits: Splits, fraction: float, name: str) -> Splits:
    """A share of the texts of train, chosen by a hash of the text, so that the order of the rows has no say in it."""
    texts = sorted({normalised(row.text) for row in splits["train"]}, key=_hash)
    chosen = set(texts[: max(1, round(fraction * len(texts)))])
    sides: dict[bool, list[Row]] = {False: [], True: []}
    for row in splits["train"]:
        sides[normalised(row.text) in chosen].append(row)
    if not sides[False]:
        raise UserError(f"'{name}' has {len(texts)} different texts, too few to hold out {fraction:.0%} of them")
    rest = {split: rows for split, rows in splits.items() if split != "train"}
    return {"train": sides[False], "valid": sides[True], **rest}


def _check(splits: Mapping[str, list[Row]], name: str) -> None:
    known = {row.label for row in splits["train"]}
    if len(known) == 1:
        n, only = len(splits["train"]), next(iter(known))
        raise UserError(
            f"'{name}': all {n:,} texts of train are of one class, '{only}': there is nothing to tell apart"
        )
    for split, rows in splits.items():
        strange = [row.label for row in rows if row.label not in known]
        if strange:
            hint = did_you_mean(strange[0], known)
            what = f"{strange.count(strange[0]):,} of the texts of '{split}' are of class '{strange[0]}'"
            raise UserError(f"'{name}': {what}, which is empty in train{hint}")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
