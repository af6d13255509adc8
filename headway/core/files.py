"""Atomic files and folders: written completely or not at all, even if the power fails.

Something that is being written or removed has the name `.NAME.PID.partial`; something being replaced is called
`.NAME.PID.aside` until the new version has its name. A killed process leaves such names behind; `clean_up` removes or
restores them.
"""

import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.reading import opened, opened_to_append

LEFT_BEHIND = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.(?P<what>partial|aside)", re.DOTALL)

AT_ONCE = 8
"""Threads that write to the disk at the same time."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it."""
    partial = _other_name(path, "partial")
    try:
        with naming(path):
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:  # fails if a link has this name
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            settle(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_folder_whole(path: Path, fill: Callable[[Path], None], new: bool = False) -> None:
    """Write a folder atomically: `fill` writes into a temporary folder with plain calls, then everything in it is
    flushed to the disk, and it is renamed. An existing folder is moved aside until then, or is an error if the folder
    must be `new`."""
    partial, aside = _other_name(path, "partial"), _other_name(path, "aside")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with naming(path):
            partial.mkdir(parents=True)
            fill(partial)
            for inner in partial.rglob("*"):
                settle(inner)
            settle(partial)
            if path.exists() and not new:
                path.replace(aside)
            partial.replace(path)
            settle(path.parent)
    finally:
        _undo(aside, path)
        shutil.rmtree(partial, ignore_errors=True)


def side_by_side(orders: Sequence[Callable[[], Any]]) -> None:
    """Run tasks that wait for the disk, several at a time: the disk handles their flushes together, so 32 folders take
    a tenth of the time. Tasks that compute outside Python gain, too. Each runs in a copy of the caller's context. After
    an error no further task is started; it is raised when all running tasks have ended."""
    if len(orders) < 2:
        for order in orders:
            order()
        return
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
    from contextvars import copy_context

    with ThreadPoolExecutor(min(AT_ONCE, len(orders)), "headway-disk") as threads:
        begun = [threads.submit(copy_context().run, order) for order in orders]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
    for one in begun:
        if not one.cancelled():
            one.result()


def remove_folder_whole(path: Path) -> None:
    """Remove a folder. It is renamed first, so that a half-removed folder is never mistaken for a complete one."""
    if path.is_symlink():  # do not delete the folder it points to
        path.unlink()
        return
    partial = _other_name(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    path.replace(partial)
    shutil.rmtree(partial)


def clean_up(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left unfinished in a folder (of this name only), and restore what they had moved
    aside. Files of living processes are left alone."""
    for left in list(folder.iterdir()) if folder.is_dir() else []:
        found = LEFT_BEHIND.fullmatch(left.name)
        if not found or name not in (None, found["name"]) or _is_another_process(int(found["pid"])):
            continue
        if found["what"] == "aside":
            _undo(left, folder / found["name"])
        elif left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder. The system releases the lock when the process ends, even if killed."""
    with opened_to_append(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(f"{folder} is being written by process {file.read().strip() or '?'}") from None
        except OSError as error:
            raise UserError(f"{folder} cannot be locked: {error.strerror}") from None
        with naming(folder / "lock"):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def holder(folder: Path) -> int | None:
    """The process of this machine that holds a folder's lock, if any. The file still names processes that have died,
    so the lock itself is tested, but only while that process lives, so as not to disturb others."""
    pid = 0
    try:
        with opened(folder / "lock") as file:
            pid = int(file.read(32) or 0)
            if pid != os.getpid() and not _is_another_process(pid):
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        return pid
    except (OSError, ValueError, UserError):
        return None


def cache_folder() -> Path:
    """The folder for everything that may be deleted at any time: `$HEADWAY_CACHE`, or `headway` in the user's cache
    folder. Raises RuntimeError if the user has no home folder."""
    if named := os.environ.get("HEADWAY_CACHE"):
        return Path(named).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).expanduser() / "headway"
    return Path.home() / ".cache" / "headway"


def write_json(path: Path, value: Any) -> None:
    write_whole(path, as_json(value))


def as_json(value: Any) -> str:
    """JSON as Headway's files format it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.cache
def checksum_of_files(*paths: Path) -> str:
    """Of several files that stay the same while the process runs, such as sources; missing ones are left out."""
    return checksum(b"\0".join(path.read_bytes() for path in paths if path.is_file()))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to write errors: the system names files that cannot be opened, but not when a disk is
    full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or ".partial" in str(error.filename)):
            error.filename = str(path)
            if error.filename2 is not None:
                del error.filename2  # if set to None, it would still be printed
        raise


def check_names(names: Sequence[str], of: str = "a run") -> None:
    """Check that each name is a single folder name of printable characters."""
    for name in names:
        if not name or not name.isprintable() or "/" in name or name.startswith(".") or len(name.encode()) > 200:
            where = "; use --runs for the folder that contains it" if of == "a run" else ""
            raise UserError(
                f"{name!r} cannot be the name of {of}: a name must not contain '/' or invisible characters, must not "
                f"start with '.', and has at most 200 bytes{where}"
            )


def settle(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot flush folders
            raise
    finally:
        os.close(descriptor)


def _other_name(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{what}")


def _undo(aside: Path, path: Path) -> None:
    """Move a folder back to its name, unless something new has taken it."""
    if aside.exists() and not path.exists():
        aside.replace(path)
    shutil.rmtree(aside, ignore_errors=True)


def _is_another_process(pid: int) -> bool:
    if pid == os.getpid():  # a file with our own process id was left by an earlier process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
