"""Numbers as people type them: `1,0; 0,1` on the command line, or a file that holds them."""

import json
from pathlib import Path

import numpy as np

from headway.errors import UserError

SUFFIXES = (".csv", ".txt", ".json", ".npy")


def read_table(what: str, text: str) -> np.ndarray:
    """`1,0; 0,1`, one row after the other, or the name of a file: .csv, .txt, .json or .npy."""
    path = Path(text)
    if path.suffix in SUFFIXES:
        return _read_file(what, path)
    return _rows(what, [row for row in text.split(";") if row.strip()])


def read_list(what: str, text: str) -> list[float]:
    """`0.5,0.3,0.2`"""
    return [_number(what, word) for word in text.replace(",", " ").split()]


def read_indices(what: str, text: str) -> list[int]:
    """`0,2`"""
    values = read_list(what, text)
    for value in values:
        if value != int(value):
            raise UserError(f"{what}: {value:g} is not the number of a key; keys are counted from 0")
    return [int(value) for value in values]


def _read_file(what: str, path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if path.suffix == ".json":
            return np.asarray(json.loads(path.read_text()), dtype=np.float64)
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise UserError(f"{what}: there is no file {path}; numbers can also be typed, as '1,0; 0,1'") from None
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{what}: {path} does not hold a table of numbers: {error}") from error
    return _rows(what, [line for line in lines if line.strip()])


def _rows(what: str, rows: list[str]) -> np.ndarray:
    table = [read_list(what, row) for row in rows]
    lengths = {len(row) for row in table}
    if len(lengths) != 1:
        shown = ", ".join(map(str, sorted(lengths))) or "none"
        raise UserError(
            f"{what}: every row must have as many numbers; these have {shown}. Written as '1,0; 0,1', or a file"
        )
    return np.array(table)


def _number(what: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UserError(
            f"{what}: '{word}' is not a number. Written as '1,0; 0,1', or a file ({', '.join(SUFFIXES)})"
        ) from None
