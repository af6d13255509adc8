"""Where raw text comes from: generators that are part of Headway, a folder of known sets, the user's files, or the hub.

Everything here ends in `dict[str, str]`, text by split, with "train" first. Text is UTF-8, or UTF-16 where a file
begins like that, or what data.encoding says; a byte-order mark is dropped and Windows line ends become "\\n", so the
same text gives the same tokens wherever it was saved.
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
    """A folder under HEADWAY_DATA. Any file may also be there with, or without, `.gz`."""

    files: dict[str, str]
    """The file of each split, train first."""
    train_share: float | None = None
    """For a set without a split of its own: this share of the train file's characters, the rest being valid."""


EMBEDDED: dict[str, Callable[[], Splits]] = {
    "python-docs": python_docs.splits,
    "arithmetic-in-words": arithmetic.text_splits,
}

KNOWN_SETS = {
    "wikitext-2": KnownSet({"train": "train.txt.gz", "valid": "valid.txt", "test": "test.txt"}),
    # The cut that most published figures for this text were made with.
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

_SPLIT_OF_STEM = {"train": "train", **dict.fromkeys(("valid", "val", "dev", "validation"), "valid"), "test": "test"}
_FURTHER_TEST = re.compile(r"test-.+")
_TEXT_ENDINGS = (".txt", ".txt.gz")


def read_splits(source: str, path: str | None, valid_fraction: float, encoding: str | None = None) -> Splits:
    """Text by split name, "train" first. `path` belongs to sources 'files' and 'hub', and `valid_fraction` to text that
    has no split `valid` of its own."""
    if source not in CORPORA:
        raise UserError(f"there is no corpus called '{source}'{did_you_mean(source, CORPORA)}")
    if source in (FILES, HUB):
        if not path:
            kinds = {FILES: "a text file, or a folder with train.txt and valid.txt", HUB: "owner/name of a dataset"}
            raise UserError(f"source '{source}' needs a path: {kinds[source]}")
        if not 0 <= valid_fraction < 1:
            raise UserError(f"valid_fraction is {valid_fraction}; it must be at least 0 and below 1")
        if source == HUB:
            from headway.data.running import hub  # where it is used: it stands on this module

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
    """Where the files of a known set are, by split."""
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
    """The files whose names say which split they are."""
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
    """The split that a file of this name is: train, val, dev, test-easy …"""
    return stem if _FURTHER_TEST.fullmatch(stem) else _SPLIT_OF_STEM.get(stem)


def hold_out(text: str, valid_fraction: float, path: Path | str) -> Splits:
    """The end of a text is held out, from a line's beginning if that makes it at most half as long again."""
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
    """The text of one file, plain or gzip by its ending; or one sentence that says why it cannot be text."""
    text = written_in(path, encoding, key)
    if is_blank(text):
        raise UserError(f"'{path}' {'has only white space in it' if text else 'is empty'}; expected text")
    return text


def written_in(path: Path, encoding: str | None = None, key: str = "data.encoding=") -> str:
    """The same, where there may be nothing but white space."""
    try:
        content = read_bytes(path, None, through_links=True)
        if path.suffix == ".gz":
            content = unzipped(content, path)
    except UnreadableError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.why}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise UserError(f"'{path}' is not a whole gzip file ({problem})") from None
    except OSError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.strerror or problem}") from None
    return decoded(content, path, encoding, key)


def is_blank(text: str) -> bool:
    """Without `strip`, which would be a second copy of a whole corpus."""
    return not text or text.isspace()


def unzipped(content: bytes, path: Path) -> bytes:
    """What was compressed, piece by piece: a small file may say that it is a very large one."""
    pieces, left, whole = [], content, 0
    while left:
        inner = zlib.decompressobj(wbits=31)
        while not inner.eof and (left or inner.unconsumed_tail):
            piece = inner.decompress(left, PIECE)
            left, whole = inner.unconsumed_tail, whole + len(piece)
            if whole > max(MOST_TIMES * len(content), PIECE):
                times = f"{MOST_TIMES} times as long as its {len(content):,} bytes"
                raise UserError(f"'{path}' becomes more than {times}, which no text does: unpack it, and look at it")
            pieces.append(piece)
            if not piece and not left:
                break
        if not inner.eof:
            raise EOFError("it ends before its end")
        left = inner.unused_data.lstrip(b"\0")
    return b"".join(pieces)


PIECE = 16 << 20
MOST_TIMES = 200
"""Gzip makes text a third of its size, and the most monotonous of it a hundredth or so."""


def decoded(content: bytes, path: Path, encoding: str | None = None, key: str = "data.encoding=") -> str:
    """As text. What begins like UTF-16 is taken for that; any other encoding has to be said."""
    inside = ", after decompression" if path.suffix == ".gz" else ""
    if encoding is None and (found := _wide(content)):
        encoding = found
        say_once(f"{path.name}: this is {found.upper()} (data.encoding), as its first bytes say")
    if encoding is None and (zero := content.find(b"\0")) >= 0:
        raise UserError(f"'{path}' is binary, not text: there is a zero byte at offset {zero}{inside}")
    try:
        text = content.decode(encoding or "utf-8")
    except UnicodeDecodeError as problem:
        byte = content[problem.start]
        what = f"byte 0x{byte:02x} at offset {problem.start}{inside}"
        if encoding is not None:
            raise UserError(f"'{path}' is not {encoding} text: {what} cannot be decoded") from None
        what = f"{what}, in line {content.count(10, 0, problem.start) + 1:,}, cannot be decoded"
        remedy = f"Excel and older programs of Windows write cp1252: say {key}cp1252 (or latin-1, or what it is)"
        raise UserError(f"'{path}' is not UTF-8 text: {what}; {remedy}") from None
    if encoding is not None and "\0" in text:
        raise UserError(f"'{path}' read as {encoding} has zero bytes in it: it is something else, or no text at all")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _wide(content: bytes) -> str | None:
    """UTF-16 or UTF-32: told by the byte-order mark; without one, by every second byte, zero in Western text."""
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
    """Why text cannot be in it, in words; nothing, if it can."""
    if encoding is None:
        return ""
    try:
        is_text = codecs.lookup(encoding)._is_text_encoding  # rot13 and zip are codecs, too
        b"".decode(encoding)
    except (LookupError, ValueError):
        is_text = False
    return (
        "" if is_text else f"'{encoding}' is no encoding of text that Python knows; such as cp1252, latin-1, shift_jis"
    )
