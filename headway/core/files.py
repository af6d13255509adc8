"""Atomic files and folders: there whole or not at all, at whatever moment the power fails.

What is being made, or taken away, bears another name: `.NAME.PID.partial`; what makes way for something new is
`.NAME.PID.aside` until the new one has the name. A process that is killed leaves such names behind; `clean_up` puts
them right.
"""

import errno
import fcntl
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
"""Threads that wait for a disk."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write under another name, make sure it is on the disk, then take the name."""
    partial = _other_name(path, "partial")
    try:
        with naming(path):
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:  # never through a link that bears this name
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            settle(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_folder_whole(path: Path, fill: Callable[[Path], None], new: bool = False) -> None:
    """The same for a folder: `fill` writes into a nameless one, plainly, for all that lies in it is made sure of before
    it takes the name. A folder that has it makes way, and is kept aside until then; unless the folder is to be `new`,
    and it is an error that there is one."""
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
    """Carry out what waits for the disk, several at a time: a disk that is asked for many things at once makes sure of
    them together, and 32 folders take a tenth of the time that they take one after the other. After an error nothing
    more is begun, and it is raised when all that was begun has ended."""
    if len(orders) < 2:
        for order in orders:
            order()
        return
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(min(AT_ONCE, len(orders)), "headway-disk") as threads:
        begun = [threads.submit(order) for order in orders]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
    for one in begun:
        if not one.cancelled():
            one.result()


def remove_folder_whole(path: Path) -> None:
    """Half of a folder must not be mistaken for it, so the name goes first."""
    if path.is_symlink():  # what it leads to is not ours
        path.unlink()
        return
    partial = _other_name(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    path.replace(partial)
    shutil.rmtree(partial)


def clean_up(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half made in a folder (of this name only), and put back what they had put
    aside. What belongs to a living process is left alone."""
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
    """Keep other processes out of a folder. The system drops the lock when the process dies, however it dies."""
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
    """The process of this machine that keeps others out of a folder, if there is one. The number of one that died
    stays in the file, so the lock itself is asked; but only while such a process lives, not to be in its way."""
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
    """Where everything is kept that may be deleted at any time: `$HEADWAY_CACHE`, or `headway` in the place where this
    user's caches are. RuntimeError where this user has no home."""
    if named := os.environ.get("HEADWAY_CACHE"):
        return Path(named).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).expanduser() / "headway"
    return Path.home() / ".cache" / "headway"


def write_json(path: Path, value: Any) -> None:
    write_whole(path, as_json(value))


def as_json(value: Any) -> str:
    """As it stands in Headway's files."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of writing says where: the system names files that cannot be opened, but not those that fill a disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or ".partial" in str(error.filename)):
            error.filename = str(path)
            if error.filename2 is not None:
                del error.filename2  # set to None, it would still be named
        raise


def check_names(names: Sequence[str], of: str = "a run") -> None:
    """Each is the name of one folder, and one that can be typed and seen."""
    for name in names:
        if not name or not name.isprintable() or "/" in name or name.startswith(".") or len(name.encode()) > 200:
            where = "; --runs says where that folder is" if of == "a run" else ""
            raise UserError(
                f"{name!r} cannot be the name of {of}: a name is one folder's, without '/' and unseen characters, not "
                f"beginning with '.', of at most 200 bytes{where}"
            )


def settle(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing for folders
            raise
    finally:
        os.close(descriptor)


def _other_name(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{what}")


def _undo(aside: Path, path: Path) -> None:
    """Back to its name, if nothing new has taken it."""
    if aside.exists() and not path.exists():
        aside.replace(path)
    shutil.rmtree(aside, ignore_errors=True)


def _is_another_process(pid: int) -> bool:
    if pid == os.getpid():  # what bears our own name was left by somebody before us
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
