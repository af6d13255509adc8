"""Maps names to folders, all of them inside the served folder.

A name is the path of a run or study below that folder. A name that leads out of it (by dots, as an absolute path, or
through a link) is treated as missing, so that clients learn nothing about other folders.
"""

import contextlib
import os
from collections.abc import Container, Iterator
from pathlib import Path

from headway.core.errors import UserError

DEPTH = 6
"""How many levels deep runs are searched for."""


class NotThereError(UserError):
    """There is nothing with that name."""


def inside(folder: Path, name: str) -> Path:
    """The path of a name, whether or not it exists."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") or "\0" in part or part.startswith(".") for part in parts):
        raise NotThereError(f"there is nothing called {name!r} here")
    path = folder / name
    try:
        real = path.resolve()
    except (OSError, RuntimeError):  # an invalid file name, or links in a circle
        raise NotThereError(f"there is nothing called {name!r} here") from None
    if not real.is_relative_to(folder.resolve()):
        raise NotThereError(f"there is nothing called {name!r} here")
    return path


def folder_with(folder: Path, name: str, file: str, what: str) -> Path:
    """The folder of a run or study: the one below `folder` with this name that contains `file`."""
    path = inside(folder, name)
    if name == folder.name and not path.exists():  # the served folder is itself a run or study
        path = folder
    try:
        found = (path / file).is_file()
    except OSError:
        found = False
    if not found:
        raise NotThereError(f"there is no {what} {name!r}")
    check_links(folder, path, whole=True)
    return path


def check_links(folder: Path, path: Path, whole: bool = False) -> None:
    """Check that neither this run or study nor any of its files is a link out of the served folder; it may come from
    somebody else. `whole`: check subfolders too, such as weights, which the table of runs does not read."""
    home = folder.resolve()
    if not path.resolve().is_relative_to(home):
        raise NotThereError(f"{path.name} is not read: it is a link that leads out of the folder")
    for link in _links(path, whole):
        try:
            leads_out = not link.resolve().is_relative_to(home)
        except (OSError, RuntimeError):
            leads_out = True
        if leads_out:
            what = link.relative_to(path)
            raise NotThereError(f"{path.name} is not read: {what} in it is a link that leads out of the folder")


def _links(path: Path, whole: bool) -> Iterator[Path]:
    """The links in a folder; and in its subfolders, if `whole`."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif whole and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # a checkpoint that was just replaced by a newer one
                    yield from _links(Path(entry.path), whole)


def below(folder: Path, known: Container[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Every run and every study below a folder. Links are not followed, and known runs are not opened."""
    runs: list[Path] = []
    studies: list[Path] = []
    _look_into(folder, DEPTH, known, runs, studies)
    return runs, studies


def _look_into(folder: Path, depth: int, known: Container[Path], runs: list[Path], studies: list[Path]) -> None:
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries}
    except OSError:  # removed, or not readable
        return
    if "run.json" in found:
        runs.append(folder)
        return
    if "study.yaml" in found or {"verdicts.json", "report.html"} <= found.keys():
        studies.append(folder)
    for name, entry in found.items() if depth else ():
        if name.startswith(".") or not _is_text(name) or not entry.is_dir(follow_symlinks=False):
            continue
        if (path := Path(entry.path)) in known:
            runs.append(path)
        else:
            _look_into(path, depth - 1, known, runs, studies)


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8; other names cannot appear in addresses or JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
