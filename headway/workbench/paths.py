"""Names and the folders they stand for: inside the folder that is served, and nowhere else.

A name is the path of a run or study below that folder. Whatever leads out of it (dots, an absolute path, a link) is
treated as if there were nothing: whoever asks learns nothing of what lies elsewhere.
"""

import contextlib
import os
from collections.abc import Container, Iterator
from pathlib import Path

from headway.core.errors import UserError

DEPTH = 6
"""Folders below each other in which runs are looked for."""


class NotThereError(UserError):
    """There is nothing of that name."""


def inside(folder: Path, name: str) -> Path:
    """What a name stands for, whether or not it exists."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") or "\0" in part or part.startswith(".") for part in parts):
        raise NotThereError(f"there is nothing called {name!r} here")
    path = folder / name
    try:
        real = path.resolve()
    except (OSError, RuntimeError):  # a name that no file can have, or links in a circle
        raise NotThereError(f"there is nothing called {name!r} here") from None
    if not real.is_relative_to(folder.resolve()):
        raise NotThereError(f"there is nothing called {name!r} here")
    return path


def folder_with(folder: Path, name: str, file: str, what: str) -> Path:
    """A run or study by its name: the folder below `folder` that holds `file`."""
    path = inside(folder, name)
    if name == folder.name and not path.exists():  # the folder that is served is a run or study itself
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
    """Neither this run or study nor a file of it is a link out of the folder that is served: somebody may have sent it
    so. `whole`: nor anything in its folders, such as weights; the table of runs reads none of those."""
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
    """Those that lie in a folder; and in those below it, which links inside of the whole lead to anyway."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif whole and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # a checkpoint that made way for a newer one meanwhile
                    yield from _links(Path(entry.path), whole)


def below(folder: Path, known: Container[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Every run and every study below a folder; links are not followed. Runs that are known are not looked into."""
    runs: list[Path] = []
    studies: list[Path] = []
    _look_into(folder, DEPTH, known, runs, studies)
    return runs, studies


def _look_into(folder: Path, depth: int, known: Container[Path], runs: list[Path], studies: list[Path]) -> None:
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries}
    except OSError:  # gone, or not ours to read
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
    """A name of bytes that are no UTF-8 can stand in no address and in no JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
