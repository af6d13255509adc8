"""Parse numbers given on the command line, such as `1,0; 0,1`, or in a file."""

import json
from pathlib import Path

import numpy as np

from headway.core.errors import UserError
from headway.core.reading import UnreadableError, read_text

SUFFIXES = (".csv", ".txt", ".json", ".npy")


def read_table(what: str, text: str) -> np.ndarray:
    """Read a table: `1,0; 0,1`, row by row, or the name of a file: .csv, .txt, .json or .npy."""
    path = Path(text)
    if path.suffix.lower() in SUFFIXES:
        return _read_file(what, path)
    if text.strip(" ;") and not any(c.isdigit() for c in text):
        raise UserError(f"{what}: '{text}' is neither numbers such as '1,0; 0,1' nor a file ({', '.join(SUFFIXES)})")
    return _rows(what, [row for row in text.split(";") if row.strip()])


def read_list(what: str, text: str) -> list[float]:
    """Read a list of numbers: `0.5,0.3,0.2`."""
    return [_number(what, word) for word in text.replace(",", " ").split()]


def read_indices(what: str, text: str) -> list[int]:
    """Read a list of key indices: `0,2`."""
    values = read_list(what, text)
    for value in values:
        if not value.is_integer():
            raise UserError(f"{what}: {value:g} is not the index of a key; keys are counted from 0")
    return [int(value) for value in values]


def _read_file(what: str, path: Path) -> np.ndarray:
    try:
        if path.suffix.lower() == ".npy":
            return _real(np.load(path, allow_pickle=False))
        text = read_text(path, through_links=True).removeprefix("\ufeff")  # the byte order mark that spreadsheets write
        if path.suffix.lower() == ".json":
            return np.asarray(json.loads(text), dtype=np.float64)
    except FileNotFoundError:
        raise UserError(f"{what}: there is no file {path}; you can also type numbers, such as '1,0; 0,1'") from None
    except UnreadableError as error:
        raise UserError(f"{what}: {error}") from None
    except OSError as error:
        raise UserError(f"{what}: {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, EOFError) as error:
        raise UserError(f"{what}: {path} is not a table of numbers: {error}") from error
    return _rows(f"{what} in {path}", [line for line in text.splitlines() if line.strip()])


def _rows(what: str, rows: list[str]) -> np.ndarray:
    table = [read_list(f"{what}, row {i}", row) for i, row in enumerate(rows)]
    if not table:
        raise UserError(f"{what}: no numbers; give them as '1,0; 0,1' or as a file ({', '.join(SUFFIXES)})")
    for i, row in enumerate(table):
        if len(row) != len(table[0]):
            raise UserError(f"{what}: row {i} has {len(row)} numbers, but row 0 has {len(table[0])}")
    return np.array(table)


def _real(array: np.ndarray) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise TypeError("it must be one array of real numbers")
    return array.astype(np.float64)


def _number(what: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UserError(f"{what}: '{word}' is not a number") from None
