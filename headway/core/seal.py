"""The seal of a folder: the checksums of its files, kept in `seal.json`, which is written last.

    {"files": {"recipe.yaml": ["5feceb…"], "scores.json": ["6b86b2…"], …},
     "lines": {"metrics.jsonl": {"bytes": 51200, "sha256": "d4735e…"}},
     "sha256": "4e0740…"}

Files are written atomically, so damage comes from elsewhere: a disk, an edit, a file of another run. The seal detects
it when a file is read. A killed process must not leave what looks like damage: before a file is replaced, the seal
lists both its old and its new checksum, and afterwards only the new one. Files that grow are sealed up to a length.
Folders from versions without seals are read as they are.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import checksum, write_whole
from headway.core.reading import (
    DAMAGED,
    MOST,
    MOST_LINES,
    UnreadableError,
    as_text,
    check_own,
    parse_json,
    read_bytes,
)

FILE = "seal.json"
ABSENT = "absent"
MAX_READS = 50
"""How often a file that is being rewritten is read again."""
PATIENCE = 60.0
"""Seconds to wait while another process rewrites a folder."""
MADE_AGAIN = ("audit.json", "measures.json", "ensembles.json")
"""Files that may be removed: they are made again when needed."""
REMEDIES = {
    "recipe.yaml": "to restore it, run `headway train RECIPE --resume` with the recipe that made the run",
    "tokenizer.json": "train --resume makes it again",
    "scores.json": "`headway score` measures them again",
    "audit.json": "remove it, and audit again",
    "metrics.jsonl": "weights and scores do not depend on it, and train --resume restores its lines",
    "events.jsonl": "weights and scores do not depend on it: remove it to read the rest",
    "run.json": "its checkpoints have their own checksums and may be intact; train the run again under another name",
    "study.yaml": "its runs may still be intact: a study with another name takes them over with --reuse",
    "measures.json": "remove it, and it is measured again",
    "ensembles.json": "remove it, and it is measured again",
    FILE: "remove it, and the folder is read without a seal",
}


class DamagedError(UnreadableError):
    """A file is not what was written; the message says how to recover."""

    def __init__(self, path: Path, why: str):
        remedy = REMEDIES.get(path.name)
        super().__init__(path, f"{why}; {DAMAGED}{f'; {remedy}' if remedy else ''}")


@dataclass(frozen=True)
class SealedLength:
    """The sealed part of a growing file: its length in bytes, and its checksum."""

    length: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "SealedLength":
        return cls(len(content), checksum(content))

    def as_json(self) -> dict[str, Any]:
        return {"bytes": self.length, "sha256": self.sha256}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "SealedLength":
        """Read what `as_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        return cls(int(told["bytes"]), str(told["sha256"]))

    def fits(self, content: bytes) -> bool:
        return len(content) >= self.length and checksum(content[: self.length]) == self.sha256


@dataclass(frozen=True)
class Seal:
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The permitted checksums of each file: one, or two while it is being replaced."""
    lines: Mapping[str, SealedLength] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, self.text())

    def text(self) -> str:
        told = self._as_tree()
        return json.dumps({**told, "sha256": _sum_of(told)}, indent=1) + "\n"

    def _as_tree(self) -> dict[str, Any]:
        lines = {name: one.as_json() for name, one in sorted(self.lines.items())}
        return {"files": {name: list(sums) for name, sums in sorted(self.files.items())}, "lines": lines}


def read_seal(folder: Path) -> Seal | None:
    """Read a folder's seal; None if the folder was never sealed."""
    path = folder / FILE
    try:
        told = parse_json(read_bytes(path), path)
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        raise UserError(f"{error}; {REMEDIES[FILE]}") from None
    try:
        own = told.pop("sha256")
        files = {name: [str(one) for one in sums] for name, sums in told["files"].items()}
        lines = {name: SealedLength.from_json(one) for name, one in told["lines"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DamagedError(path, "it is not a valid seal") from None
    if own != _sum_of(told):
        raise DamagedError(path, "its checksum differs")
    return Seal(files, lines)


def is_sealed(folder: Path) -> bool:
    return read_seal(folder) is not None


# --- reading ---------------------------------------------------------------------------------------------------------


def read_sealed(path: Path, folder: Path | None = None, most: int = MOST, needed: bool = True) -> bytes:
    """Read a file of a sealed folder (its own folder by default); `DamagedError` if it is not what was written. Raises
    FileNotFoundError if there is none and none is expected; files that can be made again are not `needed`."""
    home = folder or path.parent
    name = str(path.relative_to(home))

    def look() -> tuple[bytes | None, Seal | None]:
        content = _content(path, most)
        return content, read_seal(home)

    def fits(content: bytes | None, seal: Seal | None) -> bool:
        known = seal.files.get(name) if seal else None
        if known is None or (content is None and not needed):
            return True
        return (ABSENT if content is None else checksum(content)) in known

    content, good = _when_settled(look, fits)
    if content is None and good:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    if content is None:
        raise DamagedError(path, "it is missing")
    if not good:
        raise DamagedError(path, "its checksum differs" if content else "it is empty")
    return content


def read_sealed_text(path: Path) -> str:
    with _as_damage(path):
        return as_text(read_sealed(path), path)


def read_sealed_json(path: Path, needed: bool = True) -> Any:
    with _as_damage(path):
        return parse_json(read_sealed(path, needed=needed), path)


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """Report an unreadable file of Headway's own, sealed or not, as damaged."""
    try:
        yield
    except DamagedError:
        raise
    except UnreadableError as error:
        if error.path != path:
            raise
        raise DamagedError(path, error.why) from None


def read_sealed_lines(path: Path, needed: bool = True) -> list[bytes]:
    """Read the lines of a growing file, and check its sealed part. A file that is not `needed` may be missing."""

    def look() -> tuple[bytes | None, Seal | None]:
        content = _content(path, MOST_LINES)
        return content, read_seal(path.parent)

    def fits(content: bytes | None, seal: Seal | None) -> bool:
        known = seal.lines.get(path.name) if seal else None
        return known is None or known.fits(content or b"") or (content is None and not needed)

    content, good = _when_settled(look, fits)
    if not good:
        raise DamagedError(path, "it is missing" if content is None else "its checksum differs")
    return (content or b"").splitlines()


def read_several(folder: Path, names: Sequence[str]) -> tuple[dict[str, bytes | None], bool]:
    """Read several files of a folder (None for a missing one), and whether the folder is sealed."""
    seal, found = read_seal(folder), {}
    for name in names:
        content = _content(folder / name, MOST)
        known = seal.files.get(name) if seal else None
        is_missed = content is not None or name not in MADE_AGAIN
        if known is not None and is_missed and (ABSENT if content is None else checksum(content)) not in known:
            try:
                content = read_sealed(folder / name)  # it may just have been rewritten: check again
            except FileNotFoundError:
                content = None
        found[name] = content
    return found, seal is not None


def damages(folder: Path) -> list[str]:
    """Everything in a sealed folder that is not what was written, one message per file."""
    seal, found = read_seal(folder), []
    for name in [*(seal.files if seal else ()), *(seal.lines if seal else ())]:
        try:
            if seal and name in seal.lines:
                read_sealed_lines(folder / name)
            else:
                read_sealed(folder / name, folder)
        except FileNotFoundError:
            pass  # it was just being created
        except UserError as error:
            found.append(str(error))
    return found


def _content(path: Path, most: int) -> bytes | None:
    try:
        return read_bytes(path, most)
    except FileNotFoundError:
        return None


def _when_settled(
    look: Callable[[], tuple[bytes | None, Seal | None]], fits: Callable[[bytes | None, Seal | None], bool]
) -> tuple[bytes | None, bool]:
    """The content, and whether it fits the seal. Another process may be rewriting the folder while we read: a mismatch
    is damage only if it persists."""
    now = look()
    for _ in range(MAX_READS):
        if fits(*now):
            return now[0], True
        time.sleep(0.01)
        seen, now = now, look()
        if now == seen:
            break
    return now[0], fits(*now)


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def rewriting(folder: Path, new: bool = False) -> Iterator[dict[str, str | bytes | None]]:
    """Rewrite files of a folder: put their new contents into the mapping (None to remove one). They are written at the
    end, by one process at a time, so that the old contents stay readable inside. `new`: seal an unsealed folder."""
    wanted: dict[str, str | bytes | None] = {}
    with _locked(folder):
        seal = read_seal(folder)
        yield wanted
        if not wanted and (seal is not None or not new):
            return
        contents = {name: one.encode() if isinstance(one, str) else one for name, one in wanted.items()}
        if seal is None and not new:
            _write(folder, contents)
            return
        sums = {name: ABSENT if one is None else checksum(one) for name, one in contents.items()}
        known = dict((seal or Seal()).files)
        both = {name: list(dict.fromkeys([*known.get(name, [ABSENT]), sums[name]])) for name in sums}
        lines = (seal or Seal()).lines
        if seal is not None:
            Seal({**known, **both}, lines).write(folder)
        _write(folder, contents)
        there = {name: [one] for name, one in sums.items() if one != ABSENT}
        Seal({**{name: one for name, one in known.items() if name not in sums}, **there}, lines).write(folder)


def seal_new(folder: Path) -> None:
    """Seal everything in a folder that no other process sees yet (`write_folder_whole`)."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    seal = Seal({str(path.relative_to(folder)): [checksum(path.read_bytes())] for path in files})
    (folder / FILE).write_bytes(seal.text().encode())


def seal_lines(folder: Path, *names: str) -> None:
    """Seal growing files at their current length."""
    with _locked(folder):
        if (seal := read_seal(folder)) is None:
            return
        contents = {name: _content(folder / name, MOST_LINES) for name in names}
        grown = {name: SealedLength.of(content) for name, content in contents.items() if content is not None}
        Seal(seal.files, {**seal.lines, **grown}).write(folder)


def unseal_lines(folder: Path, name: str) -> None:
    """Remove a growing file from the seal, before it is shortened."""
    with _locked(folder):
        if (seal := read_seal(folder)) is not None and name in seal.lines:
            replace(seal, lines={other: one for other, one in seal.lines.items() if other != name}).write(folder)


def _write(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    for name, content in contents.items():
        check_own((folder / name).parent)
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_whole(folder / name, content)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock for the moment; the system releases it if the process dies."""
    check_own(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"{folder} has been locked by another process for a minute") from None
                time.sleep(0.005)
            except OSError:  # this file system cannot lock folders: go on without a lock
                break
        yield
    finally:
        os.close(descriptor)


def _sum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
