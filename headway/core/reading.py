"""Reading files that may have been tampered with: regular files of bounded size, or an error that says why not.

A folder that was damaged, or that somebody sent, may hold anything under the names that are expected in it: a pipe that
nobody writes to, a device without end, a link to elsewhere, a folder, a hundred thousand brackets. Whatever Headway
reads of runs, studies, searches and caches, it reads by what is here; and what it adds to, it opens by what is here.
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
"""Bytes of a file that is read whole: the largest that Headway writes have a hundredth of it."""
MOST_LINES = 4 << 30
"""Bytes of a file that grows by a line a step."""
DEEPEST = 60
"""How deep JSON may be nested; Headway's own is never half as deep."""
DAMAGED = "Headway writes its files whole, so something else has damaged this one"

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
_CAREFULLY = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe that nobody writes to would keep us waiting
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class UnreadableError(UserError):
    """A file that is there and cannot be read; the message names it and says why."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path} cannot be read: {why}")
        self.path, self.why = path, why


@contextmanager
def opened(path: Path, through_links: bool = False) -> Iterator[IO[bytes]]:
    """A regular file, to be read. FileNotFoundError where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _CAREFULLY | (0 if through_links else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise UnreadableError(path, _why(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        if why := _no_file(os.fstat(descriptor)):
            raise UnreadableError(path, why)
        yield file


def read_bytes(path: Path, most: int | None = MOST, through_links: bool = False) -> bytes:
    """All of a regular file, which may be as large as the memory where nothing less is said. FileNotFoundError where
    there is none; `UnreadableError` for whatever else."""
    size, bound = 0, memory_of_machine() if most is None else most
    try:
        with opened(path, through_links) as file:
            size = os.fstat(file.fileno()).st_size
            if size > bound:
                raise UnreadableError(path, f"it has {size:,} bytes, and at most {bound:,} are read")
            return file.read() if most is None else file.read(most)
    except FileNotFoundError:
        raise
    except MemoryError:
        raise UnreadableError(path, f"it has {size:,} bytes, and there is no memory for so many") from None
    except OSError as error:  # a disk that fails
        raise UnreadableError(path, _why(error)) from None


def memory_of_machine() -> int:
    """Bytes, whoever else uses them now: what is more than that fits at no time."""
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
    """What a JSON text holds; nested no deeper than anything that Headway writes."""
    if not content:
        raise UnreadableError(path, "it is empty")
    if is_deeper(content, DEEPEST):
        raise UnreadableError(path, f"it is nested more than {DEEPEST} levels deep")
    try:
        return json.loads(as_text(content, path))
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, too
        raise UnreadableError(path, f"it is no JSON: {str(error).partition(';')[0]}") from None


def is_deeper(content: bytes, most: int) -> bool:
    """Whether brackets in a JSON text are nested deeper than that; told without recursion, and fast."""
    if content.count(b"[") + content.count(b"{") <= most:
        return False
    brackets = _STRING.sub(b"", content).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(most):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):  # they do not come in pairs: this is no JSON
            return len(brackets) > most
        brackets = inner
    return bool(brackets)


@contextmanager
def opened_to_append(path: Path, mode: str = "ab") -> Iterator[IO[Any]]:
    """A regular file, new or there, to be added to; never through a link, which may lead anywhere."""

    def carefully(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | _CAREFULLY | os.O_NOFOLLOW, 0o666)
        if why := _no_file(os.fstat(descriptor)):  # before anybody seeks its end, which a pipe has not
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
    """What is written or removed in these stays in them: none of them is a link to elsewhere."""
    for folder in folders:
        if folder.is_symlink():
            raise UserError(
                f"{folder} is a link, and nothing is written through links; name the folder that it leads to"
            )


def _no_file(found: os.stat_result) -> str:
    """Why this is not a regular file; empty if it is one."""
    if stat.S_ISREG(found.st_mode):
        return ""
    return f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}, not a file"


def _why(error: Exception) -> str:
    kinds = {errno.ELOOP: "it is a link", errno.EISDIR: "it is a folder, not a file", errno.ENXIO: "it is a pipe"}
    kinds[errno.ENODEV] = kinds[errno.ENXIO]
    known = kinds.get(error.errno or 0) if isinstance(error, OSError) else None
    return known or getattr(error, "strerror", None) or str(error)
