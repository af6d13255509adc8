"""Safe reading of files that may have been tampered with: regular files of limited size, or an error that says why not.

In a damaged folder, or one from somebody else, an expected file name may be a pipe that nobody writes to, an endless
device, a link to elsewhere, a folder, or JSON nested a hundred thousand levels deep. All files of runs, studies,
searches and caches are opened with the functions below.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headway.core.errors import UserError

MOST = 128 << 20
"""Size limit in bytes for a file read at once; the largest that Headway writes have a hundredth of it."""
MOST_LINES = 4 << 30
"""Size limit in bytes for a file that grows by a line per step."""
MAX_DEPTH = 60
"""How deep JSON may be nested; Headway's own files reach less than half of it."""
DAMAGED = "Headway never leaves half-written files, so something else damaged this one"

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
_CAREFULLY = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # without O_NONBLOCK, opening a pipe could wait forever
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class UnreadableError(UserError):
    """A file exists but cannot be read; the message names it and says why."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path} cannot be read: {why}")
        self.path, self.why = path, why


@contextmanager
def opened(path: Path, through_links: bool = False) -> Iterator[IO[bytes]]:
    """Open a regular file for reading. Raises FileNotFoundError if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _CAREFULLY | (0 if through_links else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that contains a zero byte
        raise UnreadableError(path, _why(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        if why := _no_file(os.fstat(descriptor)):
            raise UnreadableError(path, why)
        yield file


def read_bytes(path: Path, most: int | None = MOST, through_links: bool = False) -> bytes:
    """Read a whole regular file; with `most=None` its size is limited only by the memory. Raises FileNotFoundError if
    there is none, and `UnreadableError` for anything else."""
    size, bound = 0, memory_of_machine() if most is None else most
    try:
        with opened(path, through_links) as file:
            size = os.fstat(file.fileno()).st_size
            if size > bound:
                raise UnreadableError(path, f"it has {size:,} bytes, more than the limit of {bound:,}")
            return file.read() if most is None else file.read(most)
    except FileNotFoundError:
        raise
    except MemoryError:
        raise UnreadableError(path, f"it has {size:,} bytes, which do not fit into memory") from None
    except OSError as error:  # the disk fails
        raise UnreadableError(path, _why(error)) from None


def memory_of_machine() -> int:
    """The machine's memory in bytes, used or free: anything larger can never fit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:  # a container may have less
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return whole


def read_text(path: Path, most: int | None = MOST, through_links: bool = False) -> str:
    return as_text(read_bytes(path, most, through_links), path)


def read_json(path: Path, most: int | None = MOST, through_links: bool = False) -> Any:
    return parse_json(read_bytes(path, most, through_links), path)


def as_text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{content[error.start]:02x} at offset {error.start:,}"
        raise UnreadableError(path, f"it is not UTF-8 text: {found}") from None


def parse_json(content: bytes, path: Path) -> Any:
    """Parse JSON, nested at most as deep as Headway's own files may be."""
    if not content:
        raise UnreadableError(path, "it is empty")
    if is_deeper(content, MAX_DEPTH):
        raise UnreadableError(path, f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        return json.loads(as_text(content, path))
    except (ValueError, RecursionError) as error:  # also for an integer with thousands of digits
        raise UnreadableError(path, f"it is not JSON: {str(error).partition(';')[0]}") from None


def is_deeper(content: bytes, most: int) -> bool:
    """Whether the brackets of a JSON text are nested deeper than `most`; without recursion, and fast."""
    if content.count(b"[") + content.count(b"{") <= most:
        return False
    brackets = _STRING.sub(b"", content).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(most):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):  # unpaired brackets: not JSON
            return len(brackets) > most
        brackets = inner
    return bool(brackets)


@contextmanager
def opened_to_append(path: Path, mode: str = "ab") -> Iterator[IO[Any]]:
    """Open a new or existing regular file for appending; never through a link."""

    def carefully(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | _CAREFULLY | os.O_NOFOLLOW, 0o666)
        if why := _no_file(os.fstat(descriptor)):  # before anybody seeks to its end, which fails on a pipe
            os.close(descriptor)
            raise UserError(f"{path} cannot be written: {why}")
        return descriptor

    encoding = None if "b" in mode else "utf-8"
    try:
        file = open(path, mode, encoding=encoding, opener=carefully)  # noqa: SIM115 (its own `with` comes below)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UserError(f"{path} cannot be written: {_why(error)}") from None
        raise
    with file:
        yield file


def check_own(*folders: Path) -> None:
    """Check that none of these folders is a link, so that nothing outside them is written or removed."""
    for folder in folders:
        if folder.is_symlink():
            raise UserError(
                f"{folder} is a link, and Headway does not write through links; give the folder that it points to"
            )


def _no_file(found: os.stat_result) -> str:
    """Why this is not a regular file; empty if it is."""
    if stat.S_ISREG(found.st_mode):
        return ""
    return f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}, not a file"


def _why(error: Exception) -> str:
    kinds = {errno.ELOOP: "it is a link", errno.EISDIR: "it is a folder, not a file", errno.ENXIO: "it is a pipe"}
    kinds[errno.ENODEV] = kinds[errno.ENXIO]
    known = kinds.get(error.errno or 0) if isinstance(error, OSError) else None
    return known or getattr(error, "strerror", None) or str(error)
