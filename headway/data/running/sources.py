"""Sources of raw text: generators in Headway, a folder of known sets, the user's files, or the hub.

All give `dict[str, str]`, text by split, "train" first. Text is UTF-8, or UTF-16 where a file begins with its byte
order mark, or as data.encoding says. A byte order mark is dropped and Windows line ends become "\\n", so the same text
gives the same tokens wherever it was saved.
"""

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.core.progress import say_once
from headway.core.reading import UnreadableError, read_bytes
from headway.data.embedded import arithmetic, python_docs

Splits = dict[str, str]


class KnownSet(NamedTuple):
    """A folder under HEADWAY_DATA. Any file may be there with or without `.gz`."""

    files: dict[str, str]
    """The file of each split, train first."""
    train_share: float | None = None
    """For a set that is a single file: the share of its characters that is train; the rest is valid."""


EMBEDDED: dict[str, Callable[[], Splits]] = {
    "python-docs": python_docs.splits,
    "arithmetic-in-words": arithmetic.text_splits,
}

KNOWN_SETS = {
    "wikitext-2": KnownSet({"train": "train.txt.gz", "valid": "valid.txt", "test": "test.txt"}),
    # The split used in most published results on this text.
    "tinyshakespeare": KnownSet({"train": "input.txt"}, train_share=0.9),
    "cse256-speeches": KnownSet(
        {
            "train": "train_LM.txt",
            "test-obama": "test_LM_obama.txt",
            "test-wbush": "test_LM_wbush.txt",
            "test-hbush": "test_LM_hbush.txt",
        }
    ),
}

FILES = "files"
HUB = "hub"

CORPORA = (*EMBEDDED, *KNOWN_SETS, FILES, HUB)
"""Every valid `source`."""

_SPLIT_OF_STEM = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
_FURTHER_TEST = re.compile(r"test-.+")
_TEXT_ENDINGS = (".txt", ".txt.gz")


def read_splits(source: str, path: str | None, valid_fraction: float, encoding: str | None = None) -> Splits:
    """Text by split name, "train" first. `path` is for the sources 'files' and 'hub'. `valid_fraction` is held out of a
    text that has no `valid` split."""
    if source not in CORPORA:
        raise UserError(f"there is no corpus called '{source}'{did_you_mean(source, CORPORA)}")
    if source in (FILES, HUB):
        if not path:
            kinds = {FILES: "a text file, or a folder with train.txt and valid.txt", HUB: "owner/name of a dataset"}
            raise UserError(f"source '{source}' needs a path: {kinds[source]}")
        if not 0 <= valid_fraction < 1:
            raise UserError(f"valid_fraction is {valid_fraction}; it must be at least 0 and below 1")
        if source == HUB:
            from headway.data.running import hub  # imported here, because it imports this module

            return hub.read_splits(path, valid_fraction)
        return _from_path(Path(path).expanduser(), valid_fraction, encoding)
    if path is not None:
        raise UserError(f"corpus '{source}' takes no path (given: '{path}'); to read your own text use source 'files'")
    return EMBEDDED[source]() if source in EMBEDDED else _from_known_set(source)


def _from_known_set(name: str) -> Splits:
    known = KNOWN_SETS[name]
    splits = {split: read_text(file) for split, file in known_files(name, known.files).items()}
    if known.train_share is not None:
        text = splits["train"]
        cut = int(len(text) * known.train_share)
        splits = {"train": text[:cut], "valid": text[cut:]}
    return splits


def known_files(name: str, files: dict[str, str]) -> dict[str, Path]:
    """The paths of a known set's files, by split."""
    variable = os.environ.get("HEADWAY_DATA")
    if not variable:
        raise UserError(
            f"corpus '{name}' is read from the folder named by the environment variable HEADWAY_DATA, which is not set"
        )
    root = Path(variable).expanduser()
    if not root.is_dir():
        reason = "is a file, not a folder" if root.exists() else "does not exist"
        raise UserError(f"corpus '{name}' is read from HEADWAY_DATA, but '{variable}' {reason}")
    found = {split: _with_or_without_gz(root / name / file) for split, file in files.items()}
    for split, file in found.items():
        if not file.exists():
            raise UserError(f"corpus '{name}' has no split '{split}' under HEADWAY_DATA: expected the file '{file}'")
    return found


def _with_or_without_gz(expected: Path) -> Path:
    other = expected.with_suffix("") if expected.suffix == ".gz" else expected.with_name(expected.name + ".gz")
    return other if other.exists() and not expected.exists() else expected


def _from_path(path: Path, valid_fraction: float, encoding: str | None) -> Splits:
    try:
        if path.is_dir():
            return _from_folder(path, encoding)
        if not path.exists():
            raise UserError(f"there is no file or folder '{path}'")
    except PermissionError:
        raise UserError(f"'{path}' may not be read: permission denied") from None
    return hold_out(read_text(path, encoding), valid_fraction, path)


def _from_folder(folder: Path, encoding: str | None) -> Splits:
    """Read the files whose names tell their split."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        ending = next((ending for ending in _TEXT_ENDINGS if file.name.endswith(ending)), None)
        if ending is None:
            continue
        split = split_of_stem(file.name.removesuffix(ending))
        if split is None:
            continue
        if split in found:
            raise UserError(f"folder '{folder}' has two files for split '{split}': {found[split].name} and {file.name}")
        found[split] = file
    if "train" not in found:
        raise UserError(f"folder '{folder}' has no train file: expected train.txt or train.txt.gz in it")
    in_order = sorted(found, key=lambda split: ({"train": 0, "valid": 1, "test": 2}.get(split, 3), split))
    return {split: read_text(found[split], encoding) for split in in_order}


def split_of_stem(stem: str) -> str | None:
    """The split that a file name stands for: train, val, dev, test-easy …"""
    return stem if _FURTHER_TEST.fullmatch(stem) else _SPLIT_OF_STEM.get(stem)


def hold_out(text: str, valid_fraction: float, path: Path | str) -> Splits:
    """Hold out the end of a text. It starts at the beginning of a line, unless that makes it more than half as long
    again."""
    if valid_fraction == 0:
        return {"train": text}
    cut = int(len(text) * (1 - valid_fraction))
    earliest = cut - (len(text) - cut) // 2
    line_begin = text.rfind("\n", max(earliest, 0), cut) + 1
    splits = {"train": text[: line_begin or cut], "valid": text[line_begin or cut :]}
    for split, part in splits.items():
        if is_blank(part):
            raise UserError(
                f"'{path}' has {len(text)} characters, and with valid_fraction {valid_fraction} "
                f"there is no text left for split '{split}'"
            )
    return splits


def read_text(path: Path, encoding: str | None = None, key: str = "data.encoding=") -> str:
    """Read a text file, gzipped if its ending says so; raise a UserError if it is not text."""
    try:
        content = read_bytes(path, None, through_links=True)
        if path.suffix == ".gz":
            content = unzipped(content, path)
    except UnreadableError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.why}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise UserError(f"'{path}' is not a complete gzip file ({problem})") from None
    except OSError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.strerror or problem}") from None
    text = decoded(content, path, encoding, key)
    if is_blank(text):
        raise UserError(f"'{path}' {'has only white space in it' if text else 'is empty'}; expected text")
    return text


def is_blank(text: str) -> bool:
    """Whether a text is empty or white space. Without `strip`, which would copy a whole corpus."""
    return not text or text.isspace()


def unzipped(content: bytes, path: Path) -> bytes:
    """Decompress gzip data piece by piece, since a small file may expand to a huge one."""
    pieces, left, whole = [], content, 0
    while left:
        inner = zlib.decompressobj(wbits=31)
        while not inner.eof and (left or inner.unconsumed_tail):
            piece = inner.decompress(left, PIECE)
            left, whole = inner.unconsumed_tail, whole + len(piece)
            if whole > max(MAX_EXPANSION * len(content), PIECE):
                times = f"{MAX_EXPANSION} times its {len(content):,} bytes"
                raise UserError(f"'{path}' expands to more than {times}, which text does not: unpack it and check it")
            pieces.append(piece)
            if not piece and not left:
                break
        if not inner.eof:
            raise EOFError("it is truncated")
        left = inner.unused_data.lstrip(b"\0")
    return b"".join(pieces)


PIECE = 16 << 20
MAX_EXPANSION = 200
"""Limit on the expansion by gzip: usual text expands three times, very repetitive text about a hundred times."""


def decoded(content: bytes, path: Path, encoding: str | None = None, key: str = "data.encoding=") -> str:
    """Decode bytes as UTF-8, or as UTF-16 or UTF-32 if they look like it; any other encoding must be given."""
    inside = ", after decompression" if path.suffix == ".gz" else ""
    if encoding is None and (found := _wide(content)):
        encoding = found
        say_once(f"{path.name}: read as {found.upper()} (data.encoding), judging by its first bytes")
    if encoding is None and (zero := content.find(b"\0")) >= 0:
        raise UserError(f"'{path}' is binary, not text: it has a zero byte at offset {zero}{inside}")
    try:
        text = content.decode(encoding or "utf-8")
    except UnicodeDecodeError as problem:
        byte = content[problem.start]
        what = f"byte 0x{byte:02x} at offset {problem.start}{inside}"
        if encoding is not None:
            raise UserError(f"'{path}' is not {encoding} text: {what} cannot be decoded") from None
        what = f"{what}, in line {content.count(10, 0, problem.start) + 1:,}, cannot be decoded"
        remedy = f"Excel and older Windows programs write cp1252: set {key}cp1252 (or latin-1, or whatever it is)"
        raise UserError(f"'{path}' is not UTF-8 text: {what}; {remedy}") from None
    if encoding is not None and "\0" in text:
        raise UserError(f"'{path}' read as {encoding} has zero bytes in it: it has another encoding or is not text")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _wide(content: bytes) -> str | None:
    """Detect UTF-16 or UTF-32 by the byte order mark, or UTF-16 without one by its zero bytes, every second in Western
    text."""
    for mark, name in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if content.startswith(mark):
            return name
    some = content[:4096]
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = some[first::2].count(0), some[1 - first :: 2].count(0)
        if len(some) >= 4 and others == 0 and zeros > 0.8 * len(some[first::2]):
            return name
    return None


def why_no_encoding(encoding: str | None) -> str:
    """Why this is not a text encoding; empty if it is one."""
    if encoding is None:
        return ""
    try:
        is_text = codecs.lookup(encoding)._is_text_encoding  # rot13 and zip are codecs too
        b"".decode(encoding)
    except (LookupError, ValueError):
        is_text = False
    return (
        "" if is_text else f"Python knows no text encoding '{encoding}'; use a name such as cp1252, latin-1, shift_jis"
    )
